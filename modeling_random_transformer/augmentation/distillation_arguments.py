"""Arguments of distillation, beside those of training."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import ClassVar

from ..data.readers import TEXT_KEYS
from ..training.arguments import DataArguments
from ..utils import DTYPES
from ..utils.compressed_files import check_readable


@dataclass
class DistillationArguments:
    """The teacher, the texts that it translates, and the selection of its translations."""

    teacher: list[str] = field(
        default_factory=list,
        metadata={"help": "Folder of the teacher with its tokenizer; several folders are an ensemble."},
    )
    source_text: list[str] = field(
        default_factory=list,
        metadata={
            "help": "UTF-8 files with the texts that the teacher translates, one per line; or .tsv, .jsonl or .parquet "
            "files. They may be .gz or .zst; - is standard input."
        },
    )
    text_key: str = field(
        default=TEXT_KEYS[0],
        metadata={"help": "Column of the text in source_text with columns: a name, or a number from 1."},
    )
    teacher_dtype: str = field(
        default="float32", metadata={"help": "Dtype of the teacher while it translates: float32, bfloat16 or int8."}
    )
    teacher_num_beams: int = field(default=4, metadata={"help": "Beam size of the teacher."})
    teacher_max_batch_tokens: int = field(
        default=4096, metadata={"help": "Batch size of the teacher: texts × beams × tokens of the longest text."}
    )
    interpolate: bool = field(
        default=False,
        metadata={
            "help": "Of the teacher_num_beams best translations of a text, use the one that is nearest to its "
            "reference by chrF. The references are the targets of the original pairs (source_file or train_file) with "
            "this source; a text without references has its best translation."
        },
    )
    drop_worst: float = field(
        default=0.0,
        metadata={
            "help": "Share of the teacher's translations to drop: those with the lowest log-probability per token."
        },
    )
    restart: bool = field(
        default=False,
        metadata={
            "help": "Discard the translations of an interrupted run with the same output_dir, whose student has not "
            "been trained."
        },
    )

    def __post_init__(self) -> None:
        for name in ("teacher", "source_text"):
            if not getattr(self, name):
                raise ValueError(
                    f"{name} must name at least one {'folder' if name == 'teacher' else 'file'}, got none."
                )
        for path in self.source_text:
            check_readable("source_text", path)
        if self.teacher_dtype not in DTYPES:
            raise ValueError(f"teacher_dtype must be one of {', '.join(DTYPES)}, got {self.teacher_dtype!r}.")
        for name in ("teacher_num_beams", "teacher_max_batch_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.interpolate and self.teacher_num_beams < 2:
            raise ValueError(f"teacher_num_beams must be at least 2 with interpolate, got {self.teacher_num_beams}.")
        if not 0 <= self.drop_worst < 1:
            raise ValueError(f"drop_worst must be at least 0 and below 1, got {self.drop_worst}.")


@dataclass
class StudentDataArguments(DataArguments):
    """The validation and test sets of the student, and optionally original pairs that are added to the training set."""

    requires_train: ClassVar[bool] = False

    def with_training_set(self, source: Path, target: Path) -> DataArguments:
        """The same sets, with two aligned files as the training set."""
        train = {"source_file": [str(source)], "target_file": [str(target)], "train_file": None}
        languages = {name: (getattr(self, name) or [])[:1] or None for name in ("source_lang", "target_lang")}
        return DataArguments(**{**asdict(self), **train, **languages})
