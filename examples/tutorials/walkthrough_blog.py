"""The walkthrough of the blog post "The Random Transformer": its numbers next to those of the model."""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import create_causal_mask

from modeling_random_transformer import RandomTransformerConfig, RandomTransformerForConditionalGeneration
from modeling_random_transformer.modeling_random_transformer import eager_attention_forward
from modeling_random_transformer.tracing import Trace, trace

from .blog_model import BLOG, HEADS, blog_model, blog_tokenizer, tensor
from .walkthrough_display import Display

E = tensor(BLOG["E"])[None]  # [1, 2, 4], embeddings with positions of "Hello World"
FIRST_LAYER = "encoder.layers.0"
WORDS = ("Hello", "World")
SMALL_SCALE = 1 / 30  # used by the blog post to prevent the softmax from saturating
# Printed by the blog post for the decoder.
SOS, SOS_AT_0 = [1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 1.0]
ATTENDED = [2.19334924, 10.61851198, -4.50089666, -2.76366551]  # output of its random self-attention for SOS
ATTENDED_NORMED = [0.17236212, 1.54684892, -1.0828824, -0.63632864]
ENCODED = [[-1.5, 1.0, -0.8, 1.5], [1.0, -1.0, -0.5, 1.0]]  # its example of an encoder output
EPS_TOLERANCE = 3e-7  # difference between dividing by std + eps and by sqrt(var + eps)


def walkthrough_blog(display: Display) -> bool:
    """Print all sections. Returns whether all numbers agree with the blog post."""
    for section in (
        embed_text,
        encode_positions,
        add_positions,
        self_attention,
        saturation,
        concatenate_heads,
        feed_forward,
        without_norms,
        residual_and_norm,
        decoder_input,
        masked_attention,
        decoder_residual,
        cross_attention,
        choose_token,
        generate,
        sizes,
    ):
        section(display)
    display.begin("summary")
    return display.summary()


@torch.no_grad()
def traced(model: RandomTransformerForConditionalGeneration, **inputs: Any) -> Trace:
    """Trace a forward pass; the default decoder input is SOS."""
    inputs = {"decoder_input_ids": torch.tensor([[model.config.decoder_start_token_id]])} | inputs
    with trace(model) as recorded:
        model(**inputs)
    return recorded


@cache
def traced_from_e(scale: float | None = None) -> tuple[RandomTransformerForConditionalGeneration, Trace]:
    """Trace a forward pass over E, which contains the positions, so that the model adds none."""
    model = blog_model(position_embedding="none", attention_scale=scale)
    return model, traced(model, inputs_embeds=E)


@cache
def traced_hello_world() -> Trace:
    """Trace a forward pass over the token ids of "hello world" with the blog post's embeddings."""
    model, tokenizer = blog_model(), blog_tokenizer()
    ids = tokenizer("hello world", return_tensors="pt").input_ids[:, :2]  # without EOS, as in the blog post
    with torch.no_grad():
        model.model.shared.weight[ids[0]] = tensor(BLOG["token_embedding"])
        model.model.shared.weight[model.config.decoder_start_token_id] = tensor(SOS)
    return traced(model, input_ids=ids)


def embed_text(display: Display) -> None:
    display.begin("embed_text")
    recorded = traced_hello_world()
    display.compare(
        "token_embedding", recorded["encoder.embedding.token"][0], BLOG["token_embedding"], "embedding[ids]", rows=WORDS
    )
    display.note()


def encode_positions(display: Display) -> None:
    display.begin("encode_positions")
    positions = traced_hello_world()["encoder.embedding.position"]
    formula = "sin, cos of pos / 10000^(2i/4)"
    first, second = BLOG["position_encoding"]["pos0"], BLOG["position_encoding"]["pos1"]
    display.compare("position_encoding of Hello", positions[0], first, formula)
    display.compare("position_encoding of World", positions[1], second, formula, tolerance=1e-7)  # the table is float32
    display.note(wrong=BLOG["position_encoding"]["pos1_as_printed"])


def add_positions(display: Display) -> None:
    display.begin("add_positions")
    summed = traced_hello_world()["encoder.embedding.sum"][0]
    display.array("E", summed, "token + position", rows=WORDS)
    display.compare("E of Hello", summed[0], BLOG["E"][0])
    display.note(world=BLOG["E"][1])


def self_attention(display: Display) -> None:
    display.begin("self_attention")
    model, recorded = traced_from_e()
    attention: Any = model.model.encoder.layers[0].self_attn
    for head, weights in enumerate(HEADS):
        for name, printed in weights.items():
            projection = getattr(attention, f"{name[1].lower()}_proj").weight
            display.compare(f"{name}{head + 1}", projection[3 * head : 3 * head + 3].T, printed)
    display.note()
    path = f"{FIRST_LAYER}.self_attn.head.0"
    display.compare("K1", recorded[f"{path}.key"], BLOG["K1"], "E · WK1", rows=WORDS)
    display.compare("V1", recorded[f"{path}.value"], BLOG["V1"], "E · WV1", rows=WORDS)
    display.compare("Q1", recorded[f"{path}.query"], BLOG["Q1"], "E · WQ1", rows=WORDS)
    display.compare("scores1", recorded[f"{path}.scores"], BLOG["scores1"], "Q1 · K1ᵀ", rows=WORDS)
    scaled = BLOG["scaled_scores1_sqrt3"]
    display.compare("scores1 / √3", recorded[f"{path}.scaled_scores"], scaled, "scores1 / √d_k", rows=WORDS)
    display.print("then")
    display.compare("softmax of [1, 2, 3]", softmax_by_attention([1.0, 2.0, 3.0]), BLOG["softmax_123"], tolerance=0.005)
    display.compare(
        "weights1", recorded[f"{path}.weights"], BLOG["weights1_sqrt3"], "softmax(scores1 / √3)", rows=WORDS
    )
    display.compare("attention1", recorded[f"{path}.output"], BLOG["attention1_sqrt3"], "weights1 · V1", rows=WORDS)


def softmax_by_attention(scores: list[float]) -> Tensor:
    """The attention weights of one query with these scores, by the model's attention function."""
    one, keys = tensor([[[[1.0]]]]), tensor(scores)[None, None, :, None]
    return eager_attention_forward(nn.Identity(), one, keys, keys, None, scaling=1.0)[1].flatten()


def saturation(display: Display) -> None:
    display.begin("saturation")
    _, recorded = traced_from_e()
    path = f"{FIRST_LAYER}.self_attn.head.1"
    display.compare(
        "weights2", recorded[f"{path}.weights"], BLOG["weights2_sqrt3"], "softmax(scores2 / √3)", rows=WORDS
    )
    display.compare("attention2", recorded[f"{path}.output"], BLOG["attention2_sqrt3"], "weights2 · V2", rows=WORDS)
    _, recorded = traced_from_e(SMALL_SCALE)
    for head in (0, 1):
        output = recorded[f"{FIRST_LAYER}.self_attn.head.{head}.output"]
        display.compare(f"attention{head + 1}, scores / 30", output, BLOG[f"attention{head + 1}_div30"], rows=WORDS)


def concatenate_heads(display: Display) -> None:
    display.begin("concatenate_heads")
    model, recorded = traced_from_e(SMALL_SCALE)
    heads = [a + b for a, b in zip(BLOG["attention1_div30"], BLOG["attention2_div30"], strict=True)]
    display.compare(
        "attentions", recorded[f"{FIRST_LAYER}.self_attn.concatenated"], heads, "[attention1, attention2]", rows=WORDS
    )
    attention: Any = model.model.encoder.layers[0].self_attn
    display.compare("W", attention.out_proj.weight.T, BLOG["W_output"])
    display.compare("Z", recorded[f"{FIRST_LAYER}.self_attn.output"], BLOG["Z_div30"], "attentions · W", rows=WORDS)
    display.note()


def feed_forward(display: Display) -> None:
    display.begin("feed_forward")
    _, recorded = traced_from_e(SMALL_SCALE)
    display.array("inner", recorded[f"{FIRST_LAYER}.ffn.inner"][0], "x · W1 + b1", WORDS)
    display.array("relu", recorded[f"{FIRST_LAYER}.ffn.activation"][0], "max(0, inner)", WORDS)
    display.array("FFN(x)", recorded[f"{FIRST_LAYER}.ffn.output"][0], "relu · W2 + b2", WORDS)
    display.note()


def without_norms(display: Display) -> None:
    display.begin("without_norms")
    model = unnormalized_model()
    scores, states = run_without_norms(model, E)
    float16_states = run_without_norms(model.half(), E.half())[1]
    model.double()
    normal = traced(model, inputs_embeds=E)
    rows = [
        (
            i + 1,
            f"{scores[i]:.3g}",
            f"{naive_softmax(scores[i]):.3g}",
            f"{states[i]:.3g}",
            f"{float16_states[i]:.3g}",
            f"{normed:.3g}",
        )
        for i, normed in enumerate(normal[f"encoder.layers.{i}.ffn.layer_norm"].abs().max() for i in range(6))
    ]
    display.table("without_norms.columns", rows)


def unnormalized_model() -> RandomTransformerForConditionalGeneration:
    """The blog post's model with all encoder weights from N(0, 1)."""
    model = blog_model(position_embedding="none")
    for name, parameter in model.model.encoder.layers.named_parameters():
        if "norm" not in name:
            nn.init.normal_(parameter)
    return model


@torch.no_grad()
def run_without_norms(
    model: RandomTransformerForConditionalGeneration, states: Tensor
) -> tuple[list[float], list[float]]:
    """The largest score and the largest value after each layer, without residual connections and layer norms."""
    scores, values = [], []
    with trace(model) as recorded:
        layers: Any = model.model.encoder.layers
        for index, layer in enumerate(layers):
            states = layer.feed_forward(layer.self_attn(states)[0])
            heads = [recorded[f"encoder.layers.{index}.self_attn.head.{head}.scaled_scores"] for head in (0, 1)]
            scores.append(torch.cat(heads).max().item())
            values.append(states.abs().max().item())
    return scores, values


def naive_softmax(score: float) -> float:
    """The weight of a score next to a score of 0 by exp(x) / sum(exp(x)), as in the blog post's code."""
    exp = torch.tensor([score, 0.0], dtype=torch.float64).exp()
    return (exp / exp.sum())[0].item()


def residual_and_norm(display: Display) -> None:
    display.begin("residual_and_norm")
    _, recorded = traced_from_e(SMALL_SCALE)
    path = f"{FIRST_LAYER}.self_attn"
    display.array("E + Z", recorded[f"{path}.residual"][0], "x + output", WORDS)
    display.compare("mean", recorded[f"{path}.mean"][0], BLOG["mean_E_plus_Z"], "mean of E + Z")
    display.compare("std", recorded[f"{path}.variance"][0].sqrt(), BLOG["std_E_plus_Z"], "√variance")
    norm, printed = recorded[f"{path}.layer_norm"], BLOG["layer_norm_E_plus_Z"]
    display.compare("LayerNorm(E + Z)", norm, printed, "(E + Z − mean) / √(variance + ε)", EPS_TOLERANCE, WORDS)
    display.note()
    display.array("encoder output", recorded["encoder.output"][0], display.text("labels.six_layers"), WORDS)


def decoder_input(display: Display) -> None:
    display.begin("decoder_input")
    recorded = traced_hello_world()
    display.compare("SOS", recorded["decoder.embedding.token"][0], [SOS])
    display.compare("SOS + position", recorded["decoder.embedding.sum"][0], [SOS_AT_0], "token + position")


def masked_attention(display: Display) -> None:
    display.begin("masked_attention")
    example = BLOG["causal_mask_example"]
    config = RandomTransformerConfig.from_preset("blog", attn_implementation="eager")
    mask = create_causal_mask(config, torch.empty(1, 3, 4).double(), None, None)
    scores, identity = tensor(example["scores"])[None, None], torch.eye(3).double()[None, None]
    _, weights = eager_attention_forward(nn.Identity(), scores, identity, identity, mask, scaling=1.0)
    display.compare("example scores", scores[0, 0], example["scores"])
    display.compare("softmax with the mask", weights[0, 0], example["row_softmax"])
    display.note()


def decoder_residual(display: Display) -> None:
    display.begin("decoder_residual")
    layer: Any = blog_model().model.decoder.layers[0]
    with torch.no_grad():
        normed = layer.self_attn_layer_norm(tensor([SOS_AT_0]) + tensor([ATTENDED]))
    display.compare("LayerNorm(Z + E)", normed, [ATTENDED_NORMED], "norm(x + output)", EPS_TOLERANCE)


def cross_attention(display: Display) -> None:
    display.begin("cross_attention")
    model = blog_model()
    recorded = traced(model, encoder_outputs=(tensor(ENCODED)[None],))
    layer = "decoder.layers.0"
    for name in ("query", "key", "value", "weights", "output"):
        path = f"{layer}.encoder_attn.head.0.{name}"
        display.array(f"{name}, head 1", recorded[path][0], recorded.explain(path).formula)
    display.array("residual", recorded[f"{layer}.encoder_attn.residual"][0], "x + output")
    display.note()
    display.array("FFN(x)", recorded[f"{layer}.ffn.output"][0], "max(0, x · W1 + b1) · W2 + b2")
    display.array("decoder output", recorded["decoder.output"][0], display.text("labels.six_layers"))


def choose_token(display: Display) -> None:
    display.begin("choose_token")
    model, tokenizer = blog_model(), blog_tokenizer()
    with torch.no_grad():
        model.lm_head.weight.zero_()
        assert model.lm_head.bias is not None
        model.lm_head.bias.copy_(tensor(BLOG["logits"]))
    recorded = traced(model, input_ids=torch.tensor([[0, 2]]))
    display.compare("logits", recorded["logits"][0, 0], BLOG["logits"], recorded.explain("logits").formula)
    display.compare("probabilities", recorded["probabilities"][0, 0], BLOG["probabilities"], "softmax(logits)")
    display.compare_values("vocabulary", tokenizer.convert_ids_to_tokens(list(range(10))), BLOG["vocabulary"])
    display.compare_values("greedy choice", tokenizer.decode(recorded["choice"][0]), BLOG["greedy_choice"])


def generate(display: Display) -> None:
    display.begin("generate")
    model, tokenizer = blog_model(seed=1), blog_tokenizer()
    inputs = tokenizer("hello world", return_tensors="pt")
    with trace(model) as recorded:
        ids = model.generate(**inputs, max_new_tokens=5)
    rows = []
    for step, token in enumerate(ids[0, 1:].tolist()):
        probability = recorded.step(step)["probabilities"][0, -1, token].item()
        rows.append((step, tokenizer.decode([token]), f"{probability:.8f}"))
    display.table("generate.columns", rows)
    display.print("then", answer=tokenizer.decode(ids[0]))
    display.note()


def sizes(display: Display) -> None:
    display.begin("sizes")
    for name, config in (
        ("original", RandomTransformerConfig()),
        ("blog", RandomTransformerConfig.from_preset("blog")),
    ):
        printed = BLOG[f"{name}_sizes"]
        display.compare_values(f"{name} sizes", {field: getattr(config, field) for field in printed}, printed)
