"""Translation of HTML: the text of its blocks sentence by sentence, with inline elements on their words."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...base.progress import process_stream
from ...inference.markup import Block, Unit, needs_alignment, parse, render, unit_spans
from ...inference.placement import Pair, UnitAligner, sentence_units
from ...inference.sentences import SentenceSplitter, SplitText
from ...inference.translation import open_pipeline, translate_chunk, with_prefixes
from ...inputs_random_transformer import CHUNK_SIZE, check_text
from ...tokenization_random_transformer import is_blank


def translate_html(
    documents: Iterable[str],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    chunk_size: int = CHUNK_SIZE,
    progress: bool | None = None,
    **options: Any,
) -> list[str]:
    """Translate HTML documents or fragments.

    Only text changes: tags, attributes, comments, white space between blocks, elements such as script, style, code and
    `translate="no"`, and placeholders such as `{name}`, `%s`, URLs and e-mail addresses are copied. Inline elements are
    placed by the cross-attention of the last decoder layer (see `alignments`), which the model computes for the
    sentences that need it.

    Args:
        documents: any iterable of strings.
        model: any model of `AutoModelForSeq2SeqLM` that returns cross-attention, but not an ensemble.
        tokenizer: its tokenizer.
        chunk_size: number of sentences that are sorted by length together.
        progress: show a progress bar of sentences on stderr; `None` shows it after a delay.
        **options: those of `translate`, except for `n_best` and `prefixes`. Sentences are always split.

    Raises:
        ValueError: an argument is invalid, a document is not a string of Unicode characters, or sentencex is not
            installed.
    """
    pipe, settings = open_pipeline(model, tokenizer, **options | {"split_sentences": True})
    argument = "translate_html (--format html)"
    splitter = SentenceSplitter(pipe, settings.max_source_tokens, options.get("src_lang"), argument)
    parsed = []
    for index, document in enumerate(documents):
        if not isinstance(document, str) or not is_blank(document):
            check_text(document, index)
        parsed.append(parse(document))
    blocks = [(part, split_block(part, splitter)) for parts in parsed for part in parts if isinstance(part, Block)]

    sentences = [sentence for _, split in blocks for sentence in split.sentences]
    process = partial(translate_chunk, pipe, replace(settings, split_sentences=False))
    found = process_stream(with_prefixes(sentences, None), process, chunk_size, progress, len(sentences), "sentence")
    translations = [best.translation.strip() for best, *_ in found]
    aligned = [needs_alignment(block) for block, split in blocks for _ in split.sentences]
    weights: Iterator[Tensor | None] = iter([None] * len(sentences))
    if any(aligned):
        both = zip(sentences, translations, strict=True)
        pairs: list[Pair | None] = [pair if needed else None for pair, needed in zip(both, aligned, strict=True)]
        aligner = UnitAligner(model, tokenizer, truncation=True, **settings.languages(tokenizer))
        weights = process_stream(pairs, aligner, chunk_size, progress, len(pairs), "sentence")
    texts = iter(translations)
    rendered = (
        render_block(block, split, [next(texts) for _ in split.sentences], [next(weights) for _ in split.sentences])
        for block, split in blocks
    )
    return ["".join(part if isinstance(part, str) else next(rendered) for part in parts) for parts in parsed]


def split_block(block: Block, splitter: SentenceSplitter) -> SplitText:
    """The sentences of a block, in which non-breaking spaces become spaces."""
    split, position, gaps = splitter(block.text.replace("\xa0", " ")), 0, []
    for gap, sentence in zip(split.gaps, [*split.sentences, ""], strict=True):
        gaps.append(block.text[position : position + len(gap)])
        position += len(gap) + len(sentence)
    return SplitText(split.sentences, gaps)


def render_block(block: Block, split: SplitText, translations: Sequence[str], weights: Sequence[Tensor | None]) -> str:
    """The HTML of a translated block.

    Args:
        block: the block.
        split: its sentences.
        translations: their translations.
        weights: of each sentence, the attention of target units to source units; `None` if all is in one element.
    """
    units: list[Unit] = []
    source, target = 0, ""
    for number, (source_gap, target_gap) in enumerate(zip(split.gaps, split.target_gaps(translations), strict=True)):
        for start, end in unit_spans(target_gap):  # the same text on both sides
            units.append(Unit(len(target) + start, len(target) + end, [((source + start, source + end), 1.0)]))
        source, target = source + len(source_gap), target + target_gap
        if number < len(translations):
            sentence, translation = split.sentences[number], translations[number]
            units += sentence_units(sentence, translation, weights[number], source, len(target))
            source, target = source + len(sentence), target + translation
    return render(block, target, units)
