"""Noise in synthetic sources: words are deleted, replaced by a filler and reordered (Lample et al. 2018)."""

import random

DELETION, REPLACEMENT, DISTANCE = 0.1, 0.1, 3  # Edunov et al. 2018
FILLER = "<blank>"  # one token, if it is declared with --special_tokens


def add_noise(
    text: str,
    seed: int | str,
    *,
    deletion: float = DELETION,
    replacement: float = REPLACEMENT,
    distance: int = DISTANCE,
    filler: str = FILLER,
) -> str:
    """Delete, replace and reorder words of a text; the same seed and text give the same result.

    Words are separated by whitespace, which becomes one space. At least one word is kept.

    Args:
        text: the text.
        seed: the seed of the random numbers.
        deletion: probability of deleting a word.
        replacement: probability of replacing a remaining word by the filler.
        distance: largest number of positions by which a word is moved; 0 keeps the order.
        filler: the text that replaces a word.

    Raises:
        ValueError: a probability is not between 0 and 1, or `distance` is negative.
    """
    for name, probability in (("deletion", deletion), ("replacement", replacement)):
        if not 0 <= probability <= 1:
            raise ValueError(f"{name} must be between 0 and 1, got {probability}.")
    if distance < 0:
        raise ValueError(f"distance must be at least 0, got {distance}.")
    draw = random.Random(str(seed))
    words = text.split()
    if not words:
        return ""
    kept = [word for word in words if draw.random() >= deletion] or [draw.choice(words)]
    replaced = [filler if draw.random() < replacement else word for word in kept]
    # Sorting by these positions moves no word by more than `distance`. Equal positions keep their order.
    positions = [index + draw.random() * (distance + 1) for index in range(len(replaced))]
    order = sorted(range(len(replaced)), key=positions.__getitem__)
    return " ".join(replaced[index] for index in order)
