"""Places in a translation by the cross-attention: of inline elements, and of placeholders, which stay unchanged."""

import html
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from .alignments import Aligner, word_spans
from .markup import PLACEHOLDER, Block, Unit, build_block, needs_alignment, render, text_tokens, unit_spans

Pair = tuple[str, str]


def protect(sentence: str) -> Block | None:
    """A sentence without its placeholders, which `restore` inserts into its translation; `None` if there are none."""
    if PLACEHOLDER.search(sentence) is None:
        return None
    return build_block([*text_tokens(html.escape(sentence, quote=False))])


def restore(blocks: Sequence[Block], translations: Sequence[str], aligner: "UnitAligner | None") -> list[str]:
    """The translations of protected sentences with their placeholders.

    Args:
        blocks: the protected sentences.
        translations: the translations of their texts.
        aligner: `None` for a model without alignments: words are assumed to be in the same order.
    """
    pairs = [(block.text, translation) for block, translation in zip(blocks, translations, strict=True)]
    aligned = [
        needs_alignment(block) and bool(target.strip()) for block, (_, target) in zip(blocks, pairs, strict=True)
    ]
    weights: list[Tensor | None] = [None] * len(pairs)
    if any(aligned) and aligner is not None:
        found = iter(aligner([pair for pair, needed in zip(pairs, aligned, strict=True) if needed], 0, lambda _: None))
        weights = [next(found) if needed else None for needed in aligned]
    restored = []
    for block, (source, target), values in zip(blocks, pairs, weights, strict=True):
        if values is None:
            values = diagonal(len(unit_spans(target)), len(unit_spans(source)))
        units = [*sentence_units(source, target, values, 0, 0)]
        restored.append(html.unescape(render(block, target, units)))
    return restored


def diagonal(rows: int, columns: int) -> Tensor:
    """Weights of words in the same order, `[rows, columns]`."""
    places = torch.arange(rows)[:, None] / max(1, rows), torch.arange(columns) / max(1, columns)
    return 1 - (places[0] - places[1]).abs()


def sentence_units(sentence: str, translation: str, weights: Tensor | None, source: int, target: int) -> Iterator[Unit]:
    """The units of a translation, with the offsets of the sentence and of its translation in the text of a block."""
    spans = unit_spans(sentence)
    for row, (start, end) in enumerate(unit_spans(translation)):
        values = [0.0] * len(spans) if weights is None else weights[row].tolist()
        # A number or a punctuation mark translates the same one of the source, if there is one.
        unit = translation[start:end]
        if not unit.isalpha() and (equal := [sentence[first:last] == unit for first, last in spans]) and any(equal):
            values = [value + 1e-6 if same else 0.0 for value, same in zip(values, equal, strict=True)]
        places = [(source + first, source + last) for first, last in spans]
        yield Unit(target + start, target + end, list(zip(places, values, strict=True)))


class UnitAligner(Aligner):
    """The attention of each unit of a target to each unit of its source, `[target_units, source_units]`."""

    def process(  # type: ignore[override]
        self, pairs: Sequence[Pair], sources: Sequence[list[int]], targets: Sequence[list[int]]
    ) -> list[Tensor]:
        source_units = self.units("text", [source for source, _ in pairs], sources)
        target_units = self.units("text_target", [target for _, target in pairs], targets)
        found = []
        attended = zip(pairs, self.attention(sources, targets), source_units, target_units, strict=True)
        for pair, attention, columns, rows in attended:
            source_count, target_count = (len(unit_spans(text)) for text in pair)
            weights = torch.zeros(target_count, source_count)
            for values, of_target in zip(attention.tolist(), rows, strict=False):
                for value, of_source in zip(values, columns, strict=False):
                    for target in of_target:
                        weights[target, of_source] += value
            found.append(weights)
        return found

    def units(self, side: str, texts: Sequence[str], tokens: Sequence[list[int]]) -> list[list[list[int]]]:
        """The indices of the units of each token; without offsets, those of its word."""
        if self.tokenizer.is_fast:
            found = self.words(side, texts, tokens, unit_spans)
            return [[[] if unit is None else [unit] for unit in row] for row in found]
        rows = []
        for text, row in zip(texts, self.words(side, texts, tokens), strict=True):
            words, spans = word_spans(text), unit_spans(text)
            of_word = [[i for i, span in enumerate(spans) if start <= span[0] < end] for start, end in words]
            rows.append([of_word[word] if word is not None and word < len(words) else [] for word in row])
        return rows
