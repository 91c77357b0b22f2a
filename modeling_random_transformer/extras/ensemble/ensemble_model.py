"""Ensembles: several models with one vocabulary decode together, each with its own cache.

    model = EnsembleForSeq2SeqLM([first, second])
    model.generate(**inputs, num_beams=4)
    pipeline("seq2seq", model=model, tokenizer=tokenizer)
    model, tokenizer = load_models(["runs/a", "runs/b"])

The probability of a token is the normalized geometric mean of the members' probabilities: the average of their
log-probabilities. Sizes and architectures may differ.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from ...generation_random_transformer import RandomTransformerGenerationMixin
from ...inputs_random_transformer import max_target_positions
from ...versions_random_transformer import CACHE_NAME, cache_of, named_cache

EQUAL_FIELDS = ("vocab_size", "pad_token_id", "eos_token_id", "decoder_start_token_id")


class EnsembleConfig(PretrainedConfig):
    """The configuration of an ensemble: vocabulary, special tokens and the smallest position limit of its members."""

    model_type = "seq2seq_ensemble"


@dataclass
class EnsembleEncoderOutput(BaseModelOutput):
    """The encoded source of each member.

    Attributes:
        last_hidden_state: that of the first member, `[sources, source_len, width]`.
        members: `encoder_outputs` and `attention_mask` of each member, which may be repeated for each beam.
    """

    members: tuple[dict[str, Any], ...] | None = None


class EnsembleEncoder(nn.Module):
    """The encoders of all members."""

    def __init__(self, encoders: Sequence[nn.Module]):
        super().__init__()
        self.encoders = nn.ModuleList(encoders)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> EnsembleEncoderOutput:
        """Encode sources, `[batch, source_len]`."""
        kwargs["return_dict"] = True
        members = []
        for encoder in self.encoders:
            output = encoder(input_ids=input_ids, attention_mask=attention_mask, **kwargs)
            members.append({"encoder_outputs": output, "attention_mask": attention_mask})
        first = members[0]["encoder_outputs"]
        return EnsembleEncoderOutput(last_hidden_state=first.last_hidden_state, members=tuple(members))


class EnsembleCache(Cache):
    """The cache of each member."""

    def __init__(self, members: Sequence[Cache]):
        super().__init__(layers=[])
        self.members = list(members)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.members[0].get_seq_length(layer_idx)

    def crop(self, *args: Any) -> None:
        """Remove tokens that assisted decoding has rejected; the arguments are those of transformers' caches."""
        for member in self.members:
            member.crop(*args)


class EnsembleForSeq2SeqLM(PreTrainedModel, RandomTransformerGenerationMixin):
    """Several sequence-to-sequence models that decode together, with `generate()`.

    Every member uses its own cache and, where it has one, its own fast decoder. Members may be in int8 or half
    precision. An ensemble cannot be trained or saved.

    Args:
        members: models of `AutoModelForSeq2SeqLM` on one device.

    Raises:
        ValueError: there are no members, or vocabulary sizes or special tokens differ.
    """

    config_class = EnsembleConfig
    config: EnsembleConfig
    main_input_name = "input_ids"

    def __init__(self, members: Sequence[PreTrainedModel]):
        members = list(members)
        super().__init__(ensemble_config(members))
        self.members: Any = nn.ModuleList(members)
        self.generation_config = copy.deepcopy(members[0].generation_config)
        self.training = any(member.training for member in members)
        self.members.training = self.training

    def get_encoder(self, modality: str | None = None) -> nn.Module:  # noqa: ARG002
        """The encoders of all members as one module."""
        return EnsembleEncoder([member.get_encoder() for member in self.members])

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Raises a ValueError."""
        raise ValueError("an ensemble cannot be saved: save its members.")

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        member_inputs: Sequence[dict[str, Any]] | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """The average of the members' logits, `[batch, target_len, vocab_size]`.

        Normalized, these are the averages of the log-probabilities, which differ from the logits by one number per
        position.

        Args:
            input_ids: source ids, `[batch, source_len]`.
            attention_mask: 1 for source tokens, 0 for padding, `[batch, source_len]`.
            decoder_input_ids: target ids, shifted right, `[batch, target_len]`.
            member_inputs: the arguments of each member, instead of the others, during `generate()`.
            **kwargs: other arguments of all members.

        Returns:
            The logits.
        """
        kwargs["return_dict"] = True
        if member_inputs is None:
            inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "decoder_input_ids": decoder_input_ids}
            member_inputs = [inputs | {"use_cache": False}] * len(self.members)
            kwargs.pop("use_cache", None)
        outputs = [member(**inputs, **kwargs) for member, inputs in zip(self.members, member_inputs, strict=True)]
        caches = [cache_of(output) for output in outputs]
        cache = None if None in caches else EnsembleCache(caches)
        dtype = torch.promote_types(outputs[0].logits.dtype, torch.float32)
        logits = torch.stack([output.logits.to(dtype) for output in outputs]).mean(dim=0)
        return Seq2SeqLMOutput(logits=logits, **named_cache(cache))

    def prepare_inputs_for_generation(self, input_ids: Tensor, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The inputs of each member for the next step, with its own cache, encoded source and mask."""
        cache = kwargs.pop(CACHE_NAME, None)
        encoded = kwargs.pop("encoder_outputs")
        self.record_inputs(input_ids, {**kwargs, "encoder_outputs": encoded, **named_cache(cache)})
        kwargs.pop("attention_mask", None)  # repeated for the members that need it
        caches = [None] * len(self.members) if cache is None else cache.members
        inputs = []
        for member, member_cache, source in zip(self.members, caches, encoded.members, strict=True):
            arguments = {**kwargs, **source, **named_cache(member_cache)}
            inputs.append(member.prepare_inputs_for_generation(input_ids, *args, **arguments))
        return {"member_inputs": inputs}

    def logits_without_cache(self, input_ids: Tensor, **model_kwargs: Any) -> Tensor:
        """The average of the members' logits without their caches, `[batch, vocab_size]`."""
        encoded = model_kwargs["encoder_outputs"].members
        inputs = [{"decoder_input_ids": input_ids, "use_cache": False, **source} for source in encoded]
        return self.forward(member_inputs=inputs).logits[:, -1]

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any) -> None:
        """Create the cache of each member."""
        caches = []
        for member in self.members:
            member_kwargs = dict(model_kwargs)
            member._prepare_cache_for_generation(generation_config, member_kwargs, *args)
            caches.append(cache_of(member_kwargs))
        if None not in caches:
            model_kwargs[CACHE_NAME] = EnsembleCache(caches)

    def _expand_inputs_for_generation(
        self, expand_size: int = 1, is_encoder_decoder: bool = False, input_ids: Tensor | None = None, **kwargs: Any
    ) -> tuple[Tensor | None, dict[str, Any]]:
        """Repeat the target rows, and the encoded source of the members whose beams do not share it."""
        encoded = kwargs.pop("encoder_outputs")
        members = []
        for member, source in zip(self.members, encoded.members, strict=True):
            _, expanded = member._expand_inputs_for_generation(expand_size, is_encoder_decoder, None, **source)
            members.append(expanded)
        encoded.members = tuple(members)
        input_ids, kwargs = super()._expand_inputs_for_generation(expand_size, False, input_ids, **kwargs)
        return input_ids, {**kwargs, "encoder_outputs": encoded}

    def _reorder_cache(self, cache: EnsembleCache, beam_idx: Tensor) -> EnsembleCache:
        """Reorder the beams of each member's cache."""
        for i, (member, member_cache) in enumerate(zip(self.members, cache.members, strict=True)):
            if hasattr(member, "_reorder_cache"):
                cache.members[i] = member._reorder_cache(member_cache, beam_idx)
            else:
                member_cache.reorder_cache(beam_idx)
        return cache


def ensemble_config(members: Sequence[PreTrainedModel]) -> EnsembleConfig:
    """The configuration of an ensemble.

    Raises:
        ValueError: there are no members, or vocabulary sizes or special tokens differ.
    """
    if not members:
        raise ValueError("members must be at least one model, got none.")
    for name in EQUAL_FIELDS:
        values = [getattr(member.config, name, None) for member in members]
        if any(value != values[0] for value in values):
            raise ValueError(f"members must have the same {name}, got {', '.join(map(str, values))}.")
    first = members[0].config
    limits = [max_target_positions(member.config) for member in members]
    return EnsembleConfig(
        is_encoder_decoder=True,
        **{name: getattr(first, name, None) for name in EQUAL_FIELDS},
        max_position_embeddings=min(filter(None, limits), default=None),
        prefix=getattr(first, "prefix", None),
        tie_word_embeddings=False,
    )
