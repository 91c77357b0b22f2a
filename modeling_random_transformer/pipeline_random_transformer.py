"""`pipeline("seq2seq", model=…)`: generates text from text with any model of `AutoModelForSeq2SeqLM`.

transformers v5 has no pipeline for encoder-decoder models. All translation in this project, except for evaluation in
training, uses this pipeline, which tokenizes, batches, generates and decodes. It is copied into saved folders.
"""

import copy
import math
import reprlib
import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForSeq2SeqLM,
    LogitsProcessor,
    LogitsProcessorList,
    Pipeline,
    PreTrainedTokenizerBase,
)
from transformers.pipelines import PIPELINE_REGISTRY
from transformers.pipelines.base import PipelineRegistry
from transformers.utils import TRANSFORMERS_DYNAMIC_MODULE_NAME

from .inputs_random_transformer import (
    CHUNK_SIZE,
    Ids,
    TextError,
    batches_by_tokens,
    check_languages,
    check_positive,
    check_text,
    check_type,
    decode_ids,
    drop_none,
    encode_texts,
    language_id,
    longest_target,
    max_source_positions,
    pad_ids,
    process_chunks,
    renumber_errors,
    source_limit,
    source_text,
    tokenizer_languages,
)
from .ops_random_transformer import trailing_true
from .tokenization_random_transformer import check_iterable_of_texts, has_letters, is_blank
from .verification_random_transformer import generation_option, replace_saved_limit

LENGTH_LIMITS = ("max_length", "max_new_tokens")  # generate() accepts one of them
# Errors of generate() for invalid options.
GENERATE_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
# Options that change the number or the type of outputs, with the values that give one sequence of ids per text. The
# values in a saved generation config are ignored.
OUTPUT_OPTIONS: dict[str, Any] = {
    "num_return_sequences": 1,
    "return_dict_in_generate": False,
    "output_scores": False,
    "output_logits": False,
    "output_attentions": False,
    "output_hidden_states": False,
}
# The only scores that the pipeline reads. transformers reads any true value of `output_scores` as a request for all
# scores. An engine that returns the scores of sequences only recognizes this value.
ONLY_SEQUENCES_SCORES = "sequences_scores"
WINDOW = 16  # batches of a stream that are sorted by length together


@dataclass(frozen=True)
class CallOptions:
    """The options of a call of `Seq2SeqPipeline`, whose docstring explains them.

    Attributes:
        generate_kwargs: the options of `generate()`.
    """

    prefix: str | None = None
    src_lang: str | None = None
    tgt_lang: str | None = None
    truncation: bool | None = None
    max_source_tokens: int | None = None
    target_prefix: str | Sequence[str] | None = None
    batch_size: int = 1
    max_batch_tokens: int | None = None
    keep_without_letters: bool | None = None
    return_key: str = "generated_text"
    return_scores: bool = False
    return_tokens: bool = False
    clean_up_tokenization_spaces: bool | None = None
    generate_kwargs: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_type("prefix", self.prefix, str, "a string")
        check_type("target_prefix", self.target_prefix, str | list | tuple, "a string or a list of strings")
        check_type("return_key", self.return_key, str, "a string")
        for name in ("truncation", "return_scores", "return_tokens", "keep_without_letters"):
            check_type(name, getattr(self, name), bool, "True or False")
        check_positive(batch_size=self.batch_size)
        check_positive(or_none=True, max_source_tokens=self.max_source_tokens, max_batch_tokens=self.max_batch_tokens)
        prompt = self.generate_kwargs.get("decoder_input_ids")
        if prompt is not None and (len(prompt) > 1 or self.target_prefix):
            raise ValueError(
                "decoder_input_ids must be one row, and None with target_prefix, which may be one string per text, "
                f"got {len(prompt)} rows."
            )


class Seq2SeqPipeline(Pipeline):
    """Text-to-text generation with an encoder-decoder model that has a language modeling head.

        pipe = pipeline("seq2seq", model="my-model")
        pipe("hello world")                                        # {"generated_text": "hola mundo"}
        pipe(["hello", "world"], batch_size=2, num_beams=4)        # a list of such dictionaries
        pipe("hello world", src_lang="en", tgt_lang="de")          # with a model of several languages
        for answer in pipe(KeyDataset(dataset, "text"), batch_size=32): ...

    A call with a string returns one answer. A list or tuple of strings returns a list of answers. Any other iterable (a
    generator, a file, a column of a dataset) returns a lazy iterator, and may be infinite. Answers are in the order of
    the texts. Texts of similar length share a batch. For this, a list is sorted by length as a whole, and a stream in
    windows of 16 batches (or of 1000 texts with `max_batch_tokens`). A window is read before its first answer is
    returned. `num_workers` is ignored, because the tokenizer is multithreaded.

    The pipeline is thread-safe. The model runs in evaluation mode; the previous mode of each module is restored
    afterwards. All threads share torch's random number generator, so samples depend on the order of calls.

    The following arguments can be given to `pipeline()` and to each call. The call takes precedence.

    Args:
        prefix: text to prepend to each text, such as T5's `"translate English to German: "`. The default is `prefix`
            of the model's configuration, if there is one.
        src_lang: language code of the texts, for a tokenizer with language tags (this project's, M2M-100's, NLLB's,
            mBART's); `None` for the tokenizer's `src_lang`.
        tgt_lang: language code of the generated texts; `None` for the model's `forced_bos_token_id`.
        truncation: truncate texts that are too long, with a warning. By default, they raise an error. The limit is
            `max_source_tokens` or, if that is `None`, `tokenizer.model_max_length`. The number of learned positions of
            the encoder is a limit too. Computed, relative and rotary positions are unlimited.
        max_source_tokens: truncate texts to this number of tokens; with `truncation=False`, raise an error instead.
        target_prefix: the text that a translation must begin with, or a list with a prefix for each text of a list,
            `""` for none. A prefix should not end with a space, because tokens usually begin with their space. The
            scores of beam search include the prefix. The limit on new tokens must exceed the prefix.
        batch_size: texts in a batch, by default 1.
        max_batch_tokens: limit on texts × beams × tokens of the longest source in a batch, instead of `batch_size`. The
            limit on new tokens is then `longest_target`, unless `max_length` is given.
        keep_without_letters: return texts without letters, such as numbers, unchanged, unless `target_prefix` is given.
            The default is the tokenizer's `keep_without_letters`, or True if it has none. Set it to False for tasks
            other than translation, such as arithmetic.
        return_key: key of the generated text, by default `"generated_text"`. transformers v4 used `"translation_text"`
            and `"summary_text"`.
        return_scores: add a `"score"` to each answer. For beam search it is the score of the hypothesis: the sum of
            log-probabilities divided by (number of tokens ** `length_penalty`). Otherwise it is the sum of
            log-probabilities including the end token, under the distribution that tokens are selected from (after
            temperature, top-k and other logits processors).
        return_tokens: add `"tokens"` to each answer: the generated tokens, including special tokens, without padding.
        clean_up_tokenization_spaces: see `tokenizer.decode`.
        **generate_kwargs: options of `generate()`, such as `num_beams`, `do_sample`, `num_return_sequences`,
            `max_new_tokens`, `generation_config` or `logits_processor`. A `generation_config` of a call replaces all
            options of `pipeline()`. `streamer` requires a single text. Batches are sorted by length, so the row that
            `prefix_allowed_tokens_fn` gets is not the index of a text.

    Options that change the number or the type of outputs (`OUTPUT_OPTIONS`) have an effect as arguments only, not in
    the model's generation config. With `num_return_sequences` above 1, an answer is a list of dictionaries. Beam search
    sorts them by score.

    Raises:
        ValueError: an argument is invalid; a text is blank, not a string or too long (the message gives its index,
            from 0); the model is not an encoder-decoder, or has several target languages and `tgt_lang` is not given.
    """

    defaults = CallOptions()  # the options of a call, unless the constructor got others
    warns_of_truncation = True

    def __init__(self, *args: Any, batch_size: int | None = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if not (self.model.config.is_encoder_decoder and self.model.can_generate()):
            name = type(self.model).__name__
            raise ValueError(f"model must be one of AutoModelForSeq2SeqLM, with encoder, decoder and head, got {name}.")
        if not isinstance(self.tokenizer, PreTrainedTokenizerBase):
            raise ValueError(f"tokenizer must be a tokenizer of transformers, got {type(self.tokenizer).__name__}.")
        if batch_size is not None:  # the base class does not pass it to `_sanitize_parameters`
            self.defaults = replace(self.defaults, batch_size=batch_size)
        self.positions = max_source_positions(self.model)

    def _sanitize_parameters(self, **arguments: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """The arguments of `preprocess`, `_forward` and `postprocess`. The constructor calls this method."""
        self.defaults = self.call_options(**arguments)
        params = {"options": self.defaults}
        return params, params, params

    def call_options(self, **arguments: Any) -> CallOptions:
        """The options of a call with these arguments.

        Raises:
            ValueError: an argument is invalid.
        """
        names = vars(self.defaults).keys() - {"generate_kwargs"}
        changes = drop_none(**{name: arguments.pop(name, None) for name in names})
        check_languages(self.tokenizer, changes.get("src_lang"), changes.get("tgt_lang"))
        for name in (*LENGTH_LIMITS, "generation_config"):
            if arguments.get(name) is None:
                arguments.pop(name, None)
        replace_saved_limit(arguments)
        if "generation_config" not in arguments:  # otherwise it replaces all options of the pipeline
            arguments = {**self.defaults.generate_kwargs, **arguments}
        tgt_lang = changes.get("tgt_lang", self.defaults.tgt_lang)
        if tgt_lang is not None:
            arguments["forced_bos_token_id"] = language_id(self.tokenizer, tgt_lang)
        return replace(self.defaults, **changes, generate_kwargs=arguments)

    def __call__(
        self,
        inputs: Any,
        *,
        num_workers: int | None = None,  # noqa: ARG002, a window is tokenized in one call
        **arguments: Any,
    ) -> Any:
        """Generate from one text, several texts or a stream; see the class for arguments and errors."""
        options = self.call_options(**arguments)
        if isinstance(inputs, str):
            try:
                return self.ordered_answers([inputs], options)[0]
            except TextError as error:
                raise ValueError(error.reason) from None
        check_iterable_of_texts("inputs", inputs)
        if isinstance(inputs, list | tuple):
            return self.ordered_answers(inputs, options)
        if isinstance(options.target_prefix, list | tuple):
            raise ValueError("target_prefix must be a string unless inputs is a list, got several.")
        if not hasattr(inputs, "__iter__"):  # a torch dataset
            inputs = map(inputs.__getitem__, range(len(inputs)))
        size = WINDOW * options.batch_size if options.batch_size > 1 else 1
        if options.max_batch_tokens is not None:
            size = CHUNK_SIZE
        return process_chunks(inputs, size, lambda window, _: self.ordered_answers(window, options))

    def ordered_answers(self, texts: Sequence[str], options: CallOptions) -> list[Any]:
        """The answer to each text; see `answers`."""
        prefixes = target_prefixes(options.target_prefix, len(texts))
        for index, text in enumerate(texts):
            check_text(text, index)
        answers = dict(self.answers(texts, prefixes, options))
        return [answers[index] for index in range(len(texts))]

    def answers(self, texts: Sequence[str], prefixes: Sequence[str], options: CallOptions) -> Iterator[tuple[int, Any]]:
        """The index of each text and its answer, batch by batch; see `batches`. The caller has checked the texts."""
        keeps_without_letters = options.keep_without_letters
        if keeps_without_letters is None:
            keeps_without_letters = getattr(self.tokenizer, "keep_without_letters", True)
        generated = []
        for index, text in enumerate(texts):
            if prefixes[index] or has_letters(text) or not keeps_without_letters:
                generated.append(index)
            else:
                yield index, self.copied_answer(text, options)
        with renumber_errors(generated):
            texts = [texts[index] for index in generated]
            prefixes = [prefixes[index] for index in generated]
            for batch, inputs in self.batches(texts, prefixes, options):
                with renumber_errors(batch):
                    outputs = self.forward(inputs, options=options)
                answers = self.postprocess(outputs, options=options)
                yield from zip([generated[index] for index in batch], answers, strict=True)

    def copied_answer(self, text: str, options: CallOptions) -> Any:
        """The answer to a text that is returned unchanged."""
        candidate: dict[str, Any] = {options.return_key: text}
        if options.return_tokens:
            candidate["tokens"] = []
        if options.return_scores:
            candidate["score"] = 0.0
        generate_kwargs = with_output_options(options.generate_kwargs, False)
        count = generation_option(self.model, generate_kwargs, "num_return_sequences")
        return self.answer([dict(candidate) for _ in range(count)])

    def batches(
        self, texts: Sequence[str], prefixes: Sequence[str], options: CallOptions
    ) -> Iterator[tuple[list[int], dict[str, Tensor]]]:
        """The inputs of `forward` for texts that are sorted by length together, unless a batch has one text.

        The longest batch is then the first, so that running out of memory happens early.

        Args:
            texts: several texts.
            prefixes: the text that each translation must begin with; `""` for none.
            options: the options.

        Yields:
            The indices of the texts of each batch, and `input_ids`, `attention_mask` and `prefix_ids`.

        Raises:
            TextError: a text is too long. All texts are checked before the first batch.
        """
        prefix_ids: list[Ids] = [[]] * len(texts)
        if any(prefixes):
            prefix_ids = self.tokenize_prefixes(prefixes, options)
        texts = [source_text(text, self.tokenizer, self.model.config, options.prefix) for text in texts]
        sources = self.tokenize(texts, options)
        lengths = [len(source) for source in sources]
        batches = self.batch_indices(lengths, [len(prefix) for prefix in prefix_ids], options)
        for batch in batches:
            inputs = self.pad([sources[index] for index in batch])
            batch_prefixes = [prefix_ids[index] for index in batch]
            if any(batch_prefixes):
                inputs["prefix_ids"] = pad_ids(batch_prefixes, -1)
            yield batch, inputs

    def batch_indices(
        self, lengths: Sequence[int], prefix_lengths: Sequence[int], options: CallOptions
    ) -> list[list[int]]:
        """The indices of the texts of each batch; single texts stay in their order.

        Args:
            lengths: tokens of each source.
            prefix_lengths: tokens of the prefix of each translation.
            options: the options.
        """
        sources = [(length,) for length in lengths]
        if options.max_batch_tokens is None:
            if options.batch_size == 1:
                return [[index] for index in range(len(sources))]
            return batches_by_tokens(sources, math.inf, max_rows=options.batch_size)
        generate_kwargs = options.generate_kwargs
        beams = generation_option(self.model, generate_kwargs, "num_beams") or 1
        candidates = generation_option(self.model, generate_kwargs, "num_return_sequences") or 1
        limit = partial(
            longest_target, config=self.model.config, max_new_tokens=limit_of_call(generate_kwargs, "max_new_tokens")
        )
        # Equal with and without the prefix, so that the longest source and prefix of a batch have the same limit.
        pairs = zip(lengths, prefix_lengths, strict=True)
        groups = [(limit(source_len), limit(source_len, prefix_len=prefix_len)) for source_len, prefix_len in pairs]
        return batches_by_tokens(sources, options.max_batch_tokens // max(beams, candidates), groups)

    def pad(self, sources: Sequence[Ids]) -> dict[str, Tensor]:
        """Pad token ids on the right, whatever the tokenizer's setting, since positions count from the left.

        Returns:
            `input_ids` and `attention_mask`, `[batch, source_len]`.
        """
        return {
            "input_ids": pad_ids(sources, self.tokenizer.pad_token_id or 0),
            "attention_mask": pad_ids([[1] * len(source) for source in sources], 0),
        }

    def preprocess(self, input_: str, options: CallOptions) -> dict[str, Tensor]:
        """The inputs of `forward` for one text; see `batches`."""
        check_text(input_, 0)
        [(_, inputs)] = self.batches([input_], target_prefixes(options.target_prefix, 1), options)
        return inputs

    def tokenize_prefixes(self, prefixes: Sequence[str], options: CallOptions) -> list[Ids]:
        """The token ids that each translation must begin with; empty for none."""
        ids: list[Ids] = [[] for _ in prefixes]
        places = [index for index, prefix in enumerate(prefixes) if prefix]
        forced = generation_option(self.model, options.generate_kwargs, "forced_bos_token_id")
        encoding = encode_texts(
            self.tokenizer,
            text_target=[prefixes[index] for index in places],
            src_lang=options.src_lang,
            tgt_lang=options.tgt_lang,
            verbose=False,
        )
        for index, row in zip(places, encoding["input_ids"], strict=True):
            if row[-1:] == [self.tokenizer.eos_token_id]:
                row = row[:-1]
            ids[index] = row if forced is None or row[:1] == [forced] else [forced, *row]
        return ids

    def tokenize(self, texts: Sequence[str], options: CallOptions, is_target: bool = False) -> list[Ids]:
        """The token ids of sources or targets, truncated to the limit of sources if the options allow it.

        Raises:
            TextError: a text is too long.
        """
        if not texts:
            return []
        side = "text_target" if is_target else "text"
        inputs: dict[str, Any] = {side: texts, "src_lang": options.src_lang, "tgt_lang": options.tgt_lang}
        # The lengths are checked here, so the tokenizer does not warn of them.
        ids = encode_texts(self.tokenizer, **inputs, verbose=False)["input_ids"]
        limit, reason = self.source_limit(options.max_source_tokens)
        long = [index for index, row in enumerate(ids) if len(row) > limit]
        if not long:
            return ids
        truncates = options.max_source_tokens is not None if options.truncation is None else options.truncation
        if not truncates:
            name = "targets" if is_target else "texts"
            to_set = "truncation" if options.truncation is False else "max_source_tokens or, in Python, truncation=True"
            raise TextError(
                long[0],
                f"{name} must have at most {limit} tokens ({reason}), got {len(ids[long[0]])}. To truncate it, "
                f"set {to_set}.",
            )
        inputs[side] = [texts[index] for index in long]
        for index, row in zip(long, self.encode_truncated(inputs, limit, reason), strict=True):
            ids[index] = row
        if self.warns_of_truncation:
            warnings.warn(
                f"{len(long)} of {len(texts)} texts were truncated to {limit} tokens ({reason}).", stacklevel=2
            )
        return ids

    def source_limit(self, max_source_tokens: int | None) -> tuple[int, str]:
        """The limit on the tokens of a source, and its name; see the function `source_limit`."""
        return source_limit(self.tokenizer, self.positions, max_source_tokens)

    def encode_truncated(self, inputs: dict[str, Any], limit: int, reason: str) -> list[Ids]:
        """The token ids of `inputs` of the tokenizer, truncated to a limit, which `reason` names."""
        special = self.tokenizer.num_special_tokens_to_add()
        if limit <= special:
            raise ValueError(f"{reason} must be greater than the number of special tokens, {special}, got {limit}.")
        return encode_texts(self.tokenizer, **inputs, truncation=True, max_length=limit)["input_ids"]

    @torch.inference_mode()  # faster than the `torch.no_grad` of the base class
    def _forward(self, model_inputs: dict[str, Tensor], options: CallOptions) -> dict[str, Tensor]:
        """Call `generate()`.

        Returns:
            `sequences`, `[batch, candidates, target_len]`, and with `return_scores` also `scores`,
            `[batch, candidates]`.
        """
        batch_size, source_len = model_inputs["input_ids"].shape
        prefix_ids = model_inputs.pop("prefix_ids", None)
        prefix_len = 0 if prefix_ids is None else prefix_ids.shape[1]
        generate_kwargs = with_output_options(options.generate_kwargs, options.return_scores)
        if options.max_batch_tokens is not None and limit_of_call(generate_kwargs, "max_length") is None:
            max_new_tokens = limit_of_call(generate_kwargs, "max_new_tokens")
            generate_kwargs["max_new_tokens"] = longest_target(
                source_len, self.model.config, max_new_tokens, prefix_len
            )
            generate_kwargs["max_length"] = None
        check_target_language(self.model, self.tokenizer, generate_kwargs)
        if prefix_ids is not None:
            processors = generate_kwargs.get("logits_processor") or ()
            generate_kwargs["logits_processor"] = LogitsProcessorList([*processors, ForcedPrefix(prefix_ids)])
        if generation_option(self.model, generate_kwargs, "stop_strings") is not None:
            generate_kwargs.setdefault("tokenizer", self.tokenizer)
        try:
            with evaluation_mode(self.model):
                outputs = self.model.generate(**model_inputs, **generate_kwargs)
        except GENERATE_ERRORS as error:  # some options are validated only when they are used
            reason = str(error).strip().partition("\n")[0]
            raise ValueError(
                f"generate() raised {type(error).__name__}: {reason} (the options of the call and of "
                "generation_config.json must be valid; otherwise, the error is in edited code of the model)."
            ) from error
        sequences = getattr(outputs, "sequences", outputs)
        if prefix_ids is not None:
            check_prefixes(sequences.shape[1] - 1, prefix_ids)
        model_outputs = {"sequences": sequences.unflatten(0, (batch_size, -1))}
        if options.return_scores:
            model_outputs["scores"] = self.scores(outputs, generate_kwargs).unflatten(0, (batch_size, -1))
        return model_outputs

    def scores(self, outputs: Any, generate_kwargs: dict[str, Any]) -> Tensor:
        """The score of each sequence that `generate()` returned, `[sequences]`."""
        if getattr(outputs, "sequences_scores", None) is not None:
            return outputs.sequences_scores
        end = generation_option(self.model, generate_kwargs, "eos_token_id")
        padding = generation_option(self.model, generate_kwargs, "pad_token_id")
        return log_probabilities(outputs.sequences[:, -len(outputs.scores) :], outputs.scores, end, padding)

    def postprocess(self, model_outputs: dict[str, Tensor], options: CallOptions) -> list[Any]:
        """Convert the outputs of `_forward` to the answer of each text."""
        ids = model_outputs["sequences"].flatten(0, 1)
        texts = decode_ids(self.tokenizer, ids, options.clean_up_tokenization_spaces)
        columns: dict[str, list[Any]] = {options.return_key: texts}
        if options.return_tokens:
            columns["tokens"] = self.tokens_of(ids.tolist())
        if options.return_scores:
            columns["score"] = model_outputs["scores"].flatten().tolist()
        candidates = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        count = model_outputs["sequences"].shape[1]
        return [self.answer(candidates[first : first + count]) for first in range(0, len(candidates), count)]

    def tokens_of(self, rows: Sequence[Ids]) -> list[list[str]]:
        """The tokens of each row of ids, without padding."""
        padding, end = self.tokenizer.pad_token_id, self.tokenizer.eos_token_id
        for row in rows:
            while row[-1:] == [padding] or row[-2:] == [end, end]:  # beam search fills with `end` if padding is 0
                row.pop()
        return [self.tokenizer.convert_ids_to_tokens(row) for row in rows]

    def answer(self, candidates: list[dict[str, Any]]) -> Any:
        """The answer to a text with these candidates."""
        return candidates[0] if len(candidates) == 1 else candidates


def target_prefixes(target_prefix: str | Sequence[str] | None, count: int) -> list[str]:
    """The text that each of `count` translations must begin with; `""` for none, also instead of a blank one.

    Raises:
        ValueError: the number of prefixes is not `count`.
    """
    if target_prefix is None or isinstance(target_prefix, str):
        target_prefix = [target_prefix or ""] * count
    if len(target_prefix) != count or not all(isinstance(prefix, str) for prefix in target_prefix):
        raise ValueError(
            f"target_prefix must be a string or one string per text, {count}, got {reprlib.repr(target_prefix)}."
        )
    return ["" if is_blank(prefix) else prefix for prefix in target_prefix]


def check_target_language(model: Any, tokenizer: Any, generate_kwargs: dict[str, Any]) -> None:
    """Check that `generate()` with these options begins with a language, if the model has several.

    Raises:
        ValueError: there are several target languages, and none is selected.
    """
    languages = tokenizer_languages(tokenizer)
    if not languages or "decoder_input_ids" in generate_kwargs:
        return
    tags = {language_id(tokenizer, code) for code in languages}
    for name in ("forced_bos_token_id", "decoder_start_token_id"):
        token = generation_option(model, generate_kwargs, name)
        if isinstance(token, int) and token in tags:
            return
    raise ValueError(f"tgt_lang must be one of {', '.join(languages)}, got None.")


def check_prefixes(new_tokens: int, prefix_ids: Tensor) -> None:
    """Check that generation went beyond the longest prefix, which the limit on new tokens may have truncated.

    Args:
        new_tokens: the number of generated tokens, which is the limit if no sequence has ended.
        prefix_ids: the forced tokens, `[batch, prefix_len]`, -1 after the end of a shorter prefix.
    """
    lengths = (prefix_ids >= 0).sum(dim=1)
    longest = int(lengths.max())
    if new_tokens <= longest:
        raise TextError(
            int(lengths.argmax()),
            f"target_prefix must have fewer tokens than the limit on new tokens, {new_tokens}, got {longest}.",
        )


class ForcedPrefix(LogitsProcessor):
    """Forces every translation to begin with given tokens, by a score of -inf for all other tokens.

    Unlike a prompt in `decoder_input_ids`, it allows prefixes of different lengths in a batch. The scores include the
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
        tokens = forced.clamp(min=0)
        kept = scores.gather(1, tokens)
        kept = kept.masked_fill(kept == -torch.inf, 0)  # another processor has excluded the token
        only_forced = torch.full_like(scores, -torch.inf).scatter(1, tokens, kept)
        return torch.where(forced < 0, scores, only_forced)


def current_device(model: Any) -> torch.device | None:
    """The `device` of a pipeline that does not move the model; `None` for a model that Accelerate has distributed.

    Raises:
        ValueError: the argument is not a model, as in a call with its arguments in another order.
    """
    if not hasattr(model, "config"):
        raise ValueError(f"model must be a model of transformers, got {type(model).__name__}.")
    return None if getattr(model, "hf_device_map", None) else model.device


# Modules that were in training mode → the number of calls that use them in evaluation mode.
MODULES_IN_EVALUATION: Counter[nn.Module] = Counter()
EVALUATION_LOCK = threading.Lock()


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch the modules of a model to evaluation mode, and restore the previous mode of each afterwards.

    It is thread-safe, also for models that share modules. The first call switches a module, and the last call restores
    its mode.
    """
    with EVALUATION_LOCK:
        modules = [module for module in modules_of(model) if module.training or module in MODULES_IN_EVALUATION]
        for module in modules:
            MODULES_IN_EVALUATION[module] += 1
            module.training = False
    try:
        yield
    finally:
        with EVALUATION_LOCK:
            for module in modules:
                MODULES_IN_EVALUATION[module] -= 1
                if not MODULES_IN_EVALUATION[module]:
                    del MODULES_IN_EVALUATION[module]
                    module.training = True


def modules_of(model: nn.Module) -> list[nn.Module]:
    """The modules of a model, once per place. `model.modules()` takes four times as long, because it builds names."""
    modules = [model]
    for module in modules:  # the list grows
        modules += [child for child in module._modules.values() if child is not None]
    return modules


def limit_of_call(generate_kwargs: dict[str, Any], name: str) -> int | None:
    """A limit on lengths that a call sets, by an argument or in its `generation_config`."""
    limit = generate_kwargs.get(name)
    return getattr(generate_kwargs.get("generation_config"), name, None) if limit is None else limit


def with_output_options(arguments: dict[str, Any], return_scores: bool) -> dict[str, Any]:
    """The arguments of `generate()` with all of `OUTPUT_OPTIONS`, in `generation_config` if there is one."""
    scores = {"return_dict_in_generate": True, "output_scores": ONLY_SEQUENCES_SCORES} if return_scores else {}
    config = copy.deepcopy(arguments.get("generation_config"))
    if config is None:
        return {**OUTPUT_OPTIONS, **arguments, **scores}
    unset = {name: value for name, value in OUTPUT_OPTIONS.items() if getattr(config, name, None) is None}
    config.update(**{**unset, **scores})
    return {**arguments, "generation_config": config}


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
    return torch.cat(steps, dim=1).masked_fill(after_end | trailing_true(fills), 0).sum(dim=1)


# Only the package registers the task globally. A class loaded from a saved folder serves that folder's model, but also
# needs the attribute `_registered_impl`, which `register_pipeline` sets and `save_pretrained` of a pipeline reads.
registry = PipelineRegistry({}, {}) if __name__.startswith(TRANSFORMERS_DYNAMIC_MODULE_NAME) else PIPELINE_REGISTRY
registry.register_pipeline("seq2seq", Seq2SeqPipeline, pt_model=AutoModelForSeq2SeqLM, type="text")
