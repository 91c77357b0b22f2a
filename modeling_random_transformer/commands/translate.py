"""Translate sentences, a file or standard input with a saved model.

    random-transformer translate --model outputs/quickstart "The boy sees the girl." "We read two books."
    random-transformer translate --model outputs/quickstart                       # interactive, line by line
    random-transformer translate --model outputs/quickstart < test.en > translated.es
    random-transformer translate --model outputs/quickstart --input test.en --output translated.es
    random-transformer translate --model outputs/quickstart --engine ctranslate2 --input test.en --output translated.es
    random-transformer translate --model outputs/quickstart --format html --input page.html --output page.es.html
    random-transformer translate --model outputs/quickstart --format srt --input film.en.srt --output film.es.srt
    random-transformer translate --model outputs/quickstart --glossary terms.tsv --input test.en --output translated.es
    random-transformer translate --model outputs/quickstart --repair --confidence --input test.en --output scored.tsv
    random-transformer translate --model outputs/first --model outputs/second --input test.en --output translated.es
    accelerate launch --multi_gpu --num_processes 8 -m modeling_random_transformer translate \\
        --model outputs/quickstart --input big.en --output big.es
    random-transformer translate --model outputs/four --source_lang en --target_lang de "a dog sees a cat"

Line n of the output is the translation of line n of the input. With --input and --output, the same command resumes
after an interruption, and `accelerate launch` distributes the file over processes. Use --multi_gpu on CPUs too, because
--cpu of `accelerate launch` starts only one process.
"""

import os
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..base.compressed_files import open_binary
from ..base.files import encode_lines
from ..base.formats import DOCUMENT_FORMATS, check_plain_text
from ..base.streams import check_output, is_stream, stream_name
from ..data.readers import read_texts
from ..extras.parser import InputFile
from ..inference.translation import TranslationOptions, translate_n_best
from ..inference.translation_files import OUTPUT_FORMATS, candidate_lines, read_plain_texts, translate_file
from ..inputs_random_transformer import name_lines_in_errors
from ..tokenization_random_transformer import read_lines
from .command_line import (
    STANDARD_PATH,
    EngineArguments,
    InferenceArguments,
    ResumableArguments,
    check_new_outputs,
    check_one_stream,
    random_seed,
    write_output,
)


@dataclass(frozen=True, kw_only=True)
class Arguments(ResumableArguments, EngineArguments, InferenceArguments):
    """Arguments of `translate`.

    Args:
        sentences: texts to translate, instead of a file
        input: UTF-8 file, one text per line, which may be compressed (.gz, .zst, .bz2, .xz); - is standard input
        output: file to write, compressed by its suffix (.gz, .zst, .bz2, .xz); - is standard output (the default)
        output_format: text: one translation per line; with --n_best, 'index ||| translation ||| score'
        prefix_file: file with the required beginning of each translation, line by line; an empty line allows any
            translation
        num_beams: beam size (default: 4, or 1 with --sample)
        length_penalty: larger values favor longer translations (default: the model's, or 0.6)
        n_best: write the N best translations of each text with their scores, at most --num_beams
        mbr: minimum Bayes risk instead of beam search: of this number of samples, such as 16, write the one that is
            most similar to all; slower, and better for models that were trained on little data
        sample: sample from the model's distribution
        temperature: temperature of --sample (default: 1)
        seed: random seed of --sample and --mbr (default: 0)
        max_source_tokens: truncate longer texts (default: a text above the tokenizer's or the model's limit is an
            error); with --split_sentences, split longer sentences (default: 128)
        format: html: the input is an HTML document, or each sentence is a fragment; tags, scripts and styles are not
            changed, and sentences are always split; srt: subtitles; po: messages of gettext; xliff: segments of XLIFF
            1.2 or 2
        split_sentences: translate each line sentence by sentence, for a model that was trained on sentences;
            --source_lang selects the list of abbreviations (default: English)
        glossary: TSV file of source phrases and the target phrases that translations must contain
        repair: copy placeholders, translate capitals as ordinary text, and translate a text again if its translation is
            empty, a copy, much too long or short, or in another script, has a loop, or lacks a number; always on for
            documents (--format)
        confidence: write the confidence of each translation, from 0 to 1, after a tab or, with --output_format jsonl,
            in fields of the text and of each word; requires a model with confidence.json, see calibrate
        min_confidence: write an empty line instead of a translation with a lower confidence; their number is logged
        keep_source: with --min_confidence, write the source instead of an empty line
        overwrite: replace an output that exists

    Raises:
        ValueError: arguments contradict each other, or a line of the glossary is malformed.
    """

    sentences: list[str] = field(default_factory=list, metadata={"positional": True})
    input: InputFile = STANDARD_PATH
    output: Path = STANDARD_PATH
    output_format: str = field(default="text", metadata={"choices": OUTPUT_FORMATS})
    prefix_file: InputFile | None = None
    num_beams: int | None = None
    length_penalty: float | None = None
    n_best: int | None = None
    mbr: int | None = None
    sample: bool = False
    temperature: float | None = None
    seed: int | None = field(default=None, metadata={"type": random_seed})
    max_source_tokens: int | None = None
    format: str = field(default="text", metadata={"choices": ("text", *dict.fromkeys(DOCUMENT_FORMATS.values()))})
    split_sentences: bool = False
    glossary: InputFile | None = None
    repair: bool = False
    confidence: bool = False
    min_confidence: float | None = None
    keep_source: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        if self.sentences and self.input != STANDARD_PATH:
            raise ValueError(f"sentences and --input must not be given together, got {self.sentences}, {self.input}.")
        self.check_search()
        super().__post_init__()
        if self.is_document:
            self.check_document()
        self.check_files()
        TranslationOptions.from_kwargs(**self.options)

    def check_search(self) -> None:
        """Check that the options of the search have an effect together."""
        if self.temperature is not None and not (self.sample and self.temperature > 0):
            raise ValueError(f"--temperature must be a positive number, given with --sample, got {self.temperature}.")
        if self.seed is not None and not (self.sample or self.mbr):
            raise ValueError(f"--seed must be given with --sample or --mbr, got {self.seed}.")
        if self.mbr is not None and (self.num_beams or self.sample or self.length_penalty is not None):
            raise ValueError(f"--mbr must be given without --num_beams, --length_penalty and --sample, got {self.mbr}.")

    def check_document(self) -> None:
        """Check that all options have an effect on a document."""
        if self.n_best or self.prefix_file or self.output_format != "text":
            raise ValueError(
                f"--format must be text with --n_best, --prefix_file or --output_format, got {self.format}."
            )
        if self.split_sentences or self.repair or self.confidence or self.min_confidence is not None:
            raise ValueError(
                "--format must be text with --split_sentences, --repair, --confidence or --min_confidence, "
                f"got {self.format}."
            )

    def check_files(self) -> None:
        """Check that the inputs can be read and the outputs written."""
        source = None if self.sentences else self.input
        check_one_stream(input=source, prefix_file=self.prefix_file, glossary=self.glossary)
        self.check_restart(self.is_resumable, self.input, self.output)
        check_plain_text("--input", self.input, self.format)
        check_plain_text("--prefix_file", self.prefix_file)
        check_output("--output", self.output, input=self.input, prefix_file=self.prefix_file, glossary=self.glossary)
        check_new_outputs(self.overwrite, output=self.output)

    @property
    def is_document(self) -> bool:
        """Whether the input is a document."""
        return self.format != "text"

    @property
    def is_resumable(self) -> bool:
        """Whether the work can be interrupted and distributed over processes."""
        inputs_are_files = self.input.is_file() and (self.prefix_file is None or self.prefix_file.is_file())
        return inputs_are_files and not self.is_document and not is_stream(self.output)

    @cached_property
    def loaded_glossary(self) -> Any:
        """The content of the file `glossary`, which counts its terms."""
        if self.glossary is None:
            return None
        from ..extras.wrappers import Glossary  # other translations do not need it

        return Glossary.read(self.glossary)

    @cached_property
    def options(self) -> dict[str, Any]:
        """The options of `translate` and of `generate()`."""
        options = {
            "num_beams": self.num_beams or (1 if self.sample else 4),
            "length_penalty": self.length_penalty,
            **self.text_options,
            "max_source_tokens": self.max_source_tokens,
            "split_sentences": self.split_sentences,
            "glossary": self.loaded_glossary,
            "repair": self.repair or self.is_document,
            "confidence": self.confidence,
            "min_confidence": self.min_confidence,
            "keep_source": self.keep_source,
            "n_best": self.n_best,
            "mbr": self.mbr,
            "seed": (self.seed or 0) if self.sample or self.mbr else None,
        }
        if self.sample:
            # top_k=0: sample from the complete vocabulary, not from transformers' default of 50 tokens.
            options |= {"do_sample": True, "top_k": 0, "temperature": self.temperature or 1.0}
        return options


def run(arguments: Arguments) -> None:
    """Load the model and translate."""
    for sentence in arguments.sentences:
        if os.path.isfile(sentence):  # unlike `Path.is_file`, it accepts a text that is too long for a path
            print(f"Warning: {sentence!r} is translated as a text. --input translates a file.", file=sys.stderr)
    with arguments.load(arguments.is_resumable, **arguments.engine_options) as (model, tokenizer):
        if arguments.is_document:
            translate_documents(arguments, model, tokenizer)
        elif arguments.is_resumable:
            translate_file(
                arguments.input,
                arguments.output,
                model,
                tokenizer,
                prefix_file=arguments.prefix_file,
                output_format=arguments.output_format,
                chunk_size=arguments.chunk_size,
                restart=arguments.restart,
                **arguments.options,
            )
        else:
            translate_single_pass(arguments, model, tokenizer)
    if arguments.loaded_glossary is not None:
        state = PartialState()
        share = f"process {state.process_index}: " if state.num_processes > 1 else ""
        print(f"{share}{arguments.loaded_glossary.report()}", file=sys.stderr)


def translate_single_pass(arguments: Arguments, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Translate sentences, standard input or a file to standard output or a file, in a single pass."""
    options: dict[str, Any] = {**arguments.options, "chunk_size": arguments.chunk_size}
    if arguments.prefix_file is not None:
        options["prefixes"] = read_texts(arguments.prefix_file)
    if not arguments.sentences and arguments.input == STANDARD_PATH and sys.stdin.isatty():
        print("Enter one text per line; end with Ctrl-D.", file=sys.stderr)
        options |= {"chunk_size": 1, "progress": False}  # each line is translated before the next is read
    texts: Iterable[str] = arguments.sentences
    line_names: AbstractContextManager[None] = nullcontext()
    if not arguments.sentences:
        texts = read_plain_texts(arguments.input)
        line_names = name_lines_in_errors(stream_name(arguments.input))
    with line_names:
        candidates = translate_n_best(texts, model, tokenizer, **options)
        lines = candidate_lines(candidates, arguments.output_format, arguments.n_best, confidence=arguments.confidence)
        write_output(arguments.output, encode_lines(lines))


def translate_documents(arguments: Arguments, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Translate a document, or sentences that are fragments of HTML or complete documents."""
    from ..extras.documents import TRANSLATORS, translate_html  # translation of lines does not need it

    documents = [f"{fragment}\n" for fragment in arguments.sentences]
    if not documents:
        with open_binary(arguments.input) as file:
            documents = [decoded_document(file.read(), stream_name(arguments.input))]
    options = arguments.options | {"chunk_size": arguments.chunk_size}
    if arguments.format == "html":
        translated = translate_html(documents, model, tokenizer, **options)
    else:
        translate_document = TRANSLATORS[arguments.format]
        translated = [translate_document(document, model, tokenizer, **options) for document in documents]
    write_output(arguments.output, (document.encode() for document in translated))


def decoded_document(content: bytes, name: str) -> str:
    """The text of a document; raises a `ValueError` with its name if it is not UTF-8 or has NUL characters."""
    for _ in read_lines(BytesIO(content), name):
        pass
    return content.decode()
