"""A `generate()` that raises an error if the installed transformers would give wrong outputs.

A release of transformers can rename an argument or change its meaning, so that a cache or a mask is silently ignored.
Therefore the first `generate()` of a model object compares transformers' caches, masks and attention with their
definitions. It also compares one of its cached steps with a pass without a cache.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.generation import GenerationConfig, GenerationMixin
from transformers.masking_utils import (
    create_bidirectional_mask,
    create_causal_mask,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import ModelOutput

from .ops_random_transformer import (
    float32_precisions,
    forward_hooks,
    is_traced,
)
from .snapshot_random_transformer import Snapshot
from .versions_random_transformer import (
    CACHE_NAME,
    UNTESTED_ADVICE,
    accepts_cache,
    cache_of,
    is_untested_version,
    named_cache,
)

EDITED_ADVICE = (
    "If you changed the model's code, make its steps with and without a cache agree, or set use_cache=False: an "
    "attention_mask of None is causal for SDPA (is_causal), and a step with a cache has one query."
)
# The largest relative difference between logits that rounding explains, by dtype.
ROUNDING = {torch.float64: 1e-6, torch.float32: 2e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
EXACT_PRECISIONS = {"none", "ieee"}  # settings with which products in float32 are exact
INEXACT_ROUNDING = 1e-1  # limit if activations or weights may be rounded to half precision or integers
# Arguments of generate() with which a pass without a cache computes the same as the cached step.
VERIFIED_ARGUMENTS = {
    "attention_mask",
    "decoder_attention_mask",
    "decoder_input_ids",
    "encoder_outputs",
    "generation_config",
    "input_ids",
    "logits_processor",
    "prefix_allowed_tokens_fn",
    "stopping_criteria",
    "streamer",
    "synced_gpus",
    "tokenizer",
    "use_model_defaults",
}


class CacheVerification:
    """Compares one cached step of a call of `generate()` with a pass without a cache.

    The second pass of the decoder is the first with a cache. Beams are first reordered before the third pass.

    transformers calls `prepare_inputs_for_generation` before each pass, which sets `pass_inputs`, and
    `_update_model_kwargs_for_generation` after each pass, which calls `add_pass`. `generate` calls `finish` at its end.

    Args:
        model: the model.
        arguments: the arguments of `generate()`.
        is_beam_search: whether the rows are reordered.
    """

    def __init__(self, model: "VerifiedGenerationMixin", arguments: Mapping[str, Any], is_beam_search: bool):
        self.model = model
        self.arguments = arguments
        self.last_pass = 3 if is_beam_search else 2
        self.passes = 0
        self.pass_inputs: tuple[Tensor, dict[str, Any]] | None = None  # tokens and arguments of the running pass
        self.recorded_step: tuple[Tensor, dict[str, Any], Tensor] | None = None  # input ids, other inputs and logits

    @cached_property
    def snapshot(self) -> Snapshot:
        """The snapshot of the model in this call."""
        return self.model.renewed_snapshot()

    def add_pass(self, logits: Tensor) -> None:
        """Record the logits of a pass, `[batch, new_len, vocab_size]`, and compare the last recorded pass.

        Raises:
            RuntimeError: the logits differ by more than rounding.
        """
        self.passes += 1
        if self.pass_inputs is not None and 1 < self.passes <= self.last_pass:
            self.recorded_step = *self.pass_inputs, logits[:, -1]
            if self.passes == self.last_pass:
                self.compare_recorded_step()

    def must_compare(self, kind: tuple[Any, ...], model_kwargs: Mapping[str, Any]) -> bool:
        """Whether a step is cached and can be verified, and no step of its kind was verified for this model."""
        if is_traced() or model_kwargs.get("use_cache") is False:
            return False
        return kind not in self.snapshot.verified_steps and can_verify(self.model, self.arguments)

    def compare_recorded_step(self) -> None:
        """Compare the recorded step if there is one that must be compared.

        Raises:
            RuntimeError: the logits differ by more than rounding.
        """
        if self.recorded_step is None:
            return
        input_ids, model_kwargs, logits = self.recorded_step
        self.recorded_step = None
        cache = cache_of(model_kwargs)
        target_cache = getattr(cache, "self_attention_cache", cache)
        kind = type(cache), type(target_cache), self.last_pass
        if not self.must_compare(kind, model_kwargs):
            return
        expected = self.model.logits_without_cache(input_ids, **model_kwargs)
        finite = expected.isfinite()  # a bias of -inf excludes a token
        if not finite.any():
            return
        reason = difference_reason(logits[finite], expected[finite], max_rounding(self.model, logits))
        if reason:
            again = self.model.logits_without_cache(input_ids, **model_kwargs)
            if torch.equal(again.nan_to_num(), expected.nan_to_num()):  # edited code may draw random numbers
                advice = f"{EDITED_ADVICE} {UNTESTED_ADVICE}" if is_untested_version() else EDITED_ADVICE
                raise RuntimeError(f"generate() is wrong with a cache: {reason}. {advice}")
        self.snapshot.verified_steps.add(kind)

    def finish(self) -> None:
        """Compare the step that is recorded when the search ends, and check that `generate()` called the methods above.

        Raises:
            RuntimeError: the logits differ, or `generate()` has not called the methods above.
        """
        if (self.passes == 0 or self.pass_inputs is None) and can_verify(self.model, self.arguments):
            raise RuntimeError(f"generate() does not call this model's methods. {UNTESTED_ADVICE}")
        self.compare_recorded_step()


@contextmanager
def context_value(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    """Set a context variable within a block."""
    earlier = variable.set(value)
    try:
        yield
    finally:
        variable.reset(earlier)


# The checks of the running call of generate().
VERIFICATION: ContextVar[CacheVerification | None] = ContextVar("verification", default=None)


class VerifiedGenerationMixin(GenerationMixin):
    """transformers' `generate()`, whose first call for a model object verifies caches, masks, attention and a step."""

    snapshot: Snapshot | None = None  # the state of the model at the last call, and what was verified

    def generate(self, inputs: Any = None, generation_config: Any = None, *args: Any, **kwargs: Any) -> Any:
        """`GenerationMixin.generate`.

        Raises:
            RuntimeError: the installed version of transformers gives wrong outputs.
        """
        if self.snapshot is None and not is_traced():
            verify_transformers()
        options = {**kwargs, "generation_config": generation_config}
        num_beams = generation_option(self, options, "num_beams") or 1
        verification = CacheVerification(self, options, is_beam_search=num_beams > 1)
        with context_value(VERIFICATION, verification):
            try:
                outputs = super().generate(inputs, generation_config, *args, **kwargs)
                verification.finish()
            except Exception as error:
                if is_untested_version():
                    error.add_note(UNTESTED_ADVICE)
                raise
        return outputs

    def _prepare_cache_for_generation(
        self, generation_config: GenerationConfig, model_kwargs: dict[str, Any], *args: Any
    ) -> None:
        """Create transformers' cache. Without one, no step may see a cache, since its tokens would count twice.

        Raises:
            ValueError: a cache was given, and `use_cache` is not true; or prompts are padded on the right.
        """
        mask = model_kwargs.get("attention_mask")
        if not self.config.is_encoder_decoder and mask is not None and not mask[:, -1].all():
            raise ValueError("attention_mask must end with 1 in each row of prompts: set padding_side='left'.")
        if not generation_config.use_cache:
            if cache_of(model_kwargs) is not None:
                raise ValueError(f"use_cache must be True with {CACHE_NAME}, got {generation_config.use_cache!r}.")
            generation_config.use_cache = False  # for `None` and 0, transformers would create a cache
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args)

    @accepts_cache
    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        cache: Cache | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,  # transformers reads the signature to know that it is supported
        **kwargs: Any,
    ) -> dict[str, Any]:
        """The inputs of the next pass."""
        kwargs |= {"attention_mask": attention_mask, "inputs_embeds": inputs_embeds, **named_cache(cache)}
        self.record_inputs(input_ids, kwargs)
        return super().prepare_inputs_for_generation(input_ids, next_sequence_length, **kwargs)

    def _update_model_kwargs_for_generation(self, outputs: ModelOutput, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The arguments of the next pass, from the outputs of the last one."""
        verification = self.running_verification
        if verification is not None:
            verification.add_pass(outputs.logits)
        return super()._update_model_kwargs_for_generation(outputs, *args, **kwargs)

    @property
    def running_verification(self) -> CacheVerification | None:
        """The verification of the running call of `generate()`, if the call is for this model."""
        verification = VERIFICATION.get()
        return verification if verification is not None and verification.model is self else None

    def renewed_snapshot(self) -> Snapshot:
        """The earlier snapshot of the model if nothing has changed since, otherwise a new one."""
        if self.snapshot is None or not self.snapshot.is_current(self):
            self.snapshot = Snapshot(self)
        return self.snapshot

    def record_inputs(self, input_ids: Tensor, model_kwargs: dict[str, Any]) -> None:
        """Let the running call of `generate()` verify the next pass on tokens `[batch, length]`."""
        verification = self.running_verification
        if verification is not None:
            verification.pass_inputs = input_ids, model_kwargs

    @torch.no_grad()
    def logits_without_cache(self, input_ids: Tensor, **model_kwargs: Any) -> Tensor:
        """The logits of the token after a sequence, `[batch, length]` → `[batch, vocab_size]`."""
        inputs = {"attention_mask": model_kwargs.get("attention_mask")}
        if self.config.is_encoder_decoder:
            inputs["decoder_input_ids"] = input_ids
            inputs["decoder_attention_mask"] = model_kwargs.get("decoder_attention_mask")
            inputs["encoder_outputs"] = model_kwargs.get("encoder_outputs")
        else:
            inputs["input_ids"] = input_ids
        # `forward` bypasses the hooks of users, which would count one more pass.
        return self.forward(**inputs, use_cache=False, logits_to_keep=1, return_dict=True).logits[:, -1]


def generation_option(model: Any, options: Mapping[str, Any], name: str) -> Any:
    """The effective value of an option: from the call, its `generation_config` or the model's generation config."""
    value = options.get(name)
    for config in (options.get("generation_config"), model.generation_config):
        if value is None:
            value = getattr(config, name, None)
    return value


def replace_saved_limit(kwargs: dict[str, Any]) -> None:
    """Let `max_new_tokens` or `max_length` of a call replace the other one in the generation config."""
    if kwargs.get("max_new_tokens") is not None:
        kwargs.setdefault("max_length", None)  # transformers would warn
    elif kwargs.get("max_length") is not None:
        kwargs.setdefault("max_new_tokens", None)  # transformers would ignore max_length


def can_verify(model: VerifiedGenerationMixin, kwargs: Mapping[str, Any]) -> bool:
    """Whether a pass without a cache computes the same as a cached step: no dropout, no unknown arguments."""
    # Assisted decoding changes the logits of a pass in place before they are compared.
    if is_traced() or generation_option(model, kwargs, "prompt_lookup_num_tokens"):
        return False
    options = vars(GenerationConfig()).keys() | VERIFIED_ARGUMENTS
    for name, value in kwargs.items():
        if value is not None and name not in options and not hasattr(GenerationConfig, name):
            return False
    for module in model.modules():
        # A hook or a replaced forward would observe one more pass.
        is_observed = module is not model and "forward" in vars(module)
        if module.training or is_observed or forward_hooks(module):
            return False
    return True


def max_rounding(model: VerifiedGenerationMixin, logits: Tensor) -> float | None:
    """The largest relative difference that rounding explains between logits of a model; `None` for `ROUNDING`."""
    is_half = any(weight.element_size() < 4 for weight in model.parameters())
    may_round = torch.is_autocast_enabled(logits.device.type) or not EXACT_PRECISIONS.issuperset(float32_precisions())
    if is_half or may_round or "forward" in vars(model) or not has_float_weights(model):
        return INEXACT_ROUNDING
    return None


def library_of(value: Any) -> str:
    """The name of the library that defines the class of a value."""
    return type(value).__module__.partition(".")[0]


def has_float_weights(model: nn.Module) -> bool:
    """Whether all weights are floating-point tensors of PyTorch. An exported graph has no weights."""
    weights = [weight.data for weight in model.parameters()]
    for weight in weights:
        if library_of(weight) != "torch" or not weight.is_floating_point():
            return False
    return bool(weights)


def difference_reason(actual: Tensor, expected: Tensor, max_difference: float | None = None) -> str | None:
    """How logits differ by more than rounding explains; `None` if they agree.

    This function compares the steps of `generate()`, the exports and the engines with the modules.

    Args:
        actual: the logits to check.
        expected: the logits of the modules, of the same shape.
        max_difference: the largest relative difference; that of the dtypes in `ROUNDING` when `None`.
    """
    if max_difference is None:
        max_difference = max(ROUNDING[actual.dtype], ROUNDING[expected.dtype])
    actual = actual.to(torch.promote_types(actual.dtype, torch.float32))
    expected = expected.to(torch.promote_types(expected.dtype, torch.float32))
    error = (actual - expected).norm()
    scale = (expected - expected.mean()).norm()
    if error <= max_difference * scale:  # false if one of them is NaN
        return None
    percent = 100 * max_difference
    return f"for the same inputs, its logits differ by {error / scale:.2%} (at most {percent:g}% by rounding)"


# Caches, masks and attention of transformers


@torch.autocast("cpu", enabled=False)
def verify_transformers() -> None:
    """Compare transformers' caches, masks and attention with their definitions, for tiny random inputs on a CPU.

    The default device and data type of PyTorch have no effect.

    Raises:
        RuntimeError: they differ.
    """
    try:
        with torch.device("cpu"):
            verify_cache()
            verify_eager_masks()
            verify_sdpa()
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise RuntimeError(
            f"transformers does not compute what this model requires: {error}. {UNTESTED_ADVICE}"
        ) from error


def verify_cache() -> None:
    """Raise an ArithmeticError if a cache does not append keys and values, count tokens or reorder rows."""
    tokens = torch.arange(24, dtype=torch.float32).view(2, 1, 4, 3)
    first, last = tokens.split([3, 1], dim=2)
    reordered = tokens.flip(0)
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    target = cache.self_attention_cache
    target.update(first, -first, 0)
    keys, values = target.update(last, -last, 0)
    if not torch.equal(keys, tokens) or not torch.equal(values, -tokens):
        raise ArithmeticError("a cache does not append keys and values")
    if cache.get_seq_length() != 4 or cache.is_updated.get(0):
        raise ArithmeticError("a cache does not count its tokens")
    target.reorder_cache(torch.tensor([1, 0]))
    layer = target.layers[0]
    if not torch.equal(layer.keys, reordered) or not torch.equal(layer.values, -reordered):
        raise ArithmeticError("a cache does not reorder its rows")


class MaskCase(NamedTuple):
    """A mask of transformers for two texts of four tokens, the second of which may have padding, and its meaning."""

    name: str
    mask: Tensor | None
    visible: Tensor
    is_causal: bool


def mask_cases(implementation: str) -> list[MaskCase]:
    """The masks of causal and bidirectional attention, with and without padding, for an attention implementation."""
    config = PreTrainedConfig()
    config._attn_implementation = implementation
    states = torch.zeros(2, 4, 6, dtype=torch.float32)
    padding_mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    causal = torch.ones(4, 4, dtype=torch.bool).tril()
    tokens = padding_mask[:, None, None].bool()
    causal_mask = create_causal_mask(config, states, None, None)
    padded_mask = create_causal_mask(config, states, padding_mask, None)
    bidirectional_mask = create_bidirectional_mask(config, states, padding_mask)
    return [
        MaskCase("a causal mask", causal_mask, causal, True),
        MaskCase("a causal mask with padding", padded_mask, causal & tokens, True),
        MaskCase("a padding mask", bidirectional_mask, tokens, False),
    ]


def verify_eager_masks() -> None:
    """Raise an ArithmeticError if masks for eager attention, which the modeling file computes, hide other keys."""
    for case in mask_cases("eager"):
        shown = torch.tensor(True) if case.mask is None else case.mask
        if shown.dtype != torch.bool:
            shown = shown == 0  # the dtype's minimum for hidden keys
        if not torch.equal(*torch.broadcast_tensors(shown, case.visible)):
            raise ArithmeticError(f"{case.name} for eager attention is wrong")


def verify_sdpa() -> None:
    """Raise an ArithmeticError if SDPA with a mask does not compute attention to the visible keys."""
    attend = ALL_ATTENTION_FUNCTIONS["sdpa"]
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 2, 2, 4, 3, generator=generator, dtype=torch.float32)
    scores = query @ key.transpose(-1, -2) * 0.5
    for case in mask_cases("sdpa"):
        module = SimpleNamespace(is_causal=case.is_causal, training=False, config=PreTrainedConfig())
        outputs, _ = attend(module, query, key, value, case.mask, scaling=0.5, dropout=0.0)
        expected = scores.masked_fill(~case.visible, -torch.inf).softmax(dim=-1) @ value
        if not torch.allclose(outputs, expected.transpose(1, 2), atol=1e-4):
            raise ArithmeticError(f"sdpa attention with {case.name} is wrong")
