"""chrF++ (Popović 2017), computed by sacrebleu (Post 2018)."""

from dataclasses import dataclass

import evaluate
import sacrebleu

# Absolute, as evaluate.load runs a copy of this file that has no neighbours.
from modeling_random_transformer.evaluation.checks import check_flag, check_order
from modeling_random_transformer.evaluation.corpus_metric import FEATURES, CorpusMetric

DESCRIPTION = """\
chrF is the F-score of a translation's character n-grams, n from 1 to 6, over a whole corpus; chrF++ takes in single
words and pairs of words too. It needs no tokenizer and is kinder than BLEU to words that differ in their endings only.
"""

INPUTS = """
Args:
    predictions: the translations, plain text.
    references: for every prediction one text or a list of texts; the lists need not be of one length.
    char_order: the longest character n-grams, 6 by default.
    word_order: the longest word n-grams: 2 (the default) is chrF++, 0 is chrF.
    beta: how many times recall weighs what precision weighs, 2 by default.
    lowercase: ignore case.
    whitespace: count spaces as characters.
    eps_smoothing: smooth by a small constant, as chrF++.py, NLTK and Moses do, instead of leaving out n-gram orders
        that the texts are too short for.

Returns:
    A dictionary of
    score: chrF++, 0 to 100.
    name: "chrF2++", by `beta` and `word_order`.
    signature: sacrebleu's account of the options and its version; a score should be reported with it.
    char_order, word_order, beta: as given.

Raises:
    ValueError: unequal numbers of predictions and references, or an argument that is not allowed.
"""

CITATION = """\
@inproceedings{popovic-2017-chrf,
    title = "chr{F}++: words helping character n-grams",
    author = "Popovi{\\'c}, Maja", booktitle = "Proceedings of WMT 2017", pages = "612--618", year = "2017"}
@inproceedings{post-2018-clarity,
    title = "A Call for Clarity in Reporting {BLEU} Scores",
    author = "Post, Matt", booktitle = "Proceedings of WMT 2018", pages = "186--191", year = "2018"}
"""


@dataclass(frozen=True)
class ChrfOptions:
    """Options of `sacrebleu.CHRF`; `word_order` is 2 here, so that chrF++ is the default."""

    char_order: int = sacrebleu.CHRF.CHAR_ORDER
    word_order: int = 2
    beta: int = sacrebleu.CHRF.BETA
    lowercase: bool = False
    whitespace: bool = False
    eps_smoothing: bool = False

    def __post_init__(self) -> None:
        check_order("char_order", self.char_order, 1)
        check_order("word_order", self.word_order, 0)
        check_order("beta", self.beta, 1)
        check_flag("lowercase", self.lowercase)
        check_flag("whitespace", self.whitespace)
        check_flag("eps_smoothing", self.eps_smoothing)


class Chrf(CorpusMetric):
    """chrF++, 0 to 100, as an `evaluate` metric."""

    scorer_class = sacrebleu.CHRF
    options_class = ChrfOptions
    details = ("char_order", "word_order", "beta")

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=FEATURES,
            codebase_urls=["https://github.com/mjpost/sacrebleu"],
            reference_urls=["https://aclanthology.org/W17-4770", "https://aclanthology.org/W18-6319"],
        )
