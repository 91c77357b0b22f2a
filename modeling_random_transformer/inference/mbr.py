"""Minimum Bayes risk decoding: of many sampled translations, the one that is most similar to all of them."""

from collections import Counter
from collections.abc import Sequence

MAX_ORDER, BETA = 6, 2  # of chrF (Popović 2015)
SAMPLING = {"do_sample": True, "top_k": 5, "temperature": 0.7}


def most_similar(texts: Sequence[str]) -> int:
    """The index of the text with the highest chrF against the average of all texts.

    With chrF as the utility, the expected utility is approximated by that of the average counts of character n-grams
    (Vamvas and Sennrich 2024, https://aclanthology.org/2024.acl-short.71), so that the time is linear in the number of
    texts. On the choice among samples, see Eikema and Aziz 2022 (https://aclanthology.org/2022.emnlp-main.754).
    """
    counts = [count_ngrams(text) for text in texts]
    averages = [average(of_order) for of_order in zip(*counts, strict=True)]
    scores = [sum(map(f_score, of_text, averages)) for of_text in counts]
    return scores.index(max(scores))


def count_ngrams(text: str) -> list[Counter[str]]:
    """The counts of the n-grams of each order, without spaces."""
    characters = "".join(text.split())
    orders = range(1, MAX_ORDER + 1)
    return [Counter(characters[i : i + n] for i in range(len(characters) - n + 1)) for n in orders]


def average(counts: Sequence[Counter[str]]) -> tuple[Counter[str], float]:
    """The mean counts, and the mean of their totals."""
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return Counter({ngram: n / len(counts) for ngram, n in total.items()}), total.total() / len(counts)


def f_score(count: Counter[str], reference: tuple[Counter[str], float]) -> float:
    """The F-score of the n-grams of one order, with weight `BETA` of recall; 0 without common n-grams."""
    means, total = reference
    matches = sum(min(n, means[ngram]) for ngram, n in count.items())
    return (1 + BETA**2) * matches / (BETA**2 * total + count.total()) if matches else 0.0
