"""Task heads: loading encoder-decoder checkpoints, losses, generation, positions and errors."""

from collections import Counter

import accelerate
import pytest
import torch
import torch.distributed.checkpoint as distributed_checkpoint
import transformers
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import set_model_state_dict
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss, pad
from transformers.utils import ModelOutput

import modeling_random_transformer as package
from modeling_random_transformer import (
    RandomTransformerForCausalLM,
    RandomTransformerForConditionalGeneration,
    RandomTransformerForMaskedLM,
    RandomTransformerForQuestionAnswering,
    RandomTransformerForSequenceClassification,
    RandomTransformerForTokenClassification,
)
from modeling_random_transformer.configuration_random_transformer import MODEL_CLASSES
from modeling_random_transformer.modeling_random_transformer import mean_of_tokens
from tests.helpers.models import VOCAB_SIZE, assert_near, padded_batch, random_ids, tiny_config, tiny_model

WHOLE = ("AutoModel", "AutoModelForSeq2SeqLM")
AUTO = {getattr(package, name): auto for auto, name in MODEL_CLASSES.items() if auto not in WHOLE}
CONFIGS = {
    "post-norm": {},
    "two vocabularies": {"share_embeddings": False, "tie_word_embeddings": False, "lm_head_bias": True},
    "pre-norm, learned positions": {"norm_order": "pre", "position_embedding": "learned"},
    "no positions": {"position_embedding": "none"},
}
BATCH = padded_batch([8, 5, 3])


@pytest.fixture(params=AUTO, ids=lambda head: head.__name__)
def head(request):
    return request.param


def first_output(model, batch=BATCH):
    with torch.no_grad():
        return model(**batch)[0]


@pytest.mark.parametrize("name", sorted(set(MODEL_CLASSES.values())))
def test_a_configuration_may_request_tuples(name):
    model = getattr(package, name)(tiny_config(return_dict=False)).eval()
    target = {"decoder_input_ids": random_ids(3, 4)} if model.config.is_encoder_decoder else {}
    outputs = model(**BATCH, **target, return_dict=True)
    assert isinstance(outputs, ModelOutput)
    assert torch.equal(first_output(model, {**BATCH, **target}), outputs[0])
    if model.can_generate():
        assert model.generate(BATCH["input_ids"][:1], max_new_tokens=3).shape[0] == 1


@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"use_cache": False}])
def test_prompts_with_padding_on_the_right_raise(options):
    """The next token would be that of the padding."""
    model = RandomTransformerForCausalLM(tiny_config()).eval()
    with pytest.raises(ValueError, match="attention_mask must end with 1 in each row of prompts: set padding_side"):
        model.generate(**BATCH, max_new_tokens=3, **options)


def test_the_language_model_returns_the_states_and_attentions_of_its_layers():
    model = RandomTransformerForCausalLM(tiny_config(decoder_layers=2)).eval()
    model.set_attn_implementation("eager")
    outputs = model(random_ids(3, 5), output_hidden_states=True, output_attentions=True, use_cache=False)
    assert [*outputs] == ["logits", "hidden_states", "attentions"]
    assert [len(outputs.hidden_states), len(outputs.attentions)] == [3, 2]
    assert torch.equal(model.lm_head(outputs.hidden_states[-1]), outputs.logits)


# Loading


@pytest.mark.parametrize("config", CONFIGS)
def test_encoder_decoder_checkpoint_loads_into_a_head(head, config, tmp_path):
    """All weights except those of the new layer are loaded, and compute the same outputs. A head's folder loads too."""
    whole = tiny_model(encoder_layers=2, decoder_layers=3, **CONFIGS[config])
    whole.save_pretrained(tmp_path / "whole")
    model, info = head.from_pretrained(tmp_path / "whole", output_loading_info=True)
    layers = [name for name in ("score", "qa_outputs") if hasattr(model, name)]
    assert set(info["missing_keys"]) == {f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")}
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    base = getattr(model, "model", model)
    for stack in {"encoder", "decoder"} & dict(base.named_children()).keys():  # the decoder without cross-attention
        states = [
            first_output(getattr(module, stack), {"input_ids": random_ids(2, 5)}) for module in (base, whole.model)
        ]
        assert torch.equal(*states)
    if hasattr(model, "lm_head"):
        assert torch.equal(model.lm_head.weight, whole.lm_head.weight)
    model.save_pretrained(tmp_path / "head")
    loaded = getattr(transformers, AUTO[head]).from_pretrained(tmp_path / "head")
    assert type(loaded) is head
    assert torch.equal(first_output(loaded), first_output(model))
    assert not loaded.config.is_encoder_decoder


@pytest.fixture(params=MODEL_CLASSES.values())
def saved(request, tmp_path):
    """A model of each class, and its folder."""
    model = getattr(package, request.param)(tiny_config(num_labels=3)).eval()
    model.save_pretrained(tmp_path)
    return model, tmp_path


def assert_same_model(actual, expected):
    """The same outputs, and the same ties."""
    decoder = {"decoder_input_ids": BATCH["input_ids"]} if expected.config.is_encoder_decoder else {}
    assert torch.equal(*(first_output(model, {**BATCH, **decoder}) for model in (actual, expected)))
    counts = [
        Counter(map(id, dict(model.named_parameters(remove_duplicate=False)).values())) for model in (actual, expected)
    ]
    assert sorted(counts[0].values()) == sorted(counts[1].values())


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("from_file", [False, True])
def test_loading_into_an_empty_model(saved, from_file, assign, device):
    """Sinusoids are not in the weights. Tied parameters, which a file has once, remain one parameter."""
    model, folder = saved
    weights = load_file(folder / "model.safetensors") if from_file else model.state_dict()
    with torch.device(device):
        loaded = type(model)(model.config).eval()
    if not assign:
        loaded.to_empty(device="cpu")
    loaded.load_state_dict(weights, strict=not from_file, assign=assign)
    assert_same_model(loaded, model)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_loading_a_distributed_checkpoint(saved):
    model, folder = saved
    distributed_checkpoint.save(model.state_dict(), checkpoint_id=folder / "distributed")
    with torch.device("meta"):
        loaded = type(model)(model.config).eval()
    weights = loaded.to_empty(device="cpu").state_dict()
    distributed_checkpoint.load(weights, checkpoint_id=folder / "distributed")
    set_model_state_dict(loaded, weights)
    assert_same_model(loaded, model)


def test_loading_with_accelerate(saved):
    model, folder = saved
    with accelerate.init_empty_weights():
        loaded = type(model)(model.config).eval()
    loaded.tie_weights()  # as accelerate asks for
    accelerate.load_checkpoint_and_dispatch(loaded, str(folder / "model.safetensors"), device_map={"": "cpu"})
    assert_same_model(loaded, model)


def test_edited_sinusoids_move_with_the_model():
    table = tiny_model().model.encoder.embed_positions
    table.table.zero_()
    assert not table.to("cpu").share_memory().table.any()


def test_assigned_weights_that_differ_are_not_tied():
    """As after a deliberate change of the output layer."""
    model = tiny_model()
    weights = model.state_dict()
    weights["lm_head.weight"] = weights["lm_head.weight"] + 1
    model.load_state_dict(weights, assign=True)
    assert torch.equal(model.lm_head.weight, weights["lm_head.weight"])
    assert model.model.encoder.embed_tokens.weight is model.model.shared.weight


def test_configuration_of_a_head_builds_the_full_model():
    """The head's own configuration is unchanged."""
    head = RandomTransformerForCausalLM(tiny_config())
    whole = RandomTransformerForConditionalGeneration(head.config)
    assert whole.config is whole.model.config
    assert whole.config.is_encoder_decoder
    assert not head.config.is_encoder_decoder
    assert whole(**BATCH, labels=BATCH["input_ids"]).loss.isfinite()


# Outputs and losses


def test_padding_does_not_change_outputs(head):
    model = head(tiny_config(num_labels=3)).eval()
    batched = model(**BATCH)[0]
    for row, length in enumerate((8, 5, 3)):
        alone = model(BATCH["input_ids"][row : row + 1, :length])[0]
        tokens = slice(None) if head is RandomTransformerForSequenceClassification else slice(length)
        assert_near(batched[row, tokens], alone[0], 1e-5)


def test_mean_of_tokens():
    """Padding is excluded. The sum of many states overflows float16, their mean does not."""
    states = torch.tensor([[[1.0], [3.0], [8.0]], [[2.0], [4.0], [5.0]]])
    assert mean_of_tokens(states, torch.tensor([[1, 1, 0], [0, 0, 0]])).tolist() == [[2.0], [0.0]]
    with pytest.raises(ValueError, match=r"attention_mask must have shape \[2, 3\], got \[1, 1, 3, 3\]\."):
        mean_of_tokens(states, torch.ones(1, 1, 3, 3))
    states = torch.full((1, 4000, 2), 20.0, dtype=torch.float16)
    for mask in (None, torch.ones(1, 4000)):
        assert torch.equal(mean_of_tokens(states, mask), states[:, 0])


def token_loss(logits, labels):
    return cross_entropy(logits.flatten(0, 1), labels.flatten())


CLASSES = (torch.arange(24) % 3).view(3, 8).masked_fill(BATCH["attention_mask"] == 0, -100)
TOKENS = random_ids(3, 8, seed=1).masked_fill(BATCH["attention_mask"] == 0, -100)
SEVERAL = {"problem_type": "multi_label_classification"}
LOSSES = {
    "class": (RandomTransformerForSequenceClassification, {}, torch.tensor([0, 2, 1]), cross_entropy),
    "number": (
        RandomTransformerForSequenceClassification,
        {"num_labels": 1},
        torch.tensor([0.5, 2.0, -1.0]),
        lambda logits, labels: mse_loss(logits[:, 0], labels),
    ),
    "labels": (RandomTransformerForSequenceClassification, SEVERAL, torch.eye(3), binary_cross_entropy_with_logits),
    "tokens": (RandomTransformerForTokenClassification, {}, CLASSES, token_loss),
    "masked": (RandomTransformerForMaskedLM, {}, TOKENS, token_loss),
    "next": (
        RandomTransformerForCausalLM,
        {},
        TOKENS,
        lambda logits, labels: token_loss(logits[:, :-1], labels[:, 1:]),
    ),
}


@pytest.mark.parametrize("case", LOSSES)
def test_the_loss_of_each_head_is_that_of_its_problem(case):
    head, options, labels, expected = LOSSES[case]
    output = head(tiny_config(**{"num_labels": 3, **options}))(**BATCH, labels=labels)
    torch.testing.assert_close(output.loss, expected(output.logits, labels))


def test_loss_of_question_answering():
    start, end = torch.tensor([1, 0, 2]), torch.tensor([2, 3, 2])
    model = RandomTransformerForQuestionAnswering(tiny_config())
    output = model(**BATCH, start_positions=start, end_positions=end)
    expected = (cross_entropy(output.start_logits, start) + cross_entropy(output.end_logits, end)) / 2
    torch.testing.assert_close(output.loss, expected)


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ({"start_positions": torch.tensor([1, 0, 2])}, "start_positions and end_positions must be given together"),
        ({"end_positions": torch.tensor([1, 0, 2])}, "start_positions and end_positions must be given together"),
        (
            {"start_positions": torch.tensor([1, 0]), "end_positions": torch.tensor([1, 0, 2])},
            r"start_positions must have shape \[3\], got \[2\]\.",
        ),
        (
            {"start_positions": torch.tensor([1, 0, 2]), "end_positions": torch.tensor(1)},
            r"end_positions must have shape \[3\], got \[\]\.",
        ),
    ],
    ids=["no end", "no start", "short", "scalar"],
)
def test_invalid_positions_of_an_answer(positions, message):
    model = RandomTransformerForQuestionAnswering(tiny_config())
    with pytest.raises(ValueError, match=message):
        model(**BATCH, **positions)


# Causal language modeling


def wide(model):
    """Doubled weights, so that a model's choices differ."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    return model.eval()


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"cache_implementation": "static"}], ids=str)
@pytest.mark.parametrize("config", CONFIGS)
def test_generation_depends_neither_on_the_cache_nor_on_padding(config, options):
    model = wide(RandomTransformerForCausalLM(tiny_config(encoder_layers=1, **CONFIGS[config])))
    short, long = random_ids(1, 3), random_ids(1, 7, seed=1)
    ids = torch.cat([pad(short, (4, 0)), long])
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    options = {**options, "max_new_tokens": 6, "eos_token_id": -1}
    together = model.generate(ids, attention_mask=mask, **options)
    assert torch.equal(together[0, 4:], model.generate(short, **options)[0])
    assert torch.equal(together[1], model.generate(long, **options)[0])
    options = {"num_beams": 1, **options, "use_cache": False, "cache_implementation": None}
    assert torch.equal(together, model.generate(ids, attention_mask=mask, **options))


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


def test_padding_takes_no_learned_positions():
    model = RandomTransformerForCausalLM(tiny_config(position_embedding="learned", max_position_embeddings=4)).eval()
    ids = random_ids(1, 4)
    padded = model(pad(ids, (2, 0)), attention_mask=torch.tensor([[0, 0, 1, 1, 1, 1]])).logits
    torch.testing.assert_close(padded[:, 2:], model(ids).logits)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float32, torch.float16], ids=str)
def test_the_mask_of_a_language_model_may_have_any_dtype(dtype):
    """Its sums are positions."""
    model = RandomTransformerForCausalLM(tiny_config(position_embedding="learned")).eval()
    ids = random_ids(1, 3)
    mask = torch.tensor([[0, 1, 1]])
    expected = model(ids, attention_mask=mask).logits
    torch.testing.assert_close(model(ids, attention_mask=mask.to(dtype)).logits, expected)


# Errors

INVALID_LABELS = {
    "classes": (RandomTransformerForSequenceClassification, {}, torch.tensor([0, 1, 9]), "class ids.* got 0 to 9"),
    "rows": (RandomTransformerForSequenceClassification, {}, torch.tensor([0]), r"must have shape \[3\], got \[1\]"),
    "numbers": (
        RandomTransformerForSequenceClassification,
        {"problem_type": "regression"},
        torch.ones(3),
        r"must have shape \[3, 3\], got \[3\]",
    ),
    "integers": (
        RandomTransformerForSequenceClassification,
        {"problem_type": "regression"},
        torch.ones(3).long(),
        r"must have shape \[3, 3\], got \[3\]",
    ),
    "tokens": (RandomTransformerForTokenClassification, {}, torch.zeros(8, 3).long(), r"shape \[3, 8\], got \[8, 3\]"),
    "next": (RandomTransformerForCausalLM, {}, torch.full((3, 8), VOCAB_SIZE), "class ids"),
}


@pytest.mark.parametrize("case", INVALID_LABELS)
def test_invalid_labels_raise(case):
    kind, options, labels, message = INVALID_LABELS[case]
    model = kind(tiny_config(num_labels=3, **options))
    with pytest.raises(ValueError, match=f"labels .*{message}"):
        model(**BATCH, labels=labels)


INVALID_INPUTS = {
    r"position_ids must have shape \[batch, 2\], got \[1, 3\]": {"position_ids": torch.tensor([[0, 1, 2]])},
    r"position_ids must be at least 0, got -1\.": {"position_ids": torch.tensor([[0, -1]])},
    "must be at most max_position_embeddings=8, got 9": {"position_ids": torch.tensor([[0, 8]])},
    r"encoder_hidden_states must be None for a model without cross-attention, got \[1, 3, 16\]\.": {
        "encoder_hidden_states": torch.zeros(1, 3, 16)
    },
}


@pytest.mark.parametrize("message", INVALID_INPUTS)
def test_invalid_inputs_raise_with_the_callers_argument_names(message):
    config = tiny_config(position_embedding="learned", position_offset=2, max_position_embeddings=8)
    with pytest.raises(ValueError, match=message):
        RandomTransformerForCausalLM(config)(**{"input_ids": random_ids(1, 2), **INVALID_INPUTS[message]})
