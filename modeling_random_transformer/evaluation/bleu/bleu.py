"""BLEU (Papineni et al. 2002), computed by sacrebleu (Post 2018)."""

from dataclasses import dataclass

import evaluate
import sacrebleu

# Absolute, as evaluate.load runs a copy of this file that has no neighbours.
from modeling_random_transformer.evaluation.checks import check_choice, check_flag, check_smooth_value
from modeling_random_transformer.evaluation.corpus_metric import FEATURES, CorpusMetric

DESCRIPTION = """\
BLEU is the geometric mean of the precisions of a translation's word n-grams, n from 1 to 4, times a penalty for
brevity, over a whole corpus. Texts are given as they are: sacrebleu tokenizes them itself, so that scores compare.
"""

INPUTS = """
Args:
    predictions: the translations, plain text.
    references: for every prediction one text or a list of texts; the lists need not be of one length.
    tokenize: how sacrebleu divides a text into words: "13a" (the default), "intl", "zh", "char", "none" or another of
        `sacrebleu.BLEU.TOKENIZERS`, some of which need a package or a download of their own.
    lowercase: ignore case.
    smooth_method: what becomes of an n-gram order without a match: "exp" (the default), "floor", "add-k" or "none".
    smooth_value: the constant of "floor" (0.1 when None) and "add-k" (1 when None).
    effective_order: leave out the n-gram orders that the predictions are too short for.
    force: no warning of texts that look tokenized already.

Returns:
    A dictionary of
    score: BLEU, 0 to 100.
    name: "BLEU".
    signature: sacrebleu's account of the options and its version; a score should be reported with it.
    counts, totals: matched and predicted n-grams, for n from 1 to 4.
    precisions: their ratios, 0 to 100.
    bp: the brevity penalty, 0 to 1.
    sys_len, ref_len: words in the predictions, and in the references closest to them in length.

Raises:
    ValueError: unequal numbers of predictions and references, or an argument that is not allowed.
"""

CITATION = """\
@inproceedings{papineni-2002-bleu,
    title = "{BLEU}: a Method for Automatic Evaluation of Machine Translation",
    author = "Papineni, Kishore and Roukos, Salim and Ward, Todd and Zhu, Wei-Jing",
    booktitle = "Proceedings of ACL 2002", pages = "311--318", year = "2002"}
@inproceedings{post-2018-clarity,
    title = "A Call for Clarity in Reporting {BLEU} Scores",
    author = "Post, Matt", booktitle = "Proceedings of WMT 2018", pages = "186--191", year = "2018"}
"""


@dataclass(frozen=True)
class BleuOptions:
    """Options of `sacrebleu.BLEU`, but for those that change the score and not the signature (`max_ngram_order`)."""

    tokenize: str = sacrebleu.BLEU.TOKENIZER_DEFAULT
    lowercase: bool = False
    smooth_method: str = "exp"
    smooth_value: float | None = None
    effective_order: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        defaults = sacrebleu.BLEU.SMOOTH_DEFAULTS
        check_choice("tokenize", self.tokenize, sacrebleu.BLEU.TOKENIZERS)
        check_flag("lowercase", self.lowercase)
        check_choice("smooth_method", self.smooth_method, defaults)
        smoothed_by_a_value = [method for method, value in defaults.items() if value is not None]
        check_smooth_value(self.smooth_value, self.smooth_method, smoothed_by_a_value)
        check_flag("effective_order", self.effective_order)
        check_flag("force", self.force)


class Bleu(CorpusMetric):
    """BLEU, 0 to 100, as an `evaluate` metric."""

    scorer_class = sacrebleu.BLEU
    options_class = BleuOptions
    details = ("counts", "totals", "precisions", "bp", "sys_len", "ref_len")

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=FEATURES,
            codebase_urls=["https://github.com/mjpost/sacrebleu"],
            reference_urls=["https://aclanthology.org/P02-1040", "https://aclanthology.org/W18-6319"],
        )
