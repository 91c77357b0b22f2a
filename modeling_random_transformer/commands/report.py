"""Write a report on a saved model and a test set, as one HTML file without scripts.

    random-transformer report --model outputs/quickstart --source_file test.en --target_file test.es \\
        --output report.html --train_source_file train.en --train_target_file train.es

The report has scores by length and word frequency, suspicious and bad translations, and the training pairs with the
highest loss.
"""

from dataclasses import dataclass
from pathlib import Path

from ..data.sources import ParallelText
from ..extras.inspection.report import make_report, read_history
from ..extras.parser import InputFile
from ..inputs_random_transformer import CHUNK_SIZE
from .command_line import write_page
from .corpus_arguments import CorpusOutputArguments


@dataclass(frozen=True, kw_only=True)
class Arguments(CorpusOutputArguments):
    """Arguments of `report`.

    Args:
        output: HTML file to write
        chunk_size: texts that are sorted by length together
        train_source_file: training sources, or both sides in one file; adds word frequencies and the pairs with the
            highest loss
        train_target_file: training targets
        robustness: also translate the test set in capitals, in lower case, with typing errors and other changes; each
            of them takes as long as the rest of the report

    Raises:
        ValueError: there are several models, or training targets without sources.
    """

    output: Path
    chunk_size: int = CHUNK_SIZE
    train_source_file: InputFile | None = None
    train_target_file: InputFile | None = None
    robustness: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_one_model()
        if self.train_source_file is None and self.train_target_file is not None:
            raise ValueError("--train_source_file must be given with --train_target_file, got None.")

    @property
    def has_columns(self) -> bool:
        """Whether a file has both sides, such as that of the training set."""
        return super().has_columns or (self.train_source_file is not None and self.train_target_file is None)

    def training_corpus(self) -> ParallelText | None:
        """The training pairs, if they are given.

        Raises:
            ValueError: the files are not parallel text, or a side is a pipe, since they are read twice.
        """
        if self.train_source_file is None:
            return None
        corpus = ParallelText(
            self.train_source_file,
            self.train_target_file,
            source_key=self.source_key,
            target_key=self.target_key,
        )
        corpus.require_files()
        return corpus


def run(arguments: Arguments) -> None:
    """Load the model, translate, write the report, and print its size."""
    [folder] = arguments.model
    test = arguments.corpus()
    training = arguments.training_corpus()
    with arguments.load(is_resumable=False) as (model, tokenizer):
        report = make_report(
            model,
            tokenizer,
            test,
            training,
            title=folder.resolve().name,
            history=read_history(folder),
            robustness=arguments.robustness,
            chunk_size=arguments.chunk_size,
            **arguments.text_options,
        )
    write_page(arguments.output, report.html())
