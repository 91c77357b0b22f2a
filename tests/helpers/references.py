"""Reference models for conversions, and transformers' search over any function that computes logits."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, linear, relu
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

Logits = Callable[[Tensor, Tensor, Tensor], Tensor]


class ReferenceConfig(PretrainedConfig):
    model_type = "reference"
    is_encoder_decoder: bool = True
    vocab_size: int = 0


class Sources(nn.Module):
    """An encoder for `generate()` that returns the source ids, as `[batch, source_len, 1]`."""

    main_input_name = "input_ids"

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> BaseModelOutput:  # noqa: ARG002
        return BaseModelOutput(last_hidden_state=input_ids[..., None])


class Search(PreTrainedModel, GenerationMixin):
    """transformers' `generate()` over a function that recomputes all logits at each step."""

    config_class = ReferenceConfig
    main_input_name = "input_ids"

    def __init__(self, logits: Logits, generation_config: Any, vocab_size: int):
        super().__init__(ReferenceConfig(vocab_size=vocab_size))
        self.logits, self.encoder = logits, Sources()
        self.anchor = nn.Parameter(torch.zeros(1))  # provides the device and dtype
        self.generation_config = generation_config

    def get_encoder(self, *_: Any, **__: Any) -> nn.Module:
        return self.encoder

    def prepare_inputs_for_generation(self, ids: Tensor, **kwargs: Any) -> dict[str, Any]:
        return {"decoder_input_ids": ids, **{name: kwargs[name] for name in ("encoder_outputs", "attention_mask")}}

    def forward(self, decoder_input_ids: Tensor, encoder_outputs: Any, attention_mask: Tensor, **_: Any) -> Any:
        sources = encoder_outputs.last_hidden_state[..., 0]
        return Seq2SeqLMOutput(logits=self.logits(sources, attention_mask, decoder_input_ids))


def same_search(model: PreTrainedModel, logits: Logits, batch: dict[str, Tensor], beams: int) -> bool:
    """Whether a model's `generate()` returns the same tokens as the search over these logits."""
    options = {"max_new_tokens": 10, "do_sample": False, "num_beams": beams}
    reference = Search(logits, model.generation_config, model.config.vocab_size)
    return torch.equal(model.generate(**batch, **options), reference.generate(**batch, use_cache=False, **options))


@torch.no_grad()
def relative_difference(model: Any, logits: Logits, vocabularies: tuple[int, int] | None = None) -> float:
    """The largest difference between the logits of a model and of a reference, relative to the reference's largest.

    The batches have random ids of both vocabularies, and sources with padding.
    """
    config = model.config
    pad = config.pad_token_id or 0
    sources, targets = vocabularies or (config.vocab_size, config.vocab_size)
    generator = torch.Generator().manual_seed(0)
    mask = (torch.arange(9) < torch.tensor([[9], [5], [1]])).long()

    def random_tokens(vocabulary: int, length: int) -> Tensor:  # padding between tokens never occurs
        ids = torch.randint(vocabulary, (3, length), generator=generator)
        return ids.where(ids != pad, torch.tensor((pad + 1) % vocabulary))

    ids, target = random_tokens(sources, 9).where(mask.bool(), torch.tensor(pad)), random_tokens(targets, 7)
    expected = logits(ids, mask, target)
    actual = model(ids, mask, target).logits[..., : expected.shape[-1]]
    return ((actual - expected).abs().max() / expected.abs().max()).item()


class FairseqReference:
    """The forward pass of fairseq's `transformer`, in plain functions on a state dict with fairseq's names."""

    epsilon = 1e-5

    def __init__(self, weights: dict[str, Tensor], heads: int, before: bool, scale: bool = True, act: Callable = relu):
        self.weights, self.heads, self.before, self.act = weights, heads, before, act
        self.width = weights["encoder.embed_tokens.weight"].shape[1]
        self.scale = math.sqrt(self.width) if scale else 1.0

    def norm(self, name: str, states: Tensor) -> Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return layer_norm(states, (self.width,), weight, bias, self.epsilon)

    def residual(self, name: str, states: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.before:
            return states + sublayer(self.norm(name, states))
        return self.norm(name, states + sublayer(states))

    def linear(self, name: str, states: Tensor) -> Tensor:
        return linear(states, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def feed_forward(self, name: str, states: Tensor) -> Tensor:
        return self.linear(f"{name}.fc2", self.act(self.linear(f"{name}.fc1", states)))

    def embed(self, stack: str, ids: Tensor) -> Tensor:
        # fairseq numbers non-padding tokens from padding_idx + 1 = 2.
        positions = (ids.ne(1).cumsum(1) * ids.ne(1)) + 1
        learned = self.weights.get(f"{stack}.embed_positions.weight")
        table = self.sinusoids(int(positions.max()) + 1) if learned is None else learned
        return self.weights[f"{stack}.embed_tokens.weight"][ids] * self.scale + table[positions]

    def sinusoids(self, rows: int) -> Tensor:
        half = self.width // 2
        values = [[p * math.exp(-i * math.log(10000) / (half - 1)) for i in range(half)] for p in range(rows)]
        angles = torch.tensor(values, dtype=torch.float64)
        return torch.cat([angles.sin(), angles.cos()], dim=1).to(self.weights["encoder.embed_tokens.weight"].dtype)

    def attention(self, name: str, hidden: Tensor, memory: Tensor | None, states: Tensor) -> Tensor:
        """Multi-head attention to the memory, or to the states themselves; `hidden` is true at masked positions."""

        def project(part: str, states: Tensor) -> Tensor:
            projected = self.linear(f"{name}.{part}_proj", states)
            return projected.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        keys = states if memory is None else memory
        scores = project("q", states) @ project("k", keys).transpose(-1, -2) / math.sqrt(self.width // self.heads)
        mixed = scores.masked_fill(hidden, -math.inf).softmax(-1) @ project("v", keys)
        return self.linear(f"{name}.out_proj", mixed.transpose(1, 2).flatten(2))

    def stack(self, stack: str, ids: Tensor, hidden: Tensor, memory: tuple[Tensor, Tensor] | None = None) -> Tensor:
        states = self.embed(stack, ids)
        layers = {name.split(".")[2] for name in self.weights if name.startswith(f"{stack}.layers.")}
        for name in (f"{stack}.layers.{i}" for i in range(len(layers))):
            self_attention = partial(self.attention, f"{name}.self_attn", hidden, None)
            states = self.residual(f"{name}.self_attn_layer_norm", states, self_attention)
            if memory is not None:
                encoder, padding = memory
                cross_attention = partial(self.attention, f"{name}.encoder_attn", padding, encoder)
                states = self.residual(f"{name}.encoder_attn_layer_norm", states, cross_attention)
            states = self.residual(f"{name}.final_layer_norm", states, partial(self.feed_forward, name))
        return self.norm(f"{stack}.layer_norm", states) if f"{stack}.layer_norm.weight" in self.weights else states

    @torch.no_grad()
    def __call__(self, ids: Tensor, mask: Tensor, target: Tensor) -> Tensor:
        hidden = mask[:, None, None] == 0
        memory = self.stack("encoder", ids, hidden)
        future = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        states = self.stack("decoder", target, future, (memory, hidden))
        tied = self.weights["decoder.embed_tokens.weight"]
        bias = self.weights.get("decoder.output_projection.bias")
        return linear(states, self.weights.get("decoder.output_projection.weight", tied), bias)
