"""Exercise 8: the problem of always selecting the most probable token."""

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from modeling_random_transformer import RandomTransformerForConditionalGeneration, RandomTransformerTokenizer

from ..report import show_table
from .tasks import tiny_model, train

# A language in which greedy search fails: "have" is the most probable first word, but each sentence that starts with it
# is less probable than "good morning".
SOURCE = "buenos días"
LANGUAGE = {"good morning": 0.4} | {
    f"have a {wish} day": 0.1 for wish in ("nice", "great", "lovely", "happy", "sunny", "quiet")
}
SAMPLES = 1000
# length_penalty 0 ranks hypotheses by the sum of log-probabilities.
DECODINGS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False, "max_new_tokens": 10},
    "beam 4": {"num_beams": 4, "length_penalty": 0.0, "do_sample": False, "max_new_tokens": 10},
}


@dataclass
class GreedyResult:
    """The outputs of the searches, and the trained model's probabilities.

    Attributes:
        outputs: the sentence found by each decoding method.
        words: by sentence, the log-probability of each word and of the end token, in nats.
        sampled: the number of occurrences of each sentence in `SAMPLES` samples.
    """

    outputs: dict[str, str]
    words: dict[str, list[float]]
    sampled: Counter[str]


def experiment(seed: int, steps: int = 200) -> GreedyResult:
    tokenizer = language_tokenizer()
    model = train_language(tokenizer, seed, steps)
    source = tokenizer([SOURCE], return_tensors="pt")
    outputs = {name: model.generate(**source, **kwargs) for name, kwargs in DECODINGS.items()}
    samples = model.generate(**source, do_sample=True, num_return_sequences=SAMPLES, max_new_tokens=10)
    return GreedyResult(
        outputs={name: tokenizer.decode(ids[0], skip_special_tokens=True) for name, ids in outputs.items()},
        words={sentence: log_probabilities(model, tokenizer, sentence) for sentence in LANGUAGE},
        sampled=Counter(tokenizer.batch_decode(samples, skip_special_tokens=True)),
    )


def language_tokenizer() -> RandomTransformerTokenizer:
    words = " ".join([SOURCE, *LANGUAGE]).split()
    special = ("<pad>", "<s>", "</s>", "<unk>")
    return RandomTransformerTokenizer.from_words(
        [*special, *dict.fromkeys(words)], pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def train_language(
    tokenizer: RandomTransformerTokenizer, seed: int, steps: int
) -> RandomTransformerForConditionalGeneration:
    """Train on batches that contain each sentence in proportion to its probability, without sampling."""
    targets = [sentence for sentence, probability in LANGUAGE.items() for _ in range(round(10 * probability))]
    batch = tokenizer([SOURCE] * len(targets), text_target=targets, padding=True, return_tensors="pt")
    labels = batch["labels"].masked_fill(batch["labels"] == tokenizer.pad_token_id, -100)
    model = tiny_model(len(tokenizer), seed)
    train(model, lambda: (batch["input_ids"], labels), steps)
    return model


@torch.no_grad()
def log_probabilities(
    model: RandomTransformerForConditionalGeneration, tokenizer: RandomTransformerTokenizer, sentence: str
) -> list[float]:
    """ln P(word | previous words, SOURCE) of each word and of the end token."""
    batch = tokenizer([SOURCE], text_target=[sentence], return_tensors="pt")
    scores = model(**batch).logits.log_softmax(dim=-1)  # [1, length, vocab_size]
    return scores.gather(2, batch["labels"][:, :, None]).flatten().tolist()


def show(result: GreedyResult, _folder: Path) -> None:
    rows = [
        (name, f"{sum(result.words[sentence]):.3f}", word_by_word(sentence, result.words[sentence]))
        for name, sentence in result.outputs.items()
    ]
    show_table(f"Translations of {SOURCE!r}", ("decoding", "log-probability", "probability of each word"), rows)
    sentences = [
        (sentence, f"{truth:.3f}", f"{math.exp(sum(result.words[sentence])):.3f}", str(result.sampled[sentence]))
        for sentence, truth in LANGUAGE.items()
    ]
    columns = ("sentence", "true probability", "model", f"of {SAMPLES} samples")
    show_table("All sentences of the language", columns, sentences)


def word_by_word(sentence: str, scores: list[float]) -> str:
    words = zip([*sentence.split(), "(end)"], scores, strict=True)
    return " · ".join(f"{word} {math.exp(score):.3f}" for word, score in words)
