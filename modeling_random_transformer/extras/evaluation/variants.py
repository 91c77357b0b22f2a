"""BLEU in the variants of published results, of texts and of files."""

import importlib.metadata
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ...base.errors import reraise_as_value_error
from ...base.files import StrPath
from ...base.languages import without_region
from ...base.streams import stream_name
from ...data.readers import read_texts
from ...inference.evaluation import score, to_text_lists
from ...inputs_random_transformer import check_choice, drop_none

# BLEU as papers report it: what is done to plain texts, and the options of sacrebleu.
VARIANTS: dict[str, dict[str, Any]] = {
    "cased": {},
    "lowercased": {"lowercase": True},
    "moses-lowercased": {"lowercase": True, "tokenize": "none"},  # texts in Moses tokens
    "tokenized": {"tokenize": "none"},  # texts whose tokens are separated by spaces
}


def score_variant(
    predictions: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    variant: str = "cased",
    language: str | None = None,
    tokenize: str | None = None,
) -> dict[str, Any]:
    """BLEU in the variant of a published result. Only scores with equal signatures can be compared.

    Args:
        predictions: the translations.
        references: one text, or a list of texts, for each prediction.
        variant: `"cased"` and `"lowercased"` tokenize plain texts as sacrebleu does. `"moses-lowercased"`
            tokenizes them as Moses does, in many papers before scoring with multi-bleu.perl. `"tokenized"` scores texts
            that are tokens already, such as the output of a model that was trained on tokens.
        language: code of the target language, required for Moses. It selects the tokenizer of plain texts.
        tokenize: sacrebleu's tokenizer of plain texts instead.

    Returns:
        What `score` returns for BLEU. The tokenization in the signature is such as `moses-de-0.2.0`, with the version
        of sacremoses.

    Raises:
        ValueError: see `score`; or Moses has no language, or sacremoses is not installed; or a variant of tokens has a
            tokenizer.
    """
    check_choice(VARIANTS, variant=variant)
    if "tokenize" in VARIANTS[variant] and tokenize is not None:
        raise ValueError(f"tokenize must be None with variant {variant!r}, got {tokenize!r}.")
    if variant == "tokenized" and language is not None:
        raise ValueError(f"language must be None with variant {variant!r}, got {language!r}.")
    if variant != "moses-lowercased":
        options = drop_none(language=language, tokenize=tokenize)
        return score(predictions, references, "bleu", **VARIANTS[variant], **options)["bleu"]
    if language is None:
        raise ValueError("language must be given with variant 'moses-lowercased', got None.")
    language = without_region(language)
    to_tokens = moses_tokenizer(language)
    predictions, references = to_text_lists(predictions, references)
    predictions = [to_tokens(text) for text in predictions]
    references = [[to_tokens(text) for text in texts] for texts in references]
    result = score(predictions, references, "bleu", **VARIANTS[variant])["bleu"]
    tokenization = f"tok:moses-{language}-{importlib.metadata.version('sacremoses')}"
    result["signature"] = result["signature"].replace("tok:none", tokenization)
    return result


def evaluate_file(
    input_file: StrPath,
    reference_files: Sequence[StrPath],
    variant: str = "cased",
    language: str | None = None,
    tokenize: str | None = None,
) -> dict[str, dict[str, Any]]:
    """BLEU of a file of translations in a variant, and chrF++ of plain texts.

    Args:
        input_file: the translations, one per line.
        reference_files: one or more files of references, line by line.
        variant: see `score_variant`, as for the next arguments.
        language: code of the target language.
        tokenize: sacrebleu's tokenizer of plain texts.

    Returns:
        The results as `score` returns them; `"chrf"` only for a variant of plain texts.

    Raises:
        ValueError: see `score_variant`; or the files have different numbers of lines.
    """
    files = [input_file, *reference_files]
    columns = [list(read_texts(path)) for path in files]
    if len(set(map(len, columns))) != 1:
        counts = [f"{len(column)} in {stream_name(path)}" for path, column in zip(files, columns, strict=True)]
        raise ValueError(f"translations and references must have the same number of lines, got {', '.join(counts)}.")
    translations, *columns_of_references = columns
    references = list(zip(*columns_of_references, strict=True))
    scores = {"bleu": score_variant(translations, references, variant, language, tokenize)}
    if "tokenize" not in VARIANTS[variant]:
        scores |= score(translations, references, "chrf", **VARIANTS[variant])
    return scores


def moses_tokenizer(language: str) -> Callable[[str], str]:
    """The tokenizer of Moses for a language: from a text to its tokens, separated by spaces and with entities.

    As Moses does, it warns about a language without rules, and uses those of English.

    Args:
        language: the code of the language without a region, in lower case.

    Raises:
        ValueError: sacremoses is not installed.
    """
    with reraise_as_value_error("Moses tokens require sacremoses: pip install 'random-transformer[train]'"):
        from sacremoses import MosesTokenizer
        from sacremoses.corpus import NonbreakingPrefixes
    if language not in NonbreakingPrefixes().available_langs.values():
        warnings.warn(f"Moses has no rules for the language {language!r}, and uses those of English.", stacklevel=2)
    return partial(MosesTokenizer(language).tokenize, return_str=True)
