"""Exports a model to a package of Argos Translate and LibreTranslate, which contains a CTranslate2 model.

Argos Translate splits texts into sentences, and sentences into tokens by a SentencePiece model. Its search has 4 beams,
a length penalty of 0.2, and no options of the model.
"""

import json
import shutil
import zipfile
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sentencepiece import SentencePieceProcessor
from transformers import PreTrainedTokenizerBase

from ..inputs_random_transformer import tokenizer_languages
from ..modeling_random_transformer import RandomTransformerForConditionalGeneration
from ..utils import read_json
from ..utils.languages import language_name
from .argos_tokenizer import PART_OF_CHARACTER, SPACE, sentencepiece_model
from .ctranslate2 import PREFIX, SEARCH, ParallelTranslator, build_spec, check_scores, write
from .engines import LENGTH_PENALTY, Translate, read_search

SUFFIX = ".argosmodel"
# The name of the tag of the target language: a space between the sentences of a paragraph, which Argos Translate
# removes before the first one.
TAG = " "


def save(
    model: RandomTransformerForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    dtype: str,
    source_lang: str | None = None,
    target_lang: str | None = None,
) -> None:
    """Save a package such as `translate-en_de-1_0.argosmodel` in a folder.

    Targets have no special tokens and no parts of characters, which Argos Translate would show by their names.

    Args:
        model: on any device, in any dtype.
        tokenizer: its tokenizer: byte-level BPE without normalization, or imported from SentencePiece, or of Marian.
        folder: an empty folder.
        dtype: dtype of the weights, `"float32"`, `"bfloat16"` or `"int8"`.
        source_lang: code of the source language; `None` for that of the tokenizer.
        target_lang: code of the target language; the same.

    Raises:
        ValueError: CTranslate2 or Argos Translate does not support an option of the model or the tokenizer, or the
            tokenizer has no languages.
    """
    source = source_lang or getattr(tokenizer, "src_lang", None) or getattr(tokenizer, "source_lang", None)
    target = target_lang or getattr(tokenizer, "tgt_lang", None) or getattr(tokenizer, "target_lang", None)
    if source is None or target is None:
        raise ValueError(f"source_lang and target_lang must be given for argos, got {source} and {target}.")
    check_scores(model, tokenizer)
    name = f"translate-{source}_{target}-1_0"
    with TemporaryDirectory() as scratch:
        package = Path(scratch, name)
        (package / "model").mkdir(parents=True)
        content, names = sentencepiece_model(tokenizer)
        (package / "sentencepiece.model").write_bytes(content)
        write(specification(model, tokenizer, names), package / "model", dtype)
        metadata = {"package_version": "1.0", "argos_version": "1.9", "from_code": source, "to_code": target}
        metadata |= {"from_name": language_name(source), "to_name": language_name(target)}
        metadata |= {"target_prefix": TAG} if tokenizer_languages(tokenizer) else {}
        (package / "metadata.json").write_text(json.dumps(metadata, indent=2))
        shutil.make_archive(str(folder / name), "zip", scratch)
    (folder / f"{name}.zip").rename(folder / f"{name}{SUFFIX}")


def specification(model: Any, tokenizer: Any, names: dict[int, str]) -> Any:
    """CTranslate2's specification with these names of the tokens."""
    source = [names.get(i, f"<no token {i}>") for i in range(model.config.vocab_size)]
    target = list(source)
    search = read_search(model, tokenizer, "Argos Translate")
    first = search.first_token
    if first is not None:
        target[first] = TAG
    shown = {first, *search.end_tokens}
    hidden = [i for i, name in names.items() if PART_OF_CHARACTER.fullmatch(name) or i in tokenizer.all_special_ids]
    spec = build_spec(model, tokenizer, (source, target), [i for i in hidden if i not in shown])
    for option, value in {**getattr(spec.config, SEARCH), PREFIX: getattr(spec.config, PREFIX)}.items():
        if value and option != "target_prefix":
            raise ValueError(f"{option} must not be set for Argos Translate, got {value}.")
    spec.config.add_source_eos = True
    if tokenizer_languages(tokenizer):
        spec.config.add_source_bos, spec.config.bos_token = True, tokenizer.get_lang_token(tokenizer.src_lang)
    return spec


def load(folder: str | PathLike) -> Translate:
    """Load the package of a folder as a function that translates sentences as Argos Translate does.

    Numbers of beams and tokens are arguments, and the length penalty is that of the other engines.

    Raises:
        ValueError: the folder does not contain one package.
    """
    packages = [*Path(folder).glob(f"*{SUFFIX}")]
    if len(packages) != 1:
        raise ValueError(f"folder must contain one *{SUFFIX}, got {len(packages)} in {str(folder)!r}.")
    scratch = TemporaryDirectory()  # deleted with the function that is returned
    with zipfile.ZipFile(packages[0]) as archive:
        archive.extractall(scratch.name)
    package = Path(scratch.name, packages[0].stem)
    prefix = read_json(package / "metadata.json").get("target_prefix", "")
    tokenizer = SentencePieceProcessor(model_file=str(package / "sentencepiece.model"))
    engine = ParallelTranslator(package / "model")  # loads the model when it is needed

    def translate(texts: Sequence[str], num_beams: int, max_new_tokens: int) -> list[str]:
        options = {"beam_size": num_beams, "length_penalty": LENGTH_PENALTY, "max_decoding_length": max_new_tokens}
        sources = tokenizer.encode(list(texts), out_type=str)
        results = engine(sources, [[prefix] if prefix else []] * len(texts), **options)
        joined = ["".join(result.hypotheses[0]).replace(SPACE, " ") for result in results]
        return [text.removeprefix(prefix).removeprefix(" ") for text in joined]

    translate.files = scratch  # type: ignore[attr-defined]
    return translate
