"""`pipeline("seq2seq", model=…)`: text in, text out, for every model of `AutoModelForSeq2SeqLM`.

transformers v5 has no pipeline for encoder-decoders. This one is a single file that needs nothing but torch and
transformers, so that it travels with whatever model it is saved with.
"""

import copy
import reprlib
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import IterableDataset
from transformers import AutoModelForSeq2SeqLM, Pipeline
from transformers.pipelines import PIPELINE_REGISTRY
from transformers.pipelines.base import PipelineRegistry
from transformers.pipelines.pt_utils import PipelineIterator
from transformers.utils import TRANSFORMERS_DYNAMIC_MODULE_NAME

LENGTHS = ("max_length", "max_new_tokens")  # of which generate() wants one
WINDOW = 16  # batches of a stream among which texts are sorted by length
# A fast tokenizer keeps truncation and padding as state of its backend, so that one call must end before the next.
TOKENIZER_LOCK = threading.Lock()


class Seq2SeqPipeline(Pipeline):
    """Generates a text from each text, with any encoder-decoder that has a head for language modelling.

        pipe = pipeline("seq2seq", model="my-model")
        pipe("hello world")                                        # {"generated_text": "hola mundo"}
        pipe(["hello", "world"], batch_size=2, num_beams=4)        # a list of such answers
        for answer in pipe(KeyDataset(dataset, "text"), batch_size=32): ...

    A text gives an answer and a list (or tuple) of texts a list of answers. Anything else that can be iterated over (a
    generator, a file, a column of a data set) gives an iterator that reads no further than it must, and may never end.
    Answers are in the order of the texts. With `batch_size` above 1, texts of similar length share a batch: of a list
    all texts are sorted, of a stream those of 16 batches, which are read before the first of them is answered.
    `num_workers` has no effect: the tokenizer has threads of its own.

    Several threads may call one pipeline at a time. The model runs in evaluation mode; afterwards its modules have the
    modes that they had before. All threads share torch's random number generator, so samples depend on their order.

    The following may be given to `pipeline()` and to each call, which has the last word.

    Args:
        prefix: put before each text, as in T5's `"translate English to German: "`; what the model's configuration has
            as `prefix` (mostly nothing) when `None`.
        truncation: cut texts that are too long, and warn of how many; without it they are refused. Too long is what
            has more tokens than `max_source_tokens` or, where that is not given, `tokenizer.model_max_length`; and in
            any case what has more tokens than the model has positions. Sinusoids that are computed for any length,
            relative and rotary positions have no end.
        max_source_tokens: cut texts to so many tokens; with `truncation=False` refuse them.
        return_key: what an answer calls its text; `"generated_text"` when `None`. v4 said `"translation_text"` and
            `"summary_text"`.
        return_scores: give each answer a `"score"`. With beams it is the score that beam search ranks by, the sum of
            the log-probabilities of the tokens over their number to the power `length_penalty`. Otherwise it is that
            sum itself, the end token included, in the distribution that tokens are chosen from, after temperature,
            top-k and whatever else changes it.
        clean_up_tokenization_spaces: as in `tokenizer.decode`.
        **generate_options: all options of `generate()`, such as `num_beams`, `do_sample`, `num_return_sequences`,
            `max_new_tokens`, `generation_config` or `logits_processor`. A call's `generation_config` replaces all that
            `pipeline()` was given. `streamer` needs a single text.

    With `num_return_sequences` above 1 an answer is a list of as many dictionaries, best first where beams rank them.

    Raises:
        ValueError: an argument is not allowed; a text is empty, blank, no string or too long, and the message gives its
            index (from 0); the model is no encoder-decoder.
    """

    _load_tokenizer = True
    _load_processor = False
    _load_image_processor = False
    _load_video_processor = False
    _load_feature_extractor = False

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        name = type(self.model).__name__
        if not (self.model.config.is_encoder_decoder and self.model.can_generate()):
            raise ValueError(f"model must be one of AutoModelForSeq2SeqLM, with encoder, decoder and head, got {name}.")
        if self.tokenizer is None:
            raise ValueError(f"tokenizer must be that of the model, {name}, got None.")
        self.positions = source_positions(self.model)

    def __call__(self, inputs: Any, **kwargs: Any) -> Any:
        """Answer one text, several, or a stream; arguments and errors are those of the class."""
        if isinstance(inputs, str):
            return super().__call__(inputs, **kwargs)
        answers = super().__call__(Texts(inputs), **kwargs)
        return list(answers) if isinstance(inputs, list | tuple) else answers

    def _sanitize_parameters(
        self,
        prefix: str | None = None,
        truncation: bool | None = None,
        max_source_tokens: int | None = None,
        return_key: str | None = None,
        return_scores: bool | None = None,
        clean_up_tokenization_spaces: bool | None = None,
        **generate_options: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """The arguments of `preprocess`, `_forward` and `postprocess`."""
        check("prefix", prefix, str, "a string")
        check("truncation", truncation, bool, "True or False")
        check("return_scores", return_scores, bool, "True or False")
        check("return_key", return_key, str, "a string other than '' and 'score'", refused=("", "score"))
        if max_source_tokens is not None:
            check_positive("max_source_tokens", max_source_tokens)
        for length, other in (LENGTHS, LENGTHS[::-1]):
            if length in generate_options:  # and the other, saved with the model or given earlier, does not count
                generate_options = {other: None, **generate_options}
        if "generation_config" not in generate_options:  # which would replace those of the pipeline itself
            own = vars(self).get("_forward_params", {})
            generate_options = {**own.get("generate_options", {}), **generate_options}
        return (
            given(prefix=prefix, truncation=truncation, max_source_tokens=max_source_tokens),
            given(generate_options=generate_options, return_scores=return_scores),
            given(return_key=return_key, clean_up_tokenization_spaces=clean_up_tokenization_spaces),
        )

    def get_iterator(
        self,
        inputs: "Texts",
        num_workers: int,  # noqa: ARG002, a whole window is tokenized at once
        batch_size: int,
        preprocess_params: dict[str, Any],
        forward_params: dict[str, Any],
        postprocess_params: dict[str, Any],
    ) -> Iterator[Any]:
        """The answers to several texts, in their order."""
        check_positive("batch_size", batch_size)
        streamer = forward_params["generate_options"].get("streamer")
        if streamer is not None:
            raise ValueError(f"streamer must be None unless inputs is a single string, got {streamer!r}.")
        return self.answers(inputs, batch_size, preprocess_params, forward_params, postprocess_params)

    def answers(
        self,
        inputs: "Texts",
        batch_size: int,
        preprocess_params: dict[str, Any],
        forward_params: dict[str, Any],
        postprocess_params: dict[str, Any],
    ) -> Iterator[Any]:
        collate = self.pad if batch_size > 1 else lambda sources: sources[0]
        for first, texts in inputs.windows(batch_size):
            sources = self.tokenize(texts, first, **preprocess_params)
            batches = by_length([source["input_ids"].shape[1] for source in sources], batch_size)
            padded = (collate([sources[i] for i in batch]) for batch in batches)
            outputs = PipelineIterator(padded, self.forward, forward_params, loader_batch_size=batch_size)
            answers = PipelineIterator(outputs, self.postprocess, postprocess_params)
            found = dict(zip((i for batch in batches for i in batch), answers, strict=True))
            yield from (found[i] for i in range(len(texts)))

    def pad(self, sources: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """A batch, padded on the right whatever the tokenizer would do: positions count from the left."""
        fill = {"input_ids": self.tokenizer.pad_token_id or 0, "attention_mask": 0}
        return {
            name: pad_sequence([source[name][0] for source in sources], batch_first=True, padding_value=value)
            for name, value in fill.items()
        }

    def preprocess(self, input_: str, **preprocess_params: Any) -> dict[str, Tensor]:
        """One text → what `generate()` reads, `input_ids` and `attention_mask`, `[1, tokens]`."""
        return self.tokenize([input_], **preprocess_params)[0]

    def tokenize(
        self,
        texts: Sequence[str],
        first: int = 0,
        prefix: str | None = None,
        truncation: bool | None = None,
        max_source_tokens: int | None = None,
    ) -> list[dict[str, Tensor]]:
        """The same for several texts, of which the first has the index `first`."""
        for index, text in enumerate(texts, start=first):
            check_text(text, index)
        if prefix is None:
            prefix = getattr(self.model.config, "prefix", None) or ""
        texts = [prefix + text for text in texts]
        with TOKENIZER_LOCK:
            sources = self.tokenizer(texts, verbose=False)["input_ids"]  # not verbose: `limit` checks the lengths
        limit, reason = self.limit(max_source_tokens)
        long = [i for i, source in enumerate(sources) if len(source) > limit]
        if long and (max_source_tokens is None if truncation is None else not truncation):
            raise ValueError(
                f"texts must have at most {limit} tokens ({reason}), but the one at index {first + long[0]} has "
                f"{len(sources[long[0]])}; truncation=True cuts it."
            )
        if long and limit <= (special := self.tokenizer.num_special_tokens_to_add()):
            raise ValueError(f"{reason} must leave room for more than {special} special tokens, got {limit}.")
        if long:
            warnings.warn(f"{len(long)} of {len(texts)} texts were cut to {limit} tokens ({reason}).", stacklevel=2)
            with TOKENIZER_LOCK:
                cut = self.tokenizer([texts[i] for i in long], truncation=True, max_length=limit)["input_ids"]
            for i, source in zip(long, cut, strict=True):
                sources[i] = source
        return [{"input_ids": (ids := torch.tensor([s])), "attention_mask": torch.ones_like(ids)} for s in sources]

    def limit(self, max_source_tokens: int | None) -> tuple[int, str]:
        """How many tokens a text may have, and why."""
        return source_limit(self.tokenizer, self.positions, max_source_tokens)

    def _forward(
        self, model_inputs: dict[str, Tensor], generate_options: dict[str, Any], return_scores: bool = False
    ) -> dict[str, Tensor]:
        """`[texts, tokens]` → `sequences`, `[texts, candidates, length]`, and maybe `scores`, `[texts, candidates]`."""
        options = with_scores(generate_options) if return_scores else dict(generate_options)
        if self.option(options, "stop_strings") is not None:
            options.setdefault("tokenizer", self.tokenizer)
        with evaluation_mode(self.model):
            outputs = self.model.generate(**model_inputs, **options)
        shape = (len(model_inputs["input_ids"]), -1)
        answer = {"sequences": getattr(outputs, "sequences", outputs).unflatten(0, shape)}
        if return_scores:
            answer["scores"] = self.scores(outputs, options).unflatten(0, shape)
        return answer

    def scores(self, outputs: Any, options: dict[str, Any]) -> Tensor:
        """A score for each sequence that `generate()` returned, `[sequences]`."""
        if getattr(outputs, "sequences_scores", None) is not None:
            return outputs.sequences_scores
        end, padding = self.option(options, "eos_token_id"), self.option(options, "pad_token_id")
        return log_probabilities(outputs.sequences[:, -len(outputs.scores) :], outputs.scores, end, padding)

    def option(self, options: dict[str, Any], name: str) -> Any:
        """What `generate()` goes by: an option, or that of the given configuration, or of the model's."""
        values = [options.get(name)]
        for config in (options.get("generation_config"), self.model.generation_config):
            values.append(getattr(config, name, None))
        return next((value for value in values if value is not None), None)

    def postprocess(
        self,
        model_outputs: dict[str, Tensor],
        return_key: str = "generated_text",
        clean_up_tokenization_spaces: bool | None = None,
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """What `_forward` returned for one text → its answer."""
        with TOKENIZER_LOCK:
            decoded = self.tokenizer.batch_decode(
                model_outputs["sequences"][0],
                skip_special_tokens=True,
                clean_up_tokenization_spaces=clean_up_tokenization_spaces,
            )
        candidates: list[dict[str, Any]] = [{return_key: text} for text in decoded]
        if "scores" in model_outputs:
            for candidate, score in zip(candidates, model_outputs["scores"][0].tolist(), strict=True):
                candidate["score"] = score
        return candidates[0] if len(candidates) == 1 else candidates


class Texts(IterableDataset):
    """Several texts, as a data set: the base class reads nothing of it in advance."""

    def __init__(self, texts: Any):
        one = isinstance(texts, bytes | Mapping)  # which could be iterated over, but not as texts
        if one or not (hasattr(texts, "__iter__") or hasattr(texts, "__getitem__")):
            raise ValueError(f"inputs must be a string or an iterable of strings, got {reprlib.repr(texts)}.")
        self.texts = texts

    def __iter__(self) -> Iterator[Any]:
        if hasattr(self.texts, "__iter__"):
            return iter(self.texts)
        return (self.texts[i] for i in range(len(self.texts)))  # a data set of torch

    def windows(self, batch_size: int) -> Iterator[tuple[int, list[Any]]]:
        """Texts that are sorted together, with the index of the first of them."""
        size = WINDOW * batch_size if batch_size > 1 else 1
        if isinstance(self.texts, list | tuple):
            size = max(1, len(self.texts))
        texts, first = iter(self), 0
        while window := list(islice(texts, size)):
            yield first, window
            first += len(window)


def by_length(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Indices of texts in batches of similar lengths, the longest first: what needs too much memory fails soon.

    Within a batch they stay in order. Batches of one text do so too, as sorting would gain nothing.
    """
    order: Iterable[int] = range(len(lengths))
    order = sorted(order, key=lambda i: -lengths[i]) if batch_size > 1 else list(order)
    return [sorted(order[start : start + batch_size]) for start in range(0, len(order), batch_size)]


def source_positions(model: Any) -> int | None:
    """How many positions an encoder has; `None` for any number.

    Only a table has an end: rotary and relative positions and sinusoids that are computed, as a Random Transformer's,
    have none.
    """
    encoder = model.get_encoder()
    tables = [
        module
        for name, module in encoder.named_modules()
        if "position" in name and isinstance(module, nn.Embedding) and not hasattr(module, "make_weight")  # FSMT's grow
    ]
    config = getattr(encoder, "config", model.config)
    own = getattr(config, "max_encoder_position_embeddings", None)  # of LED, whose decoder has others
    count = own or getattr(config, "max_position_embeddings", None)
    if not tables or count is None:
        return None
    table = tables[0]
    counted_from_padding = table.padding_idx is not None and table.num_embeddings == count  # RoBERTa's
    return count - table.padding_idx - 1 if counted_from_padding else count


def source_limit(tokenizer: Any, positions: int | None, max_source_tokens: int | None) -> tuple[int, str]:
    """How many tokens a source may have, and which setting says so.

    Args:
        tokenizer: its `model_max_length` is the default limit; 10³⁰ where the tokenizer has none.
        positions: how many positions the model has; `None` for any number.
        max_source_tokens: the caller's limit, which replaces the tokenizer's.
    """
    limits = [(tokenizer.model_max_length, "tokenizer.model_max_length, which max_source_tokens overrules")]
    if max_source_tokens is not None:
        limits = [(max_source_tokens, "max_source_tokens")]
    if positions is not None:
        limits.append((positions, "the model's positions"))
    return min(limits)


# Modules in evaluation mode: how many calls need it, and the mode to restore after the last of them.
_evaluating: dict[nn.Module, tuple[int, bool]] = {}
_evaluating_lock = threading.Lock()


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Without dropout; afterwards each module has the mode that it had before.

    Several threads may use one model at a time, or models that share modules: the first switches a module to
    evaluation, the last one restores its mode.
    """
    modules = list(model.modules())
    with _evaluating_lock:
        for module in modules:
            users, training = _evaluating.get(module, (0, module.training))
            _evaluating[module] = users + 1, training
            module.training = False
    try:
        yield
    finally:
        with _evaluating_lock:
            for module in modules:
                users, training = _evaluating.pop(module)
                if users > 1:
                    _evaluating[module] = users - 1, training
                else:
                    module.training = training


def with_scores(options: dict[str, Any]) -> dict[str, Any]:
    """The options of `generate()`, scores included; in the configuration if there is one, as the library wants it."""
    wanted = {"return_dict_in_generate": True, "output_scores": True}
    if options.get("generation_config") is None:
        return {**options, **wanted}
    config = copy.deepcopy(options["generation_config"])
    config.update(**wanted)
    return {**options, "generation_config": config}


def log_probabilities(
    tokens: Tensor, scores: Sequence[Tensor], end: int | Sequence[int] | None, padding: int | None
) -> Tensor:
    """The log-probability of each row of tokens `[rows, steps]` up to its end, `[rows]`.

    `compute_transition_scores` of the library would count what fills a row after its end, and it fails for models
    whose decoder has a vocabulary of its own, as Marian's may.

    Args:
        tokens: what was generated.
        scores: for each step what its token was chosen by, `[rows, vocabulary]`.
        end: the end tokens.
        padding: what fills up rows that have ended, by an end token or otherwise.
    """
    steps = [score.log_softmax(dim=-1).gather(1, token[:, None]) for token, score in zip(tokens.T, scores, strict=True)]
    ends = torch.isin(tokens, torch.as_tensor([] if end is None else end, dtype=tokens.dtype, device=tokens.device))
    behind_end = ends.cumsum(dim=1) > ends.long()
    fills = (tokens == (-1 if padding is None else padding)) & ~ends
    fills = fills.long().flip(1).cumprod(dim=1).flip(1).bool()  # the last ones in a row, with nothing behind them
    return torch.cat(steps, dim=1).masked_fill(behind_end | fills, 0).sum(dim=1)


def check_text(text: Any, index: int) -> None:
    if not isinstance(text, str) or not text.strip():
        raise ValueError(
            f"texts must be strings that are not blank, but the one at index {index} is {reprlib.repr(text)}."
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"texts must be Unicode, but the one at index {index} is {reprlib.repr(text)}: {error}."
        ) from error


def check(name: str, value: Any, kind: type, allowed: str, refused: Sequence[Any] = ()) -> None:
    if value is not None and (not isinstance(value, kind) or value in refused):
        raise ValueError(f"{name} must be {allowed}, got {value!r}.")


def check_positive(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a positive integer, got {value!r}.")


def given(**params: Any) -> dict[str, Any]:
    """The parameters that are not left to their defaults."""
    return {name: value for name, value in params.items() if value is not None}


# A class that came with a saved model serves that model; the task itself is registered by the package alone.
registry = PipelineRegistry({}, {}) if __name__.startswith(TRANSFORMERS_DYNAMIC_MODULE_NAME) else PIPELINE_REGISTRY
registry.register_pipeline("seq2seq", Seq2SeqPipeline, pt_model=AutoModelForSeq2SeqLM, type="text")
