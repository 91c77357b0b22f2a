"""Traced values against each other, and against the model's output."""

import pytest
import torch

from modeling_random_transformer import (
    RandomTransformerModel,
)
from modeling_random_transformer.extras.inspection import Step, Trace, trace
from tests.helpers.models import exact_model, padded_batch, random_ids, tiny_model

CONFIGS = {
    "post-norm": {},
    "pre-norm": {"norm_order": "pre"},
    "widths": {"d_k": 5, "d_v": 3, "attention_bias": False, "scale_embedding": False},
    "learned positions": {"position_embedding": "learned", "activation_function": "gelu", "attention_scale": 0.3},
    "no positions": {"position_embedding": "none"},
    "untied": {"share_embeddings": False, "tie_word_embeddings": False, "lm_head_bias": True},
    "one final norm": {"final_layer_norm": True},
}
INPUTS = {**padded_batch([6, 4]), "decoder_input_ids": random_ids(2, 3, seed=1)}


def traced(model, inputs=INPUTS, **options):
    with torch.no_grad(), trace(model, **options) as recorded:
        outputs = model(**inputs)
    return recorded, outputs


def replay(model, recorded):
    """Compute every value from earlier ones by its formula; yields path and value."""
    pre_norm = model.config.norm_order == "pre"
    for name in ("encoder", "decoder"):
        stack, at = getattr(model.model, name), f"{name}.embedding"
        yield f"{at}.token", stack.embed_tokens.weight[recorded[f"{at}.ids"]]
        yield f"{at}.scaled", recorded[f"{at}.token"] * stack.embed_scale
        yield f"{at}.sum", recorded[f"{at}.scaled"] + recorded.get(f"{at}.position", 0)
        states = recorded[f"{at}.sum"]
        for index, layer in enumerate(stack.layers):
            for part in ("self_attn", "encoder_attn", "ffn"):
                if (name, part) == ("encoder", "encoder_attn"):
                    continue
                path = f"{name}.layers.{index}.{part}"
                inputs = recorded[f"{path}.layer_norm"] if pre_norm else states
                if part == "ffn":
                    yield from replay_ffn(layer, recorded, path, inputs)
                else:
                    yield from replay_heads(getattr(layer, part), recorded, path, inputs)
                yield f"{path}.residual", states + recorded[f"{path}.output"]
                norm = layer.final_layer_norm if part == "ffn" else getattr(layer, f"{part}_layer_norm")
                yield from replay_norm(norm, recorded, path, states if pre_norm else recorded[f"{path}.residual"])
                states = recorded[f"{path}.residual" if pre_norm else f"{path}.layer_norm"]
        if model.config.final_layer_norm:
            yield from replay_norm(stack.layer_norm, recorded, f"{name}.final", states)
            states = recorded[f"{name}.final.layer_norm"]
        yield f"{name}.output", states
    yield "logits", model.lm_head(recorded["decoder.output"])
    yield "probabilities", recorded["logits"].exp() / recorded["logits"].exp().sum(-1, keepdim=True)
    yield "choice", recorded["logits"].argmax(-1)


def replay_norm(norm, recorded, path, states):
    yield f"{path}.mean", states.mean(-1)
    centered = states - recorded[f"{path}.mean"][..., None]
    yield f"{path}.variance", centered.square().mean(-1)
    deviation = (recorded[f"{path}.variance"] + norm.eps).sqrt()
    yield f"{path}.layer_norm", centered / deviation[..., None] * norm.weight + norm.bias


def replay_ffn(layer, recorded, path, inputs):
    yield f"{path}.inner", inputs @ layer.fc1.weight.T + layer.fc1.bias
    yield f"{path}.activation", layer.activation_fn(recorded[f"{path}.inner"])
    yield f"{path}.output", recorded[f"{path}.activation"] @ layer.fc2.weight.T + layer.fc2.bias


def replay_heads(attention, recorded, path, inputs):
    config = attention.config
    source = recorded["encoder.output"] if path.endswith("encoder_attn") else inputs
    heads = [f"{path}.head.{head}" for head in range(config.num_heads)]
    for name, states in (("query", inputs), ("key", source), ("value", source)):
        projected = getattr(attention, f"{name[0]}_proj")(states).chunk(config.num_heads, dim=-1)
        yield from ((f"{at}.{name}", value) for at, value in zip(heads, projected, strict=True))
    for at in heads:
        yield f"{at}.scores", recorded[f"{at}.query"] @ recorded[f"{at}.key"].mT
        yield f"{at}.scaled_scores", recorded[f"{at}.scores"] * config.attention_scale
        weights = (recorded[f"{at}.scaled_scores"] + recorded[f"{at}.mask"]).exp()
        yield f"{at}.weights", weights / weights.sum(-1, keepdim=True)
        yield f"{at}.output", recorded[f"{at}.weights"] @ recorded[f"{at}.value"]
    yield f"{path}.concatenated", torch.cat([recorded[f"{at}.output"] for at in heads], dim=-1)
    yield f"{path}.output", attention.out_proj(recorded[f"{path}.concatenated"])


@torch.no_grad()
@pytest.mark.parametrize("name", CONFIGS)
def test_formulas_recompute_every_value(name):
    """Each value follows from earlier ones, from the embedding matrix to the output, and is described.

    The output is that of eager attention, bit for bit.
    """
    model = exact_model(**CONFIGS[name])
    recorded, _ = traced(model)
    replayed = dict(replay(model, recorded))
    for path, value in replayed.items():
        torch.testing.assert_close(
            value, recorded[path], rtol=1e-10, atol=1e-10, msg=lambda text, path=path: f"{path}: {text}"
        )
    input_paths = {path for path in recorded if path.endswith((".ids", ".position", ".mask"))}
    assert set(recorded) == set(replayed) | input_paths
    model.set_attn_implementation("eager")
    assert torch.equal(recorded["logits"], model(**INPUTS).logits)
    for path, line in zip(recorded, str(recorded).splitlines(), strict=True):
        step = recorded.explain(path)
        assert (step.path, step.shape) == (path, tuple(recorded[path].shape))
        assert line.split()[0] == path
        assert line.endswith(f"{step.formula}  (paper {step.section})")


def test_recorded_masks_hide_padding_and_the_future():
    recorded, _ = traced(tiny_model())
    least = torch.finfo(torch.float32).min
    padding = torch.tensor([[0.0] * 6, [0.0] * 4 + [least] * 2])
    assert torch.equal(recorded["encoder.layers.0.self_attn.head.1.mask"], padding[:, None].expand(2, 6, 6))
    assert torch.equal(recorded["decoder.layers.2.encoder_attn.head.0.mask"], padding[:, None].expand(2, 3, 6))
    future = torch.full((3, 3), least).triu(1)
    assert torch.equal(recorded["decoder.layers.1.self_attn.head.0.mask"], future.expand(2, 3, 3))


def test_explanations_follow_the_configuration():
    explain = traced(tiny_model())[0].explain
    assert explain("encoder.layers.0.self_attn.head.1.scores") == Step(
        "encoder.layers.0.self_attn.head.1.scores", (2, 6, 6), "query · keyᵀ", "3.2.1"
    )
    assert explain("encoder.embedding.scaled").formula == "token · √16"
    assert explain("encoder.layers.0.self_attn.head.0.scaled_scores").formula == "scores / √8"
    assert explain("decoder.layers.0.encoder_attn.head.0.key").formula == "encoder.output · W_K + b_K"
    explain_pre_norm = traced(tiny_model(attention_scale=0.25, attention_bias=False, norm_order="pre"))[0].explain
    assert explain_pre_norm("encoder.layers.0.self_attn.head.0.scaled_scores").formula == "scores · 0.25"
    assert explain_pre_norm("encoder.layers.0.self_attn.head.0.query").formula == "layer_norm · W_Q"
    assert explain_pre_norm("encoder.final.mean").formula == "mean of the last layer's output x"


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=str)
def test_every_step_of_generate_is_recorded(options):
    """Every step of `generate()` is recorded, and its tokens are the same as without a trace."""
    model, batch = exact_model(spread=2.0), padded_batch([6, 4])
    options = options | {"max_new_tokens": 5, "eos_token_id": -1}
    expected = model.generate(**batch, **options)
    with trace(model) as recorded:
        generated = model.generate(**batch, **options)
    assert torch.equal(generated, expected)
    rows = len(recorded["decoder.embedding.ids"])
    assert rows == len(batch["input_ids"]) * options.get("num_beams", 1)
    for step in range(5):
        now = recorded.step(step)
        assert now["decoder.embedding.ids"].shape == (rows, 1)
        assert now["decoder.layers.0.self_attn.head.0.weights"].shape == (rows, 1, step + 1)
        assert now["decoder.layers.2.encoder_attn.head.1.weights"].shape == (rows, 1, 6)
        assert now["logits"].shape == (rows, 1, model.config.vocab_size)
        assert ("encoder.output" in now) == (step == 0)
    with pytest.raises(KeyError, match=r"step must be one of \[0, 1, 2, 3, 4\], got 5"):
        recorded.step(5)
    if "num_beams" not in options:  # the steps equal one pass
        whole, _ = traced(model, {**batch, "decoder_input_ids": generated[:, :-1]})
        for path in ("decoder.layers.1.encoder_attn.head.0.weights", "decoder.layers.2.ffn.residual", "choice"):
            for step in range(5):
                torch.testing.assert_close(recorded.step(step)[path][:, 0], whole[path][:, step])


def test_only_selected_layers_heads_and_steps_are_recorded():
    model = tiny_model()
    everything, _ = traced(model)
    chosen, _ = traced(model, layers=[1], heads=[0])
    expected = [
        path
        for path in everything
        if (".layers." not in path or ".layers.1." in path) and (".head." not in path or ".head.0." in path)
    ]
    assert list(chosen) == expected
    assert all(torch.equal(chosen[path], everything[path]) for path in expected)
    assert list(everything.select("*.encoder_attn.head.1.weights")) == [
        f"decoder.layers.{i}.encoder_attn.head.1.weights" for i in range(3)
    ]
    with trace(model, steps=[2]) as recorded:
        model.generate(**padded_batch([5]), max_new_tokens=4, eos_token_id=-1)
    assert recorded
    assert len(recorded.step(2)) == len(recorded)


def test_consecutive_calls_are_steps():
    model = tiny_model()
    with torch.no_grad(), trace(model) as recorded:
        model(**INPUTS)
        model(**INPUTS)
    assert len(recorded) == 2 * len(recorded.step(0))
    assert all(torch.equal(value, recorded[f"step.1.{path}"]) for path, value in recorded.step(0).items())


def test_memory_is_bounded():
    everything, _ = traced(tiny_model())
    with pytest.warns(UserWarning, match="max_memory=4096 bytes"):
        some, _ = traced(tiny_model(), max_memory=4096)
    assert some.left_out == len(everything) - len(some) > 0
    assert sum(value.numel() * value.element_size() for value in some.values()) <= 4096
    assert everything.left_out == 0
    assert list(traced(tiny_model(), max_memory="1MB")[0]) == list(everything)


def test_values_are_copies():
    recorded, _ = traced(model := tiny_model())
    with torch.no_grad():
        model.lm_head.weight.zero_()
    assert recorded["encoder.embedding.token"].any()
    with trace(model) as with_gradients:
        model(**INPUTS)
    assert not any(value.requires_grad for value in with_gradients.values())


def test_half_precision_and_embeddings_as_inputs():
    model = tiny_model().to(torch.bfloat16)
    inputs = {"inputs_embeds": torch.randn(1, 4, 16, dtype=torch.bfloat16), "decoder_input_ids": random_ids(1, 2)}
    recorded, _ = traced(model, inputs)
    assert "encoder.embedding.ids" not in recorded
    assert recorded["encoder.layers.0.self_attn.variance"].dtype == torch.float32
    assert recorded["probabilities"].sum(-1).allclose(torch.ones(1, 2))


def test_model_without_output_layer():
    model = RandomTransformerModel(tiny_model().config).eval()
    recorded, outputs = traced(model)
    assert torch.equal(recorded["decoder.output"], outputs.last_hidden_state)
    assert "logits" not in recorded
    with torch.no_grad(), trace(model.encoder) as alone:
        model.encoder(INPUTS["input_ids"], INPUTS["attention_mask"])
    assert list(alone) == [path for path in recorded if path.startswith("encoder.")]


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (torch.nn.Identity, {}, "model must be a Random Transformer, got Identity"),
        (tiny_model, {"layers": [0, 3]}, r"layers must be from 0 to 2, got \[0, 3\]"),
        (tiny_model, {"heads": [-1]}, r"heads must be from 0 to 1, got \[-1\]"),
        (tiny_model, {"steps": [-1]}, r"steps must be 0 or more, got \[-1\]"),
        (tiny_model, {"max_memory": "much"}, "much"),
    ],
)
def test_invalid_arguments_raise(make, options, message):
    with pytest.raises(ValueError, match=message), trace(make(), **options):
        pytest.fail("the block must not be entered")


def test_traces_can_be_nested():
    model = tiny_model()
    with trace(model) as outer, trace(model, heads=[0]) as inner:
        with pytest.raises(ValueError, match="traced already"), trace(model.model.encoder):
            pytest.fail("the block must not be entered")
        model(**INPUTS)
    assert inner
    assert all(torch.equal(value, outer[path]) for path, value in inner.items())


def test_missing_paths_raise():
    recorded, _ = traced(tiny_model())
    with pytest.raises(KeyError, match=r"encoder\.layers\.0\.self_attn\.head\.1\.scores"):
        recorded["encoder.layers.0.self_attn.head.1.score"]
    with pytest.raises(KeyError, match="no value was recorded at 'nothing'"):
        Trace(recorded.config)["nothing"]
    assert repr(recorded) == f"<Trace of {len(recorded)} values>"
