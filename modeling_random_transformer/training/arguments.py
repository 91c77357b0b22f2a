"""Command-line arguments for the data and the model. The training arguments are in `recipe.py`."""

import ast
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from transformers.hf_argparser import HfArg

from ..base.errors import reraise_as_value_error
from ..configuration_random_transformer import RandomTransformerConfig, did_you_mean
from ..data.sources import Corpus, DatasetText, ParallelText, load_split
from ..inputs_random_transformer import LanguageTags, check_positive
from ..tokenization_random_transformer import LANGUAGE_CODE

VOCAB_SIZE, PRESET = 8000, "tiny"
PREFIXES = {"train": "", "validation": "validation_", "test": "test_"}  # of the arguments of each split
CONSTANTS = ("true", "false", "none")  # in any case
OF_TOKENIZER = {"vocab_size", "pad_token_id", "bos_token_id", "eos_token_id"}  # fields of the configuration
DROPOUTS = ("dropout", "attention_dropout", "activation_dropout")


@dataclass
class DataArguments:
    """The parallel text, and the treatment of invalid lines.

    The training, validation and test sets are each given as two aligned text files, as one .tsv, .csv, .jsonl or
    .parquet file, or as a split of a dataset for `datasets.load_dataset`. Text, .tsv, .csv and .jsonl files may be
    compressed. Several files are several corpora of the set: first those of two aligned files, then those
    of one file. In Python, a single file may also be given as a string.
    """

    source_file: list[str] | None = HfArg(default=None, help="Training sources: one or several UTF-8 text files.")
    target_file: list[str] | None = HfArg(default=None, help="Training targets, aligned with source_file by line.")
    train_file: list[str] | None = HfArg(default=None, help="Training pairs: .tsv, .csv, .jsonl or .parquet files.")
    train_weights: list[int] | None = HfArg(default=None, help="One per training corpus: 2 to see its pairs twice.")
    validation_source_file: list[str] | None = HfArg(default=None, help="Validation sources.")
    validation_target_file: list[str] | None = HfArg(default=None, help="Validation targets.")
    validation_file: list[str] | None = HfArg(default=None, help="Validation pairs, in the formats of train_file.")
    test_source_file: list[str] | None = HfArg(default=None, help="Test sources.")
    test_target_file: list[str] | None = HfArg(default=None, help="Test targets.")
    test_file: list[str] | None = HfArg(default=None, help="Test pairs, in the formats of train_file.")
    source_lang: list[str] | None = HfArg(default=None, help="Languages of the training sources, one or one each.")
    target_lang: list[str] | None = HfArg(default=None, help="Languages of the training targets.")
    validation_source_lang: list[str] | None = HfArg(default=None, help="Validation sources; default: source_lang.")
    validation_target_lang: list[str] | None = HfArg(default=None, help="Languages of the validation targets.")
    test_source_lang: list[str] | None = HfArg(default=None, help="Languages of test sources; default: source_lang.")
    test_target_lang: list[str] | None = HfArg(default=None, help="Languages of the test targets.")
    dataset_name: str | None = HfArg(default=None, help="Dataset name or folder for `datasets.load_dataset`.")
    dataset_config_name: str | None = HfArg(default=None, help="Configuration of the dataset.")
    dataset_revision: str | None = HfArg(default=None, help="Branch, tag or commit of the dataset.")
    train_split: str | None = HfArg(default="train", help="Split of the dataset to train on.")
    validation_split: str | None = HfArg(default=None, help="Split of the dataset to validate on.")
    test_split: str | None = HfArg(default=None, help="Split of the dataset to test on.")
    source_key: str = HfArg(default="source", help="Column of the source: a name, or a number from 1.")
    target_key: str = HfArg(default="target", help="Column of the target: a name, or a number from 1.")
    streaming: bool = HfArg(default=False, help="Stream the training set instead of caching it on disk.")
    buffer_pairs: int = HfArg(default=100_000, help="Shuffle buffer of a stream, in pairs.")
    on_invalid: str = HfArg(default="error", help="Treatment of invalid lines: 'error' or 'skip'.")
    max_source_length: int = HfArg(default=256, help="Skip training pairs with a longer source, in tokens.")
    max_target_length: int = HfArg(default=256, help="Skip training pairs with a longer target, in tokens.")
    max_length_ratio: float | None = HfArg(default=None, help="Skip training pairs with a larger ratio of lengths.")
    preprocessing_num_workers: int | None = HfArg(default=None, help="Number of tokenization processes.")

    requires_train: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in (*FILES, *LANGUAGES):
            value = getattr(self, name)
            if isinstance(value, str | Path):
                setattr(self, name, [str(value)])
        if self.requires_train and not self.has("train"):
            raise ValueError("source_file and target_file, train_file, or dataset_name must be given, got none.")
        count = max(1, len(self._file_texts("train")))
        weights = self.train_weights
        if weights is not None and (
            len(weights) != count or not all(isinstance(weight, int) and weight > 0 for weight in weights)
        ):
            raise ValueError(
                f"train_weights must be {count} positive integers, one per training corpus, got {weights}."
            )
        self._languages("train", count)
        for name, reason in unused_arguments(vars(self)).items():
            if (value := getattr(self, name)) != getattr(type(self), name):
                raise ValueError(f"{name} must be unset {reason}, got {value!r}.")
        check_positive(buffer_pairs=self.buffer_pairs, max_source_length=self.max_source_length)
        check_positive(max_target_length=self.max_target_length)
        check_positive(or_none=True, preprocessing_num_workers=self.preprocessing_num_workers)

    def with_sets(self, **changes: Any) -> dict[str, Any]:
        """The arguments with other sets. Those that lose their effect have their defaults."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)} | changes
        for _ in range(2):  # without a dataset, further arguments have no effect
            values |= {name: getattr(type(self), name) for name in unused_arguments(values)}
        return values

    def reversed(self) -> "DataArguments":
        """The same pairs of aligned files, from target to source."""
        swapped: dict[str, Any] = {}
        for name in (*FILES, *LANGUAGES, "max_source_length"):
            if "source" in name:
                other = name.replace("source", "target")
                swapped |= {name: getattr(self, other), other: getattr(self, name)}
        return replace(self, **swapped)

    def has(self, split: str) -> bool:
        """Whether the split `"train"`, `"validation"` or `"test"` is given."""
        return bool(self._file_texts(split) or (self.dataset_name and getattr(self, f"{split}_split")))

    def sets(self) -> dict[str, list[Corpus]]:
        """The corpora by name of the set. Training corpora are one set, validation and test corpora one set each.

        The names are `"train"`, and such as `"test"`, or `"test en-de"` if there are several or languages.

        Raises:
            ValueError: see `corpora`.
        """
        sets = {"train": self.corpora("train")}
        for split in ("validation", "test"):
            corpora = self.corpora(split)
            sets |= zip(set_names(split, corpora), ([corpus] for corpus in corpora), strict=True)
        return sets

    def corpora(self, split: str) -> list[Corpus]:
        """The corpora of the split `"train"`, `"validation"` or `"test"`; empty if it is not given.

        Raises:
            ValueError: a file is missing, the files cannot be combined, or the dataset cannot be loaded.
        """
        corpora: Sequence[Corpus] = self._file_texts(split) or self._dataset_texts(split)
        if not corpora:
            return []
        weights = (self.train_weights if split == "train" else None) or [1] * len(corpora)
        options = zip(corpora, self._languages(split, len(corpora)), weights, strict=True)
        return [replace(corpus, languages=tags, weight=weight) for corpus, tags, weight in options]

    def _languages(self, split: str, count: int) -> Sequence[LanguageTags]:
        """The languages of each of `count` corpora of a split; by default those of the training corpora."""
        names = [f"{PREFIXES[split]}{side}_lang" for side in ("source", "target")]
        if not any(getattr(self, name) for name in names):
            names = ["source_lang", "target_lang"]
        by_side = [getattr(self, name) for name in names]
        if by_side == [None, None]:
            return [LanguageTags()] * count
        if not all(by_side) or not self.source_lang:
            raise ValueError(f"{names[0]} and {names[1]} must be given together, and with source_lang, got {by_side}.")
        for name, codes in zip(names, by_side, strict=True):
            for code in codes:
                if LANGUAGE_CODE.fullmatch(code) is None:
                    raise ValueError(f"{name} must be language codes such as 'en' and 'zh-Hans', got {code!r}.")
            if len({*codes}) > 1 and len(codes) != count:
                raise ValueError(f"{name} must be 1 or {count} language codes, one per {split} corpus, got {codes}.")
        return list(map(LanguageTags, *((codes * count)[:count] for codes in by_side)))

    def _file_texts(self, split: str) -> list[ParallelText]:
        names = [f"{PREFIXES[split]}{side}_file" for side in ("source", "target")]
        sources, targets, single = (getattr(self, name) or [] for name in (*names, f"{split}_file"))
        if len(sources) != len(targets):
            found = f"{len(sources)} and {len(targets)}"
            raise ValueError(f"{names[0]} and {names[1]} must have the same number of files, got {found}.")
        files = [*zip(map(Path, sources), map(Path, targets), strict=True), *((Path(path), None) for path in single)]
        return [ParallelText(*paths, source_key=self.source_key, target_key=self.target_key) for paths in files]

    def _dataset_texts(self, split: str) -> list[DatasetText]:
        name = getattr(self, f"{split}_split")
        if self.dataset_name is None or name is None:
            return []
        options = {"split": name, "revision": self.dataset_revision, "streaming": self.streaming and split == "train"}
        requested = f"dataset_name={self.dataset_name!r}, dataset_config_name={self.dataset_config_name!r}"
        with reraise_as_value_error(f"{requested} and {split}_split={name!r} must name a dataset"):
            dataset, version = load_split(self.dataset_name, self.dataset_config_name, **options)
        keys: Any = {"source_key": self.source_key, "target_key": self.target_key}
        return [DatasetText(dataset, f"{self.dataset_name} {name}", version, **keys)]


FILES, LANGUAGES = (
    tuple(entry.name for entry in fields(DataArguments) if entry.name.endswith(end)) for end in ("file", "lang")
)


def unused_arguments(values: Mapping[str, Any]) -> dict[str, str]:
    """The arguments of `DataArguments` that have no effect beside the others, and the reasons."""
    with_files = [split for split in PREFIXES if values[f"{split}_file"] or values[f"{PREFIXES[split]}source_file"]]
    from_dataset = [split for split in PREFIXES if split not in with_files and values[f"{split}_split"]]
    unused = {f"{split}_split": "for a set that is given as files" for split in with_files}
    if not from_dataset:
        unused["dataset_name"] = "if all sets are given as files"
    if values["dataset_name"] is None:
        names = ["dataset_config_name", "dataset_revision", *(f"{split}_split" for split in PREFIXES)]
        unused |= dict.fromkeys(names, "without dataset_name")
    if values["dataset_name"] is None and not any(values[f"{split}_file"] for split in PREFIXES):
        unused |= dict.fromkeys(("source_key", "target_key"), "without a file or dataset with columns")
    if not values["streaming"]:
        unused["buffer_pairs"] = "without streaming"
    return unused


@dataclass
class ModelArguments:
    """The tokenizer and the architecture for training from scratch, or the model to fine-tune."""

    tokenizer: str | None = HfArg(default=None, help="Saved tokenizer or SentencePiece model; default: train one.")
    vocab_size: int | None = HfArg(default=None, help=f"Size of a vocabulary that is trained; default: {VOCAB_SIZE}.")
    special_tokens: list[str] | None = HfArg(default=None, help="More special tokens of the tokenizer, such as '<bt>'.")
    preset: str | None = HfArg(default=None, help=f"Preset of RandomTransformerConfig; default: {PRESET}.")
    config_overrides: str = HfArg(default="", help='Fields that override the preset: "d_model=256,dropout=0.2".')
    model_name_or_path: str | None = HfArg(
        default=None, help="Saved model to fine-tune; with tokenizer or vocab_size, the parent of a new vocabulary."
    )
    lora_rank: int | None = HfArg(default=None, help="LoRA rank; the base model is frozen.")
    lora_alpha: int | None = HfArg(default=None, help="LoRA scaling: alpha / rank; default: alpha of 2 · rank.")
    lora_dropout: float = HfArg(default=0.0, help="Dropout rate on the input of the LoRA layers.")
    lora_target_modules: str = HfArg(default="", help='Modules to adapt, such as "q_proj,fc1"; default: those of peft.')

    def __post_init__(self) -> None:
        if self.tokenizer is not None:
            self._check_unset("with tokenizer, which has a vocabulary", "vocab_size")
        if reserved := sorted(parse_overrides(self.config_overrides).keys() & OF_TOKENIZER):
            raise ValueError(f"config_overrides must not have fields of the tokenizer, got {', '.join(reserved)}.")
        if self.model_name_or_path is not None:
            fixed_names = ("preset",) if self.has_new_vocabulary else ("preset", "special_tokens")
            self._check_unset("with model_name_or_path (the saved one is used)", *fixed_names)
            if self.has_new_vocabulary:
                self._check_unset("with another vocabulary than that of model_name_or_path", "lora_rank")
            fixed = sorted(set(parse_overrides(self.config_overrides)) - set(DROPOUTS))
            if fixed:  # a saved model has an architecture
                allowed = f"of {', '.join(DROPOUTS)} for a saved model"
                raise ValueError(f"config_overrides must be {allowed}, got {', '.join(fixed)}.")
        elif self.lora_rank is not None:
            raise ValueError(f"lora_rank requires model_name_or_path (the base model), got {self.lora_rank}.")
        if self.lora_rank is None:
            self._check_unset("without lora_rank", "lora_alpha", "lora_dropout", "lora_target_modules")
        check_positive(or_none=True, vocab_size=self.vocab_size, lora_rank=self.lora_rank, lora_alpha=self.lora_alpha)

    @property
    def has_new_vocabulary(self) -> bool:
        """Whether the vocabulary is not that of a saved model."""
        return self.model_name_or_path is None or self.tokenizer is not None or self.vocab_size is not None

    @property
    def saved_tokenizer(self) -> str | None:
        """The tokenizer to load; `None` to train one."""
        return self.tokenizer if self.has_new_vocabulary else self.model_name_or_path

    @property
    def lora_targets(self) -> list[str]:
        """The names in `lora_target_modules`; an empty list for the default."""
        return [name.strip() for name in self.lora_target_modules.split(",") if name.strip()]

    def _check_unset(self, reason: str, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value != getattr(type(self), name):
                raise ValueError(f"{name} must be unset {reason}, got {value!r}.")

    def config(self, vocab_size: int, **special_ids: int) -> RandomTransformerConfig:
        """The model's configuration.

        Raises:
            ValueError: the preset or an override is invalid; the message names it.
        """
        values = {"vocab_size": vocab_size, **special_ids, **parse_overrides(self.config_overrides)}
        return RandomTransformerConfig.from_preset(self.preset or PRESET, **values)


def set_names(split: str, corpora: Sequence[Corpus]) -> list[str]:
    """The names of validation or test sets: `["test"]`, `["test en-de", "test en-fr"]`, `["test news", "test talks"]`.

    Args:
        split: `"validation"` or `"test"`.
        corpora: one per set.
    """
    if len(corpora) == 1 and not corpora[0].direction:
        return [split]
    # The languages, or the name of the source file without its extension.
    short = [Path(corpus.source).stem if isinstance(corpus, ParallelText) else str(corpus) for corpus in corpora]
    names = [corpus.direction or name for corpus, name in zip(corpora, short, strict=True)]
    numbered = [
        f"{name} {names[: i + 1].count(name)}" if names.count(name) > 1 else name for i, name in enumerate(names)
    ]
    return [f"{split} {name}" for name in numbered]


def parse_overrides(text: str) -> dict[str, Any]:
    """Parse `"d_model=256,norm_order=pre"` into `{"d_model": 256, "norm_order": "pre"}`.

    Raises:
        ValueError: a part has no `=` or does not name a field of the configuration; the message has a similar name.
    """
    types = {entry.name: entry.type for entry in fields(RandomTransformerConfig)}
    overrides = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        name, value = name.strip(), value.strip()
        if not equals or name not in types:
            similar = did_you_mean(name, types)
            raise ValueError(f"config_overrides must be like 'd_model=256,dropout=0.2', got {part!r}.{similar}")
        overrides[name] = value
        if types[name] is not str:  # position_embedding may be "none"
            with suppress(ValueError, SyntaxError):
                overrides[name] = ast.literal_eval(value.capitalize() if value.lower() in CONSTANTS else value)
    return overrides
