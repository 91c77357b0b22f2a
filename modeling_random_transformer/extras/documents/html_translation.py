"""Translates HTML. Blocks are translated sentence by sentence, and inline elements are placed at their words."""

from collections.abc import Iterable, Sequence
from itertools import islice, repeat
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...base.progress import process_stream
from ...data.sources import Pair
from ...inference.translation import Translator, check_options_unset, with_prefixes
from ...inputs_random_transformer import CHUNK_SIZE, check_string
from ...tokenization_random_transformer import check_iterable_of_texts
from ..pairs.alignments import Links
from ..pairs.placement import Unit, align_units, linked_units
from ..wrappers.sentences import SentenceSplitter, SplitText
from .markup import Block, Renderer, needs_alignment, parse


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

    Only text is translated. Tags, attributes, comments, white space between blocks, elements such as script, style,
    code and `translate="no"`, and placeholders such as `{name}`, `%s`, URLs and e-mail addresses are copied. Inline
    elements are placed by the cross-attention of the last decoder layer (see `alignments`), which the model computes
    for the sentences that need it.

    Args:
        documents: any iterable of strings.
        model: any model of `AutoModelForSeq2SeqLM` that returns cross-attention, but not an ensemble.
        tokenizer: its tokenizer.
        chunk_size: number of sentences that are sorted by length together.
        progress: show a progress bar of sentences on stderr; `None` shows it after a delay.
        **options: those of `translate`, except for `n_best`, `prefixes`, `confidence` and `min_confidence`. Sentences
            are always split, and repaired unless `repair=False`.

    Raises:
        ValueError: an argument is invalid, a document is not a string of Unicode characters, or sentencex is not
            installed.
    """
    check_options_unset(options, ("n_best", "confidence", "min_confidence"), "for documents")
    check_iterable_of_texts("documents", documents)
    translator = Translator(model, tokenizer, **{"repair": True} | options | {"split_sentences": True})
    splitter = SentenceSplitter(translator.pipe, translator.options.max_source_tokens, options.get("src_lang"))
    parsed = []
    for index, document in enumerate(documents):
        check_string(document, index)
        parsed.append(parse(document))
    blocks = [part for parts in parsed for part in parts if isinstance(part, Block)]
    texts = [split_block(block, splitter) for block in blocks]
    sentences = [sentence for text in texts for sentence in text.sentences]
    candidates = process_stream(
        with_prefixes(sentences, None),
        translator.composition.translate_sentence_rows,
        chunk_size,
        progress,
        len(sentences),
        "sentence",
    )
    translations = [best.translation.strip() for [best] in candidates]
    pairs: list[Pair | None] = []  # `None` in a block without elements to be placed
    for block, text in zip(blocks, texts, strict=True):
        is_aligned = needs_alignment(block)
        for sentence in text.sentences:
            pairs.append((sentence, translations[len(pairs)]) if is_aligned else None)
    links = align_units(model, tokenizer, pairs, translator.languages)
    translated = zip(translations, links, strict=True)
    rendered = (
        render_block(block, text, [*islice(translated, len(text.sentences))])
        for block, text in zip(blocks, texts, strict=True)
    )
    return ["".join(part if isinstance(part, str) else next(rendered) for part in parts) for parts in parsed]


def split_block(block: Block, splitter: SentenceSplitter) -> SplitText:
    """The sentences of a block, in which non-breaking spaces become spaces."""
    text = splitter(block.text.replace("\xa0", " "))
    gaps = []
    position = 0
    for gap, sentence in zip(text.gaps, [*text.sentences, ""], strict=True):
        gaps.append(block.text[position : position + len(gap)])
        position += len(gap) + len(sentence)
    return SplitText(text.sentences, gaps)


def render_block(block: Block, text: SplitText, translated: Sequence[tuple[str, Links | None]]) -> str:
    """The HTML of a translated block.

    Args:
        block: the block.
        text: its sentences.
        translated: the translation of each sentence, and the links between their units; `None` if all is in one
            element.
    """
    translations = [translation for translation, _ in translated]
    gaps = zip(text.gaps, text.target_gaps(translations), repeat(None))
    sentences = [(sentence, *parts) for sentence, parts in zip(text.sentences, translated, strict=True)]
    units: list[Unit] = []
    source = 0
    target = ""
    for gap_and_sentence in zip(gaps, [*sentences, ("", "", None)], strict=True):
        for original, translation, links in gap_and_sentence:
            units += linked_units(original, translation, links, source, len(target))
            source += len(original)
            target += translation
    return Renderer(block, target, units).render()
