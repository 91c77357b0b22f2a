"""The walkthrough of the blog post "The Random Transformer": its numbers next to those of the model."""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import create_causal_mask

from modeling_random_transformer import RandomTransformerConfig, RandomTransformerForConditionalGeneration
from modeling_random_transformer.extras.inspection import Trace, trace
from modeling_random_transformer.modeling_random_transformer import eager_attention_forward

from .blog_model import BLOG, HEADS, blog_model, blog_tokenizer, tensor
from .walkthrough_display import Display

E = tensor(BLOG["E"])[None]  # [1, 2, 4], embeddings with positions of "Hello World"
FIRST_LAYER = "encoder.layers.0"
WORDS = ("Hello", "World")
SMALL_SCALE = 1 / 30  # used by the blog post to prevent the softmax from saturating
DECODER = BLOG["decoder"]
# Options in which the blog post's model and the paper's base model differ.
OPTIONS = ("dropout", "attention_bias", "scale_embedding", "tie_word_embeddings", "lm_head_bias")
FIELDS = (*BLOG["original_sizes"], *OPTIONS)
EPS_TOLERANCE = 3e-7  # difference between dividing by std + eps and by sqrt(var + eps)
BY_HAND_TOLERANCE = 6e-8  # the blog post's evaluation by hand starts with other last digits of Z


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
    ids = tokenizer("hello world", return_tensors="pt").input_ids[:, :2]  # removes EOS, as in the blog post
    with torch.no_grad():
        model.model.shared.weight[ids[0]] = tensor(BLOG["token_embedding"])
        model.model.shared.weight[model.config.decoder_start_token_id] = tensor(DECODER["SOS"])
    return traced(model, input_ids=ids)


def embed_text(display: Display) -> None:
    display.begin("embed_text")
    recorded = traced_hello_world()
    display.array("token_embedding", recorded["encoder.embedding.token"][0], display.text("labels.input"), WORDS)
    display.note()


def encode_positions(display: Display) -> None:
    display.begin("encode_positions")
    positions = traced_hello_world()["encoder.embedding.position"]
    formula = "sin, cos of pos / 10000^(2i/4)"
    display.compare("position_encoding of Hello", positions[0], BLOG["position_encoding"]["pos0"], formula)
    display.array("position_encoding of World", positions[1], formula)
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
        for name in weights:
            projection = getattr(attention, f"{name[1].lower()}_proj").weight
            display.array(f"{name}{head + 1}", projection[3 * head : 3 * head + 3].T, display.text("labels.input"))
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
    display.array("W", attention.out_proj.weight.T, display.text("labels.input"))
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
    by_hand = BLOG["by_hand"]["E_plus_Z"]
    display.compare("E + Z", recorded[f"{path}.residual"][0], by_hand, "x + output", BY_HAND_TOLERANCE, WORDS)
    display.compare("mean", recorded[f"{path}.mean"][0], BLOG["mean_E_plus_Z"], "mean of E + Z")
    display.compare("std", recorded[f"{path}.variance"][0].sqrt(), BLOG["std_E_plus_Z"], "√variance")
    norm, printed = recorded[f"{path}.layer_norm"], BLOG["layer_norm_E_plus_Z"]
    display.compare("LayerNorm(E + Z)", norm, printed, "(E + Z − mean) / √(variance + ε)", EPS_TOLERANCE, WORDS)
    display.note()
    display.array("encoder output", recorded["encoder.output"][0], display.text("labels.six_layers"), WORDS)


def decoder_input(display: Display) -> None:
    display.begin("decoder_input")
    recorded = traced_hello_world()
    display.array("SOS", recorded["decoder.embedding.token"][0], display.text("labels.input"))
    summed, printed = recorded["decoder.embedding.sum"][0], [DECODER["SOS_plus_position"]]
    display.compare("SOS + position", summed, printed, "token + position")


def masked_attention(display: Display) -> None:
    display.begin("masked_attention")
    example = BLOG["causal_mask_example"]
    config = RandomTransformerConfig.from_preset("blog", attn_implementation="eager")
    mask = create_causal_mask(config, torch.empty(1, 3, 4).double(), None, None)
    scores, identity = tensor(example["scores"])[None, None], torch.eye(3).double()[None, None]
    _, weights = eager_attention_forward(nn.Identity(), scores, identity, identity, mask, scaling=1.0)
    display.array("example scores", scores[0, 0])
    display.array("softmax with the mask", weights[0, 0])
    display.note()


def decoder_residual(display: Display) -> None:
    display.begin("decoder_residual")
    layer: Any = blog_model().model.decoder.layers[0]
    attended = tensor([DECODER["self_attention"]])
    display.array("Z", attended, display.text("labels.input"))
    with torch.no_grad():
        normed = layer.self_attn_layer_norm(tensor([DECODER["SOS_plus_position"]]) + attended)
    display.compare("LayerNorm(Z + E)", normed, [DECODER["layer_norm"]], "norm(x + output)", EPS_TOLERANCE)


def cross_attention(display: Display) -> None:
    display.begin("cross_attention")
    model = blog_model()
    recorded = traced(model, encoder_outputs=(tensor(DECODER["encoder_output"])[None],))
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
    display.array("logits", recorded["logits"][0, 0], display.text("labels.input"))
    display.compare(
        "probabilities",
        recorded["probabilities"][0, 0],
        [[probability] for probability in BLOG["probabilities"]],
        "softmax(logits)",
        rows=tokenizer.convert_ids_to_tokens(list(range(10))),
    )
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
    blog, base = RandomTransformerConfig.from_preset("blog"), RandomTransformerConfig()
    display.table("sizes.columns", [(field, getattr(blog, field), getattr(base, field)) for field in FIELDS])
