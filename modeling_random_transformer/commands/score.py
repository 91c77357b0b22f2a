"""Score given translations with a saved model: the log-probability of each, for filtering and reranking.

    random-transformer score --model outputs/quickstart --source_file test.en --target_file test.es
    random-transformer score --model outputs/quickstart --source_file train.tsv --output scores.txt
    random-transformer score --model outputs/quickstart --source_file train.tsv --source_key en --target_key de
    paste test.en test.es | random-transformer score --model outputs/quickstart --output_format jsonl
    random-transformer score --compare baseline.es new.es --target_file test.es
    random-transformer score --model outputs/quickstart --source_file test.en --target_file test.es --report report.html
    random-transformer score --variant moses-lowercased --input test.translated --target_file test.es --target_lang es

Line n of the output belongs to pair n: the sum of the natural logarithms of the target tokens' probabilities and the
number of these tokens, including the end token. The line of a pair with a blank side is empty. With --output and files,
the same command resumes after an interruption, and `accelerate launch` distributes the pairs over processes.

--compare tests whether one of two files of translations is better than the other. --report writes one HTML file: scores
by length and word frequency, suspicious and bad translations, and the training pairs with the highest loss.

--variant, which needs no model either, prints BLEU as papers report it: of plain texts, of their Moses tokens, or of
texts that are tokens already.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..base.compressed_files import check_output, is_stream, stream_name
from ..base.text import encode_lines
from ..data.readers import read_texts
from ..data.sources import ParallelText
from ..inference.alignments import alignments, pharaoh_line
from ..inference.evaluation import VARIANTS, compare_systems, score_variant
from ..inference.scoring import score_pairs
from ..inference.scoring_files import score_file, score_line, valid_pairs
from ..inference.translation_files import FORMATS
from ..inputs_random_transformer import drop_none, name_lines_in_errors
from .command_line import MODEL, STANDARD, InferenceArguments, Parser, check_new_outputs, existing_file, write_output

FILES = ("source_file", "target_file", "train_source_file", "train_target_file")


@dataclass(frozen=True, kw_only=True)
class Arguments(InferenceArguments):
    """Arguments of `score`.

    Args:
        source_file: sources, one per line; or both sides in a .tsv, .jsonl or .parquet file; - is
            standard input: TSV, or sources with --target_file
        target_file: targets, line by line; for --compare and --variant one or more files of references
        source_key: column of the source in a file with both sides: a name, or a number from 1
        target_key: column of the target in a file with both sides: a name, or a number from 1
        output: file to write, compressed if its name ends so (.gz, .zst, .bz2, .xz); - is standard output (the default)
        output_format: text: log-probability and number of tokens, separated by a tab
        token_scores: write the log-probability of each token too
        alignments: write word alignments from cross-attention instead of scores, such as '0-0 1-2' (source-target)
        truncation: truncate texts that are too long (default: they are an error)
        compare: two files of translations, to compare with --target_file by BLEU and chrF++ instead
        variant: print BLEU of --input against --target_file instead, cased or lowercased, both of plain texts,
            moses-lowercased (with --target_lang), or of texts that are tokens already
        input: translations, for --variant
        tokenize: sacreBLEU's tokenizer, for --compare and --variant (default: that of --target_lang, or 13a)
        report: HTML file to write instead
        overwrite: replace an output that exists
        train_source_file: training sources, or both sides in one file, for --report
        train_target_file: training targets

    Raises:
        ValueError: arguments contradict each other.
    """

    source_file: Path = field(default=STANDARD, metadata={"type": existing_file})
    target_file: list[Path] | None = field(default=None, metadata={"nargs": "+", "type": existing_file})
    source_key: str = "source"
    target_key: str = "target"
    output: Path = STANDARD
    output_format: str = field(default="text", metadata={"choices": FORMATS})
    token_scores: bool = False
    alignments: bool = False
    truncation: bool = False
    model: list[Path] | None = field(default=None, metadata={**MODEL, "nargs": None})  # type: ignore[assignment]
    compare: list[Path] | None = field(default=None, metadata={"nargs": 2, "type": existing_file, "metavar": "FILE"})
    variant: str | None = field(default=None, metadata={"choices": tuple(VARIANTS)})
    input: Path | None = field(default=None, metadata={"type": existing_file})
    tokenize: str | None = None
    report: Path | None = None
    overwrite: bool = False
    train_source_file: Path | None = field(default=None, metadata={"type": existing_file})
    train_target_file: Path | None = field(default=None, metadata={"type": existing_file})

    def __post_init__(self) -> None:
        if [self.model, self.compare, self.variant].count(None) != 2:
            raise ValueError("one of --model, --compare and --variant must be given.")
        if (self.variant is None) != (self.input is None) or (self.input is not None and self.target_file is None):
            raise ValueError("--variant, --input and --target_file (the references) must be given together.")
        if self.compare is not None and self.target_file is None:
            raise ValueError("--target_file must be given with --compare: the reference translations.")
        if self.report is not None and (self.source_file == STANDARD or len(self.model or ()) != 1):
            raise ValueError("--report must be given with one --model and a --source_file.")
        if self.alignments and (self.token_scores or self.output_format != "text"):
            raise ValueError("--alignments must be given without --token_scores and --output_format.")
        other = self.report or self.compare or self.variant
        if other and (self.output != STANDARD or self.token_scores or self.alignments or self.truncation):
            raise ValueError("--truncation and options of the output must be unset without --model, or with --report.")
        if (self.train_source_file or self.train_target_file) and not (self.report and self.train_source_file):
            raise ValueError("--train_source_file and --train_target_file must be given with --report.")
        if self.model is not None and (self.tokenize is not None or len(self.target_file or ()) > 1):
            raise ValueError("--tokenize and several files of --target_file must be given without --model.")
        inputs = {name: self.file(name) for name in FILES}
        check_output("--output", self.output, **inputs)
        check_output("--report", self.report or STANDARD, **inputs)
        check_new_outputs(self.overwrite, output=self.output, report=self.report)

    def file(self, name: str) -> Any:
        """The file of an argument, of several the first."""
        value = getattr(self, name)
        return value[0] if isinstance(value, list) else value

    def corpus(self, source: str, target: str) -> ParallelText:
        """The pairs in the files of two arguments."""
        return ParallelText(
            self.file(source), self.file(target), source_key=self.source_key, target_key=self.target_key
        )

    @property
    def options(self) -> dict[str, Any]:
        """The options of `score_pairs` and `alignments`."""
        options = {**self.text_options, "truncation": self.truncation}
        return options if self.alignments else {**options, "token_scores": self.token_scores}


def run(program: str, argv: Sequence[str]) -> None:
    """Load the model and score; or compare, report, or print BLEU."""
    arguments = Parser(program, __doc__).parse(Arguments, argv)
    if arguments.model is None:
        print(scores_of_files(arguments))
        return
    if arguments.report is not None:
        write_report(arguments, arguments.model[0], arguments.report)
        return
    corpus = arguments.corpus("source_file", "target_file")
    from_file_to_file = arguments.source_file != STANDARD and not is_stream(arguments.output)
    if from_file_to_file:
        corpus.require_files()
    with arguments.load(from_file_to_file) as (model, tokenizer):
        if not from_file_to_file:
            write_output(arguments.output, encode_lines(lines_of_pairs(corpus, arguments, model, tokenizer)))
            return
        names = ("alignments", "output_format", "chunk_size", "restart")
        options = {name: getattr(arguments, name) for name in names} | arguments.options
        score_file(corpus, arguments.output, model, tokenizer, **options)


def scores_of_files(arguments: Arguments) -> str:
    """The comparison of two files of translations; with --variant, BLEU of one and its signature."""
    files = [list(read_texts(str(file))) for file in arguments.target_file or ()]
    if len(set(map(len, files))) > 1:
        counts = ", ".join(str(len(lines)) for lines in files)
        raise ValueError(f"--target_file must be files with the same number of lines, got {counts}.")
    references = list(zip(*files, strict=True))
    if arguments.compare is not None:
        first, second = map(str, arguments.compare)
        options = drop_none(language=arguments.target_lang, tokenize=arguments.tokenize)
        systems = list(read_texts(first)), list(read_texts(second))
        return str(compare_systems(*systems, references, (first, second), **options))
    translations = list(read_texts(str(arguments.input)))
    result = score_variant(translations, references, str(arguments.variant), arguments.target_lang, arguments.tokenize)
    return f"bleu {result['score']:.2f} {result['signature']}"


def write_report(arguments: Arguments, folder: Path, path: Path) -> None:
    """Write the report on a saved model."""
    from ..extras.inspection.report import make_report
    from ..training.checkpoints import STATE, newest_complete, state_of

    test, training = arguments.corpus(*FILES[:2]), None
    if arguments.train_source_file is not None:
        training = arguments.corpus(*FILES[2:])
        training.require_files()
    checkpoint = newest_complete(folder) or folder
    about: dict[str, Any] = {"title": folder.resolve().name}
    about["history"] = state_of(checkpoint).log_history if (checkpoint / STATE).is_file() else ()
    with arguments.load(from_file_to_file=False) as (model, tokenizer):
        made = make_report(model, tokenizer, test, training, **about, **arguments.text_options)
    write_output(path, [made.html().encode()])


def lines_of_pairs(
    corpus: ParallelText, arguments: Arguments, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> Iterator[str]:
    """One line per pair, in a single pass."""
    process: Callable[..., Iterator[Any]] = alignments if arguments.alignments else score_pairs
    write = pharaoh_line if arguments.alignments else partial(score_line, output_format=arguments.output_format)
    with name_lines_in_errors(stream_name(arguments.source_file)):
        results = process(model, tokenizer, valid_pairs(corpus), chunk_size=arguments.chunk_size, **arguments.options)
        yield from map(write, results)
