"""Lets CTranslate2 compute `generate()` of a loaded model, with an export that is cached in the model's folder."""

import copy
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerBase
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.utils import GenerateBeamEncoderDecoderOutput
from transformers.utils import logging

from ...base.digests import tensors_digest
from ...base.errors import reraise_as_value_error
from ...base.files import StrPath
from ...configuration_random_transformer import is_int, is_number
from ...generation_random_transformer import modification_reason
from ...inference.translation import is_set
from ...inputs_random_transformer import check_choice, pad_ids
from ...ops_random_transformer import tensors_of
from ...pipeline_random_transformer import ONLY_SEQUENCES_SCORES, ForcedPrefix
from ...snapshot_random_transformer import code_of, namespaces_of, plain_values
from .cache import cached_export
from .ctranslate2 import ParallelTranslator
from .engines import WEIGHT_DTYPES
from .search import SearchOptions, engine_search, table_positions, token_list, token_names
from .shortlist import check_vmap

logger = logging.get_logger(__name__)

NAME = "CTranslate2"
# With `early_stopping=False`, `generate()` stops when no running beam has a higher score than the finished hypotheses.
# CTranslate2 stops when beams · patience hypotheses have finished. With higher length penalties, a model that was
# trained on little data prefers long hypotheses, and no patience gives the scores of `generate()`
# (docs/results/engines.md).
ENGINE_PATIENCE = 2
MAX_LENGTH_PENALTY = 0.8
MODES = (GenerationMode.GREEDY_SEARCH, GenerationMode.BEAM_SEARCH)
# The defaults of `generate()` for options that neither the call nor the model sets.
SEARCH_DEFAULTS = {
    "do_sample": False,
    "length_penalty": 1.0,
    "num_beams": 1,
    "num_return_sequences": 1,
    "patience": 1,
    "top_k": 50,  # decides the generation mode, with penalty_alpha
}
# The smallest values of options that are integers, and the options with token ids.
COUNTS = {
    "max_new_tokens": 1,
    "min_length": 0,
    "min_new_tokens": 0,
    "no_repeat_ngram_size": 0,
    "num_beams": 1,
    "num_return_sequences": 1,
}
TOKEN_ID_OPTIONS = ("bad_words_ids", "forced_bos_token_id", "forced_eos_token_id", "pad_token_id", "suppress_tokens")
# Outputs that only the model computes.
OUTPUTS = ("output_attentions", "output_hidden_states", "output_logits")
MAX_PREPARED = 32  # searches; without `max_new_tokens`, sources of different lengths have different limits
BATCHES = 4  # batches of the pipeline per call of the engine, which splits them again; each call costs checks
DEFAULT_DTYPE = "int8"  # 1.1 to 3 times as fast as float32 on every CPU that was measured (docs/results/engines.md)


def attach(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    folder: StrPath,
    dtype: str | None = None,
    shortlist: StrPath | None = None,
) -> None:
    """`attach_engine` for CTranslate2."""
    dtype = dtype or DEFAULT_DTYPE
    check_choice(WEIGHT_DTYPES["ctranslate2"], dtype=dtype)
    content = None if shortlist is None else read_shortlist(shortlist, model, tokenizer)
    try:
        exported = cached_export(model, tokenizer, Path(folder), dtype=dtype, shortlist=content)
    except ValueError as error:
        logger.warning_once("generate() runs the model, not %s: %s", NAME, error)
        return
    except OSError as error:
        raise ValueError(
            f"engine_folder must be a folder that can be written, got {str(folder)!r}: {error.strerror}."
        ) from error
    model.engine = CTranslate2Engine(exported, model, tokenizer)


def read_shortlist(file: StrPath, model: Any, tokenizer: PreTrainedTokenizerBase) -> bytes:
    """The content of a shortlist.

    Raises:
        ValueError: it cannot be read, or is not one for the vocabulary of the model.
    """
    with reraise_as_value_error(f"engine_shortlist must be vmap.txt of an export of this model, got {str(file)!r}"):
        content = Path(file).read_bytes()
        check_vmap(content, *token_names(tokenizer, model.config.vocab_size))
    return content


@dataclass(frozen=True)
class PreparedSearch:
    """The options of a search of `generate()`, converted for the engine and cached for equal calls.

    Attributes:
        request: the cache key: the generation configs of the model and of the call, and the other arguments.
        options: the effective options.
        search: the options that the engine applies; `None` if it does not support one of them.
        reason: the reason for which the model computes the search; `None` if the engine computes it.
    """

    request: list[dict[str, Any]]
    options: GenerationConfig
    search: SearchOptions | None
    reason: str | None


class CTranslate2Engine:
    """The `engine` of a model: an exported model that computes `generate()`.

    The results equal those of the model up to rounding, with three differences in beam search. The probability of
    forbidden tokens is distributed over the other tokens, as with `renormalize_logits=True`. The log-probability of a
    prefix is not part of the score that the length penalty divides. With `forced_eos_token_id`, as in OPUS-MT models,
    the end of a hypothesis at the length limit is forced after the ranking, not before.

    Args:
        folder: the exported model.
        model: the model itself, as it was exported.
        tokenizer: its tokenizer.
    """

    def __init__(self, folder: StrPath, model: Any, tokenizer: PreTrainedTokenizerBase):
        config = model.config
        self.name = Path(folder).name  # contains the dtype and a digest
        self.translate = ParallelTranslator(folder)
        self.batches_per_call = max(self.translate.threads, BATCHES)
        self.source, self.target = token_names(tokenizer, config.vocab_size)
        self.target_ids = {token: i for i, token in enumerate(self.target)}
        self.exported_search = engine_search(model.generation_config, config, NAME)
        self.definition = definition_of(model)
        self.digest = weights_digest(model)
        self.prepared_searches: deque[PreparedSearch] = deque(maxlen=MAX_PREPARED)
        self.positions = table_positions(config)

    def __deepcopy__(self, _: Any) -> "CTranslate2Engine":
        return self  # `compare` compares the copy with the export

    def generate(
        self,
        model: Any,
        inputs: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """`model.generate()`, or `None` if the engine does not compute this call; the reason is logged once.

        With `return_dict_in_generate`, the output has `sequences`. If the pipeline requests scores, it also has
        `sequences_scores`: for greedy search, the log-probabilities.
        """
        ids = kwargs.pop("input_ids", inputs)
        mask = kwargs.pop("attention_mask", None)
        kwargs.pop("labels", None)  # passed by `Seq2SeqTrainer`, without effect
        processors = logits_processor or []
        prefixes = [processor for processor in processors if isinstance(processor, ForcedPrefix)]
        kwargs["logits_processor"] = [processor for processor in processors if processor not in prefixes]
        prepared = self.prepare(model, generation_config, kwargs)
        options = prepared.options
        reason = prepared.reason or self.inputs_reason(ids, mask, options, bool(prefixes)) or self.model_reason(model)
        if reason or prepared.search is None:
            logger.warning_once("generate() runs the model, not %s: %s.", NAME, reason)
            return None
        return self.run_search(options, prepared.search, ids, mask, prefixes)

    def prepare(
        self, model: Any, generation_config: GenerationConfig | None, arguments: dict[str, Any]
    ) -> PreparedSearch:
        """The search of a call of `generate()`. Calls with equal options share it."""
        call_config = {} if generation_config is None else vars(generation_config)
        request = [*map(comparable, (vars(model.generation_config), call_config, arguments))]
        for prepared in list(self.prepared_searches):  # another thread may append one
            if prepared.request == request:
                return prepared
        options, other_arguments = options_of_call(model.generation_config, generation_config, arguments)
        if options.max_new_tokens is None and arguments.get("max_length") is not None:
            options.max_new_tokens = arguments["max_length"] - 1  # max_length counts the start token
        reason = values_reason(options, len(self.target)) or arguments_reason(options, other_arguments)
        if reason:
            return PreparedSearch([], options, None, reason)
        try:
            search = engine_search(options, model.config, NAME)
        except ValueError as error:
            return PreparedSearch([], options, None, str(error).rstrip("."))
        prepared = PreparedSearch(copy.deepcopy(request), options, search, self.search_reason(search, options))
        self.prepared_searches.append(prepared)
        return prepared

    def search_reason(self, search: SearchOptions, options: GenerationConfig) -> str | None:
        """Why the engine does not compute a search; `None` if it does."""
        exported = self.exported_search
        if (search.start_token, search.end_tokens) != (exported.start_token, exported.end_tokens):
            return "the start token or the end token is another one than at the export"
        if set(exported.suppressed_tokens) - set(search.suppressed_tokens):
            return "tokens were allowed that the export suppresses"
        if search.first_token in search.end_tokens:  # after which the engine would continue
            return "the first token is an end token"
        repeated = search.end_tokens if search.no_repeat_ngram_size == 1 else []
        before_last = [token for sequence in search.suppressed_sequences for token in sequence[:-1]]
        if search.start_token in [*repeated, *before_last]:  # the engine does not count the start token
            return "sequences were forbidden that contain the start token"
        if search.min_new_tokens > options.max_new_tokens:
            return "the minimum length is greater than the maximum length"
        return None

    def inputs_reason(
        self, ids: Tensor | None, mask: Tensor | None, options: GenerationConfig, has_prefix: bool
    ) -> str | None:
        """Why the engine cannot translate these texts; `None` if it can."""
        if ids is None or not ids.numel():
            return "no input_ids were given"
        lowest, highest = ids.aminmax()
        if lowest < 0 or highest >= len(self.source):
            return "input_ids were not in the vocabulary"
        if mask is None and options.pad_token_id in ids.flatten().tolist():
            return "input_ids were given without attention_mask"
        if mask is not None:
            used = mask != 0
            if not used.any(1).all():
                return "a source is empty"
            if (used[:, 1:] & ~used[:, :-1]).any():  # positions would change without the padding
                return "a source has padding before its last token"
        if has_prefix and options.num_beams > 1 and options.output_scores:
            return "scores of a prefix in beam search were requested"  # the engine's scores exclude the prefix
        longest = max(ids.shape[1], options.max_new_tokens)
        if longest > self.positions:
            return f"{longest} tokens exceed its {self.positions} positions"
        return None

    def model_reason(self, model: Any) -> str | None:
        """Why the model does not compute the same as its export; `None` if it does."""
        return model.renewed_snapshot().reason_of(self, self.compare, model)

    def compare(self, model: Any) -> str | None:
        """`model_reason`, by reading all weights."""
        if model.device.type != "cpu":
            return f"the model is on the device {model.device}"
        if reason := modification_reason(model.named_modules()):
            return reason
        if definition_of(model) == self.definition and weights_digest(model) == self.digest:
            return None
        return "the code or the weights have changed since the export"

    def run_search(
        self,
        options: GenerationConfig,
        search: SearchOptions,
        ids: Tensor,
        mask: Tensor | None,
        prefixes: list[ForcedPrefix],
    ) -> Any:
        """The output of `generate()`: `sequences`, `[batch · candidates, length]`, or a `ModelOutput` with them."""
        sources = self.source_tokens(ids, mask)
        results = self.translate(
            sources,
            self.target_prefixes(prefixes, search, len(sources)),
            beam_size=options.num_beams,
            patience=search.patience if options.early_stopping else ENGINE_PATIENCE,
            num_hypotheses=options.num_return_sequences,
            length_penalty=options.length_penalty if options.num_beams > 1 else 0,
            min_decoding_length=search.min_new_tokens,
            max_decoding_length=options.max_new_tokens,
            no_repeat_ngram_size=search.no_repeat_ngram_size,
            suppress_sequences=[[self.target[i] for i in sequence] for sequence in search.suppressed_sequences],
            return_end_token=True,
            return_scores=bool(options.output_scores),
        )
        hypotheses = [hypothesis for result in results for hypothesis in result.hypotheses]
        sequences = self.sequences(hypotheses, search.start_token, options)
        if not options.return_dict_in_generate:
            return sequences
        scores = None
        if options.output_scores:
            scores = torch.tensor([score for result in results for score in result.scores])
        return GenerateBeamEncoderDecoderOutput(sequences=sequences, sequences_scores=scores)

    def source_tokens(self, ids: Tensor, mask: Tensor | None) -> list[list[str]]:
        """The tokens of each source, without padding."""
        rows = ids if mask is None else [row[used] for row, used in zip(ids, mask != 0, strict=True)]
        return [[self.source[i] for i in row.tolist()] for row in rows]

    def target_prefixes(self, prefixes: list[ForcedPrefix], search: SearchOptions, count: int) -> list[list[str]]:
        """The tokens with which each target begins: its prefix, or the first token of the search."""
        first = [] if search.first_token is None else [self.target[search.first_token]]
        rows = []
        for prefix in prefixes:
            for row in prefix.prefix_ids.tolist():
                tokens = [self.target[i] for i in row if i >= 0]
                rows.append(tokens or first)
        return rows or [first] * count

    def sequences(self, hypotheses: list[list[str]], start: int, options: GenerationConfig) -> Tensor:
        """The ids of hypotheses as `generate()` returns them, `[hypotheses, length]`."""
        rows = [[start, *(self.target_ids[token] for token in hypothesis)] for hypothesis in hypotheses]
        ends = token_list(options.forced_eos_token_id)
        if ends:
            last = options.max_new_tokens
            rows = [[*row[:last], min(ends)] if len(row) > last else row for row in rows]
        return pad_ids(rows, options.pad_token_id or 0)


def definition_of(model: Any) -> list[Any]:
    """The code and the attributes of a model. Models with equal code, attributes and weights compute the same."""
    modules = list(model.modules())
    values = plain_values(namespaces_of(modules))
    # Saving a model replaces the dtype in its configuration by the name.
    names = [str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else value for value in values]
    snapshot = model.renewed_snapshot()
    return code_of(snapshot.values) + snapshot.code + names


def weights_digest(model: Any) -> str:
    """A digest of all tensors of a model, including tensors that are not saved."""
    return tensors_digest(enumerate(tensors_of(model.modules())))


def comparable(options: dict[str, Any]) -> dict[str, Any]:
    """Options with lists instead of arrays, whose comparison has several values."""
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in options.items()}


def options_of_call(
    model_config: GenerationConfig, call_config: GenerationConfig | None, arguments: dict[str, Any]
) -> tuple[GenerationConfig, dict[str, Any]]:
    """The options of a call as `generate()` combines them, and the arguments that are no options.

    Arguments override the generation config of the call, which overrides that of the model, which overrides defaults.
    """
    options = GenerationConfig() if call_config is None else copy.deepcopy(call_config)
    options.update(**model_config.to_dict(), defaults_only=True, allow_custom_entries=True)
    options.update(**SEARCH_DEFAULTS, defaults_only=True, allow_custom_entries=True)  # transformers has no patience
    other_arguments = options.update(**arguments)
    return options, other_arguments


def values_reason(options: GenerationConfig, vocab_size: int) -> str | None:
    """Why values of options are left to the model, which converts them or raises its error; `None` if they are not."""
    values = {name: getattr(options, name) for name in (*COUNTS, *TOKEN_ID_OPTIONS, "length_penalty")}
    for name, value in values.items():
        if name in COUNTS:
            is_valid = is_int(value) and value >= COUNTS[name]
        elif name in TOKEN_ID_OPTIONS:
            is_valid = are_ids(value, vocab_size)
        else:
            is_valid = is_number(value)
        is_unset = value is None and name not in SEARCH_DEFAULTS
        if not (is_valid or is_unset):
            return f"{name}={value!r} was requested"
    return None


def are_ids(value: Any, vocab_size: int) -> bool:
    """Whether a value is a token id of the vocabulary, or a list of them, or of such lists."""
    if isinstance(value, list):
        return all(are_ids(item, vocab_size) for item in value)
    return is_int(value) and 0 <= value < vocab_size


def arguments_reason(options: GenerationConfig, arguments: dict[str, Any]) -> str | None:
    """Why the engine does not support these arguments of `generate()`; `None` if it does.

    Args:
        options: the effective options.
        arguments: the other arguments.
    """
    mode = options.get_generation_mode(arguments.get("assistant_model"))
    if mode not in MODES:
        return f"the generation mode {mode.value!r} was requested"
    if options.early_stopping == "never":
        return "early_stopping='never' was requested"
    if options.num_beams > 1 and not options.early_stopping and options.length_penalty > MAX_LENGTH_PENALTY:
        return f"early_stopping=False with a length penalty above {MAX_LENGTH_PENALTY} was requested"
    for name in OUTPUTS:
        if getattr(options, name):
            return f"{name} was requested"
    if options.output_scores and options.output_scores != ONLY_SEQUENCES_SCORES:
        return "output_scores was requested"
    if options.max_new_tokens is None:
        return "no max_new_tokens was requested"
    requested = [name for name, value in arguments.items() if is_set(value) and value != []]
    return f"{', '.join(sorted(requested))} was requested" if requested else None
