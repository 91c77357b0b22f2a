"""Prepare the data of IWSLT 2014, German to English, as for most published results (fairseq's prepare-iwslt14.sh).

    python examples/prepare_iwslt14.py de-en.tgz     # writes train.de, train.en, validation.de, … to data/iwslt14
    random-transformer train examples/recipes/iwslt14-de-en.yaml

de-en.tgz is the archive at https://wit3.fbk.eu (2014-01). The texts become Moses tokens, by sacremoses, in lower case.
Training pairs of more than 175 tokens, or with more than 1.5 times as many on one side, are dropped. Every 23rd of the
others is for validation. dev2010, dev2012 and tst2010 to tst2012 together are the test set.

Exit status: 0 on success; 2 if the archive is invalid or a file to write exists.
"""

import re
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from modeling_random_transformer.base.progress import progress_bar
from modeling_random_transformer.extras.evaluation import moses_tokenizer
from modeling_random_transformer.extras.parser import existing_file
from modeling_random_transformer.inference import encode_lines, read_lines
from tutorials.scripts import exit_status, script_parser

PROGRAM = "prepare_iwslt14.py"
SOURCE, TARGET = LANGUAGES = ("de", "en")
TRAINING = "train.tags.de-en.{}"
TEST = [
    f"IWSLT14.{name}.de-en.{{}}.xml"
    for name in ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
]
METADATA = ("<url>", "<talkid>", "<keywords>")
TAGS = re.compile(r"</?(?:title|description)>")
SEGMENT = re.compile(r'<seg id="\d+">\s*(.*?)\s*</seg>')
MAX_TOKENS, MAX_RATIO, VALIDATION = 175, 1.5, 23

Pair = tuple[str, str]


def main(argv: Sequence[str] | None = None) -> int:
    parser = script_parser(PROGRAM, __doc__)
    parser.add_argument("archive", type=existing_file, help="de-en.tgz")
    parser.add_argument("--output_dir", type=Path, default=Path("data/iwslt14"), help="folder of the six text files")
    args = parser.parse_args(argv)
    return exit_status(lambda: prepare(args.archive, args.output_dir), PROGRAM)


def prepare(archive: Path, folder: Path) -> None:
    """Write the training, validation and test set, and print their sizes.

    Raises:
        ValueError: a file of the archive is missing or is not UTF-8, or its sides differ in their numbers of texts.
        OSError: a file to write exists.
    """
    try:
        with tarfile.open(archive) as files:
            training = list(filter(is_kept, read_pairs(files, TRAINING, training_text)))
            test = [pair for name in TEST for pair in read_pairs(files, name, test_text)]
    except tarfile.TarError as error:
        raise ValueError(f"archive must be a tar archive, got {archive}: {error}.") from error
    sets = {
        "train": [pair for number, pair in enumerate(training, start=1) if number % VALIDATION],
        "validation": training[VALIDATION - 1 :: VALIDATION],
        "test": test,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, pairs in sets.items():
        for language, texts in zip(LANGUAGES, zip(*pairs, strict=True), strict=False):
            with open(folder / f"{name}.{language}", "xb") as output:
                output.writelines(encode_lines(texts))
        print(f"{name}: {len(pairs):,} pairs")


def read_pairs(files: tarfile.TarFile, name: str, text_of: Callable[[str], str | None]) -> Iterator[Pair]:
    """The tokens of both sides of two aligned files of the archive."""
    source, target = (list(read_texts(files, f"de-en/{name.format(code)}", text_of)) for code in LANGUAGES)
    if len(source) != len(target):
        raise ValueError(f"{name} must have as many texts in both languages, got {len(source)} and {len(target)}.")
    tokenizers = [moses_tokenizer(code) for code in LANGUAGES]
    with progress_bar(len(source), unit="pair") as bar:
        for texts in zip(source, target, strict=True):
            yield tuple(tokenize(text).lower() for tokenize, text in zip(tokenizers, texts, strict=True))  # type: ignore
            bar.update()


def read_texts(files: tarfile.TarFile, path: str, text_of: Callable[[str], str | None]) -> Iterator[str]:
    """The texts in a file of the archive."""
    try:
        file = files.extractfile(path)
    except KeyError:
        file = None
    if file is None:
        raise ValueError(f"the archive must contain the file {path}, which is missing.")
    for line in read_lines(file, path):
        if (text := text_of(line)) is not None:
            yield text


def training_text(line: str) -> str | None:
    """The text of a line of the training set, `None` if it describes the talk; titles and descriptions are texts."""
    return None if any(tag in line for tag in METADATA) else TAGS.sub("", line)


def test_text(line: str) -> str | None:
    """The text of a line of a test set, `None` if it has none."""
    segment = SEGMENT.search(line)
    return None if segment is None else segment[1].replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")


def is_kept(pair: Pair) -> bool:
    """Whether both sides have 1 to 175 tokens and similar lengths."""
    shorter, longer = sorted(len(text.split()) for text in pair)
    return shorter >= 1 and longer <= min(MAX_TOKENS, MAX_RATIO * shorter)


if __name__ == "__main__":
    sys.exit(main())
