"""`pipeline("seq2seq", model=…)`: generates text from text with any model of `AutoModelForSeq2SeqLM`.

transformers v5 has no pipeline for encoder-decoder models. This one batches, truncates and decodes for all
inference in this project. It is copied into saved folders.
"""

import copy
import reprlib
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSeq2SeqLM, LogitsProcessor, LogitsProcessorList, Pipeline
from transformers.pipelines import PIPELINE_REGISTRY
from transformers.pipelines.base import PipelineRegistry
from transformers.utils import TRANSFORMERS_DYNAMIC_MODULE_NAME

from .inputs_random_transformer import (
    CHUNK_SIZE,
    TOKENIZER_LOCK,
    LanguageTags,
    TextError,
    batches_by_count,
    batches_by_tokens,
    check_positive,
    check_text,
    check_type,
    drop_none,
    encode_texts,
    language_id,
    longest_target,
    pad_ids,
    process_chunks,
    renumber_errors,
    source_limit,
    source_positions,
    tokenizer_languages,
    without_outer_spaces,
)
from .tokenization_random_transformer import has_letters

LENGTHS = ("max_length", "max_new_tokens")  # generate() accepts one of them
GENERATE_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)  # of invalid options
# The arguments of `preprocess`, `_forward` and `postprocess`; all others are those of `generate()`.
OPTIONS = (
    ("prefix", "truncation", "max_source_tokens", "target_prefix", "keep_without_letters"),
    ("return_scores", "max_batch_tokens"),
    ("return_key", "return_tokens", "clean_up_tokenization_spaces"),
)
# Options that change the number or the type of outputs, with the values of one sequence of ids per text. Those of a
# saved generation config are ignored.
OUTPUT_OPTIONS: dict[str, Any] = {
    "num_return_sequences": 1,
    "return_dict_in_generate": False,
    "output_scores": False,
    "output_logits": False,
    "output_attentions": False,
    "output_hidden_states": False,
}
WINDOW = 16  # batches of a stream that are sorted by length together


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
        keep_without_letters: return texts without letters, such as numbers, unchanged, unless `target_prefix` is given.
            The default is the tokenizer's `keep_without_letters`, otherwise True. A model of other tasks than
            translation, such as arithmetic, needs False.
        return_key: key of the generated text, by default `"generated_text"`. transformers v4 used `"translation_text"`
            and `"summary_text"`.
        return_scores: add a `"score"` to each answer. For beam search it is the score of the hypothesis: the sum of
            log-probabilities divided by (number of tokens ** `length_penalty`). Otherwise it is the sum of
            log-probabilities including the end token, under the distribution that tokens are selected from (after
            temperature, top-k and other logits processors).
        return_tokens: add `"tokens"` to each answer: the generated tokens with special ones, without padding.
        clean_up_tokenization_spaces: see `tokenizer.decode`.
        **generate_options: options of `generate()`, such as `num_beams`, `do_sample`, `num_return_sequences`,
            `max_new_tokens`, `generation_config` or `logits_processor`. A `generation_config` of a call replaces all
            options of `pipeline()`. `streamer` requires a single text.

    Options that change the number or the type of outputs (`OUTPUT_OPTIONS`) have effect in a call only, not in the
    model's generation config. With `num_return_sequences` above 1, an answer is a list of dictionaries, sorted by score
    for beam search.

    Raises:
        ValueError: an argument is invalid; a text is blank, not a string or too long (the message gives its index,
            from 0); the model is not an encoder-decoder, or has several target languages and `tgt_lang` is not given.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        name = type(self.model).__name__
        if not (self.model.config.is_encoder_decoder and self.model.can_generate()):
            raise ValueError(f"model must be one of AutoModelForSeq2SeqLM, with encoder, decoder and head, got {name}.")
        if self.tokenizer is None:
            raise ValueError(f"tokenizer must be that of the model, {name}, got None.")
        self.positions = source_positions(self.model)
        self.warns = True  # of texts that are truncated

    def __call__(
        self,
        inputs: Any,
        *,
        batch_size: int | None = None,
        num_workers: int | None = None,  # noqa: ARG002, a window is tokenized in one call
        **options: Any,
    ) -> Any:
        """Generate from one text, several texts or a stream; see the class for arguments and errors."""
        is_single = isinstance(inputs, bytes | Mapping)  # iterable, but not over texts
        if is_single or not (hasattr(inputs, "__iter__") or hasattr(inputs, "__getitem__")):
            raise ValueError(f"inputs must be a string or an iterable of strings, got {reprlib.repr(inputs)}.")
        params = self.params_of_call(**options)
        batch_size = (self._batch_size or 1) if batch_size is None else batch_size
        check_positive(batch_size=batch_size)
        if isinstance(inputs, str):
            try:
                [answer] = self._stream([inputs], 1, 1, params)
                return answer
            except TextError as error:
                raise ValueError(error.reason) from None
        if isinstance(inputs, list | tuple):
            return list(self._stream(inputs, max(1, len(inputs)), batch_size, params))
        if isinstance(params[0].get("target_prefix"), list | tuple):
            raise ValueError("target_prefix must be a string unless inputs is a list, got several.")
        if not hasattr(inputs, "__iter__"):  # a torch dataset
            inputs = map(inputs.__getitem__, range(len(inputs)))
        window = WINDOW * batch_size if batch_size > 1 else 1
        return self._stream(inputs, CHUNK_SIZE if "max_batch_tokens" in params[1] else window, batch_size, params)

    def params_of_call(self, **options: Any) -> tuple[dict[str, Any], ...]:
        """The arguments of `preprocess`, `_forward` and `postprocess` in a call with these options."""
        params = self._sanitize_parameters(**options)
        return tuple({**default, **param} for default, param in zip(self.default_params, params, strict=True))

    @property
    def default_params(self) -> tuple[dict[str, Any], ...]:
        """The arguments of `preprocess`, `_forward` and `postprocess` of the constructor; empty while it runs."""
        if "_postprocess_params" not in vars(self):
            return {}, {}, {}
        return self._preprocess_params, self._forward_params, self._postprocess_params

    def _sanitize_parameters(
        self, src_lang: str | None = None, tgt_lang: str | None = None, **options: Any
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """The arguments of `preprocess`, `_forward` and `postprocess`."""
        check_type("prefix", options.get("prefix"), str, "a string")
        check_type("target_prefix", options.get("target_prefix"), str | list | tuple, "a string or a list of strings")
        for name in ("truncation", "return_scores", "keep_without_letters"):
            check_type(name, options.get(name), bool, "True or False")
        for name in ("max_source_tokens", "max_batch_tokens"):
            check_positive(or_none=True, **{name: options.get(name)})
        taken = ({name: options.pop(name, None) for name in names} for names in OPTIONS)
        preprocess, forward, postprocess = (drop_none(**given) for given in taken)
        default_preprocess, default_forward, _ = self.default_params
        earlier = default_preprocess.get("languages", LanguageTags())
        languages = replace(earlier, **drop_none(**vars(LanguageTags.of(self.tokenizer, src_lang, tgt_lang))))
        generate_options = self._with_earlier_options(default_forward.get("generate_options", {}), options)
        if languages.forced is not None:
            generate_options["forced_bos_token_id"] = languages.forced
        preprocess["languages"], forward["generate_options"] = languages, generate_options
        return preprocess, forward, postprocess

    @staticmethod
    def _with_earlier_options(defaults: dict[str, Any], generate_options: dict[str, Any]) -> dict[str, Any]:
        """The options of `generate()` in a call, and those of the pipeline that the call does not replace."""
        for length, other in (LENGTHS, LENGTHS[::-1]):
            if length in generate_options:  # overrides the other one, which was saved with the model or given earlier
                generate_options = {other: None, **generate_options}
        if "generation_config" in generate_options:  # replaces all options of the pipeline
            return dict(generate_options)
        return {**defaults, **generate_options}

    def _stream(
        self, texts: Iterable[str], size: int, batch_size: int, params: Sequence[dict[str, Any]]
    ) -> Iterator[Any]:
        """The answers in the order of the texts, of which `size` are sorted by length together."""

        def process(chunk: Sequence[str], _first: int) -> list[Any]:
            answers: dict[int, Any] = {}
            for batch in self.answers(chunk, batch_size, params):
                answers |= batch
            return [answers[index] for index in range(len(chunk))]

        return process_chunks(texts, size, process)

    def answers(
        self, texts: Sequence[str], batch_size: int, params: Sequence[dict[str, Any]]
    ) -> Iterator[dict[int, Any]]:
        """The answers of each batch, by the index of the text; see `batches`.

        Args:
            texts: several texts.
            batch_size: see `batches`.
            params: the arguments of `preprocess`, `forward` and `postprocess`.
        """
        preprocess_params, forward_params, postprocess_params = params
        options = dict(preprocess_params)
        prefixes = self.prefixes(options.pop("target_prefix", None), len(texts))
        keeps = options.pop("keep_without_letters", getattr(self.tokenizer, "keep_without_letters", True))
        for index, text in enumerate(texts):
            check_text(text, index)
        kept = [i for i, text in enumerate(texts) if keeps and not (prefixes[i] or has_letters(text))]
        if kept:
            yield {i: self.unchanged(texts[i], forward_params, **postprocess_params) for i in kept}
        generated = sorted({*range(len(texts))} - {*kept})
        options["target_prefix"] = [prefixes[i] for i in generated]
        with renumber_errors(generated):
            for batch, inputs in self.batches([texts[i] for i in generated], batch_size, options, forward_params):
                indices = [generated[i] for i in batch]
                with renumber_errors(batch):
                    outputs = self.forward(inputs, **forward_params)
                yield dict(zip(indices, self.postprocess(outputs, **postprocess_params), strict=True))

    def unchanged(
        self,
        text: str,
        forward_params: dict[str, Any],
        return_key: str = "generated_text",
        return_tokens: bool = False,
        **_options: Any,
    ) -> Any:
        """The answer to a text that is returned unchanged, in the form of the other answers."""
        answer: dict[str, Any] = {return_key: text}
        if return_tokens:
            answer["tokens"] = []
        if forward_params.get("return_scores"):
            answer["score"] = 0.0
        options = with_output_options(forward_params["generate_options"], return_scores=False)
        count = self.option(options, "num_return_sequences")
        return answer if count == 1 else [dict(answer) for _ in range(count)]

    def batches(
        self, texts: Sequence[str], batch_size: int, preprocess_params: dict[str, Any], forward_params: dict[str, Any]
    ) -> Iterator[tuple[list[int], dict[str, Tensor]]]:
        """The inputs of `forward` for texts that are sorted by length together.

        Args:
            texts: several texts.
            batch_size: texts of a batch, unless `forward_params` has `max_batch_tokens`.
            preprocess_params: the arguments of `preprocess`.
            forward_params: the arguments of `forward`.

        Yields:
            The indices of the texts of each batch, and `input_ids`, `attention_mask` and `prefix_ids`.

        Raises:
            TextError: a text is invalid. All are checked before the first batch.
        """
        options = {**preprocess_params}
        options.pop("keep_without_letters", None)
        forced = self.option(forward_params["generate_options"], "forced_bos_token_id")
        prefixes = self.tokenize_prefixes(options.pop("target_prefix", None), len(texts), options["languages"], forced)
        for index, text in enumerate(texts):
            check_text(text, index)
        sources = self.tokenize([without_outer_spaces(self.tokenizer, text) for text in texts], **options)
        for batch in self.group(list(map(len, sources)), batch_size, forward_params, list(map(len, prefixes))):
            yield batch, self.pad([sources[i] for i in batch]) | pad_prefixes([prefixes[i] for i in batch])

    def group(
        self, lengths: Sequence[int], batch_size: int, forward_params: dict[str, Any], prefix_lengths: Sequence[int]
    ) -> list[list[int]]:
        """Group texts of similar length into batches, the longest first, so that running out of memory happens early.

        Args:
            lengths: tokens of each source.
            batch_size: texts of a batch, unless `forward_params` has `max_batch_tokens`.
            forward_params: the arguments of `forward`.
            prefix_lengths: tokens of the prefix of each translation.

        Returns:
            The indices of the texts of each batch.
        """
        if "max_batch_tokens" not in forward_params:
            return batches_by_count(lengths, batch_size)
        options = forward_params["generate_options"]
        rows = max(self.option(options, name) or 1 for name in ("num_beams", "num_return_sequences"))
        limit = cache(partial(self.longest_target, options))
        # Equal with and without the prefix, so that the longest source and prefix of a batch have the same limit.
        limits = [(limit(n, 0), limit(n, prefix)) for n, prefix in zip(lengths, prefix_lengths, strict=True)]
        return batches_by_tokens([(n,) for n in lengths], forward_params["max_batch_tokens"] // rows, limits)

    def longest_target(self, options: dict[str, Any], source_len: int, prefix_len: int) -> int:
        """The limit on new tokens for a source and a prefix, unless `options` have one; see `longest_target`."""
        return longest_target(source_len, self.model.config, options.get("max_new_tokens"), prefix_len)

    def pad(self, sources: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        """Pad token ids on the right, regardless of the tokenizer's setting, since positions count from the left.

        Returns:
            `input_ids` and `attention_mask`, `[batch, source_len]`.
        """
        return {
            "input_ids": pad_ids(sources, self.tokenizer.pad_token_id or 0),
            "attention_mask": pad_ids([[1] * len(source) for source in sources], 0),
        }

    def preprocess(self, input_: str, **options: Any) -> dict[str, Tensor]:
        """The inputs of `forward` for one text; see `batches`."""
        [(_, inputs)] = self.batches([input_], 1, options, self.params_of_call()[1])
        return inputs

    @staticmethod
    def prefixes(target_prefix: str | Sequence[str] | None, count: int) -> list[str]:
        """The text that the translation of each text must begin with; `""` for none."""
        prefixes = [target_prefix or ""] * count if isinstance(target_prefix, str | None) else list(target_prefix)
        if len(prefixes) != count or not all(isinstance(prefix, str) for prefix in prefixes):
            raise ValueError(
                f"target_prefix must be a string or one string per text, {count}, got {reprlib.repr(target_prefix)}."
            )
        return prefixes

    def tokenize_prefixes(
        self, target_prefix: str | Sequence[str] | None, count: int, languages: LanguageTags, forced: int | None = None
    ) -> list[list[int]]:
        """The token ids that the translation of each text must begin with; empty for none.

        Args:
            target_prefix: see the class.
            count: the number of texts.
            languages: the languages, whose tag is the first token.
            forced: the token that `generate()` is forced to begin with; it is inserted before a prefix without it.
        """
        prefixes = self.prefixes(target_prefix, count)
        given = [prefix for prefix in prefixes if prefix]
        if not given:
            return [[] for _ in prefixes]
        with languages.set(self.tokenizer):
            tokens = encode_texts(self.tokenizer, text_target=given, verbose=False)["input_ids"]
        rows = (row[:-1] if row[-1:] == [self.tokenizer.eos_token_id] else row for row in tokens)
        ids = (row if forced is None or row[:1] == [forced] else [forced, *row] for row in rows)
        return [next(ids) if prefix else [] for prefix in prefixes]

    def tokenize(
        self,
        texts: Sequence[str],
        languages: LanguageTags,
        prefix: str | None = None,
        truncation: bool | None = None,
        max_source_tokens: int | None = None,
    ) -> list[list[int]]:
        """Convert texts to token ids, and truncate them if the options allow it.

        Args:
            texts: several texts.
            languages: the language of the texts.
            prefix: see the class, as for the following arguments.
            truncation: truncate texts that are too long.
            max_source_tokens: limit on the tokens of a text.

        Raises:
            TextError: a text is invalid.
        """
        for index, text in enumerate(texts):
            check_text(text, index)
        if prefix is None:
            prefix = getattr(self.model.config, "prefix", None) or ""
        return self.encode("texts", [prefix + text for text in texts], languages, truncation, max_source_tokens)

    def encode(
        self,
        name: str,
        texts: Sequence[str],
        languages: LanguageTags,
        truncation: bool | None = None,
        max_source_tokens: int | None = None,
    ) -> list[list[int]]:
        """The token ids of `"texts"` or of `"targets"`; the limit is that of sources. See `tokenize`."""
        if not texts:
            return []
        side = "text_target" if name == "targets" else "text"
        limit, reason = source_limit(self.tokenizer, self.positions, max_source_tokens)
        with languages.set(self.tokenizer):  # not verbose: lengths are checked here
            ids = encode_texts(self.tokenizer, **{side: texts}, verbose=False)["input_ids"]
            long = [i for i, row in enumerate(ids) if len(row) > limit]
            if not long:
                return ids
            if max_source_tokens is None if truncation is None else not truncation:
                option = "max_source_tokens or, in Python, truncation=True" if truncation is None else "truncation"
                raise TextError(
                    long[0],
                    f"{name} must have at most {limit} tokens ({reason}), got {len(ids[long[0]])}. To truncate it, "
                    f"set {option}.",
                )
            special = self.tokenizer.num_special_tokens_to_add()
            if limit <= special:
                raise ValueError(f"{reason} must be greater than the number of special tokens, {special}, got {limit}.")
            cut = {side: [texts[i] for i in long], "truncation": True, "max_length": limit}
            for i, row in zip(long, encode_texts(self.tokenizer, **cut)["input_ids"], strict=True):
                ids[i] = row
        if self.warns:
            warnings.warn(
                f"{len(long)} of {len(texts)} texts were truncated to {limit} tokens ({reason}).", stacklevel=2
            )
        return ids

    def _forward(
        self,
        model_inputs: dict[str, Tensor],
        generate_options: dict[str, Any],
        return_scores: bool = False,
        max_batch_tokens: int | None = None,
    ) -> dict[str, Tensor]:
        """Call `generate()`.

        Returns:
            `sequences`, `[batch, candidates, target_len]`, and with `return_scores` also `scores`,
            `[batch, candidates]`.
        """
        batch_size, source_len = model_inputs["input_ids"].shape
        prefix_ids = model_inputs.pop("prefix_ids", None)
        prefix_len = 0 if prefix_ids is None else prefix_ids.shape[1]
        options = with_output_options(generate_options, return_scores)
        if max_batch_tokens is not None and options.get("max_length") is None:
            limit = self.longest_target(options, source_len, prefix_len)
            options |= {"max_new_tokens": limit, "max_length": None}
        self.check_target_language(options)
        if prefix_ids is not None:
            others = options.get("logits_processor") or ()
            options["logits_processor"] = LogitsProcessorList([*others, ForcedPrefix(prefix_ids)])
        if self.option(options, "stop_strings") is not None:
            options.setdefault("tokenizer", self.tokenizer)
        try:
            with evaluation_mode(self.model):
                outputs = self.model.generate(**model_inputs, **options)
        except GENERATE_ERRORS as error:  # some options are validated only when they are used
            reason = str(error).strip().partition("\n")[0]
            raise ValueError(
                "generate() must have valid options, in the call and in generation_config.json, got "
                f"{type(error).__name__}: {reason}"
            ) from error
        sequences = getattr(outputs, "sequences", outputs)
        if prefix_ids is not None:
            self.check_prefixes(sequences.shape[1] - 1, prefix_ids)
        answer = {"sequences": sequences.unflatten(0, (batch_size, -1))}
        if return_scores:
            answer["scores"] = self.scores(outputs, options).unflatten(0, (batch_size, -1))
        return answer

    def check_prefixes(self, new_tokens: int, prefix_ids: Tensor) -> None:
        """Check that generation went beyond the longest prefix: it is truncated at the limit on new tokens.

        Args:
            new_tokens: the number of generated tokens; without an end token, the limit.
            prefix_ids: the forced tokens, `[batch, prefix_len]`, -1 after the end of a shorter prefix.
        """
        lengths = (prefix_ids >= 0).sum(dim=1)
        if new_tokens <= lengths.max():
            index, longest = int(lengths.argmax()), int(lengths.max())
            raise TextError(
                index,
                f"target_prefix must have fewer tokens than the limit on new tokens, {new_tokens}, got {longest}.",
            )

    def check_target_language(self, options: dict[str, Any] | None = None) -> None:
        """Check that a model of several target languages has one of them as its first token.

        Args:
            options: the options of `generate()`; `None` for those of the pipeline.
        """
        languages = tokenizer_languages(self.tokenizer)
        if not languages:
            return
        if options is None:
            options = self.params_of_call()[1]["generate_options"]
        starts = [self.option(options, name) for name in ("forced_bos_token_id", "decoder_start_token_id")]
        tags = {language_id(self.tokenizer, code) for code in languages}
        if "decoder_input_ids" not in options and not tags & {token for token in starts if isinstance(token, int)}:
            raise ValueError(f"tgt_lang must be one of {', '.join(languages)}, got None.")

    def get_inference_context(self) -> Any:
        """The context of `_forward`, faster than the base class's `torch.no_grad`."""
        return torch.inference_mode

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
        return_tokens: bool = False,
    ) -> list[dict[str, Any]] | list[list[dict[str, Any]]]:
        """Convert the outputs of `_forward` to the answer of each text."""
        ids, count = model_outputs["sequences"].flatten(0, 1), model_outputs["sequences"].shape[1]
        with TOKENIZER_LOCK:
            decoded = self.tokenizer.batch_decode(
                ids, skip_special_tokens=True, clean_up_tokenization_spaces=clean_up_tokenization_spaces
            )
        candidates: list[dict[str, Any]] = [{return_key: text} for text in decoded]
        if return_tokens:
            rows, padding, end = ids.tolist(), self.tokenizer.pad_token_id, self.tokenizer.eos_token_id
            used = list(set(chain.from_iterable(rows)))
            names = dict(zip(used, self.tokenizer.convert_ids_to_tokens(used), strict=True))
            for candidate, row in zip(candidates, rows, strict=True):
                while row[-1:] == [padding] or row[-2:] == [end, end]:  # beam search fills with `end` if padding is 0
                    row.pop()
                candidate["tokens"] = [names[i] for i in row]
        if "scores" in model_outputs:
            for candidate, score in zip(candidates, model_outputs["scores"].flatten().tolist(), strict=True):
                candidate["score"] = score
        return candidates if count == 1 else [candidates[i : i + count] for i in range(0, len(candidates), count)]


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
    return {"prefix_ids": pad_ids(prefixes, -1)} if any(prefixes) else {}


def current_device(model: Any) -> torch.device | None:
    """The `device` of a pipeline that does not move the model; `None` for a model that Accelerate has distributed."""
    return None if getattr(model, "hf_device_map", None) else model.device


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
            if module.training:  # setting an attribute of a module takes as long as a small layer
                module.training = False
    try:
        yield
    finally:
        with _evaluating_lock:
            for module in modules:
                users, training = _evaluating.pop(module)
                if users > 1:
                    _evaluating[module] = users - 1, training
                elif training:
                    module.training = True


def search_options(num_beams: int, length_penalty: float | None = None, **options: Any) -> dict[str, Any]:
    """The options of `generate()` for translation: those of evaluation in training, commands and engines.

    Args:
        num_beams: hypotheses of beam search; 1 for greedy search.
        length_penalty: see `TranslationOptions`; `None` for the model's. Unused with one beam.
        **options: other options of `generate()`, such as `do_sample`, which a saved generation config does not enable.
    """
    search = {"do_sample": False, **options, "num_beams": num_beams}
    if num_beams > 1 and length_penalty is not None:
        search["length_penalty"] = length_penalty
    return search


def with_output_options(options: dict[str, Any], return_scores: bool) -> dict[str, Any]:
    """The options of `generate()` with all of `OUTPUT_OPTIONS`, in `generation_config` if there is one."""
    scores = {"return_dict_in_generate": True, "output_scores": True} if return_scores else {}
    config = copy.deepcopy(options.get("generation_config"))
    if config is None:
        return {**OUTPUT_OPTIONS, **options, **scores}
    unset = {name: value for name, value in OUTPUT_OPTIONS.items() if getattr(config, name, None) is None}
    config.update(**{**unset, **scores})
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


# Only the package registers the task. A class loaded from a saved folder serves that folder's model.
registry = PipelineRegistry({}, {}) if __name__.startswith(TRANSFORMERS_DYNAMIC_MODULE_NAME) else PIPELINE_REGISTRY
registry.register_pipeline("seq2seq", Seq2SeqPipeline, pt_model=AutoModelForSeq2SeqLM, type="text")
