"""The Transformer in plain Python: its numbers equal those of the package with the same weights, and it learns."""

import ast
import random
from pathlib import Path

import micro_transformer as micro
import pytest
import torch
from micro_transformer import END, PAD, START, Transformer

from modeling_random_transformer import RandomTransformerForConditionalGeneration
from tests.helpers.models import exact_model

SOURCES = [[3, 9, 4, END, PAD, PAD], [8, 5, END, PAD, PAD, PAD], [7, 7, 6, 4, 10, END]]
TARGETS = [[11, 20, 12, 17, END], [4, END], [30, 31, 32, END]]
LAYERS, HEADS, D_FF, VOCABULARY = 2, 2, 24, 40


def package_model(spread: float = 1.0) -> RandomTransformerForConditionalGeneration:
    """A random model in float64 whose positions are not rounded to float32."""
    model = exact_model(
        spread=spread, vocab_size=VOCABULARY, encoder_layers=LAYERS, decoder_layers=LAYERS, num_heads=HEADS, d_ff=D_FF
    )
    table = model.model.encoder.embed_positions.table
    positions = torch.arange(len(table), dtype=torch.float64)[:, None]
    angles = positions / 10000 ** (torch.arange(0, 16, 2, dtype=torch.float64) / 16)
    for stack in (model.model.encoder, model.model.decoder):
        stack.embed_positions.table = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
    return model


def micro_model(model: RandomTransformerForConditionalGeneration) -> Transformer:
    """The same weights in plain Python, by their names."""
    copy = Transformer(VOCABULARY, 16, HEADS, D_FF, LAYERS)
    copy.logits([START], [START])  # creates the parameters
    weights = dict(model.named_parameters())
    assert weights.keys() == copy.parameters.keys()
    for name, parameter in copy.parameters.items():
        parameter.rows = as_rows(weights[name].detach())
    return copy


def as_rows(values: torch.Tensor) -> list[list[float]]:
    """A matrix, or a vector as a column."""
    return (values if values.dim() == 2 else values[:, None]).tolist()


def source_batch() -> dict[str, torch.Tensor]:
    ids = torch.tensor(SOURCES)
    return {"input_ids": ids, "attention_mask": (ids != PAD).long()}


def assert_equal(rows: list[list[float]], expected: torch.Tensor, tolerance: float = 1e-9) -> None:
    actual = torch.tensor(rows, dtype=torch.float64)
    torch.testing.assert_close(actual, expected.detach().view(actual.shape), rtol=0, atol=tolerance)


def test_the_file_is_short_and_imports_only_math_and_random():
    text = Path(micro.__file__).read_text(encoding="utf-8")
    lines = text.splitlines()
    assert len(lines) <= 250
    assert max(map(len, lines)) <= 120
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert [ast.unparse(node) for node in imports] == ["import math", "import random"]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (1, "eins"),
        (17, "siebzehn"),
        (30, "dreißig"),
        (42, "zwei und vierzig"),
        (101, "ein hundert eins"),
        (600, "sechs hundert"),
        (321, "drei hundert ein und zwanzig"),
    ],
)
def test_german_numbers_are_correct_and_distinct(number, words):
    assert micro.german(number) == words.split()
    assert len({" ".join(micro.german(number)) for number in range(1, 1000)}) == 999


def test_logits_loss_and_gradients_equal_those_of_the_package():
    model = package_model()
    copy = micro_model(model)
    longest = max(map(len, TARGETS))
    labels = torch.tensor([target + [-100] * (longest - len(target)) for target in TARGETS])
    read = torch.tensor([[START, *target[:-1]] + [PAD] * (longest - len(target)) for target in TARGETS])
    logits = model(**source_batch(), decoder_input_ids=read).logits
    for source, target, expected in zip(SOURCES, TARGETS, logits, strict=True):
        logit_rows = copy.logits(source, [START, *target[:-1]]).rows
        assert_equal(logit_rows, expected[: len(target)])
    micro.Matrix.tape.clear()

    loss = copy.loss(list(zip(SOURCES, TARGETS, strict=True)))
    loss.backpropagate()
    smoothing = micro.SMOOTHING
    expected_loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=smoothing)
    expected_loss.backward()
    assert_equal(loss.rows, expected_loss)
    for name, parameter in model.named_parameters():
        assert_equal(copy.parameters[name].gradient, parameter.grad)


@pytest.mark.parametrize("spread", [1.0, 2.0])
@pytest.mark.parametrize("beams", [1, 2, 4])
def test_greedy_and_beam_search_equal_generate(beams, spread):
    model = package_model(spread)
    copy = micro_model(model)
    expected = model.generate(**source_batch(), num_beams=beams, max_new_tokens=micro.MAX_TOKENS, do_sample=False)
    for source, row in zip(SOURCES, expected.tolist(), strict=True):
        tokens = copy.translate(source, beams)
        assert tokens == row[1 : len(tokens) + 1]
        assert set(row[len(tokens) + 1 :]) <= {PAD}


def test_adam_equals_that_of_torch():
    model = package_model()
    copy = micro_model(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=micro.LEARNING_RATE, betas=(0.9, 0.98), eps=1e-9)
    for step in (1, 2, 3):
        for name, parameter in model.named_parameters():
            parameter.grad = torch.randn_like(parameter)
            copy.parameters[name].gradient = as_rows(parameter.grad)
        optimizer.param_groups[0]["lr"] = micro.LEARNING_RATE * step / micro.WARMUP_STEPS
        optimizer.step()
        copy.adam(step)
    for name, parameter in model.named_parameters():
        assert_equal(copy.parameters[name].rows, parameter, tolerance=1e-7)  # torch adds its epsilon in another place


def test_a_short_training_decreases_the_loss():
    random.seed(0)
    numbers = [4, 42, 20]
    batch = [(micro.to_ids(list(str(number))), micro.to_ids(micro.german(number))) for number in numbers]
    model = Transformer(len(micro.VOCABULARY), 8, 2, 8, 1)
    losses = []
    for step in range(1, 31):
        loss = model.loss(batch)
        loss.backpropagate()
        model.adam(step)
        losses.append(loss.rows[0][0])
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_whole_training_translates_numbers_that_it_has_not_seen(capsys):
    micro.main()
    *steps, greedy, beams = capsys.readouterr().out.splitlines()
    assert steps[-1].endswith("342 → drei hundert zwei und vierzig </s>")
    for line in (greedy, beams):
        right, of, number, *_ = line.split()
        assert of == "of"
        assert int(right) / int(number) >= 0.95
