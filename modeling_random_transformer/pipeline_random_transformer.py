"""`pipeline("seq2seq", model=…)`: generates text from text with any model of `AutoModelForSeq2SeqLM`.

transformers v5 has no pipeline for encoder-decoder models. This one batches, truncates and decodes for all
inference in this project. It is a single file that imports only torch and transformers, because it is copied into
saved folders.
"""

import copy
import math
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
from transformers import (
    AutoModelForSeq2SeqLM,
    BatchEncoding,
    LogitsProcessor,
    LogitsProcessorList,
    Pipeline,
    PretrainedConfig,
)
from transformers.pipelines import PIPELINE_REGISTRY
from transformers.pipelines.base import PipelineRegistry
from transformers.utils import TRANSFORMERS_DYNAMIC_MODULE_NAME

LENGTHS = ("max_length", "max_new_tokens")  # generate() accepts one of them
DEFAULT_NEW_TOKENS = 20  # of generate() without any of them
WINDOW = 16  # batches of a stream that are sorted by length together
CHUNK_SIZE = 1000  # the same if batches are limited by tokens
# The paper limits an output to the length of its input plus 50 (section 6.1). All texts of a batch share one limit,
# because beam search depends on it. Rounding lengths up to a multiple of 16 allows larger batches.
LONGER_THAN_SOURCE = 50
LENGTH_STEP = 16
# Truncation and padding are mutable state of a fast tokenizer's backend, so concurrent calls must be serialized.
TOKENIZER_LOCK = threading.Lock()


class Seq2SeqPipeline(Pipeline):
    """Text-to-text generation with an encoder-decoder model that has a language modeling head.

        pipe = pipeline("seq2seq", model="my-model")
        pipe("hello world")                                        # {"generated_text": "hola mundo"}
        pipe(["hello", "world"], batch_size=2, num_beams=4)        # a list of such dictionaries
        pipe("hello world", src_lang="en", tgt_lang="de")          # with a model of several languages
        for answer in pipe(KeyDataset(dataset, "text"), batch_size=32): ...

    A string returns one answer, a list or tuple of strings a list of answers. Any other iterable (a generator, a file,
    a column of a dataset) returns a lazy iterator; the iterable may be infinite. Answers are in the order of the texts.
    Texts of similar length share a batch: a list is sorted completely, a stream in windows of 16 batches (or of
    1000 texts with `max_batch_tokens`). A window is read before its first answer is returned. `num_workers` is ignored,
    because the tokenizer is multithreaded.

    The pipeline is thread-safe. The model runs in evaluation mode; the previous mode of each module is restored
    afterwards. All threads share torch's random number generator, so samples depend on the order of calls.

    The following arguments can be given to `pipeline()` and to each call. The call takes precedence.

    Args:
        prefix: prepended to each text, such as T5's `"translate English to German: "`; `None` for `prefix` of the
            model's configuration, if there is one.
        src_lang: language code of the texts, for a tokenizer with language tags (this project's, M2M-100's, NLLB's,
            mBART's); `None` for the tokenizer's `src_lang`.
        tgt_lang: language code of the generated texts; `None` for the model's `forced_bos_token_id`.
        truncation: truncate texts that are too long, with a warning. By default they raise an error. A text is too long
            if it has more tokens than `max_source_tokens` or, if that is `None`, than `tokenizer.model_max_length`,
            or more tokens than the encoder has learned positions. Computed, relative and rotary positions are
            unlimited.
        max_source_tokens: truncate texts to this number of tokens; with `truncation=False`, raise an error instead.
        target_prefix: the text that a translation must begin with; or a list of them, one per text of a list, `""` for
            none. It should not end with a space, because tokens usually begin with their space. The scores of beam
            search include the prefix. The limit on new tokens must exceed the prefix.
        max_batch_tokens: limit batches by texts × beams × tokens of the longest source instead of by `batch_size`. New
            tokens are then limited by `longest_target`, unless `max_length` is given.
        return_key: key of the generated text, by default `"generated_text"`. transformers v4 used `"translation_text"`
            and `"summary_text"`.
        return_scores: add a `"score"` to each answer. For beam search it is the score of the hypothesis: the sum of
            log-probabilities divided by (number of tokens ** `length_penalty`). Otherwise it is the sum of
            log-probabilities including the end token, under the distribution that tokens are selected from (after
            temperature, top-k and other logits processors).
        clean_up_tokenization_spaces: see `tokenizer.decode`.
        **generate_options: options of `generate()`, such as `num_beams`, `do_sample`, `num_return_sequences`,
            `max_new_tokens`, `generation_config` or `logits_processor`. A `generation_config` of a call replaces all
            options of `pipeline()`. `streamer` requires a single text.

    With `num_return_sequences` above 1, an answer is a list of dictionaries, sorted by score for beam search.

    Raises:
        ValueError: an argument is invalid; a text is blank, not a string or too long (the message gives its index,
            from 0); the model is not an encoder-decoder, or has several target languages and `tgt_lang` is not given.
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
        """Generate from one text, several texts or a stream; see the class for arguments and errors."""
        if isinstance(inputs, str):
            return super().__call__(inputs, **kwargs)
        answers = super().__call__(Texts(inputs), **kwargs)
        return list(answers) if isinstance(inputs, list | tuple) else answers

    def _sanitize_parameters(
        self,
        prefix: str | None = None,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        truncation: bool | None = None,
        max_source_tokens: int | None = None,
        target_prefix: str | Sequence[str] | None = None,
        max_batch_tokens: int | None = None,
        return_key: str | None = None,
        return_scores: bool | None = None,
        clean_up_tokenization_spaces: bool | None = None,
        **generate_options: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """The arguments of `preprocess`, `_forward` and `postprocess`."""
        check_type("prefix", prefix, str, "a string")
        check_language("src_lang", src_lang, self.tokenizer)
        check_language("tgt_lang", tgt_lang, self.tokenizer)
        check_type("target_prefix", target_prefix, str | list | tuple, "a string or a list of strings")
        check_type("truncation", truncation, bool, "True or False")
        check_type("return_scores", return_scores, bool, "True or False")
        check_type("return_key", return_key, str, "a string other than '' and 'score'", reserved=("", "score"))
        check_positive(or_none=True, max_source_tokens=max_source_tokens, max_batch_tokens=max_batch_tokens)
        return (
            drop_none(
                prefix=prefix,
                src_lang=src_lang,
                truncation=truncation,
                max_source_tokens=max_source_tokens,
                target_prefix=target_prefix,
                tgt_lang=tgt_lang,
            ),
            drop_none(
                generate_options=self._with_earlier_options(generate_options),
                return_scores=return_scores,
                max_batch_tokens=max_batch_tokens,
                tgt_lang=tgt_lang,
            ),
            drop_none(return_key=return_key, clean_up_tokenization_spaces=clean_up_tokenization_spaces),
        )

    def _with_earlier_options(self, generate_options: dict[str, Any]) -> dict[str, Any]:
        """The options of `generate()` in a call, and those of the pipeline that the call does not replace."""
        for length, other in (LENGTHS, LENGTHS[::-1]):
            if length in generate_options:  # overrides the other one, which was saved with the model or given earlier
                generate_options = {other: None, **generate_options}
        if "generation_config" in generate_options:  # replaces all options of the pipeline
            return generate_options
        defaults = vars(self).get("_forward_params", {}).get("generate_options", {})
        return {**defaults, **generate_options}

    def get_iterator(
        self,
        inputs: "Texts",
        num_workers: int,  # noqa: ARG002, a window is tokenized in one call
        batch_size: int,
        preprocess_params: dict[str, Any],
        forward_params: dict[str, Any],
        postprocess_params: dict[str, Any],
    ) -> Iterator[Any]:
        """Iterate over the answers to several texts, in their order."""
        check_positive(batch_size=batch_size)
        streamer = forward_params["generate_options"].get("streamer")
        if streamer is not None:
            raise ValueError(f"streamer must be None unless inputs is a single string, got {streamer!r}.")
        window = CHUNK_SIZE if "max_batch_tokens" in forward_params else window_size(batch_size)
        return self._answers(inputs, window, batch_size, preprocess_params, forward_params, postprocess_params)

    def _answers(self, inputs: "Texts", window: int, batch_size: int, *params: dict[str, Any]) -> Iterator[Any]:
        """The answers in the order of the texts. `params` are those of `_sanitize_parameters`."""
        target_prefix = params[0].get("target_prefix")
        if isinstance(target_prefix, list | tuple) and not isinstance(inputs.texts, list | tuple):
            raise ValueError("target_prefix must be a string unless inputs is a list, got several.")
        for first, texts in inputs.windows(window):
            indices = range(first, first + len(texts))
            answers: dict[int, Any] = {}
            for batch in self._answer_batches(texts, indices, "index", True, batch_size, *params):
                answers |= batch
            yield from (answers[index] for index in indices)

    def answer_batches(
        self, texts: Sequence[str], numbers: Sequence[int], unit: str, target_prefix: Sequence[str] | None = None
    ) -> Iterator[dict[int, Any]]:
        """Generate from texts with the options of the pipeline, and yield the answers of each batch when it is done.

        Args:
            texts: several texts.
            numbers: the number of each text, for error messages and the yielded dictionaries.
            unit: the unit of the numbers in error messages, such as `"index"` or `"line"`.
            target_prefix: the prefix of each text's translation.

        Yields:
            The answers of a batch, by the number of the text. Truncation causes no warning.
        """
        preprocess_params = self._preprocess_params | drop_none(target_prefix=target_prefix)
        params = (preprocess_params, self._forward_params, self._postprocess_params)
        return self._answer_batches(texts, numbers, unit, False, self._batch_size or 1, *params)

    def _answer_batches(
        self,
        texts: Sequence[str],
        numbers: Sequence[int],
        unit: str,
        warn: bool,
        batch_size: int,
        preprocess_params: dict[str, Any],
        forward_params: dict[str, Any],
        postprocess_params: dict[str, Any],
    ) -> Iterator[dict[int, Any]]:
        options = dict(preprocess_params)
        target_prefix, tgt_lang = (options.pop(name, None) for name in ("target_prefix", "tgt_lang"))
        prefixes = self.tokenize_prefixes(target_prefix, len(texts), options.get("src_lang"), tgt_lang)
        sources = self.tokenize(texts, numbers, unit, warn, **options)
        lengths, prefix_lengths = list(map(len, sources)), list(map(len, prefixes))
        for number, source_len, prefix_len in zip(numbers, lengths, prefix_lengths, strict=True):
            self.check_prefix(prefix_len, source_len, forward_params, f"but the one at {unit} {number} has")
        for batch in self.batches(lengths, batch_size, forward_params, prefix_lengths):
            inputs = self.pad([sources[i] for i in batch]) | pad_prefixes([prefixes[i] for i in batch])
            outputs = self.forward(inputs, **forward_params)
            by_text = [{name: values[row : row + 1] for name, values in outputs.items()} for row in range(len(batch))]
            yield {
                numbers[i]: self.postprocess(output, **postprocess_params)
                for i, output in zip(batch, by_text, strict=True)
            }

    def batches(
        self,
        lengths: Sequence[int],
        batch_size: int,
        forward_params: dict[str, Any],
        prefix_lengths: Sequence[int] | None = None,
    ) -> list[list[int]]:
        """Group texts of similar length into batches, the longest first, so that running out of memory happens early.

        Args:
            lengths: tokens of each source.
            batch_size: texts of a batch, unless `forward_params` has `max_batch_tokens`.
            forward_params: the arguments of `_forward`.
            prefix_lengths: tokens of the prefix of each translation; `None` for no prefixes.

        Returns:
            The indices of the texts of each batch.
        """
        if "max_batch_tokens" not in forward_params:
            return batches_by_count(lengths, batch_size)
        options = forward_params["generate_options"]
        rows = max(self.option(options, name) or 1 for name in ("num_beams", "num_return_sequences"))
        max_tokens = forward_params["max_batch_tokens"] // rows
        # Equal with and without the prefix, so that the longest source and prefix of a batch have the same limit.
        limits = [
            (self.target_limit(length, options), self.target_limit(length, options, prefix_len))
            for length, prefix_len in zip(lengths, prefix_lengths or [0] * len(lengths), strict=True)
        ]
        return batches_by_tokens(lengths, limits, max_tokens)

    def pad(self, sources: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        """Pad token ids on the right, regardless of the tokenizer's setting, since positions count from the left.

        Returns:
            `input_ids` and `attention_mask`, `[batch, source_len]`.
        """
        ids = [torch.tensor(source) for source in sources]
        return {
            "input_ids": pad_sequence(ids, batch_first=True, padding_value=self.tokenizer.pad_token_id or 0),
            "attention_mask": pad_sequence([torch.ones_like(row) for row in ids], batch_first=True),
        }

    def preprocess(
        self, input_: str, target_prefix: Any = None, tgt_lang: str | None = None, **preprocess_params: Any
    ) -> dict[str, Tensor]:
        """Convert one text to `input_ids` and `attention_mask`, `[1, source_len]`, and its prefix to `prefix_ids`."""
        prefixes = self.tokenize_prefixes(target_prefix, 1, preprocess_params.get("src_lang"), tgt_lang)
        return self.pad(self.tokenize([input_], **preprocess_params)) | pad_prefixes(prefixes)

    def tokenize_prefixes(
        self, target_prefix: str | Sequence[str] | None, count: int, src_lang: str | None, tgt_lang: str | None
    ) -> list[list[int]]:
        """The token ids that the translation of each text must begin with, including the tag of a language."""
        prefixes = [target_prefix or ""] * count if isinstance(target_prefix, str | None) else list(target_prefix)
        if len(prefixes) != count or not all(isinstance(prefix, str) for prefix in prefixes):
            raise ValueError(
                f"target_prefix must be a string or one string per text, {count}, got {reprlib.repr(target_prefix)}."
            )
        given = [prefix for prefix in prefixes if prefix]
        if not given:
            return [[] for _ in prefixes]
        with languages_of_pair(self.tokenizer, src_lang, tgt_lang):
            tokens = encode_texts(self.tokenizer, text_target=given, verbose=False)["input_ids"]
        end = self.tokenizer.eos_token_id
        ids = iter([row[:-1] if row[-1:] == [end] else row for row in tokens])
        return [next(ids) if prefix else [] for prefix in prefixes]

    def tokenize(
        self,
        texts: Sequence[str],
        numbers: Sequence[int] | None = None,
        unit: str = "index",
        warn: bool = True,
        prefix: str | None = None,
        src_lang: str | None = None,
        truncation: bool | None = None,
        max_source_tokens: int | None = None,
    ) -> list[list[int]]:
        """Convert texts to token ids, and truncate them if the options allow it.

        Args:
            texts: several texts.
            numbers: the number of each text in error messages; `None` for its index, from 0.
            unit: the unit of the numbers.
            warn: warn if texts are truncated.
            prefix: see the class, as for the following arguments.
            src_lang: language code of the texts.
            truncation: truncate texts that are too long.
            max_source_tokens: limit on the tokens of a text.
        """
        numbers = range(len(texts)) if numbers is None else numbers
        for number, text in zip(numbers, texts, strict=True):
            self.check_text(text, f"{unit} {number}")
        if prefix is None:
            prefix = getattr(self.model.config, "prefix", None) or ""
        texts = [prefix + text for text in texts]
        if not texts:
            return []
        with source_language(self.tokenizer, src_lang):  # not verbose: lengths are checked below
            sources = encode_texts(self.tokenizer, texts, verbose=False)["input_ids"]
        limit, reason = source_limit(self.tokenizer, self.positions, max_source_tokens)
        long = [i for i, source in enumerate(sources) if len(source) > limit]
        if not long:
            return sources
        if max_source_tokens is None if truncation is None else not truncation:
            option = "max_source_tokens or, in Python, truncation=True" if truncation is None else "truncation"
            raise ValueError(
                f"texts must have at most {limit} tokens ({reason}), but the one at {unit} {numbers[long[0]]} has "
                f"{len(sources[long[0]])}. To truncate it, set {option}."
            )
        truncated = self.truncate([texts[i] for i in long], limit, reason, src_lang)
        if warn:
            warnings.warn(
                f"{len(long)} of {len(texts)} texts were truncated to {limit} tokens ({reason}).", stacklevel=2
            )
        for i, source in zip(long, truncated, strict=True):
            sources[i] = source
        return sources

    def check_text(self, text: Any, place: str) -> None:
        """Raise a `ValueError` unless a text is a string of Unicode characters that is not blank."""
        check_text(text, place)

    def truncate(self, texts: list[str], limit: int, reason: str, src_lang: str | None) -> list[list[int]]:
        """The first `limit` token ids of each text, including special tokens; `reason` is what defines the limit."""
        with source_language(self.tokenizer, src_lang):
            special = self.tokenizer.num_special_tokens_to_add()
            if limit <= special:
                raise ValueError(f"{reason} must be greater than the number of special tokens, {special}, got {limit}.")
            return encode_texts(self.tokenizer, texts, truncation=True, max_length=limit)["input_ids"]

    def _forward(
        self,
        model_inputs: dict[str, Tensor],
        generate_options: dict[str, Any],
        return_scores: bool = False,
        max_batch_tokens: int | None = None,
        tgt_lang: str | None = None,
    ) -> dict[str, Tensor]:
        """Call `generate()`.

        Returns:
            `sequences`, `[batch, candidates, target_len]`, and with `return_scores` also `scores`,
            `[batch, candidates]`.
        """
        batch_size, source_len = model_inputs["input_ids"].shape
        prefix_ids = model_inputs.pop("prefix_ids", None)
        prefix_len = 0 if prefix_ids is None else prefix_ids.shape[1]
        params = {"generate_options": generate_options, "max_batch_tokens": max_batch_tokens}
        self.check_prefix(prefix_len, source_len, params, "got")
        options = with_scores(generate_options) if return_scores else dict(generate_options)
        options |= self.length_options(source_len, prefix_len, generate_options, max_batch_tokens)
        if tgt_lang is not None:
            options["forced_bos_token_id"] = language_id(self.tokenizer, tgt_lang)
        else:
            self.check_target_language(options)
        if prefix_ids is not None:
            prefix_ids = begin_with(self.option(options, "forced_bos_token_id"), prefix_ids)
            others = options.get("logits_processor") or ()
            options["logits_processor"] = LogitsProcessorList([*others, ForcedPrefix(prefix_ids)])
        if self.option(options, "stop_strings") is not None:
            options.setdefault("tokenizer", self.tokenizer)
        with evaluation_mode(self.model):
            outputs = self.model.generate(**model_inputs, **options)
        answer = {"sequences": getattr(outputs, "sequences", outputs).unflatten(0, (batch_size, -1))}
        if return_scores:
            answer["scores"] = self.scores(outputs, options).unflatten(0, (batch_size, -1))
        return answer

    def check_target_language(self, options: dict[str, Any] | None = None) -> None:
        """Check that a model of several target languages has one of them as its first token.

        Args:
            options: the options of `generate()`; `None` for those of the pipeline.
        """
        languages = tokenizer_languages(self.tokenizer)
        if not languages:
            return
        if options is None:
            if "tgt_lang" in self._forward_params:
                return
            options = self._forward_params["generate_options"]
        starts = [self.option(options, name) for name in ("forced_bos_token_id", "decoder_start_token_id")]
        tags = {language_id(self.tokenizer, code) for code in languages}
        if "decoder_input_ids" not in options and not tags & {token for token in starts if isinstance(token, int)}:
            raise ValueError(f"tgt_lang must be one of {', '.join(languages)}, got None.")

    def get_inference_context(self) -> Any:
        """The context of `_forward`, faster than the base class's `torch.no_grad`."""
        return torch.inference_mode

    def target_limit(self, source_len: int, generate_options: dict[str, Any], prefix_len: int = 0) -> int:
        """The limit on new tokens for a source and a forced prefix of these lengths."""
        return longest_target(source_len, self.model.config, generate_options.get("max_new_tokens"), prefix_len)

    def length_options(
        self, source_len: int, prefix_len: int, generate_options: dict[str, Any], max_batch_tokens: int | None
    ) -> dict[str, int | None]:
        """The options of `generate()` that limit new tokens, if the pipeline determines them."""
        if max_batch_tokens is None or generate_options.get("max_length") is not None:
            return {}
        return {"max_new_tokens": self.target_limit(source_len, generate_options, prefix_len), "max_length": None}

    def check_prefix(self, prefix_len: int, source_len: int, forward_params: dict[str, Any], got: str) -> None:
        """Check that a forced prefix and at least one more token are within the limit on new tokens.

        Otherwise the prefix would be truncated, and beam search would return hypotheses that it has excluded.

        Args:
            prefix_len: tokens of the prefix; 0 for no prefix.
            source_len: tokens of the source.
            forward_params: the arguments of `_forward`.
            got: what precedes the length in the error message.
        """
        if not prefix_len:
            return
        options, max_batch_tokens = forward_params["generate_options"], forward_params.get("max_batch_tokens")
        options = options | self.length_options(source_len, prefix_len, options, max_batch_tokens)
        limit, positions = self.new_token_limit(options), target_positions(self.model.config)
        limit = limit if positions is None else min(limit, positions)
        if prefix_len >= limit:
            raise ValueError(
                f"target_prefix must have fewer tokens than the limit on new tokens, {limit}, {got} {prefix_len}."
            )

    def new_token_limit(self, options: dict[str, Any]) -> int:
        """The limit on new tokens in `generate()` with these options, where `None` replaces a saved value."""
        new, total = (options[name] if name in options else self.option(options, name) for name in LENGTHS[::-1])
        if new is not None:
            return new
        return DEFAULT_NEW_TOKENS if total is None else total - 1  # without the start token

    def scores(self, outputs: Any, options: dict[str, Any]) -> Tensor:
        """The score of each sequence that `generate()` returned, `[sequences]`."""
        if getattr(outputs, "sequences_scores", None) is not None:
            return outputs.sequences_scores
        end, padding = self.option(options, "eos_token_id"), self.option(options, "pad_token_id")
        return log_probabilities(outputs.sequences[:, -len(outputs.scores) :], outputs.scores, end, padding)

    def option(self, options: dict[str, Any], name: str) -> Any:
        """The effective value of an option: from the call, its `generation_config` or that of the model."""
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
        """Convert the outputs of `_forward` for one text to its answer."""
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


class ForcedPrefix(LogitsProcessor):
    """Lets every translation begin with given tokens: all other tokens get a score of -inf.

    Unlike a prompt in `decoder_input_ids`, it allows prefixes of different lengths in a batch, and scores include the
    prefix, as with `prefix_allowed_tokens_fn`.

    Args:
        prefix_ids: token ids, `[batch, prefix_len]`, -1 after the end of a shorter prefix.
    """

    def __init__(self, prefix_ids: Tensor):
        self.prefix_ids = prefix_ids

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores `[rows, vocab_size]` of the next token after `input_ids`, `[rows, length]`, which begin with `<s>`."""
        step = input_ids.shape[1] - 1
        if step >= self.prefix_ids.shape[1]:
            return scores
        forced = self.prefix_ids[:, step].repeat_interleave(len(scores) // len(self.prefix_ids))[:, None]
        own = scores.gather(1, forced.clamp(min=0))
        own = own.masked_fill(own == -torch.inf, 0)  # another processor has excluded the token
        only = torch.full_like(scores, -torch.inf).scatter(1, forced.clamp(min=0), own)
        return torch.where(forced < 0, scores, only)


def pad_prefixes(prefixes: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """`prefix_ids` for `ForcedPrefix`; empty if there are no prefixes."""
    if not any(prefixes):
        return {}
    rows = [torch.tensor(prefix, dtype=torch.long) for prefix in prefixes]
    return {"prefix_ids": pad_sequence(rows, batch_first=True, padding_value=-1)}


def begin_with(forced: int | None, prefix_ids: Tensor) -> Tensor:
    """Insert the token that `generate()` is forced to begin with before the prefixes that lack it.

    Args:
        forced: `forced_bos_token_id`; `None` leaves the prefixes as they are.
        prefix_ids: `[batch, prefix_len]`, -1 after the end of a shorter prefix.

    Returns:
        `[batch, prefix_len + 1]`.
    """
    if forced is None:
        return prefix_ids
    complete = nn.functional.pad(prefix_ids, (0, 1), value=-1)
    has_it = (prefix_ids[:, :1] == forced) | (prefix_ids[:, :1] < 0)
    return torch.where(has_it, complete, nn.functional.pad(prefix_ids, (1, 0), value=forced))


class Texts(IterableDataset):
    """Several texts as a dataset, which the base class does not read in advance."""

    def __init__(self, texts: Any):
        is_single = isinstance(texts, bytes | Mapping)  # iterable, but not over texts
        if is_single or not (hasattr(texts, "__iter__") or hasattr(texts, "__getitem__")):
            raise ValueError(f"inputs must be a string or an iterable of strings, got {reprlib.repr(texts)}.")
        self.texts = texts

    def __iter__(self) -> Iterator[Any]:
        if hasattr(self.texts, "__iter__"):
            return iter(self.texts)
        return (self.texts[i] for i in range(len(self.texts)))  # a torch dataset

    def windows(self, size: int) -> Iterator[tuple[int, list[Any]]]:
        """Yield lists of texts to sort together, each with the index of its first text; a list is one window."""
        if isinstance(self.texts, list | tuple):
            size = max(1, len(self.texts))
        texts, first = iter(self), 0
        while window := list(islice(texts, size)):
            yield first, window
            first += len(window)


def current_device(model: Any) -> torch.device | None:
    """The `device` of a pipeline that does not move the model; `None` for a model that Accelerate has distributed."""
    return None if getattr(model, "hf_device_map", None) else model.device


def window_size(batch_size: int) -> int:
    """The number of texts of a stream that are sorted by length together."""
    return WINDOW * batch_size if batch_size > 1 else 1


def batches_by_count(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Indices of texts in batches of `batch_size`, the longest first, and in the original order within a batch.

    Batches of one text stay in the original order.
    """
    order: Iterable[int] = range(len(lengths))
    order = sorted(order, key=lambda i: -lengths[i]) if batch_size > 1 else list(order)
    return [sorted(order[start : start + batch_size]) for start in range(0, len(order), batch_size)]


def batches_by_tokens(lengths: Sequence[int], limits: Sequence[Any], max_tokens: int) -> list[list[int]]:
    """Indices of texts in batches of at most `max_tokens` (texts × longest length), the longest first.

    Texts of a batch have the same limits on new tokens. A text longer than `max_tokens` forms a separate batch.
    """
    batches = []
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    while order:
        size = max(1, max_tokens // lengths[order[0]])
        batch = [i for i in order[:size] if limits[i] == limits[order[0]]]
        batches.append(batch)
        order = order[len(batch) :]
    return batches


def longest_target(
    source_len: int, config: PretrainedConfig, max_new_tokens: int | None = None, prefix_len: int = 0
) -> int:
    """The limit on the tokens that `generate()` adds to the start token, in translation and in evaluation.

    Args:
        source_len: tokens of the source; for a batch, those of its longest source without padding.
        config: the model's configuration; its learned positions limit the target too.
        max_new_tokens: an explicit limit; `None` for `source_len`, rounded up to a multiple of 16, plus 50 (paper 6.1,
            without the rounding), plus `prefix_len`, rounded up too.
        prefix_len: tokens of a forced prefix.
    """
    computed = LENGTH_STEP * sum(math.ceil(length / LENGTH_STEP) for length in (source_len, prefix_len))
    limit, positions = max_new_tokens or computed + LONGER_THAN_SOURCE, target_positions(config)
    return limit if positions is None else min(limit, positions)


def target_positions(config: PretrainedConfig) -> int | None:
    """The number of positions of a decoder; `None` if it is unlimited."""
    if getattr(config, "position_embedding", "learned") != "learned":  # sinusoids have no limit
        return None
    return getattr(config, "max_position_embeddings", None)


def source_positions(model: Any) -> int | None:
    """The number of positions of an encoder; `None` if it is unlimited. For an ensemble, the lowest number.

    Only position tables are limited. Rotary, relative and computed sinusoidal positions are not.
    """
    if hasattr(model, "members"):
        return min(filter(None, map(source_positions, model.members)), default=None)
    encoder = model.get_encoder()
    tables = [
        module
        for name, module in encoder.named_modules()
        if "position" in name
        and isinstance(module, nn.Embedding)
        and not hasattr(module, "make_weight")  # those of FSMT grow on demand
    ]
    config = getattr(encoder, "config", model.config)
    encoder_count = getattr(config, "max_encoder_position_embeddings", None)  # LED: the decoder has a different number
    count = encoder_count or getattr(config, "max_position_embeddings", None)
    if not tables or count is None:
        return None
    table = tables[0]
    counted_from_padding = table.padding_idx is not None and table.num_embeddings == count  # RoBERTa
    return count - table.padding_idx - 1 if counted_from_padding else count


def source_limit(tokenizer: Any, positions: int | None, max_source_tokens: int | None) -> tuple[int, str]:
    """The limit on the tokens of a source, and the name of the setting that defines it.

    Args:
        tokenizer: its `model_max_length` is the default limit; 10³⁰ if the tokenizer has none.
        positions: the number of positions of the encoder; `None` if it is unlimited.
        max_source_tokens: an explicit limit, which overrides `model_max_length`.
    """
    limits = [(tokenizer.model_max_length, "tokenizer.model_max_length, which max_source_tokens overrides")]
    if max_source_tokens is not None:
        limits = [(max_source_tokens, "max_source_tokens")]
    if positions is not None:
        limits.append((positions, "the model's positions"))
    return min(limits)


def encode_texts(tokenizer: Any, *args: Any, **options: Any) -> BatchEncoding:
    """`tokenizer(...)` for texts of users, in which no character sequence is a control token.

    The tokenizer decides what a control token is (`RandomTransformerTokenizer.encode_texts`). Those of other models
    recognize their special tokens, such as `>>fra<<` and `<extra_id_0>`, which their users write into texts.
    """
    return getattr(tokenizer, "encode_texts", tokenizer)(*args, **options)


# Languages


def tokenizer_languages(tokenizer: Any) -> list[str]:
    """The language codes of a tokenizer with language tags; empty for others."""
    if not hasattr(tokenizer, "src_lang"):
        return []
    for name in ("languages", "lang_code_to_id", "lang_code_to_token"):  # this project's, mBART's, M2M-100's
        if hasattr(tokenizer, name):
            return list(getattr(tokenizer, name))
    return list(tokenizer.extra_special_tokens)  # NLLB's


def language_id(tokenizer: Any, code: str) -> int:
    """The id of a language's tag."""
    if hasattr(tokenizer, "get_lang_id"):
        return tokenizer.get_lang_id(code)
    return tokenizer.convert_tokens_to_ids(code)


def check_language(name: str, code: Any, tokenizer: Any) -> None:
    """Check an optional language code."""
    if code is None:
        return
    languages = tokenizer_languages(tokenizer)
    if not languages:
        raise ValueError(f"{name} must be None for a model without language tags, got {code!r}.")
    if code not in languages:
        raise ValueError(f"{name} must be one of {', '.join(languages)}, got {code!r}.")


@contextmanager
def source_language(tokenizer: Any, code: str | None) -> Iterator[None]:
    """Lock the tokenizer, and set its source language; `None` keeps it."""
    with languages_of_pair(tokenizer, code, None):
        yield


@contextmanager
def languages_of_pair(tokenizer: Any, src_lang: str | None, tgt_lang: str | None) -> Iterator[None]:
    """Lock the tokenizer, and set its languages; `None` keeps one.

    Tokenizing targets requires both, because tokenizers are switched back to their source language afterwards.
    """
    codes = drop_none(src_lang=src_lang, tgt_lang=tgt_lang)
    with TOKENIZER_LOCK:
        saved = {name: getattr(tokenizer, name) for name in codes}
        try:
            for name, code in codes.items():
                setattr(tokenizer, name, code)
            yield
        finally:
            for name, code in saved.items():
                setattr(tokenizer, name, code)


# Modules in evaluation mode: the number of calls that use them, and the mode to restore after the last one.
_evaluating: dict[nn.Module, tuple[int, bool]] = {}
_evaluating_lock = threading.Lock()


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch the modules of a model to evaluation mode, and restore the previous mode of each afterwards.

    Thread-safe, also for models that share modules: the first call switches a module, the last one restores it.
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
    """Add scores to the options of `generate()`, in `generation_config` if there is one."""
    scores = {"return_dict_in_generate": True, "output_scores": True}
    if options.get("generation_config") is None:
        return {**options, **scores}
    config = copy.deepcopy(options["generation_config"])
    config.update(**scores)
    return {**options, "generation_config": config}


def log_probabilities(
    tokens: Tensor, scores: Sequence[Tensor], end: int | Sequence[int] | None, padding: int | None
) -> Tensor:
    """The log-probability of each sequence up to its end token, `[sequences]`.

    `compute_transition_scores` of transformers would count the padding after the end, and fails for models with a
    separate decoder vocabulary, such as some Marian models.

    Args:
        tokens: generated token ids, `[sequences, steps]`.
        scores: processed logits of each step, `[sequences, vocab_size]`.
        end: ids of the end tokens.
        padding: id that fills finished sequences.
    """
    steps = [score.log_softmax(dim=-1).gather(1, token[:, None]) for token, score in zip(tokens.T, scores, strict=True)]
    ends = torch.isin(tokens, torch.as_tensor([] if end is None else end, dtype=tokens.dtype, device=tokens.device))
    after_end = ends.cumsum(dim=1) > ends.long()
    fills = (tokens == (-1 if padding is None else padding)) & ~ends
    fills = fills.long().flip(1).cumprod(dim=1).flip(1).bool()  # trailing padding only
    return torch.cat(steps, dim=1).masked_fill(after_end | fills, 0).sum(dim=1)


def check_text(text: Any, place: str) -> None:
    """Check that a text is a string of Unicode characters that is not blank."""
    if not isinstance(text, str):
        raise ValueError(f"texts must be strings, but the one at {place} is {reprlib.repr(text)}.")
    if not text.strip():
        raise ValueError(f"texts must not be blank, but the one at {place} is {reprlib.repr(text)}.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"texts must be Unicode, but the one at {place} is {reprlib.repr(text)}: {error}.") from error


def check_type(name: str, value: Any, expected: Any, allowed: str, reserved: Sequence[Any] = ()) -> None:
    """Check an optional argument."""
    if value is not None and (not isinstance(value, expected) or value in reserved):
        raise ValueError(f"{name} must be {allowed}, got {value!r}.")


def check_positive(*, or_none: bool = False, **counts: Any) -> None:
    """Check that each argument is an integer of at least 1."""
    for name, value in counts.items():
        if or_none and value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            allowed = "None or a positive integer" if or_none else "a positive integer"
            raise ValueError(f"{name} must be {allowed}, got {value!r}.")


def drop_none(**params: Any) -> dict[str, Any]:
    """The parameters that are not `None`."""
    return {name: value for name, value in params.items() if value is not None}


# Only the package registers the task. A class loaded from a saved folder serves that folder's model.
registry = PipelineRegistry({}, {}) if __name__.startswith(TRANSFORMERS_DYNAMIC_MODULE_NAME) else PIPELINE_REGISTRY
registry.register_pipeline("seq2seq", Seq2SeqPipeline, pt_model=AutoModelForSeq2SeqLM, type="text")
