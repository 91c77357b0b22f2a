"""Task heads: loading encoder-decoder checkpoints, learning small tasks, and remote code."""

import os
import subprocess
import sys

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTextEncoding,
    AutoModelForTokenClassification,
)

from modeling_random_transformer import (
    RandomTransformerEncoderModel,
    RandomTransformerForCausalLM,
    RandomTransformerForConditionalGeneration,
    RandomTransformerForMaskedLM,
    RandomTransformerForQuestionAnswering,
    RandomTransformerForSequenceClassification,
    RandomTransformerForTokenClassification,
)
from modeling_random_transformer.inspection import trace
from modeling_random_transformer.modeling_random_transformer import RandomTransformerDecoderModel, mean_of_tokens
from tests.helpers.models import (
    VOCAB_SIZE,
    assert_near,
    padded_batch,
    random_ids,
    save_translator,
    tiny_config,
    tiny_model,
)

AUTO = {
    RandomTransformerEncoderModel: AutoModelForTextEncoding,
    RandomTransformerForSequenceClassification: AutoModelForSequenceClassification,
    RandomTransformerForTokenClassification: AutoModelForTokenClassification,
    RandomTransformerForQuestionAnswering: AutoModelForQuestionAnswering,
    RandomTransformerForMaskedLM: AutoModelForMaskedLM,
    RandomTransformerForCausalLM: AutoModelForCausalLM,
}
CONFIGS = {
    "post-norm": {},
    "pre-norm": {"norm_order": "pre"},
    "two vocabularies": {"share_embeddings": False, "tie_word_embeddings": False, "lm_head_bias": True},
    "learned positions": {"position_embedding": "learned"},
    "no positions": {"position_embedding": "none"},
}
BATCH = padded_batch([8, 5, 3])


@pytest.fixture(params=AUTO, ids=lambda head: head.__name__)
def head(request):
    return request.param


def first_output(model, batch=BATCH):
    with torch.no_grad():
        return model(**batch)[0]


@pytest.mark.parametrize("config", CONFIGS)
def test_encoder_decoder_checkpoint_loads_into_a_head(head, config, tmp_path):
    """All weights except those of the new layer are loaded from the folder and compute the same outputs."""
    whole = tiny_model(encoder_layers=2, decoder_layers=3, **CONFIGS[config])
    whole.save_pretrained(tmp_path)
    model, info = head.from_pretrained(tmp_path, output_loading_info=True)
    layers = [name for name in ("score", "qa_outputs") if hasattr(model, name)]
    new = {f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")}
    assert set(info["missing_keys"]) == new
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    stacks = {"encoder": whole.model.encoder, "decoder": whole.model.decoder}
    ours = {name: getattr(getattr(model, "model", model), name, None) for name in stacks}
    (kind,) = [name for name, stack in ours.items() if stack is not None]
    if kind == "encoder":
        assert torch.equal(first_output(ours[kind].eval()), first_output(whole.model.encoder))
    if hasattr(model, "lm_head"):
        assert torch.equal(model.lm_head.weight, whole.lm_head.weight)


def test_all_modules_of_a_head_share_one_configuration(head, tmp_path):
    """Options set on it, for example by tracing, apply to all modules; the full model's configuration is unchanged."""
    whole = tiny_model()
    whole.save_pretrained(tmp_path)
    for model in (head(tiny_config()), head.from_pretrained(tmp_path)):
        modules = [module for module in model.modules() if hasattr(module, "config")]
        assert len(modules) > 1
        assert all(module.config is model.config for module in modules)
        assert not model.config.is_encoder_decoder
    shared = tiny_config()
    head(shared)
    assert shared.is_encoder_decoder


def test_heads_are_traced(head):
    """Including single attention heads, which requires eager attention in all layers."""
    model = head(tiny_config()).eval()
    with trace(model) as found:
        first_output(model)
    attention = [value for path, value in found.items() if path.endswith("layers.0.self_attn.head.0.weights")]
    assert [tuple(value.shape[-2:]) for value in attention] == [(8, 8)]


def test_save_and_load(head, tmp_path):
    model = head(tiny_config(num_labels=3)).eval()
    model.save_pretrained(tmp_path)
    loaded = AUTO[head].from_pretrained(tmp_path).eval()
    assert type(loaded) is head
    assert torch.equal(first_output(loaded), first_output(model))
    assert not loaded.config.is_encoder_decoder


REMOTE = """
import sys
sys.modules["modeling_random_transformer"] = None  # simulates a missing package
import torch, transformers
for argument in sys.argv[1:]:
    auto, folder = argument.split(":", 1)
    torch.manual_seed(0)
    model = getattr(transformers, auto).from_pretrained(folder, trust_remote_code=True).eval().double()
    print(type(model).__name__, model(torch.tensor([[5, 6, 7]]))[0].sum().item())
"""


@pytest.fixture(scope="module")
def loaded_remotely(tmp_path_factory):
    """Folders of each head and of a full model, and the outputs of a process without the package for each."""
    path = tmp_path_factory.mktemp("remote")
    tiny_model().save_pretrained(path / "whole")
    for head in AUTO:
        head(tiny_config()).save_pretrained(path / head.__name__)
    folders = [(head, path / name) for head in AUTO for name in (head.__name__, "whole")]
    command = [sys.executable, "-c", REMOTE, *(f"{AUTO[head].__name__}:{folder}" for head, folder in folders)]
    environment = os.environ | {"HF_HOME": str(path / "home")}
    done = subprocess.run(command, capture_output=True, text=True, cwd=path, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(folders, map(str.split, done.stdout.splitlines()), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("of", ["its own", "a whole model"])
def test_remote_code(head, of, loaded_remotely):
    """A head from its own folder, and from a full model's folder with a randomly initialized head layer."""
    ((folder, (name, total)),) = (
        (folder, found)
        for (kind, folder), found in loaded_remotely.items()
        if kind is head and (folder.name == "whole") == (of == "a whole model")
    )
    torch.manual_seed(0)
    model = head.from_pretrained(folder).eval().double()
    assert name == head.__name__
    assert float(total) == pytest.approx(model(torch.tensor([[5, 6, 7]]))[0].sum().item(), abs=1e-9)


def test_padding_does_not_change_outputs(head):
    model = head(tiny_config(num_labels=3)).eval()
    batched = model(**BATCH)[0]
    for row, length in enumerate((8, 5, 3)):
        alone = model(BATCH["input_ids"][row : row + 1, :length])[0]
        tokens = (
            slice(None) if alone.dim() == 2 and head is RandomTransformerForSequenceClassification else slice(length)
        )
        assert_near(batched[row, tokens], alone[0], 1e-5)


def test_mean_excludes_padding():
    states = torch.tensor([[[1.0], [3.0], [8.0]], [[2.0], [4.0], [5.0]]])
    mask = torch.tensor([[1, 1, 0], [0, 0, 0]])
    assert mean_of_tokens(states, mask).tolist() == [[2.0], [0.0]]
    assert mean_of_tokens(states, None).flatten().tolist() == pytest.approx([4.0, 11 / 3])


@pytest.mark.parametrize("config", CONFIGS)
def test_decoder_equals_the_full_model_without_cross_attention(config):
    """Its layers equal those of the full model without cross-attention."""
    whole = tiny_model(**CONFIGS[config])
    alone = RandomTransformerDecoderModel(whole.config).eval()
    alone.load_state_dict(whole.model.state_dict(), strict=False)
    ids = random_ids(2, 5)
    torch.testing.assert_close(
        first_output(alone, {"input_ids": ids}), first_output(whole.model.decoder, {"input_ids": ids})
    )
    assert not any("encoder_attn" in name for name in alone.state_dict())


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"cache_implementation": "static"}], ids=str)
def test_generation_with_and_without_cache_is_equal(config, options):
    model = wide(RandomTransformerForCausalLM(tiny_config(encoder_layers=1, **CONFIGS[config])))
    ids = random_ids(2, 4)
    wanted = model.generate(ids, max_new_tokens=6, use_cache=False, num_beams=options.get("num_beams", 1))
    assert torch.equal(model.generate(ids, max_new_tokens=6, **options), wanted)


@pytest.mark.parametrize(
    "options", [{}, {"num_beams": 3}, {"cache_implementation": "static"}, {"use_cache": False}], ids=str
)
@pytest.mark.parametrize("config", CONFIGS)
def test_left_padding_does_not_change_outputs(config, options):
    model = wide(RandomTransformerForCausalLM(tiny_config(**CONFIGS[config])))
    short, long = random_ids(1, 3), random_ids(1, 7, seed=1)
    ids = torch.cat([torch.nn.functional.pad(short, (4, 0)), long])
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    options = {**options, "max_new_tokens": 5, "eos_token_id": -1}
    together = model.generate(ids, attention_mask=mask, **options)
    assert torch.equal(together[0, 4:], model.generate(short, **options)[0])
    assert torch.equal(together[1], model.generate(long, **options)[0])


@pytest.mark.parametrize("options", [{"use_cache": False}, {}], ids=["no cache", "default cache"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("config", CONFIGS)
def test_explicit_position_ids(config, attention, options):
    """Two packed texts in one row, with restarting positions: each equals the separate text."""
    model = wide(RandomTransformerForCausalLM(tiny_config(**CONFIGS[config]))).double()
    model.set_attn_implementation(attention)
    first, second = random_ids(1, 3), random_ids(1, 5, seed=1)
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])
    ids = torch.cat([first, second], dim=1)
    with torch.no_grad():
        packed = model(ids, position_ids=positions, **options).logits
        assert (model.model(ids, position_ids=positions, **options).past_key_values is None) == bool(options)
        alone = torch.cat([model(first).logits, model(second).logits], dim=1)
    torch.testing.assert_close(packed, alone)


def test_invalid_position_ids_raise():
    for kind in ("learned", "sinusoidal"):
        model = RandomTransformerForCausalLM(tiny_config(position_embedding=kind, max_position_embeddings=8)).eval()
        if kind == "learned":
            with pytest.raises(ValueError, match="position_ids must be below max_position_embeddings=8"):
                model(random_ids(1, 2), position_ids=torch.tensor([[0, 8]]))
        with pytest.raises(ValueError, match=r"position_ids must have shape \[batch, 2\], got \[1, 3\]"):
            model(random_ids(1, 2), position_ids=torch.tensor([[0, 1, 2]]))


def wide(model):
    """Doubled weights, so that a model's choices differ."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    return model.eval()


# Small tasks


def learn(model, make_batch, steps=150):
    """Train on new batches and return the last loss."""
    torch.manual_seed(0)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(steps):
        loss = model(**make_batch()).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    return loss.item()


def learner(head, **overrides):
    torch.manual_seed(0)
    return head(tiny_config(d_model=32, encoder_layers=2, decoder_layers=2, d_ff=64, num_heads=4, **overrides))


def ids_of(rows=32, length=6, highest=12):
    return torch.randint(4, highest, (rows, length))


def test_sequence_classification_learns_equal_pairs():
    """Two texts, `</s>` (2) between them."""

    def batch():
        first = ids_of(64, 1)
        same = torch.rand(64, 1) < 0.5
        second = torch.where(same, first, ids_of(64, 1))
        ids = torch.cat([first, torch.full_like(first, 2), second, torch.full_like(first, 2)], dim=1)
        return {"input_ids": ids, "labels": (first == second).flatten().long()}

    model = learner(RandomTransformerForSequenceClassification, num_labels=2)
    learn(model, batch, 250)
    test = batch()
    assert (model(test["input_ids"]).logits.argmax(-1) == test["labels"]).float().mean() > 0.95


@pytest.mark.parametrize(
    ("problem", "labels"),
    [
        ({"num_labels": 1}, lambda ids: (ids == 5).sum(1).float()),
        (
            {"num_labels": 2, "problem_type": "multi_label_classification"},
            lambda ids: torch.stack([(ids == 5).any(1), (ids == 6).any(1)], dim=1).float(),
        ),
    ],
    ids=["a number", "several labels"],
)
def test_sequence_classification_learns_regression_and_multi_label(problem, labels):
    def batch():
        ids = ids_of()
        return {"input_ids": ids, "labels": labels(ids)}

    first = learn(learner(RandomTransformerForSequenceClassification, **problem), batch, steps=1)
    assert learn(learner(RandomTransformerForSequenceClassification, **problem), batch, steps=150) < first / 3


@pytest.mark.long
def test_token_classification_learns_the_previous_token():
    """A token's label is whether the previous token is a 5."""

    def batch():
        ids = ids_of()
        labels = torch.cat([torch.full((len(ids), 1), -100), (ids[:, :-1] == 5).long()], dim=1)
        return {"input_ids": ids, "labels": labels}

    model = learner(RandomTransformerForTokenClassification, num_labels=2)
    learn(model, batch, 250)
    test = batch()
    right = model(test["input_ids"]).logits.argmax(-1) == test["labels"]
    assert right[test["labels"] != -100].float().mean() > 0.95


@pytest.mark.long
def test_question_answering_learns_spans():
    """The first token is the question: the token that starts the answer, which is two tokens long."""

    def batch():
        ids = torch.stack([torch.randperm(10)[:6] + 4 for _ in range(64)])
        start = torch.randint(1, 5, (64,))
        ids[:, 0] = ids[torch.arange(64), start]
        return {"input_ids": ids, "start_positions": start, "end_positions": start + 1}

    model = learner(RandomTransformerForQuestionAnswering)
    learn(model, batch, 300)
    test = batch()
    found = model(test["input_ids"])
    assert (found.start_logits.argmax(-1) == test["start_positions"]).float().mean() > 0.9
    assert (found.end_logits.argmax(-1) == test["end_positions"]).float().mean() > 0.9


def counting(rows, length):
    """Texts that count from a random number, modulo eight tokens."""
    return (torch.randint(0, 8, (rows, 1)) + torch.arange(length)) % 8 + 4


@pytest.mark.long
def test_masked_lm_learns_from_both_sides():
    def batch():
        ids = counting(32, 7)
        masked = ids.clone()
        gap = torch.randint(0, 7, (32, 1))
        masked.scatter_(1, gap, 3)
        labels = torch.full_like(ids, -100).scatter_(1, gap, ids.gather(1, gap))
        return {"input_ids": masked, "labels": labels}

    model = learner(RandomTransformerForMaskedLM)
    learn(model, batch, 250)
    test = batch()
    right = model(test["input_ids"]).logits.argmax(-1) == test["labels"]
    assert right[test["labels"] != -100].float().mean() > 0.95


def test_causal_lm_learns_to_count():
    def batch():
        ids = counting(32, 9)
        return {"input_ids": ids, "labels": ids}

    model = learner(RandomTransformerForCausalLM)
    learn(model, batch)
    text = counting(4, 12)
    assert torch.equal(model.generate(text[:, :3], max_new_tokens=9, eos_token_id=None), text)


def test_labels_of_wrong_shape_raise(tmp_path):
    save_translator(tmp_path)
    model = RandomTransformerForSequenceClassification.from_pretrained(tmp_path, num_labels=4)
    assert model.score.out_features == 4
    with pytest.raises(ValueError, match="input_ids must be in the vocabulary"):
        RandomTransformerForTokenClassification(tiny_config())(torch.tensor([[VOCAB_SIZE]]))


INVALID_LABELS = {
    "classes": (RandomTransformerForSequenceClassification, {}, torch.tensor([0, 1, 9]), "class ids.* got 0 to 9"),
    "rows": (RandomTransformerForSequenceClassification, {}, torch.tensor([0]), r"must have shape \[3\], got \[1\]"),
    "numbers": (
        RandomTransformerForSequenceClassification,
        {"problem_type": "regression"},
        torch.ones(3),
        r"must have shape \[3, 3\], got \[3\]",
    ),
    "tokens' classes": (
        RandomTransformerForTokenClassification,
        {},
        torch.full((3, 8), 7),
        "class ids.* got 7 to 7",
    ),
    "tokens": (RandomTransformerForTokenClassification, {}, torch.zeros(8, 3).long(), r"shape \[3, 8\], got \[8, 3\]"),
    "masked": (RandomTransformerForMaskedLM, {}, torch.full((3, 8), VOCAB_SIZE), "class ids"),
    "next": (RandomTransformerForCausalLM, {}, torch.full((3, 8), VOCAB_SIZE), "class ids"),
}


@pytest.mark.parametrize("case", INVALID_LABELS)
def test_invalid_labels_raise(case):
    kind, options, labels, message = INVALID_LABELS[case]
    model = kind(tiny_config(num_labels=3, **options))
    with pytest.raises(ValueError, match=f"labels .*{message}"):
        model(**BATCH, labels=labels)


def test_configuration_of_a_head_builds_the_full_model():
    """The head's own configuration is unchanged."""
    head = RandomTransformerForCausalLM(tiny_config())
    whole = RandomTransformerForConditionalGeneration(head.config)
    assert whole.config is whole.model.config
    assert whole.config.is_encoder_decoder
    assert not head.config.is_encoder_decoder
    assert whole(**BATCH, labels=BATCH["input_ids"]).loss.isfinite()


def test_errors_use_the_callers_argument_names():
    model = RandomTransformerForCausalLM(tiny_config())
    with pytest.raises(ValueError, match=r"^input_ids must be in the vocabulary"):
        model(torch.tensor([[VOCAB_SIZE]]))
    with pytest.raises(ValueError, match=r"^attention_mask must have shape"):
        model(random_ids(2, 4), attention_mask=torch.ones(2, 3))


def test_long_text_in_half_precision():
    """The sum of many states overflows float16, their mean does not."""
    states = torch.full((1, 4000, 2), 20.0, dtype=torch.float16)
    for mask in (None, torch.ones(1, 4000)):
        assert torch.equal(mean_of_tokens(states, mask), torch.full((1, 2), 20.0, dtype=torch.float16))


# Positions and inputs


def test_sinusoidal_positions_beyond_max_position_embeddings():
    """The precomputed table ends there, the sinusoids do not."""
    tables = {limit: tiny_config(max_position_embeddings=limit) for limit in (8, 64)}
    models = {limit: RandomTransformerForCausalLM(config).eval() for limit, config in tables.items()}
    models[8].load_state_dict(models[64].state_dict())
    ids, positions = random_ids(1, 4), torch.tensor([[6, 7, 8, 40]])
    logits = [model(ids, position_ids=positions).logits for model in models.values()]
    assert_near(*logits, 1e-5)


@pytest.mark.parametrize("overrides", [{}, {"position_embedding": "learned", "position_offset": 2}], ids=str)
def test_negative_positions_raise(overrides):
    model = RandomTransformerForCausalLM(tiny_config(**overrides)).eval()
    with pytest.raises(ValueError, match=r"position_ids must be at least 0, got -1\."):
        model(random_ids(1, 2), position_ids=torch.tensor([[0, -1]]))


def test_encoder_states_raise_without_cross_attention():
    model = RandomTransformerForCausalLM(tiny_config())
    message = r"encoder_hidden_states must be None for a model without cross-attention, got \[1, 3, 16\]\."
    with pytest.raises(ValueError, match=message):
        model(random_ids(1, 2), encoder_hidden_states=torch.zeros(1, 3, 16))
