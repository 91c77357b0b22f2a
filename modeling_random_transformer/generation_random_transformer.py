"""`generate()` with fast decoder steps.

transformers implements the search (greedy, sampling, beams, stopping, logits processors). This file decides whether the
decoder steps of a call run as functions (`decoding_random_transformer.py`), and connects them to the search.
"""

import copy
import inspect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import logging
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.generation.configuration_utils import GenerationConfig, GenerationMode
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import ModelOutput

from .configuration_random_transformer import is_number
from .decoding_random_transformer import (
    FastDecodingCache,
    FastStep,
    StaticDecodingCache,
    bucket,
    keys_values_of,
    step_pool,
)
from .ops_random_transformer import (
    forward_hooks,
    has_modified_call,
    is_plain,
    keep_freed_memory,
    trailing_true,
)
from .quantization_random_transformer import Int8Linear
from .snapshot_random_transformer import is_model_code
from .verification_random_transformer import (
    INEXACT_ROUNDING,
    VERIFICATION,
    VerifiedGenerationMixin,
    context_value,
    difference_reason,
    generation_option,
    has_float_weights,
    library_of,
    replace_saved_limit,
)
from .versions_random_transformer import (
    CACHE_NAME,
    UNTESTED_ADVICE,
    accepts_cache,
    cache_of,
    is_untested_version,
    named_cache,
)

logger = logging.get_logger(__name__)

SUPPORTED_MODES = {
    GenerationMode.GREEDY_SEARCH,
    GenerationMode.SAMPLE,
    GenerationMode.BEAM_SEARCH,
    GenerationMode.BEAM_SAMPLE,
}
# Arguments of generate() that have no effect after the first pass. The values of the target's mask are checked.
FIRST_PASS_ARGUMENTS = {
    "attention_mask",
    "decoder_attention_mask",
    "encoder_outputs",
    "inputs_embeds",
    "labels",
    "logits_to_keep",
    "num_items_in_batch",
    "use_cache",
}
TOKENS_BEFORE_STEP = 512  # target tokens before the step that is compared with the modules
MAX_PATIENCE = 100  # beam search ends before this many hypotheses per beam have finished
TOP_K_BLOCK = 128  # scores per block of `block_top_k`
MIN_BLOCK_TOP_K = 2**17  # scores; for fewer, `torch.topk` is as fast

# The counts of the running call of generate(); `None` without patience.
FINISHED_HYPOTHESES: ContextVar["FinishedHypotheses | None"] = ContextVar("finished_hypotheses", default=None)


class RandomTransformerGenerationMixin(VerifiedGenerationMixin):
    """transformers' `generate()`, in which a `FastDecoder` computes single-token steps if the result is the same.

    Otherwise, the modules run at each step, and the reason is logged. The level is debug, or warning if the logits
    differ, as after an edit of the modules' code.
    """

    engine: Any = None  # set by `load_translator`; its `generate` returns `None` for unsupported calls

    def generate(self, inputs: Any = None, generation_config: Any = None, *args: Any, **kwargs: Any) -> Any:
        """`GenerationMixin.generate`. It calls the encoder directly, so FSDP2 must gather the root's weights.

        In addition to transformers' options, beam search has `patience`, as an argument or in the generation config.
        With `early_stopping=True`, the search for a text ends when `num_beams · patience` hypotheses have finished. The
        default is 1. Models that were trained on little data translate better with 2, since their first finished
        hypotheses are too short.

        Raises:
            ValueError: `patience` is invalid.
            RuntimeError: the installed version of transformers gives wrong outputs.
        """
        if must_gather_shards(self):
            from torch.distributed.fsdp import register_fsdp_forward_method

            register_fsdp_forward_method(self, "generate")  # the registered method calls this one
            return self.generate(inputs, generation_config, *args, **kwargs)
        options = {**kwargs, "generation_config": generation_config}
        patience = generation_option(self, options, "patience")
        finished = None if patience is None else finished_hypotheses(self, options, patience)
        if self.engine is not None:
            outputs = self.engine.generate(self, inputs, generation_config, *args, **kwargs)
            if outputs is not None:
                return outputs
        kwargs.pop("patience", None)
        padding = generation_option(self, options, "pad_token_id")
        end = generation_option(self, options, "eos_token_id")
        if kwargs.get("attention_mask") is None:
            kwargs["attention_mask"] = mask_of_padding(kwargs.get("input_ids", inputs), padding, end)
        if finished is not None:
            generation_config = without_early_stopping(generation_config, kwargs)
        replace_saved_limit(kwargs)
        with context_value(FINISHED_HYPOTHESES, finished):
            outputs = super().generate(inputs, generation_config, *args, **kwargs)
        if finished is not None and not finished.was_queried:
            raise RuntimeError(f"transformers does not end a beam search by its patience. {UNTESTED_ADVICE}")
        sequences = getattr(outputs, "sequences", outputs)
        if isinstance(sequences, Tensor):  # a decoding loop of the caller may return anything
            pad_after_end(sequences, padding, end)
        if isinstance(outputs, ModelOutput):
            return_standard_cache(outputs)
        return outputs

    def _prepare_cache_for_generation(
        self,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
        generation_mode: GenerationMode,
        batch_size: int,
        max_cache_length: int,
    ) -> None:
        """Create a `FastDecodingCache` where it is supported, otherwise transformers' cache."""
        reason = request_reason(generation_config, generation_mode, model_kwargs) or self.fallback_reason()
        super()._prepare_cache_for_generation(
            generation_config, model_kwargs, generation_mode, batch_size, max_cache_length
        )
        if reason is None:
            keep_freed_memory()
            source_states = model_kwargs["encoder_outputs"][0]
            model_kwargs[CACHE_NAME] = decoding_cache(self, generation_config, max_cache_length, source_states.shape)
        else:
            logger.debug("generate() runs the decoder's modules at every step: %s.", reason)

    def fallback_reason(self) -> str | None:
        """Why `generate()` runs the modules at each step; `None` if it uses a `FastDecoder`.

        The first call, and the first call after a change of the model, runs a decoder step both ways and compares the
        logits, because a module of another class may compute the same as the original for some weights only. Under
        tensor parallelism, all processes must call this method, after the same changes.
        """
        verification = self.running_verification
        snapshot = self.renewed_snapshot() if verification is None else verification.snapshot
        return snapshot.reason_of("step", step_reason, self)

    @accepts_cache
    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        cache: Cache | None = None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """The inputs of the next pass for targets `[batch, length]`, with the fast decoder's `step` if there is one."""
        kwargs |= {"attention_mask": attention_mask, **named_cache(cache)}
        if isinstance(cache, FastDecodingCache):
            if next_sequence_length == 1 and cache.get_seq_length() > 0:
                self.record_inputs(input_ids, kwargs)
                step = cache.current_step(self, attention_mask)
                return {"decoder_input_ids": input_ids[:, -1:], "step": step, **named_cache(cache)}
            cache.end_steps()  # the modules process several tokens
        return super().prepare_inputs_for_generation(input_ids, next_sequence_length, **kwargs)

    def _get_top_k_continuations(self, accumulated_log_probs: Tensor, **state: Any) -> tuple[Tensor, Tensor, Tensor]:
        """transformers' selection of the best continuations, with `block_top_k` instead of `torch.topk`.

        Log-probabilities are `[batch, beams · vocab_size]`, sequences and beam indices `[batch, beams, length]`.
        """
        if is_untested_version() or state["do_sample"]:
            return super()._get_top_k_continuations(accumulated_log_probs=accumulated_log_probs, **state)
        log_probs, indices = block_top_k(accumulated_log_probs, state["beams_to_keep"])
        batch_size, num_beams, _ = state["running_sequences"].shape
        vocab_size = accumulated_log_probs.shape[1] // num_beams
        parents = indices // vocab_size
        sequences = state["running_sequences"].take_along_dim(parents[..., None], dim=1)
        sequences[:, :, state["cur_len"]] = indices % vocab_size
        beam_indices = state["running_beam_indices"].take_along_dim(parents[..., None], dim=1)
        sources = torch.arange(batch_size, device=parents.device)[:, None]
        position = state["cur_len"] - state["decoder_prompt_len"]
        beam_indices[:, :, position] = sources * num_beams + parents  # they count the rows of the whole batch
        return log_probs, sequences, beam_indices

    def _update_finished_beams(self, **state: Any) -> Any:
        """Update the finished hypotheses as transformers does, and count them if the search has patience.

        Masks are `[batch, continuations]`. Only the best `num_beams` continuations can finish.
        """
        finished = FINISHED_HYPOTHESES.get()
        if finished is not None:
            finished.add(state["next_token_hits_stopping_criteria"] & state["top_num_beam_mask"])
        return super()._update_finished_beams(**state)

    def _check_early_stop_heuristic(self, **state: Any) -> Tensor:
        """The texts whose search has not ended, a mask `[batch, 1]`. With patience, only the count decides."""
        finished = FINISHED_HYPOTHESES.get()
        if finished is not None:
            return finished.are_unfinished()
        return super()._check_early_stop_heuristic(**state)

    def _expand_inputs_for_generation(
        self, expand_size: int = 1, is_encoder_decoder: bool = False, input_ids: Tensor | None = None, **kwargs: Any
    ) -> tuple[Tensor | None, dict[str, Any]]:
        """Repeat the target rows `expand_size` times. The source is not copied, since its target rows share it.

        Raises:
            ValueError: the target does not have as many rows as the source, or a multiple; the encoder's output is not
                one; or a cache of the caller has tokens, and the target cannot continue them.
        """
        cache = cache_of(kwargs)
        check_cache(cache)
        if input_ids is not None and cache is not None and cache.get_seq_length() > 0:
            mask = kwargs.get("decoder_attention_mask")
            check_continued_target(input_ids, cache, mask, expand_size)
            # transformers removes the tokens that are in the cache only if there is a mask of the same length.
            if mask is None:
                kwargs["decoder_attention_mask"] = torch.ones_like(input_ids)
        encoder_outputs = kwargs.pop("encoder_outputs", None)
        attention_mask = kwargs.pop("attention_mask", None)
        if not isinstance(encoder_outputs, ModelOutput | None):
            encoder_outputs = as_encoder_output(encoder_outputs)
        per_source = attention_mask
        if per_source is None:  # ONNX graphs return keys and values instead of hidden states
            per_source = getattr(encoder_outputs, "last_hidden_state", None)
        if input_ids is not None and per_source is not None:
            # Before rows are repeated, since the copies of a prompt must have the same source.
            check_target_rows(len(input_ids), len(per_source))
        input_ids, kwargs = super()._expand_inputs_for_generation(expand_size, False, input_ids, **kwargs)
        return input_ids, {**kwargs, "encoder_outputs": encoder_outputs, "attention_mask": attention_mask}

    def _reorder_cache(self, cache: EncoderDecoderCache, beam_idx: Tensor) -> EncoderDecoderCache:
        """Reorder the target's cache. The source's cache is unchanged, because beams are reordered within a source."""
        reordered = cache if isinstance(cache, FastDecodingCache) else cache.self_attention_cache
        reordered.reorder_cache(beam_idx)
        return cache


# Conditions for the fast decoder: a step computes what the modules compute


def step_reason(model: Any) -> str | None:
    """Why a `FastStep` cannot be used for a model, or computes other logits than the modules; `None` if it can."""
    reason = modules_reason(model)
    if reason:
        return reason
    try:
        reason = step_difference(model)
    except Exception as error:  # edited code may raise any error; if the modules fail too, they raise it again
        reason = f"{type(error).__name__}: {error}"
    if reason:
        reason = f"a step of FastDecoder (decoding_random_transformer.py) differs from the modules: {reason}"
        logger.warning_once("generate() runs the decoder's modules at every step, which is slower: %s.", reason)
    return reason


def modules_reason(model: Any) -> str | None:
    """Why a model's hooks, modes or settings require its modules; `None` if they do not.

    Hooks on the model itself and a `forward` that wraps the original are allowed: the step runs inside them.
    """
    decoder = getattr(getattr(model, "model", None), "decoder", None)
    if decoder is None:  # an exported graph or an ensemble
        return f"{type(model).__name__} has no decoder"
    forward = vars(model).get("forward")  # Accelerate's mixed precision replaces it by a method that wraps it
    wraps = isinstance(forward, MethodType) and inspect.unwrap(forward) is inspect.unwrap(type(model).forward)
    if model._compiled_call_impl is not None or not (forward is None or wraps):
        return "forward of the model is replaced or compiled"
    inner_modules = []
    for name, module in step_modules(model):
        if next(module.children(), None) is not None:
            inner_modules.append((name, module))
        elif forward_hooks(module):  # other leaf modules are called; the comparison must not run hooks
            return f"{name} has a hook"
    if reason := modification_reason(inner_modules):
        return reason
    for layer in (decoder, *decoder.layers):
        if layer.config._attn_implementation != "sdpa":
            return f"the attention implementation is {layer.config._attn_implementation}, not sdpa"
    return None


def modification_reason(named_modules: Iterable[tuple[str, nn.Module]]) -> str | None:
    """Why a module does not compute the `forward` of its class in evaluation mode; `None` if all modules do."""
    for name, module in named_modules:
        if has_modified_call(module):
            return f"{name or 'the model'} has a hook or a replaced or compiled forward"
        if module.training:
            return f"{name or 'the model'} is in training mode"
    return None


def step_modules(model: Any) -> Iterator[tuple[str, nn.Module]]:
    """The modules that a decoder step uses, with their names."""
    yield "model", model.model
    yield from model.model.decoder.named_modules(prefix="decoder")
    yield from model.lm_head.named_modules(prefix="lm_head")


@torch.no_grad()
def step_difference(model: Any) -> str | None:
    """Compare the logits of one token by a `FastStep` and by the modules, for random inputs.

    Two rows share each of two sources, with padding on the left and on the right. To find changes that have no effect
    on short targets, such as a window of attention, `TOKENS_BEFORE_STEP` tokens precede the compared one. Their keys
    and values are those of a first token, times random factors.
    """
    config = model.config
    device = model.device
    seen = min(config.max_position_embeddings - 1, TOKENS_BEFORE_STEP)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(config.vocab_size, (4, 2), generator=generator).to(device)
    source = torch.randn(2, 5, config.d_model, generator=generator).to(device, model.dtype)
    factors = torch.randn(seen, 1, generator=generator).to(device, model.dtype)
    padding_mask = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 0, 0]], device=device)

    def logits(ids: Tensor, cache: EncoderDecoderCache, step: FastStep | None = None) -> Tensor:
        outputs = type(model).forward(  # bypasses the hooks on the model itself
            model,
            decoder_input_ids=ids,
            encoder_outputs=(source,),
            attention_mask=padding_mask,
            use_cache=True,
            return_dict=True,
            step=step,
            **named_cache(cache),
        )
        return outputs.logits

    # Modules may draw random numbers.
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.autocast(device.type, enabled=False):
        cache = FastDecodingCache(beams=2, max_length=0)
        logits(ids[:, :1], cache)
        for layer in cache.self_attention_cache.layers:
            layer.keys = layer.keys * factors
            layer.values = layer.values * factors
        standard = EncoderDecoderCache(cache.self_attention_cache, cache.cross_attention_cache)
        actual = logits(ids[:, 1:], cache, cache.current_step(model, padding_mask))
        expected = logits(ids[:, 1:], standard)
    max_difference = None if has_float_weights(model) else INEXACT_ROUNDING
    return difference_reason(actual, expected, max_difference)


def request_reason(config: GenerationConfig, mode: GenerationMode, model_kwargs: dict[str, Any]) -> str | None:
    """Why a `FastDecoder` does not support the arguments of a call of `generate()`; `None` if it does."""
    verification = VERIFICATION.get()  # the checks of the running call
    if verification is not None and callable(verification.arguments.get("custom_generate")):
        return "custom_generate was requested"
    if mode not in SUPPORTED_MODES:
        return f"the generation mode {mode.value!r} was requested"
    if not config.use_cache:
        return "use_cache=False was requested"
    if config.cache_implementation not in (None, "dynamic", "static"):
        return f"cache_implementation={config.cache_implementation!r} was requested"
    if config.cache_implementation == "static" and config.compile_config is not None:
        return "compile_config was requested"
    for name in ("output_attentions", "output_hidden_states"):
        if getattr(config, name):
            return f"{name} was requested"
    target_mask = model_kwargs.get("decoder_attention_mask")
    if target_mask is not None and not (target_mask.dim() == 2 and target_mask.all()):
        return "decoder_attention_mask was requested"
    arguments = {name for name, value in model_kwargs.items() if value is not None} - FIRST_PASS_ARGUMENTS
    if arguments:
        return f"{', '.join(sorted(arguments))} was requested"
    return None


def can_capture(model: Any, max_length: int) -> bool:
    """Whether all steps up to a length run the same kernels: on a GPU, and without code of other libraries.

    An attribute can disable an adapter's module, for example, and a wrapped `forward` may enable autocast.
    """
    if model.device.type != "cuda" or max_length > model.config.max_position_embeddings or "forward" in vars(model):
        return False
    for _, module in step_modules(model):
        is_known = library_of(module) in ("torch", "transformers") or is_model_code(type(module))
        if not is_known or isinstance(module, Int8Linear):
            return False
    return all(map(is_plain, model.parameters()))


def decoding_cache(
    model: Any, config: GenerationConfig, max_length: int, source_shape: Sequence[int]
) -> FastDecodingCache:
    """The cache of fast steps for at most `max_length` tokens. `source_shape` is `(sources, source_len, d_model)`."""
    implementation = config.cache_implementation
    is_captured = implementation != "dynamic" and not config.disable_compile and can_capture(model, max_length)
    sources, source_len, _ = source_shape
    rows = sources * max(config.num_beams, config.num_return_sequences)
    sizes = rows, config.num_beams, bucket(max_length), bucket(source_len)
    is_static = implementation == "static"
    if is_captured and not is_static:
        pool = step_pool(model)
        is_static = sizes in pool.seen_sizes
        pool.record_sizes(sizes)
    if is_static:
        return StaticDecodingCache(config.num_beams, max_length, is_captured)
    return FastDecodingCache(config.num_beams, max_length)


# A faster equivalent of a part of transformers' search


def block_top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`scores.topk(k)` for a few of many scores on a CPU, up to six times as fast.

    PyTorch sorts pairs of all scores and indices. Here, one vectorized pass takes the maximum of each block of scores,
    and only the blocks with the highest maxima are sorted. PyTorch's order of equal scores is undefined but
    reproducible, so `scores.topk(k)` is called if the result depends on it.

    Args:
        scores: `[batch, n]`.
        k: number of scores to select per row.

    Returns:
        The highest scores in descending order and their indices, both `[batch, k]`.
    """
    blocks = scores.shape[1] // TOP_K_BLOCK
    if not scores.is_cpu or scores.numel() < MIN_BLOCK_TOP_K or blocks < 4 * (k + 1):
        return scores.topk(k)
    head, tail = scores.tensor_split([blocks * TOP_K_BLOCK], dim=1)
    head = head.unflatten(1, (blocks, TOP_K_BLOCK))
    _, best_blocks = head.amax(dim=2).topk(k + 1)  # these blocks and the tail contain the k + 1 highest scores
    selected = head.gather(1, best_blocks[:, :, None].expand(-1, -1, TOP_K_BLOCK))
    candidates = torch.cat([selected.flatten(1), tail], dim=1)
    values, positions = candidates.topk(k + 1)
    is_descending = values[:, :-1] > values[:, 1:]
    if not is_descending.all():  # equal scores, or NaN
        return scores.topk(k)
    candidate_blocks = nn.functional.pad(best_blocks, (0, 1), value=blocks)  # the tail is the last block
    positions = positions[:, :k]
    block_indices = candidate_blocks.gather(1, positions // TOP_K_BLOCK)
    return values[:, :k], block_indices * TOP_K_BLOCK + positions % TOP_K_BLOCK


# Patience of beam search


class FinishedHypotheses:
    """Counts the finished hypotheses of each text in a beam search with `patience`.

    The search for a text ends when `max_finished` hypotheses have finished, and returns the best of them ("A Call for
    Clarity in Beam Search: How It Works and When It Stops", Kasai et al. 2022).

    Args:
        max_finished: the number of beams times the patience.
    """

    def __init__(self, max_finished: int):
        self.missing: Any = max_finished  # a tensor [batch, 1] after the first step
        self.was_queried = False  # whether the search has called `are_unfinished`

    def add(self, are_finished: Tensor) -> None:
        """Count the continuations that have finished in a step, a mask `[batch, continuations]`."""
        self.missing = self.missing - are_finished.sum(dim=1, keepdim=True)

    def are_unfinished(self) -> Tensor:
        """The texts whose search has not ended, a mask `[batch, 1]`."""
        self.was_queried = True
        return self.missing > 0


def finished_hypotheses(model: Any, options: dict[str, Any], patience: Any) -> FinishedHypotheses | None:
    """The counter of finished hypotheses for a beam search with patience; `None` for transformers' stopping rule.

    Like a length penalty, patience has no effect with one beam or with a decoding loop of the caller. The model's
    `patience` has no effect without `early_stopping`.

    Args:
        model: a model, whose generation config has the default options.
        options: the options of a call of `generate()`.
        patience: the effective value of the option.

    Raises:
        ValueError: `patience` is invalid, or the call's `patience` would have no effect because of `early_stopping`.
    """
    if not is_number(patience) or not 1 <= patience <= MAX_PATIENCE:
        raise ValueError(f"patience must be None or a number from 1 to {MAX_PATIENCE}, got {patience!r}.")
    num_beams = generation_option(model, options, "num_beams") or 1
    if num_beams == 1 or callable(options.get("custom_generate")):
        return None
    early_stopping = generation_option(model, options, "early_stopping")
    if early_stopping is True:
        # Rounded like in CTranslate2. `round` would round 2.5 to 2.
        return FinishedHypotheses(math.floor(num_beams * patience + 0.5))
    if options.get("patience") is not None:
        raise ValueError(f"early_stopping must be True with patience={patience}, got {early_stopping!r}.")
    return None


def without_early_stopping(generation_config: Any, kwargs: dict[str, Any]) -> Any:
    """Turn early stopping off in a call, since transformers would end the search when all beams have finished.

    Args:
        generation_config: the generation config of the call, or `None`.
        kwargs: the other options of the call, which are changed.

    Returns:
        A generation config for the call.
    """
    if generation_config is None:
        kwargs["early_stopping"] = False
        return None
    kwargs.pop("early_stopping", None)  # transformers would warn of an argument beside a generation config
    generation_config = copy.deepcopy(generation_config)
    generation_config.early_stopping = False
    return generation_config


# Inputs and outputs of `generate()`


def must_gather_shards(model: nn.Module) -> bool:
    """Whether FSDP2 shards the model, and `generate()` is not yet registered as a method that gathers the shards."""
    if "generate" in vars(model) or not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return False
    from torch.distributed.fsdp import FSDPModule

    return isinstance(model, FSDPModule)


def mask_of_padding(ids: Any, padding: int | None, end: Any) -> Tensor | None:
    """The attention mask of token ids, `[batch, length]`; `None` if their padding may be content.

    transformers 5 derives it for decoder-only models only, and other models would attend to the padding.
    """
    ends = [] if end is None else torch.as_tensor(end).flatten().tolist()
    if not isinstance(ids, Tensor) or ids.dim() != 2 or padding is None or padding in ends:
        return None
    return ids.ne(padding)


def pad_after_end(sequences: Tensor, padding: int | None, end: Any) -> None:
    """Replace repeated end tokens at the end of `sequences`, `[rows, length]`, by padding.

    transformers' beam search pads with the end token if the id of the padding token is 0.
    """
    if padding is None or end is None:
        return
    generated = sequences[:, 1:]
    is_end = torch.isin(generated, torch.as_tensor(end, device=sequences.device))
    only_ends_from_here = trailing_true(is_end)
    generated[:, 1:].masked_fill_(only_ends_from_here[:, :-1], padding)


def as_encoder_output(outputs: Any) -> BaseModelOutput:
    """An encoder's output from a mapping, another `ModelOutput` class, or a tuple in the order of its fields."""
    names = ("last_hidden_state", "hidden_states", "attentions")
    fields = dict(zip(names, outputs, strict=False)) if isinstance(outputs, (tuple, list)) else outputs
    if not isinstance(fields, Mapping) or not isinstance(fields.get("last_hidden_state"), Tensor):
        raise ValueError(
            f"encoder_outputs must be a ModelOutput with a last_hidden_state or a tuple, got {type(outputs).__name__}."
        )
    return BaseModelOutput(**{name: fields.get(name) for name in names})


def check_target_rows(rows: int, sources: int) -> None:
    """Raise a `ValueError` if the rows of a target cannot be divided among the sources."""
    if rows % max(sources, 1):
        raise ValueError(f"decoder_input_ids must have a multiple of the sources' {sources} rows, got {rows}.")


def check_cache(cache: Any) -> None:
    """Raise a `ValueError` for a cache that is no object of transformers' classes, such as a tuple of tensors."""
    if cache is not None and not isinstance(cache, Cache):
        raise ValueError(f"{CACHE_NAME} must be None or a Cache of transformers, got {type(cache).__name__}.")


def check_continued_target(ids: Tensor, cache: Cache, mask: Tensor | None, copies: int) -> None:
    """Raise a `ValueError` if `generate()` cannot continue the tokens in a cache with a target `[batch, length]`."""
    if copies > 1 or getattr(cache, "is_of_beams", False):
        raise ValueError(
            f"{CACHE_NAME} must be of and for one sequence per source, got tokens of beams: the rows of beams are not "
            "those of the returned sequences."
        )
    seen = int(cache.get_seq_length())
    if ids.shape[1] <= seen:
        raise ValueError(
            f"decoder_input_ids must contain all tokens in {CACHE_NAME}, {seen}, and at least one more, "
            f"got {ids.shape[1]} tokens."
        )
    if mask is not None and mask.shape != ids.shape:
        raise ValueError(
            f"decoder_attention_mask must have the shape of decoder_input_ids, {list(ids.shape)}, "
            f"got {list(mask.shape)}."
        )


def return_standard_cache(outputs: ModelOutput) -> None:
    """Replace the cache in the outputs of `generate()` by transformers' classes, with a copy of the keys per beam."""
    cache = cache_of(outputs)
    if not isinstance(cache, EncoderDecoderCache):
        return
    if isinstance(cache, FastDecodingCache):
        cache.end_steps()
        cache = EncoderDecoderCache(cache.self_attention_cache, cache.cross_attention_cache)
    target, source = cache.self_attention_cache, keys_values_of(cache.cross_attention_cache)
    copies = len(target.layers[0].keys) // len(source[0][0]) if source else 1
    if copies > 1:
        expanded = DynamicCache()  # a layer of fixed capacity cannot repeat its rows
        for i, (keys, values) in enumerate(source):
            expanded.update(keys.repeat_interleave(copies, 0), values.repeat_interleave(copies, 0), i)
        cache = EncoderDecoderCache(target, expanded)
    cache.is_of_beams = hasattr(outputs, "beam_indices")
    outputs[CACHE_NAME] = cache
