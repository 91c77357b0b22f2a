"""Word alignments from cross-attention, averaged over the heads of one layer.

The attention of a target token is that of the step which predicts the token, or of the next step, where the token is
the decoder's input and therefore known (Chen et al. 2020, "Accurate Word Alignment Induction from Neural Machine
Translation").
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import length_hint
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...base.files import StrPath
from ...base.progress import process_stream
from ...configuration_random_transformer import is_int
from ...data.sources import Corpus, Pair
from ...inference.scoring import PairModel
from ...inference.translation_files import write_in_parts
from ...inputs_random_transformer import CHUNK_SIZE, Ids, check_choice, source_text
from ...pipeline_random_transformer import evaluation_mode
from .scoring_files import PairWork
from .words import NON_SPACES, SpansOf, TokenWords, word_spans, words_of_tokens

Links = list[tuple[int, int]]
STEPS = ("output", "input")


def alignments(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Iterable[Pair | None],
    *,
    layer: int = -1,
    step: str = "output",
    chunk_size: int = CHUNK_SIZE,
    progress: bool | None = None,
    **options: Any,
) -> Iterator[Links]:
    """The links (source word, target word) of each pair, as indices of words that are separated by white space.

    Every target word is linked to one source word: the one that its tokens attend to most. A lazy iterator, in the
    order of the pairs. Attention is computed by the eager implementation, which the model uses during each batch, so
    other threads should not use the model at the same time.

    Args:
        model: a model of `AutoModelForSeq2SeqLM` that returns cross-attention.
        tokenizer: its tokenizer, with offsets or with SentencePiece's marks of word boundaries.
        pairs: sources and targets; `None` in place of a pair gives `None`.
        layer: index of the decoder layer; negative indices count from the last layer.
        step: `"output"` for the step that predicts the target token; `"input"` for the step after it.
        chunk_size: number of pairs that are sorted by length together.
        progress: show a progress bar on stderr; `None` shows it after a delay.
        **options: those of `score_pairs`. With `truncation`, the words beyond have no links.

    Raises:
        ValueError: an argument or a pair is invalid, or the model is an ensemble.
    """
    aligner = Aligner(model, tokenizer, layer=layer, step=step, **options)
    return process_stream(pairs, aligner, chunk_size, progress, length_hint(pairs), "pair")


class Aligner(PairModel):
    """Aligns pairs; see `alignments` and `PairModel` for the arguments.

    `spans_of` gives the spans of the units that are aligned, by default of the words.
    """

    def __init__(
        self,
        *args: Any,
        layer: int = -1,
        step: str = "output",
        spans_of: SpansOf = word_spans,
        **options: Any,
    ):
        super().__init__(*args, **options)
        model = self.model
        config = model.config
        if hasattr(model, "members"):
            raise ValueError("model must be a single model for alignments, got an ensemble.")
        if getattr(config, "prefix", None):  # the words of which would be counted
            raise ValueError(f"prefix must be empty in the configuration for alignments, got {config.prefix!r}.")
        layers = getattr(config, "num_decoder_layers", None)  # T5's name of the option
        if layers is None:
            layers = config.get_text_config(decoder=True).num_hidden_layers
        if not is_int(layer) or layer not in range(-layers, layers):
            raise ValueError(f"layer must be from {-layers} to {layers - 1}, got {layer!r}.")
        check_choice(STEPS, step=step)
        self.layer = layer
        self.step = step
        self.spans_of = spans_of

    def effective_options(self) -> dict[str, Any]:
        """The layer and the step."""
        return {"layer": self.layer, "step": self.step}

    def texts_to_tokenize(self, source: str, target: str) -> Pair:
        """The texts with one space between words, which have the same numbers, unless several spaces are content."""
        return self._with_single_spaces(source), self._with_single_spaces(target)

    def _with_single_spaces(self, text: str) -> str:
        joined = " ".join(NON_SPACES.findall(text))
        is_equal = source_text(joined, self.tokenizer) == source_text(text, self.tokenizer)
        return joined if is_equal else text

    def process(self, pairs: Sequence[Pair], sources: Sequence[Ids], targets: Sequence[Ids]) -> list[Links]:
        """The links of each pair of a batch."""
        source_texts, target_texts = zip(*pairs, strict=True)
        source_words = words_of_tokens(self, "text", source_texts, sources, self.spans_of)
        target_words = words_of_tokens(self, "text_target", target_texts, targets, self.spans_of)
        return list(map(link_words, self.attention(sources, targets), source_words, target_words))

    @torch.inference_mode()
    def attention(self, sources: Sequence[Ids], targets: Sequence[Ids]) -> Tensor:
        """The attention of each target token but the last to the source, `[batch, target_len - 1, source_len]`."""
        inputs, _ = self.inputs(sources, targets)
        with evaluation_mode(self.model), eager_attention(self.model):
            outputs = self.model(**inputs, use_cache=False, output_attentions=True)
        head_attention = outputs.cross_attentions[self.layer]
        attention = head_attention.mean(dim=1).float().cpu()
        # Row 0 predicts the first token from the start token.
        return attention[:, :-1] if self.step == "output" else attention[:, 1:]


def links_line(links: Links | None) -> str:
    """`[(0, 0), (2, 1)]` → `"0-0 2-1"`; an empty line for `None`."""
    return " ".join(f"{source}-{target}" for source, target in links or ())


def link_words(attention: Tensor, source_words: TokenWords, target_words: TokenWords) -> Links:
    """Link each target word to the source word with the most attention, sorted by source word.

    Args:
        attention: of target tokens to source tokens, `[target_len, source_len]`, with padding on the right.
        source_words: the word of each source token.
        target_words: the word of each target token.
    """
    target_words = target_words[: len(attention)]
    if not source_words or not target_words:
        return []
    source = word_matrix(source_words)
    target = word_matrix(target_words)
    if not source.numel():
        return []
    token_attention = attention[: len(target), : len(source)]
    word_attention = target.T @ token_attention @ source
    best = word_attention.argmax(dim=1).tolist()
    has_tokens = target.any(dim=0).tolist()
    links = [(source_word, word) for word, source_word in enumerate(best) if has_tokens[word]]
    return sorted(links)


def word_matrix(words: TokenWords) -> Tensor:
    """1 for each token and its word, `[tokens, words]`."""
    indices = torch.tensor([-1 if word is None else word for word in words])
    return nn.functional.one_hot(indices + 1)[:, 1:].float()


@contextmanager
def eager_attention(model: PreTrainedModel) -> Iterator[None]:
    """Use the eager attention implementation, the only one that returns weights."""
    previous = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(previous)


def align_file(
    corpus: Corpus,
    output_file: StrPath,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    chunk_size: int = CHUNK_SIZE,
    restart: bool = False,
    progress: bool | None = None,
    **options: Any,
) -> None:
    """Align the words of parallel text; line n of the output has the links of pair n, such as `0-0 1-2` (Pharaoh).

    The arguments and the errors are those of `score_file`; `options` are those of `alignments`.
    """
    aligner = Aligner(model, tokenizer, **options)
    work = PairWork(corpus, Path(output_file), model, aligner, links_line, {})
    write_in_parts(work, chunk_size=chunk_size, restart=restart, progress=progress)
