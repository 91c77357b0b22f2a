"""The walk of "The Random Transformer", in its order: from "Hello World" to tokens, its numbers beside the model's."""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import create_causal_mask

from modeling_random_transformer import RandomTransformerConfig, RandomTransformerForConditionalGeneration
from modeling_random_transformer.modeling_random_transformer import eager_attention_forward
from modeling_random_transformer.tracing import Trace, trace

from .seed_model import HEADS, SEED, seed_model, seed_tokenizer, tensor
from .walkthrough_display import Display

E = tensor(SEED["E"])[None]  # [1, 2, 4], "Hello World" as the seed goes on with it
FIRST = "encoder.layers.0"
WORDS = ("Hello", "World")
SMALL = 1 / 30  # the scale by which the seed keeps the scores apart from 0 and 1
# Printed by the seed from numbers that it prints, too.
SOS, SOS_AT_0 = [1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 1.0]
ATTENDED = [2.19334924, 10.61851198, -4.50089666, -2.76366551]  # what its random self-attention made of SOS
ATTENDED_NORMED = [0.17236212, 1.54684892, -1.0828824, -0.63632864]
ENCODED = [[-1.5, 1.0, -0.8, 1.5], [1.0, -1.0, -0.5, 1.0]]  # what it takes for the encoder's output
PRINTED_AFTER_STD = 3e-7  # how far an eps beside the standard deviation is from an eps within the root


def walk_seed(show: Display) -> bool:
    """The whole walk; whether every number was met."""
    for station in (
        embed_text,
        encode_positions,
        add_positions,
        self_attention,
        saturation,
        join_heads,
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
        station(show)
    show.begin("walk_seed")
    return show.verdict()


@torch.no_grad()
def traced(model: RandomTransformerForConditionalGeneration, **inputs: Any) -> Trace:
    """A pass through the model, with SOS for the decoder if nothing else is given."""
    inputs = {"decoder_input_ids": torch.tensor([[model.config.decoder_start_token_id]])} | inputs
    with trace(model) as found:
        model(**inputs)
    return found


@cache
def traced_from_e(scale: float | None = None) -> tuple[RandomTransformerForConditionalGeneration, Trace]:
    """The seed's E through the model: E holds positions already, so the model adds none."""
    model = seed_model(position_embedding="none", attention_scale=scale)
    return model, traced(model, inputs_embeds=E)


@cache
def traced_hello_world() -> Trace:
    model, tokenizer = seed_model(), seed_tokenizer()
    ids = tokenizer("hello world", return_tensors="pt").input_ids[:, :2]  # without EOS, as in the seed
    with torch.no_grad():
        model.model.shared.weight[ids[0]] = tensor(SEED["token_embedding"])
        model.model.shared.weight[model.config.decoder_start_token_id] = tensor(SOS)
    return traced(model, input_ids=ids)


def embed_text(show: Display) -> None:
    show.begin("embed_text")
    found = traced_hello_world()
    show.compare(
        "token_embedding", found["encoder.embedding.token"][0], SEED["token_embedding"], "embedding[ids]", rows=WORDS
    )
    show.note()


def encode_positions(show: Display) -> None:
    show.begin("encode_positions")
    positions = traced_hello_world()["encoder.embedding.position"]
    formula = "sin, cos of pos / 10000^(2i/4)"
    first, second = SEED["position_encoding"]["pos0"], SEED["position_encoding"]["pos1"]
    show.compare("position_encoding of Hello", positions[0], first, formula)
    show.compare("position_encoding of World", positions[1], second, formula, tolerance=1e-7)  # the table is float32
    show.note(wrong=SEED["position_encoding"]["pos1_as_printed"])


def add_positions(show: Display) -> None:
    show.begin("add_positions")
    summed = traced_hello_world()["encoder.embedding.sum"][0]
    show.array("E", summed, "token + position", rows=WORDS)
    show.compare("E of Hello", summed[0], SEED["E"][0])
    show.note(world=SEED["E"][1])


def self_attention(show: Display) -> None:
    show.begin("self_attention")
    model, found = traced_from_e()
    attention: Any = model.model.encoder.layers[0].self_attn
    for head, weights in enumerate(HEADS):
        for name, printed in weights.items():
            projection = getattr(attention, f"{name[1].lower()}_proj").weight
            show.compare(f"{name}{head + 1}", projection[3 * head : 3 * head + 3].T, printed)
    show.note()
    at = f"{FIRST}.self_attn.head.0"
    show.compare("K1", found[f"{at}.key"], SEED["K1"], "E · WK1", rows=WORDS)
    show.compare("V1", found[f"{at}.value"], SEED["V1"], "E · WV1", rows=WORDS)
    show.compare("Q1", found[f"{at}.query"], SEED["Q1"], "E · WQ1", rows=WORDS)
    show.compare("scores1", found[f"{at}.scores"], SEED["scores1"], "Q1 · K1ᵀ", rows=WORDS)
    scaled = SEED["scaled_scores1_sqrt3"]
    show.compare("scores1 / √3", found[f"{at}.scaled_scores"], scaled, "scores1 / √d_k", rows=WORDS)
    show.say("then")
    show.compare("softmax of [1, 2, 3]", softmax_by_attention([1.0, 2.0, 3.0]), SEED["softmax_123"], tolerance=0.005)
    show.compare("weights1", found[f"{at}.weights"], SEED["weights1_sqrt3"], "softmax(scores1 / √3)", rows=WORDS)
    show.compare("attention1", found[f"{at}.output"], SEED["attention1_sqrt3"], "weights1 · V1", rows=WORDS)


def softmax_by_attention(scores: list[float]) -> Tensor:
    """The weights of one query for keys that give it these scores."""
    one, keys = tensor([[[[1.0]]]]), tensor(scores)[None, None, :, None]
    return eager_attention_forward(nn.Identity(), one, keys, keys, None, scaling=1.0)[1].flatten()


def saturation(show: Display) -> None:
    show.begin("saturation")
    _, found = traced_from_e()
    at = f"{FIRST}.self_attn.head.1"
    show.compare("weights2", found[f"{at}.weights"], SEED["weights2_sqrt3"], "softmax(scores2 / √3)", rows=WORDS)
    show.compare("attention2", found[f"{at}.output"], SEED["attention2_sqrt3"], "weights2 · V2", rows=WORDS)
    _, found = traced_from_e(SMALL)
    for head in (0, 1):
        output = found[f"{FIRST}.self_attn.head.{head}.output"]
        show.compare(f"attention{head + 1}, scores / 30", output, SEED[f"attention{head + 1}_div30"], rows=WORDS)


def join_heads(show: Display) -> None:
    show.begin("join_heads")
    model, found = traced_from_e(SMALL)
    joined = [a + b for a, b in zip(SEED["attention1_div30"], SEED["attention2_div30"], strict=True)]
    show.compare("attentions", found[f"{FIRST}.self_attn.concatenated"], joined, "[attention1, attention2]", rows=WORDS)
    attention: Any = model.model.encoder.layers[0].self_attn
    show.compare("W", attention.out_proj.weight.T, SEED["W_output"])
    show.compare("Z", found[f"{FIRST}.self_attn.output"], SEED["Z_div30"], "attentions · W", rows=WORDS)
    show.note()


def feed_forward(show: Display) -> None:
    show.begin("feed_forward")
    _, found = traced_from_e(SMALL)
    show.array("inner", found[f"{FIRST}.ffn.inner"][0], "x · W1 + b1", WORDS)
    show.array("relu", found[f"{FIRST}.ffn.activation"][0], "max(0, inner)", WORDS)
    show.array("FFN(x)", found[f"{FIRST}.ffn.output"][0], "relu · W2 + b2", WORDS)
    show.note()


def without_norms(show: Display) -> None:
    show.begin("without_norms")
    model = wild_model()
    scores, states = chain(model, E)
    halves = chain(model.half(), E.half())[1]
    model.double()
    whole = traced(model, inputs_embeds=E)
    rows = [
        (
            i + 1,
            f"{scores[i]:.3g}",
            f"{softmax_as_written(scores[i]):.3g}",
            f"{states[i]:.3g}",
            f"{halves[i]:.3g}",
            f"{normed:.3g}",
        )
        for i, normed in enumerate(whole[f"encoder.layers.{i}.ffn.layer_norm"].abs().max() for i in range(6))
    ]
    show.table("without_norms.columns", rows)


def wild_model() -> RandomTransformerForConditionalGeneration:
    """Every weight of the encoder's blocks from N(0, 1), as the seed draws them."""
    model = seed_model(position_embedding="none")
    for name, parameter in model.model.encoder.layers.named_parameters():
        if "norm" not in name:
            nn.init.normal_(parameter)
    return model


@torch.no_grad()
def chain(model: RandomTransformerForConditionalGeneration, states: Tensor) -> tuple[list[float], list[float]]:
    """The largest score and the largest value after each block, without residuals and norms."""
    scores, values = [], []
    with trace(model) as found:
        layers: Any = model.model.encoder.layers
        for index, block in enumerate(layers):
            states = block.feed_forward(block.self_attn(states)[0])
            heads = [found[f"encoder.layers.{index}.self_attn.head.{head}.scaled_scores"] for head in (0, 1)]
            scores.append(torch.cat(heads).max().item())
            values.append(states.abs().max().item())
    return scores, values


def softmax_as_written(score: float) -> float:
    """What exp(x) / sum(exp(x)) gives the largest of two scores, the other being 0."""
    exp = torch.tensor([score, 0.0], dtype=torch.float64).exp()
    return (exp / exp.sum())[0].item()


def residual_and_norm(show: Display) -> None:
    show.begin("residual_and_norm")
    _, found = traced_from_e(SMALL)
    at = f"{FIRST}.self_attn"
    show.array("E + Z", found[f"{at}.residual"][0], "x + output", WORDS)
    show.compare("mean", found[f"{at}.mean"][0], SEED["mean_E_plus_Z"], "mean of E + Z")
    show.compare("std", found[f"{at}.variance"][0].sqrt(), SEED["std_E_plus_Z"], "√variance")
    norm, printed = found[f"{at}.layer_norm"], SEED["layer_norm_E_plus_Z"]
    show.compare("LayerNorm(E + Z)", norm, printed, "(E + Z − mean) / √(variance + ε)", PRINTED_AFTER_STD, WORDS)
    show.note()
    show.array("encoder output", found["encoder.output"][0], show.words("labels.six_blocks"), WORDS)


def decoder_input(show: Display) -> None:
    show.begin("decoder_input")
    found = traced_hello_world()
    show.compare("SOS", found["decoder.embedding.token"][0], [SOS])
    show.compare("SOS + position", found["decoder.embedding.sum"][0], [SOS_AT_0], "token + position")


def masked_attention(show: Display) -> None:
    show.begin("masked_attention")
    example = SEED["causal_mask_example_seed_003"]
    config = RandomTransformerConfig.from_preset("blog", attn_implementation="eager")
    mask = create_causal_mask(config, torch.empty(1, 3, 4).double(), None, None)
    scores, identity = tensor(example["scores"])[None, None], torch.eye(3).double()[None, None]
    _, weights = eager_attention_forward(nn.Identity(), scores, identity, identity, mask, scaling=1.0)
    show.compare("scores of seed 003", scores[0, 0], example["scores"])
    show.compare("softmax with the mask", weights[0, 0], example["row_softmax"])
    show.note()


def decoder_residual(show: Display) -> None:
    show.begin("decoder_residual")
    block: Any = seed_model().model.decoder.layers[0]
    with torch.no_grad():
        normed = block.self_attn_layer_norm(tensor([SOS_AT_0]) + tensor([ATTENDED]))
    show.compare("LayerNorm(Z + E)", normed, [ATTENDED_NORMED], "norm(x + output)", PRINTED_AFTER_STD)


def cross_attention(show: Display) -> None:
    show.begin("cross_attention")
    model = seed_model()
    found = traced(model, encoder_outputs=(tensor(ENCODED)[None],))
    at = "decoder.layers.0"
    for name in ("query", "key", "value", "weights", "output"):
        path = f"{at}.encoder_attn.head.0.{name}"
        show.array(f"{name}, head 1", found[path][0], found.explain(path).formula)
    show.array("residual", found[f"{at}.encoder_attn.residual"][0], "x + output")
    show.note()
    show.array("FFN(x)", found[f"{at}.ffn.output"][0], "max(0, x · W1 + b1) · W2 + b2")
    show.array("decoder output", found["decoder.output"][0], show.words("labels.six_blocks"))


def choose_token(show: Display) -> None:
    show.begin("choose_token")
    model, tokenizer = seed_model(), seed_tokenizer()
    with torch.no_grad():
        model.lm_head.weight.zero_()
        assert model.lm_head.bias is not None
        model.lm_head.bias.copy_(tensor(SEED["logits"]))
    found = traced(model, input_ids=torch.tensor([[0, 2]]))
    show.compare("logits", found["logits"][0, 0], SEED["logits"], found.explain("logits").formula)
    show.compare("probabilities", found["probabilities"][0, 0], SEED["probabilities"], "softmax(logits)")
    show.compare_words("vocabulary", tokenizer.convert_ids_to_tokens(list(range(10))), SEED["vocabulary"])
    show.compare_words("greedy choice", tokenizer.decode(found["choice"][0]), SEED["greedy_choice"])


def generate(show: Display) -> None:
    show.begin("generate")
    model, tokenizer = seed_model(seed=1), seed_tokenizer()
    inputs = tokenizer("hello world", return_tensors="pt")
    with trace(model) as found:
        ids = model.generate(**inputs, max_new_tokens=5)
    rows = []
    for step, token in enumerate(ids[0, 1:].tolist()):
        probability = found.step(step)["probabilities"][0, -1, token].item()
        rows.append((step, tokenizer.decode([token]), f"{probability:.8f}"))
    show.table("generate.columns", rows)
    show.say("then", answer=tokenizer.decode(ids[0]))
    show.note()


def sizes(show: Display) -> None:
    show.begin("sizes")
    for name, config in (
        ("original", RandomTransformerConfig()),
        ("blog", RandomTransformerConfig.from_preset("blog")),
    ):
        printed = SEED[f"{name}_sizes"]
        show.compare_words(f"{name} sizes", {field: getattr(config, field) for field in printed}, printed)
