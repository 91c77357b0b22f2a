"""What `examples/train_translation.py` can be told about its data and its model, beside the recipe itself."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..configuration_random_transformer import RandomTransformerConfig
from .corpus import ParallelText


@dataclass
class DataArguments:
    """Where the parallel text is, and what to do with lines that are broken."""

    source_file: str | None = field(default=None, metadata={"help": "Training sources, one a line, UTF-8."})
    target_file: str | None = field(default=None, metadata={"help": "Their translations, line by line."})
    train_file: str | None = field(default=None, metadata={"help": "Both in one .tsv or .jsonl file instead."})
    validation_source_file: str | None = field(default=None, metadata={"help": "Validation sources."})
    validation_target_file: str | None = field(default=None, metadata={"help": "Validation targets."})
    validation_file: str | None = field(default=None, metadata={"help": "Both in one .tsv or .jsonl file instead."})
    test_source_file: str | None = field(default=None, metadata={"help": "Test sources."})
    test_target_file: str | None = field(default=None, metadata={"help": "Test targets."})
    test_file: str | None = field(default=None, metadata={"help": "Both in one .tsv or .jsonl file instead."})
    source_key: str = field(default="source", metadata={"help": "The source's name in a JSON object."})
    target_key: str = field(default="target", metadata={"help": "The target's name in a JSON object."})
    on_broken: str = field(default="refuse", metadata={"help": "'refuse' broken lines, or 'drop' them."})
    max_source_length: int = field(default=256, metadata={"help": "Longer training sources, in tokens, are dropped."})
    max_target_length: int = field(default=256, metadata={"help": "Longer training targets, in tokens, are dropped."})
    preprocessing_num_workers: int | None = field(default=None, metadata={"help": "Processes to tokenise with."})

    def __post_init__(self) -> None:
        for name in ("max_source_length", "max_target_length"):
            if getattr(self, name) < 2:
                raise ValueError(f"{name} must be at least 2, a token and the end, got {getattr(self, name)}.")
        if self.text("train") is None:
            raise ValueError("source_file and target_file, or train_file, must be given to train, got none of them.")

    def text(self, split: str) -> ParallelText | None:
        """The files of `"train"`, `"validation"` or `"test"`; `None` where none are named.

        Raises:
            ValueError: a file is missing, or the files named do not belong together.
        """
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


@dataclass
class ModelArguments:
    """The tokenizer and the sizes of the model."""

    tokenizer: str | None = field(default=None, metadata={"help": "A saved tokenizer; one is trained if unset."})
    vocab_size: int = field(default=8000, metadata={"help": "Entries of a tokenizer that is trained."})
    preset: str = field(default="tiny", metadata={"help": "A preset of RandomTransformerConfig."})
    config_overrides: str = field(
        default="", metadata={"help": 'Fields that differ from the preset: "d_model=256,dropout=0.2".'}
    )

    def config(self, vocab_size: int, **special_ids: int) -> RandomTransformerConfig:
        """The model's configuration.

        Raises:
            ValueError: the preset or an override is not one; the message names it.
        """
        overrides = parse_overrides(self.config_overrides)
        return RandomTransformerConfig.from_preset(
            self.preset, **{"vocab_size": vocab_size, **special_ids, **overrides}
        )


def parse_overrides(text: str) -> dict[str, Any]:
    """`"d_model=256,norm_order=pre"` → `{"d_model": 256, "norm_order": "pre"}`.

    Raises:
        ValueError: a part has no `=`, or names no field of the configuration.
    """
    known = {entry.name for entry in fields(RandomTransformerConfig)}
    overrides = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or name.strip() not in known:
            raise ValueError(f"config_overrides must be like 'd_model=256,dropout=0.2', got {part!r}.")
        overrides[name.strip()] = _value(value.strip())
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
