"""Exports a model to a package of Argos Translate and LibreTranslate, which contains a CTranslate2 model.

Argos Translate splits texts into sentences, and sentences into tokens by a SentencePiece model. Its search has 4 beams,
a length penalty of 0.2, and no options of the model.
"""

import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sentencepiece import SentencePieceProcessor
from transformers import PreTrainedTokenizerBase

from ...base.files import StrPath, read_json, write_json
from ...inference.translation import PAPER_LENGTH_PENALTY
from ...inputs_random_transformer import tokenizer_languages
from ...modeling_random_transformer import RandomTransformerForConditionalGeneration
from ...tokenization_random_transformer import LANGUAGE_CODE
from ..language_names import language_name
from ..sentencepiece.conversion import SPACE_SYMBOL
from .argos_tokenizer import PART_OF_CHARACTER, sentencepiece_model
from .ctranslate2 import PENALTY, PREFIX, SEARCH, ParallelTranslator, build_spec, check_scores, write
from .engines import EngineTranslate
from .search import read_search

SUFFIX = ".argosmodel"
# The name of the tag of the target language: a space between the sentences of a paragraph, which Argos Translate
# removes before the first one.
TAG = " "
# The README.md of a package, which Argos Translate shows.
WITH_SPLITTER = "This package translates offline: it contains a model of MiniSBD that splits texts into sentences.\n"
WITHOUT_SPLITTER = """This package has no model that splits texts into sentences. Argos Translate 1.11 downloads one at
the first translation, which fails without access to the network. To translate offline, export the package again with
`--sentence_splitter {0}.onnx`, a model of MiniSBD (https://github.com/LibreTranslate/MiniSBD/releases).
"""


def save(
    model: RandomTransformerForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    dtype: str,
    source_lang: str | None = None,
    target_lang: str | None = None,
    sentence_splitter: StrPath | None = None,
) -> None:
    """Save a package such as `translate-en_de-1_0.argosmodel` in a folder.

    Targets have no special tokens and no parts of characters, which Argos Translate would show by their names.

    Args:
        model: on any device, in any dtype.
        tokenizer: its tokenizer: byte-level BPE with the default normalization or none, or imported from SentencePiece,
            or of Marian.
        folder: an empty folder.
        dtype: dtype of the weights, `"float32"`, `"bfloat16"` or `"int8"`.
        source_lang: code of the source language; `None` for that of the tokenizer.
        target_lang: code of the target language; the same.
        sentence_splitter: `LANGUAGE.onnx` of MiniSBD, which becomes a part of the package.

    Raises:
        ValueError: CTranslate2 or Argos Translate does not support an option of the model or the tokenizer, or the
            tokenizer has no languages.
    """
    source = source_lang or language_of(tokenizer, "src_lang", "source_lang")
    target = target_lang or language_of(tokenizer, "tgt_lang", "target_lang")
    for code in (source, target):
        if code is None or not LANGUAGE_CODE.fullmatch(code):  # the code is a part of file names
            raise ValueError(f"source_lang and target_lang must be codes such as 'en', got {source!r} and {target!r}.")
    if source.lower() == target.lower():
        raise ValueError(f"source_lang and target_lang must be two languages, got {source!r} and {target!r}.")
    if sentence_splitter is not None and Path(sentence_splitter).suffix != ".onnx":
        raise ValueError(f"sentence_splitter must be LANGUAGE.onnx of MiniSBD, got {str(sentence_splitter)!r}.")
    check_scores(model, tokenizer)
    name = f"translate-{source}_{target}-1_0"
    with TemporaryDirectory() as scratch:
        package = Path(scratch, name)
        engine = package / "model"
        engine.mkdir(parents=True)
        content, names = sentencepiece_model(tokenizer)
        (package / "sentencepiece.model").write_bytes(content)
        write(specification(model, tokenizer, names), engine, dtype)
        prefix = {"target_prefix": TAG} if tokenizer_languages(tokenizer) else {}
        write_metadata(package, source, target, prefix)
        readme = WITHOUT_SPLITTER.format(source)
        if sentence_splitter is not None:
            readme = WITH_SPLITTER
            splitter = package / "minisbd" / Path(sentence_splitter).name
            splitter.parent.mkdir()
            shutil.copyfile(sentence_splitter, splitter)
        (package / "README.md").write_text(readme, encoding="utf-8")
        archive = shutil.make_archive(str(folder / name), "zip", scratch)
    Path(archive).rename(folder / f"{name}{SUFFIX}")


def write_metadata(package: Path, source: str, target: str, options: dict[str, str]) -> None:
    """Write the description of a package: its languages, and more options of the search."""
    metadata = {
        "package_version": "1.0",
        "argos_version": "1.9",
        "from_code": source,
        "from_name": language_name(source),
        "to_code": target,
        "to_name": language_name(target),
    }
    write_json(package / "metadata.json", metadata | options)


def language_of(tokenizer: PreTrainedTokenizerBase, *attributes: str) -> Any:
    """The language that one of these attributes of a tokenizer names."""
    for name in attributes:
        code = getattr(tokenizer, name, None)
        if code:
            return code
    return None


def specification(model: Any, tokenizer: Any, names: dict[int, str]) -> Any:
    """CTranslate2's specification with these names of the tokens."""
    source = [names.get(i, f"<no token {i}>") for i in range(model.config.vocab_size)]
    target = list(source)
    search = read_search(model, tokenizer, "Argos Translate")
    hidden = {i for i, name in names.items() if PART_OF_CHARACTER.fullmatch(name)}
    hidden |= {*tokenizer.all_special_ids}
    hidden -= {*search.end_tokens}
    if search.first_token is not None:
        target[search.first_token] = TAG
        hidden -= {search.first_token}
    spec = build_spec(model, tokenizer, (source, target), sorted(hidden))
    config = spec.config
    options = getattr(config, SEARCH) | {PREFIX: getattr(config, PREFIX)}
    options.pop("target_prefix")
    for option, value in options.items():
        if value:
            raise ValueError(f"{option} must not be set for Argos Translate, got {value}.")
    config.add_source_eos = True
    if tokenizer_languages(tokenizer):
        config.add_source_bos = True
        config.bos_token = tokenizer.get_lang_token(tokenizer.src_lang)
    return spec


def load(folder: StrPath) -> EngineTranslate:
    """Load the package of a folder as a function that translates sentences as Argos Translate does.

    Numbers of beams and tokens are arguments, and the length penalty is that of the model.

    Raises:
        ValueError: the folder does not contain one package.
    """
    packages = list(Path(folder).glob(f"*{SUFFIX}"))
    if len(packages) != 1:
        raise ValueError(f"folder must contain one *{SUFFIX}, got {len(packages)} in {str(folder)!r}.")
    scratch = TemporaryDirectory()  # deleted with the function that is returned
    with zipfile.ZipFile(packages[0]) as archive:
        archive.extractall(scratch.name)
    package = Path(scratch.name, packages[0].stem)
    prefix = read_json(package / "metadata.json").get("target_prefix", "")
    target_prefix = [prefix] if prefix else []
    penalty = read_json(package / "model" / "config.json").get(PENALTY, PAPER_LENGTH_PENALTY)
    tokenizer = SentencePieceProcessor(model_file=str(package / "sentencepiece.model"))
    engine = ParallelTranslator(package / "model")  # loads the model when it is needed

    def translate(texts: Sequence[str], num_beams: int, max_new_tokens: int) -> list[str]:
        results = engine(
            tokenizer.encode(list(texts), out_type=str),
            [target_prefix] * len(texts),
            beam_size=num_beams,
            length_penalty=penalty,
            max_decoding_length=max_new_tokens,
        )
        translations = []
        for result in results:
            text = "".join(result.hypotheses[0]).replace(SPACE_SYMBOL, " ")
            translations.append(text.removeprefix(prefix).removeprefix(" "))
        return translations

    translate.files = scratch  # type: ignore[attr-defined]
    return translate
