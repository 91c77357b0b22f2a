"""How good the confidence of a saved model is, and what `repair` does to noisy and to clean texts.

The model needs a confidence.json that was not made from the test set.
"""

import argparse
import random
import string
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from modeling_random_transformer.extras.wrappers.problems import LOOP, has_loop
from modeling_random_transformer.inference import Candidate, load_translator, score_pairs, translate_n_best
from modeling_random_transformer.inference.confidence import find_calibration
from modeling_random_transformer.inference.evaluation import score, sentence_chrf

BINS = 10  # bins of the expected calibration error
KEYBOARD = ["qwertyuiop", "asdfghjkl", "zxcvbnm"]
CODE = "for (int i = 0; i < {n}; i++) {{ total += rows[i].{word}; }}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="FOLDER", help="a saved model with a calibration")
    parser.add_argument("--source", type=Path, required=True, help="test sources, one per line")
    parser.add_argument("--target", type=Path, required=True, help="their references")
    parser.add_argument("--other_domain", type=Path, help="sources of another domain")
    parser.add_argument("--other_language", type=Path, help="sources in another language")
    parser.add_argument("--noisy", type=int, default=2000, help="number of noisy inputs")
    parser.add_argument("--texts", type=int, default=1000, help="limit on the lines of each file")


def run(options: argparse.Namespace) -> None:
    model, tokenizer = load_translator(options.model)

    def lines(path: Path) -> list[str]:
        return path.read_text(encoding="utf-8").splitlines()[: options.texts]

    def translated(texts: Sequence[str], **more: Any) -> list[Candidate]:
        candidates = translate_n_best(texts, model, tokenizer, n_best=None, num_beams=4, chunk_size=10_000, **more)
        return [best for [best] in candidates]

    sources, references = lines(options.source), lines(options.target)
    clean = translated(sources, confidence=True)
    confidence = confidences(clean)
    report_quality(model, tokenizer, sources, references, clean)
    unusual_texts = {"words in random order": [shuffled(text) for text in sources]}
    for name in ("other_domain", "other_language"):
        if (path := getattr(options, name)) is not None:
            unusual_texts[name] = lines(path)
    for name, texts in unusual_texts.items():
        unusual_confidence = confidences(translated(texts, confidence=True))
        ratio = unusual_confidence.mean() / confidence.mean()
        area = auc(confidence, unusual_confidence)
        print(f"{name}: mean confidence {ratio:.2f} of that of the test set, AUC {area:.3f}")
    foreign = lines(options.other_language) if options.other_language else []
    report_repair(translated, sources, references, clean, noisy_texts(sources, foreign, options.noisy))


def confidences(candidates: Sequence[Candidate]) -> np.ndarray:
    """The confidences of the translations that have one."""
    return np.array([best.confidence for best in candidates if best.confidence is not None])


def report_quality(
    model: Any, tokenizer: Any, sources: Sequence[str], references: Sequence[str], clean: Sequence[Candidate]
) -> None:
    """Print how the confidence agrees with chrF++."""
    translations = [best.translation for best in clean]
    chrf = np.array([sentence_chrf(text, [target]) for text, target in zip(translations, references, strict=True)])
    confidence = np.array([best.confidence for best in clean])
    pairs = list(zip(sources, translations, strict=True))
    scores = score_pairs(model, tokenizer, pairs, truncation=True)
    mean_log_probability = np.array([pair.log_probability / pair.tokens for pair in scores])
    calibration = find_calibration(model, tokenizer)
    assert calibration is not None  # the model has rated its translations
    is_good = chrf >= calibration.threshold
    surest = confidence >= np.median(confidence)
    print(f"expected calibration error {calibration_error(confidence, is_good):.3f}")
    print(f"Spearman with chrF++ {spearman(confidence, chrf):.3f}, of the mean log-probability "
          f"{spearman(mean_log_probability, chrf):.3f}")  # fmt: skip
    print(f"chrF++ of the surest half {chrf[surest].mean():.2f}, of all {chrf.mean():.2f}")
    print(f"mean confidence {confidence.mean():.3f}, good translations {is_good.mean():.3f}")


def report_repair(
    translated: Callable[..., list[Candidate]],
    sources: Sequence[str],
    references: Sequence[str],
    clean: Sequence[Candidate],
    noisy: Sequence[str],
) -> None:
    """Print what `repair` changes."""
    repaired = translated(sources, repair=True)
    changed = sum(old.translation != new.translation for old, new in zip(clean, repaired, strict=True))
    bleu = []
    for candidates in (clean, repaired):
        translations = [best.translation for best in candidates]
        bleu.append(score(translations, references)["bleu"]["score"])
    print(f"clean texts: {changed} of {len(sources)} changed, BLEU {bleu[0]:.2f}, with repair {bleu[1]:.2f}")
    for name, candidates in (("plain", translated(noisy)), ("repair", translated(noisy, repair=True))):
        loops = sum(has_loop(text, best.translation) for text, best in zip(noisy, candidates, strict=True))
        doubtful = sum(bool(best.problems) for best in candidates)
        kept = sum(LOOP in best.problems for best in candidates)
        print(f"{name}: {len(noisy)} noisy texts, {loops} loops, {doubtful} doubtful ({kept} with a loop)")


def calibration_error(confidence: np.ndarray, is_good: np.ndarray) -> float:
    """The expected calibration error, with bins of equal width."""
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    error = 0.0
    for number in set(bins.tolist()):
        members = bins == number
        error += members.mean() * abs(confidence[members].mean() - is_good[members].mean())
    return error


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """The rank correlation, without ties."""
    ranks = np.stack([values.argsort().argsort() for values in (first, second)])
    return float(np.asarray(np.corrcoef(ranks))[0, 1])


def auc(higher: np.ndarray, lower: np.ndarray) -> float:
    """The probability that a value of the first group is higher than one of the second."""
    return float((higher[:, None] > lower).mean() + (higher[:, None] == lower).mean() / 2)


# Noise


def shuffled(text: str, draw: random.Random | None = None) -> str:
    """A text with its words in random order."""
    words = text.split()
    (draw or random.Random(text)).shuffle(words)
    return " ".join(words)


def noisy_texts(sources: Sequence[str], foreign: Sequence[str], count: int) -> list[str]:
    """Texts with all kinds of noise alternately. The same arguments give the same texts."""
    draw = random.Random(0)
    kinds = [without_words, with_repetitions, in_capitals, with_typing_errors, code, long_text, shuffled]
    texts = []
    for number in range(count):
        kind = number % (len(kinds) + bool(foreign))
        text = draw.choice(sources)
        if kind == len(kinds):
            texts.append(draw.choice(foreign))
        elif kinds[kind] is long_text and number % 10:  # a long text takes as long as many short ones
            texts.append(in_capitals(with_typing_errors(text, draw), draw))
        elif kinds[kind] is long_text:
            texts.append(long_text(sources, draw))
        else:
            texts.append(kinds[kind](text, draw))
    return texts


def without_words(text: str, draw: random.Random) -> str:
    """A text without a third of its words."""
    return " ".join(word for word in text.split() if draw.random() > 1 / 3) or text


def with_repetitions(text: str, draw: random.Random) -> str:
    """A text in which one to three words are repeated up to five times."""
    words = text.split()
    for _ in range(draw.randint(1, 3)):
        place = draw.randrange(len(words))
        words[place:place] = [words[place]] * draw.randint(1, 5)
    return " ".join(words)


def in_capitals(text: str, _: random.Random) -> str:
    """A text in capitals."""
    return text.upper()


def with_typing_errors(text: str, draw: random.Random) -> str:
    """A text in which 10% of the letters are those of a neighboring key."""
    characters = []
    for character in text:
        row = next((row for row in KEYBOARD if character in row), "")
        place = row.find(character) + draw.choice((-1, 1))
        characters.append(row[place] if 0 <= place < len(row) and draw.random() < 0.1 else character)
    return "".join(characters)


def code(text: str, draw: random.Random) -> str:
    """A line of code with a word of a text."""
    word = draw.choice(text.split()).strip(string.punctuation)
    return CODE.format(n=draw.randint(1, 999), word=word)


def long_text(sources: Sequence[str], draw: random.Random) -> str:
    """Sentences of 400 words together."""
    words: list[str] = []
    while len(words) < 400:
        words += draw.choice(sources).split()
    return " ".join(words)
