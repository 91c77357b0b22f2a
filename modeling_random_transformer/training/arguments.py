"""The arguments of the data and of the model. The training arguments are in `training_arguments.py`."""

import ast
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from ..base.errors import reraise_as_value_error
from ..base.streams import check_readable
from ..configuration_random_transformer import RandomTransformerConfig, did_you_mean
from ..data.lengths import LengthLimits
from ..data.sources import Corpus, DatasetText, ParallelText, load_split
from ..data.validation import ON_INVALID
from ..inputs_random_transformer import Languages, check_choice, check_positive
from ..tokenization_random_transformer import LANGUAGE_CODE, MIN_VOCAB_SIZE

DEFAULT_VOCAB_SIZE, DEFAULT_PRESET = 8000, "tiny"
ARGUMENT_PREFIXES = {"train": "", "validation": "validation_", "test": "test_"}  # prefixes of each split's arguments
DATASET_ARGUMENTS = ("dataset_config_name", "dataset_revision", "train_split", "validation_split", "test_split")
CONSTANTS = ("true", "false", "none")  # lower or upper case
TOKENIZER_FIELDS = {"vocab_size", "pad_token_id", "bos_token_id", "eos_token_id"}  # fields of the configuration
DROPOUTS = ("dropout", "attention_dropout", "activation_dropout")
OptionalStrings = list[str] | None  # one string becomes a list


@dataclass
class DataArguments:
    """The parallel text, and the treatment of invalid lines.

    Each set is given as two aligned text files, as one .tsv, .csv, .jsonl, .parquet or .tmx file, as a .zip file of
    OPUS with aligned text, or as a split of a dataset for `datasets.load_dataset`. All formats except .parquet and .zip
    may be compressed. Several files are several corpora of the set. Corpora of two aligned files precede corpora of one
    file. In Python, a single file may also be given as a string.

    Args:
        source_file: UTF-8 text files of the training sources, one text per line
        target_file: training targets, aligned with `source_file` by line
        train_file: training pairs: .tsv, .csv, .jsonl, .parquet, .tmx or .zip files
        train_weights: number of times that each pair occurs per epoch, one integer per training corpus (default: 1)
        validation_source_file: validation sources
        validation_target_file: validation targets
        validation_file: validation pairs, in the formats of `train_file`
        test_source_file: test sources
        test_target_file: test targets
        test_file: test pairs, in the formats of `train_file`
        source_lang: language codes of the training sources: one for all corpora, or one per corpus
        target_lang: language codes of the training targets
        validation_source_lang: language codes of the validation sources (default: those of `source_lang`)
        validation_target_lang: language codes of the validation targets
        test_source_lang: language codes of the test sources (default: those of `source_lang`)
        test_target_lang: language codes of the test targets
        dataset_name: dataset name or folder for `datasets.load_dataset`
        dataset_config_name: configuration of the dataset
        dataset_revision: branch, tag or commit of the dataset
        train_split: split of the dataset to train on
        validation_split: split of the dataset to validate on
        test_split: split of the dataset to test on
        source_key: column or language of the source: a name, or the number of a column from 1
        target_key: column or language of the target: a name, or the number of a column from 1
        streaming: stream the training set instead of caching it on disk
        buffer_pairs: shuffle buffer of a stream, in pairs
        on_invalid: treatment of invalid lines: error or skip
        max_source_length: skip training pairs with a longer source, in tokens
        max_target_length: skip training pairs with a longer target, in tokens
        max_length_ratio: skip training pairs with a larger ratio of the longer to the shorter side, in tokens
        preprocessing_num_workers: number of tokenization processes

    Raises:
        ValueError: an argument is invalid, or has no effect with the others.
    """

    source_file: OptionalStrings = None
    target_file: OptionalStrings = None
    train_file: OptionalStrings = None
    train_weights: list[int] | None = None
    validation_source_file: OptionalStrings = None
    validation_target_file: OptionalStrings = None
    validation_file: OptionalStrings = None
    test_source_file: OptionalStrings = None
    test_target_file: OptionalStrings = None
    test_file: OptionalStrings = None
    source_lang: OptionalStrings = None
    target_lang: OptionalStrings = None
    validation_source_lang: OptionalStrings = None
    validation_target_lang: OptionalStrings = None
    test_source_lang: OptionalStrings = None
    test_target_lang: OptionalStrings = None
    dataset_name: str | None = None
    dataset_config_name: str | None = None
    dataset_revision: str | None = None
    train_split: str | None = "train"
    validation_split: str | None = None
    test_split: str | None = None
    source_key: str = "source"
    target_key: str = "target"
    streaming: bool = False
    buffer_pairs: int = 100_000
    on_invalid: str = "error"
    max_source_length: int = 256
    max_target_length: int = 256
    max_length_ratio: float | None = None
    preprocessing_num_workers: int | None = None

    requires_train: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in (*FILE_ARGUMENTS, *LANGUAGE_ARGUMENTS):
            value = getattr(self, name)
            if isinstance(value, str | Path):
                setattr(self, name, [str(value)])
        for name in FILE_ARGUMENTS:
            for path in getattr(self, name) or ():
                check_readable(name, path)
        if self.requires_train and not self.has("train"):
            raise ValueError("source_file and target_file, train_file, or dataset_name must be given, got none.")
        count = max(1, len(self._file_texts("train")))
        weights = self.train_weights
        are_positive = all(isinstance(weight, int) and weight > 0 for weight in weights or ())
        if weights is not None and not (are_positive and len(weights) == count):
            raise ValueError(
                f"train_weights must be {count} positive integers, one per training corpus, got {weights}."
            )
        self._languages("train", count)
        for name, reason in unused_arguments(vars(self)).items():
            check_unset(self, name, reason)
        check_choice(ON_INVALID, on_invalid=self.on_invalid)
        check_positive(
            buffer_pairs=self.buffer_pairs,
            max_source_length=self.max_source_length,
            max_target_length=self.max_target_length,
        )
        check_positive(or_none=True, preprocessing_num_workers=self.preprocessing_num_workers)
        if self.max_length_ratio is not None and not self.max_length_ratio >= 1:
            raise ValueError(f"max_length_ratio must be None or at least 1, got {self.max_length_ratio}.")

    def with_sets(self, **changes: Any) -> "DataArguments":
        """The arguments with other sets. Arguments that lose their effect get their defaults."""
        values = vars(self) | changes
        values |= {name: getattr(type(self), name) for name in unused_arguments(values)}
        return type(self)(**values)

    def reversed(self) -> "DataArguments":
        """The same sets with sources and targets exchanged."""
        opposite: dict[str, Any] = {}
        for name in vars(self):
            if "source" in name:
                target = name.replace("source", "target")
                opposite |= {name: getattr(self, target), target: getattr(self, name)}
        return self.with_sets(**opposite)

    @property
    def length_limits(self) -> LengthLimits:
        """The maximum lengths of training pairs."""
        return LengthLimits(self.max_source_length, self.max_target_length, self.max_length_ratio)

    def has(self, split: str) -> bool:
        """Whether the split `"train"`, `"validation"` or `"test"` is given."""
        return bool(self._file_texts(split) or (self.dataset_name and getattr(self, f"{split}_split")))

    def sets(self) -> dict[str, list[Corpus]]:
        """The corpora by name of the set. Training corpora are one set, validation and test corpora one set each.

        The names are `"train"`, `"validation"` and `"test"`. Names such as `"test en-de"` are used if there are several
        sets of a split or languages.

        Raises:
            ValueError: see `corpora`.
        """
        sets = {"train": self.corpora("train")}
        for split in ("validation", "test"):
            corpora = self.corpora(split)
            for name, corpus in zip(set_names(split, corpora), corpora, strict=True):
                sets[name] = [corpus]
        return sets

    def corpora(self, split: str) -> list[Corpus]:
        """The corpora of the split `"train"`, `"validation"` or `"test"`; empty if it is not given.

        Raises:
            ValueError: a file is missing, the files cannot be combined, or the dataset cannot be loaded.
        """
        corpora: Sequence[Corpus] = self._file_texts(split)
        if not corpora and self.dataset_name is not None:
            corpora = self._dataset_texts(self.dataset_name, split)
        if not corpora:
            return []
        weights = [1] * len(corpora)
        if split == "train" and self.train_weights is not None:
            weights = self.train_weights
        options = zip(corpora, self._languages(split, len(corpora)), weights, strict=True)
        return [replace(corpus, languages=tags, weight=weight) for corpus, tags, weight in options]

    def _languages(self, split: str, count: int) -> Sequence[Languages]:
        """The languages of each of `count` corpora of a split; by default those of the training corpora."""
        names = [f"{ARGUMENT_PREFIXES[split]}source_lang", f"{ARGUMENT_PREFIXES[split]}target_lang"]
        if not any(getattr(self, name) for name in names):
            names = ["source_lang", "target_lang"]
        codes = [getattr(self, name) for name in names]
        if codes == [None, None]:
            return [Languages()] * count
        if not all(codes) or not self.source_lang:
            raise ValueError(f"{names[0]} and {names[1]} must be given together, and with source_lang, got {codes}.")
        sides = [self._codes_of_corpora(name, split, count) for name in names]
        return [*map(Languages, *sides)]

    def _codes_of_corpora(self, name: str, split: str, count: int) -> list[str]:
        """The language code of each of `count` corpora, from an argument with one code or with one code per corpus."""
        codes = getattr(self, name)
        for code in codes:
            if LANGUAGE_CODE.fullmatch(code) is None:
                raise ValueError(f"{name} must be language codes such as 'en' and 'zh-Hans', got {code!r}.")
        if len({*codes}) == 1:
            return codes[:1] * count
        if len(codes) != count:
            prefix = ARGUMENT_PREFIXES[split]  # `name` lacks it if the codes are those of the training corpora
            argument = f"{prefix}{name.removeprefix(prefix)}"
            raise ValueError(f"{argument} must be 1 or {count} language codes, one per {split} corpus, got {codes}.")
        return codes

    def _file_texts(self, split: str) -> list[ParallelText]:
        source_name = f"{ARGUMENT_PREFIXES[split]}source_file"
        target_name = f"{ARGUMENT_PREFIXES[split]}target_file"
        sources = getattr(self, source_name) or []
        targets = getattr(self, target_name) or []
        files = getattr(self, f"{split}_file") or []
        if len(sources) != len(targets):
            raise ValueError(
                f"{source_name} and {target_name} must have the same number of files, "
                f"got {len(sources)} and {len(targets)}."
            )
        texts = [ParallelText(Path(source), Path(target)) for source, target in zip(sources, targets, strict=True)]
        for path in files:
            texts.append(ParallelText(Path(path), source_key=self.source_key, target_key=self.target_key))
        return texts

    def _dataset_texts(self, dataset: str, split: str) -> list[DatasetText]:
        name = getattr(self, f"{split}_split")
        if name is None:
            return []
        with reraise_as_value_error(
            f"dataset_name={dataset!r}, dataset_config_name={self.dataset_config_name!r} and "
            f"{split}_split={name!r} must name a dataset"
        ):
            rows, version = load_split(
                dataset,
                self.dataset_config_name,
                split=name,
                revision=self.dataset_revision,
                streaming=self.streaming and split == "train",
            )
        return [
            DatasetText(
                rows,
                name=f"{dataset} {name}",
                version=version,
                source_key=self.source_key,
                target_key=self.target_key,
            )
        ]


FILE_ARGUMENTS = tuple(entry.name for entry in fields(DataArguments) if entry.name.endswith("file"))
LANGUAGE_ARGUMENTS = tuple(entry.name for entry in fields(DataArguments) if entry.name.endswith("lang"))


def check_unset(arguments: Any, names: str, reason: str) -> None:
    """Check that fields of a dataclass have their defaults or are empty, because other values have no effect.

    Args:
        arguments: the dataclass.
        names: one or more fields, separated by spaces.
        reason: why they have no effect, for the message.
    """
    for name in names.split():
        default = getattr(type(arguments), name, None)  # none if the installed transformers does not have the argument
        value = getattr(arguments, name, default)
        if value not in (default, []):
            raise ValueError(f"{name} must be unset {reason}, got {value!r}.")


def unused_arguments(values: Mapping[str, Any]) -> dict[str, str]:
    """The arguments of `DataArguments` that have no effect because of other arguments, and the reasons."""
    unused = {}
    uses_dataset = uses_columns = False
    for split, prefix in ARGUMENT_PREFIXES.items():
        if values[f"{split}_file"] or values[f"{prefix}source_file"]:
            unused[f"{split}_split"] = "for a set that is given as files"
            uses_columns |= bool(values[f"{split}_file"])
        elif values["dataset_name"] and values[f"{split}_split"]:
            uses_dataset = uses_columns = True
    if not uses_dataset:
        unused["dataset_name"] = "if all sets are given as files"
        unused |= dict.fromkeys(DATASET_ARGUMENTS, "without dataset_name")
    if not uses_columns:
        unused |= dict.fromkeys(("source_key", "target_key"), "without a file or dataset with columns")
    if not values["streaming"]:
        unused["buffer_pairs"] = "without streaming"
    return unused


@dataclass
class ModelArguments:
    """The tokenizer and the architecture for training from scratch, or the model to fine-tune.

    Args:
        tokenizer: saved tokenizer or SentencePiece model (default: a new tokenizer is trained)
        vocab_size: vocabulary size of the tokenizer that is trained (default: 8000)
        special_tokens: additional special tokens of the tokenizer, such as '<bt>'
        preset: tiny, base, big, iwslt, 6-2, 12-1, blog, or a row of the paper's Table 3 such as A-1 (default: tiny)
        config_overrides: configuration fields that override the preset, such as "d_model=256,dropout=0.2"
        model_name_or_path: saved model to fine-tune; with `tokenizer` or `vocab_size`, parent of a model with a new
            vocabulary
        freeze: parts of parameter names to freeze, such as "encoder,shared"
        lora_rank: LoRA rank; the base model is frozen
        lora_alpha: LoRA alpha; adapters are scaled by alpha / rank (default: 2 · rank)
        lora_dropout: dropout rate on the input of the LoRA layers
        lora_target_modules: modules to adapt, such as "q_proj,fc1" (default: those of peft)

    Raises:
        ValueError: an argument is invalid, or has no effect with the others.
    """

    tokenizer: str | None = None
    vocab_size: int | None = None
    special_tokens: OptionalStrings = None
    preset: str | None = None
    config_overrides: str = ""
    model_name_or_path: str | None = None
    freeze: str = ""
    lora_rank: int | None = None
    lora_alpha: int | None = None
    lora_dropout: float = 0.0
    lora_target_modules: str = ""

    def __post_init__(self) -> None:
        if reserved := sorted(self.overrides.keys() & TOKENIZER_FIELDS):
            raise ValueError(f"config_overrides must not have fields of the tokenizer, got {', '.join(reserved)}.")
        if self.tokenizer is not None:
            check_unset(self, "vocab_size", "with tokenizer, which has a vocabulary")
        if self.model_name_or_path is not None:
            self._check_saved_model()
        elif self.lora_rank is not None:
            raise ValueError(f"lora_rank requires model_name_or_path (the base model), got {self.lora_rank}.")
        if self.model_name_or_path is None or self.lora_rank is not None:
            check_unset(self, "freeze", "without model_name_or_path, and with lora_rank")
        if self.lora_rank is None:
            check_unset(self, "lora_alpha lora_dropout lora_target_modules", "without lora_rank")
        if self.vocab_size is not None and self.vocab_size < MIN_VOCAB_SIZE:
            raise ValueError(
                f"vocab_size must be at least {MIN_VOCAB_SIZE} (the special tokens and the 256 bytes), "
                f"got {self.vocab_size}."
            )
        check_positive(or_none=True, lora_rank=self.lora_rank, lora_alpha=self.lora_alpha)
        if not 0 <= self.lora_dropout < 1:
            raise ValueError(f"lora_dropout must be at least 0 and below 1, got {self.lora_dropout}.")

    def _check_saved_model(self) -> None:
        check_unset(self, "preset", "with model_name_or_path (the saved one is used)")
        if self.has_new_vocabulary:
            check_unset(self, "lora_rank", "with another vocabulary than that of model_name_or_path")
        else:
            check_unset(self, "special_tokens", "with model_name_or_path (the saved one is used)")
        if fixed := sorted(self.overrides.keys() - {*DROPOUTS}):
            names = ", ".join(DROPOUTS)
            raise ValueError(f"config_overrides must be of {names} for a saved model, got {', '.join(fixed)}.")

    @property
    def overrides(self) -> dict[str, Any]:
        """The fields of the configuration in `config_overrides`; see `parse_overrides`."""
        return parse_overrides(self.config_overrides)

    @property
    def has_new_vocabulary(self) -> bool:
        """Whether the vocabulary is not that of a saved model."""
        return self.model_name_or_path is None or self.tokenizer is not None or self.vocab_size is not None

    @property
    def saved_tokenizer(self) -> str | None:
        """The tokenizer to load; `None` to train one."""
        return self.tokenizer if self.has_new_vocabulary else self.model_name_or_path

    @property
    def size_of_new_vocabulary(self) -> int:
        """The vocabulary size of a tokenizer to train."""
        return self.vocab_size or DEFAULT_VOCAB_SIZE

    @property
    def lora_targets(self) -> list[str]:
        """The names in `lora_target_modules`; an empty list for the default."""
        return [name.strip() for name in self.lora_target_modules.split(",") if name.strip()]

    def config(self, vocab_size: int, **special_ids: int) -> RandomTransformerConfig:
        """The model's configuration.

        Raises:
            ValueError: the preset or an override is invalid; the message names it.
        """
        values = {"vocab_size": vocab_size, **special_ids, **self.overrides}
        return RandomTransformerConfig.from_preset(self.preset or DEFAULT_PRESET, **values)


def set_names(split: str, corpora: Sequence[Corpus]) -> list[str]:
    """The names of validation or test sets: `["test"]`, `["test en-de", "test en-fr"]`, `["test news", "test talks"]`.

    Args:
        split: `"validation"` or `"test"`.
        corpora: one per set.
    """
    if len(corpora) == 1 and not corpora[0].direction:
        return [split]
    names = []
    for corpus in corpora:
        file_or_dataset = Path(corpus.source).stem if isinstance(corpus, ParallelText) else str(corpus)
        names.append(f"{split} {corpus.direction or file_or_dataset}")
    if len({*names}) < len(names):
        return [f"{name} {number}" for number, name in enumerate(names, 1)]
    return names


def split_and_label(name: str) -> tuple[str, str]:
    """The parts of a name of `set_names`: `"test en-de"` → `("test", "en-de")`; `"test"` has the label `""`."""
    split, _, label = name.partition(" ")
    return split, label


def parse_overrides(text: str) -> dict[str, Any]:
    """Parse `"d_model=256,norm_order=pre"` into `{"d_model": 256, "norm_order": "pre"}`.

    Raises:
        ValueError: a part has no `=` or does not name a field of the configuration, with a similar name in the message;
            or a field has several values.
    """
    types = {entry.name: entry.type for entry in fields(RandomTransformerConfig)}
    overrides = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, value = map(str.strip, part.partition("="))
        if not equals or name not in types:
            similar = did_you_mean(name, types)
            raise ValueError(f"config_overrides must be like 'd_model=256,dropout=0.2', got {part!r}.{similar}")
        if name in overrides:
            raise ValueError(f"config_overrides must have one value for each field, got several for {name}.")
        overrides[name] = value if types[name] is str else parse_literal(value)  # a string may be "none"
    return overrides


def parse_literal(text: str) -> Any:
    """The Python literal in a text, such as a number or `true`; or the text itself."""
    with suppress(ValueError, SyntaxError):
        return ast.literal_eval(text.capitalize() if text.lower() in CONSTANTS else text)
    return text
