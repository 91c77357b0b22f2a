"""Word2Vec's skip-gram (Mikolov et al. 2013), for exercise 13: each word predicts the words near it.

The softmax over all words is computed in full; Word2Vec samples a few others instead, for vocabularies of millions.
"""

import re
from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

WIDTH = 32  # width of a word vector
WINDOW = 2  # words on each side
STEPS, BATCH, LEARNING_RATE = 600, 1024, 0.01
MIN_COUNT = 5


def train_vectors(texts: Iterable[str], seed: int, steps: int = STEPS) -> tuple[list[str], Tensor]:
    """The words that occur often enough, and their vectors, `[words, WIDTH]`."""
    torch.manual_seed(seed)
    sentences = [re.findall(r"\w+", text.lower()) for text in texts]
    counts = Counter(word for sentence in sentences for word in sentence)
    words = [word for word, count in counts.most_common() if count >= MIN_COUNT]
    pairs = torch.tensor(neighbor_pairs(sentences, words))
    vectors, outputs = nn.Embedding(len(words), WIDTH), nn.Linear(WIDTH, len(words))
    optimizer = torch.optim.Adam([*vectors.parameters(), *outputs.parameters()], lr=LEARNING_RATE)
    for _ in range(steps):
        word, neighbor = pairs[torch.randint(len(pairs), (BATCH,))].T
        loss = cross_entropy(outputs(vectors(word)), neighbor)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return words, vectors.weight.detach()


def neighbor_pairs(sentences: Iterable[list[str]], words: list[str]) -> list[tuple[int, int]]:
    """The ids of each word and of each word at most `WINDOW` places from it."""
    ids = {word: index for index, word in enumerate(words)}
    pairs = []
    for sentence in sentences:
        known = [ids[word] for word in sentence if word in ids]
        for place, word in enumerate(known):
            near = known[max(0, place - WINDOW) : place] + known[place + 1 : place + 1 + WINDOW]
            pairs += [(word, neighbor) for neighbor in near]
    return pairs
