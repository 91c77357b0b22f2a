"""What `examples/train_translation.py` can be told about its data and its model, beside the recipe itself."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from datasets import load_dataset

from ..configuration_random_transformer import RandomTransformerConfig
from ..data.sources import Corpus, DatasetText, ParallelText

VOCAB_SIZE, PRESET = 8000, "tiny"
DROPOUTS = ("dropout", "attention_dropout", "activation_dropout")


@dataclass
class DataArguments:
    """Where the parallel text is, and what to do with lines that are broken.

    Each of the sets, for training, validation and test, is two aligned files, one file of both sides, or a split of a
    dataset that `datasets.load_dataset` finds.
    """

    source_file: str | None = field(default=None, metadata={"help": "Training sources, one a line, UTF-8."})
    target_file: str | None = field(default=None, metadata={"help": "Their translations, line by line."})
    train_file: str | None = field(default=None, metadata={"help": "Both in one .tsv or .jsonl file instead."})
    validation_source_file: str | None = field(default=None, metadata={"help": "Validation sources."})
    validation_target_file: str | None = field(default=None, metadata={"help": "Validation targets."})
    validation_file: str | None = field(default=None, metadata={"help": "Both in one .tsv or .jsonl file instead."})
    test_source_file: str | None = field(default=None, metadata={"help": "Test sources."})
    test_target_file: str | None = field(default=None, metadata={"help": "Test targets."})
    test_file: str | None = field(default=None, metadata={"help": "Both in one .tsv or .jsonl file instead."})
    dataset_name: str | None = field(default=None, metadata={"help": "What `load_dataset` takes: a name or a folder."})
    dataset_config_name: str | None = field(default=None, metadata={"help": "The dataset's configuration."})
    train_split: str | None = field(default="train", metadata={"help": "The dataset's split to train on."})
    validation_split: str | None = field(default=None, metadata={"help": "Its split to validate on."})
    test_split: str | None = field(default=None, metadata={"help": "Its split to test on."})
    source_key: str = field(default="source", metadata={"help": "The source's name in a JSON object or a dataset."})
    target_key: str = field(default="target", metadata={"help": "The target's name in a JSON object or a dataset."})
    streaming: bool = field(default=False, metadata={"help": "Read the training set as it comes, keep no copy."})
    buffer_pairs: int = field(default=100_000, metadata={"help": "Pairs shuffled among themselves when streaming."})
    on_invalid: str = field(default="error", metadata={"help": "'error' or 'skip': what to do with invalid lines."})
    max_source_length: int = field(default=256, metadata={"help": "Longer training sources, in tokens, are dropped."})
    max_target_length: int = field(default=256, metadata={"help": "Longer training targets, in tokens, are dropped."})
    preprocessing_num_workers: int | None = field(default=None, metadata={"help": "Processes to tokenise with."})

    def __post_init__(self) -> None:
        for name in ("max_source_length", "max_target_length"):
            if getattr(self, name) < 2:
                raise ValueError(f"{name} must be at least 2, a token and the end, got {getattr(self, name)}.")
        if not self.has("train"):
            raise ValueError(
                "source_file and target_file, train_file, or dataset_name must be given to train, got none of them."
            )

    def has(self, split: str) -> bool:
        """Whether there is a set for `"train"`, `"validation"` or `"test"`."""
        return self._file_text(split) is not None or self._dataset_split(split) is not None

    def text(self, split: str) -> Corpus | None:
        """The set for `"train"`, `"validation"` or `"test"`; `None` where none is named.

        Raises:
            ValueError: a file is missing, the files named do not belong together, or there is no such dataset.
        """
        return self._file_text(split) or self._dataset_text(split)

    def _file_text(self, split: str) -> ParallelText | None:
        prefix = "" if split == "train" else f"{split}_"
        source, target = getattr(self, f"{prefix}source_file"), getattr(self, f"{prefix}target_file")
        single = getattr(self, f"{split}_file")
        if single is not None and (source or target):
            raise ValueError(f"{split}_file stands in for {prefix}source_file and {prefix}target_file, got both kinds.")
        if (source is None) != (target is None):
            raise ValueError(f"{prefix}source_file and {prefix}target_file belong together, got one of them.")
        if single is None and source is None:
            return None
        return ParallelText(
            Path(single or source), None if target is None else Path(target), self.source_key, self.target_key
        )

    def _dataset_split(self, split: str) -> str | None:
        return None if self.dataset_name is None else getattr(self, f"{split}_split")

    def _dataset_text(self, split: str) -> DatasetText | None:
        name = self._dataset_split(split)
        if name is None:
            return None
        streaming = self.streaming and split == "train"
        try:
            dataset = load_dataset(self.dataset_name, self.dataset_config_name, split=name, streaming=streaming)
        except (OSError, ValueError) as error:
            asked = f"dataset_name={self.dataset_name!r}, dataset_config_name={self.dataset_config_name!r}"
            raise ValueError(f"{asked} and {split}_split={name!r} must name a dataset: {error}") from error
        return DatasetText(dataset, self.source_key, self.target_key, name=f"{self.dataset_name} {name}")


@dataclass
class ModelArguments:
    """The tokenizer and the sizes of the model, or the saved translator to go on from."""

    tokenizer: str | None = field(default=None, metadata={"help": "A saved tokenizer; one is trained if unset."})
    vocab_size: int | None = field(
        default=None, metadata={"help": f"Entries of a tokenizer that is trained; unset, {VOCAB_SIZE}."}
    )
    preset: str | None = field(
        default=None, metadata={"help": f"A preset of RandomTransformerConfig; unset, {PRESET}."}
    )
    config_overrides: str = field(
        default="", metadata={"help": 'Fields that differ from the preset: "d_model=256,dropout=0.2".'}
    )
    model_name_or_path: str | None = field(
        default=None, metadata={"help": "A saved translator to train further, instead of random weights."}
    )
    lora_rank: int | None = field(
        default=None, metadata={"help": "Leave its weights as they are and train an adapter of this rank (LoRA)."}
    )
    lora_alpha: int | None = field(
        default=None, metadata={"help": "The adapter's output is scaled by this over the rank; unset, twice the rank."}
    )
    lora_dropout: float = field(default=0.0, metadata={"help": "Dropout rate on the adapter's input."})
    lora_target_modules: str = field(
        default="", metadata={"help": 'Layers to adapt, such as "q_proj,v_proj,fc1"; unset, peft\'s default.'}
    )

    def __post_init__(self) -> None:
        if self.model_name_or_path is not None:
            self._check_saved()
        elif self.lora_rank is not None:
            raise ValueError(f"lora_rank needs model_name_or_path, a translator to adapt, got {self.lora_rank} alone.")
        if self.lora_rank is None:
            self._refuse_adapters_options()
        for name in ("lora_rank", "lora_alpha"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}.")

    def _refuse_adapters_options(self) -> None:
        for name in ("lora_alpha", "lora_dropout", "lora_target_modules"):
            value = getattr(self, name)
            if value != getattr(type(self), name):
                raise ValueError(f"{name} must be unset without lora_rank, got {value!r}.")

    def _check_saved(self) -> None:
        """A saved translator has its tokenizer and its sizes; what may be changed are rates of dropout."""
        for name in ("tokenizer", "vocab_size", "preset"):
            value = getattr(self, name)
            if value is not None:
                raise ValueError(f"{name} must be unset with model_name_or_path, which has its own, got {value!r}.")
        sizes = sorted(set(parse_overrides(self.config_overrides)) - set(DROPOUTS))
        if sizes:
            raise ValueError(
                f"config_overrides must be of {', '.join(DROPOUTS)} for a saved model, got {', '.join(sizes)}."
            )

    @property
    def lora_targets(self) -> list[str] | None:
        """The layers to adapt; `None` leaves them to peft."""
        return [name.strip() for name in self.lora_target_modules.split(",") if name.strip()] or None

    def config(self, vocab_size: int, **special_ids: int) -> RandomTransformerConfig:
        """The model's configuration.

        Raises:
            ValueError: the preset or an override is not one; the message names it.
        """
        overrides = parse_overrides(self.config_overrides)
        return RandomTransformerConfig.from_preset(
            self.preset or PRESET, **{"vocab_size": vocab_size, **special_ids, **overrides}
        )


def parse_overrides(text: str) -> dict[str, Any]:
    """`"d_model=256,norm_order=pre"` → `{"d_model": 256, "norm_order": "pre"}`.

    Raises:
        ValueError: a part has no `=`, or names no field of the configuration.
    """
    types = {entry.name: entry.type for entry in fields(RandomTransformerConfig)}
    overrides = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        name, value = name.strip(), value.strip()
        if not equals or name not in types:
            raise ValueError(f"config_overrides must be like 'd_model=256,dropout=0.2', got {part!r}.")
        overrides[name] = value if types[name] is str else _value(value)  # position_embedding may be "none"
    return overrides


def _value(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
