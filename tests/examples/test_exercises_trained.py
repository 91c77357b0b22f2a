"""Exercises 9 to 12 and 15: complexity, heads, ablations, key-value memory, sinusoids."""

import itertools

import pytest
import torch

from modeling_random_transformer.extras.inspection import intervene
from tutorials.exercises import (
    ablations,
    complexity,
    head_roles,
    key_value_memory,
    sinusoids,
    tasks,
    trained,
)

# 9. Complexity


@pytest.mark.long
def test_operations_of_table_1():
    """Multiplications and additions: attention n²·d, recurrence n·d², convolution k·n·d², times a constant."""
    for n, d in complexity.SIZES:
        assert complexity.count_operations(complexity.ATTENTION, n, d) == 4 * n**2 * d
        assert complexity.count_operations(complexity.RECURRENCE, n, d) == 4 * n * d**2
        assert complexity.count_operations(complexity.CONVOLUTION, n, d) == 2 * complexity.KERNEL * n * d**2


def test_sequential_steps_and_path_lengths_of_table_1():
    steps, paths = ({} for _ in range(2))
    for kind in complexity.KINDS:
        costs = [complexity.measure_cost(kind, length) for length in (9, 27)]
        steps[kind], paths[kind] = ([getattr(cost, name) for cost in costs] for name in ("steps", "path"))
    assert steps == {
        complexity.ATTENTION: [4, 4],  # projection, scores, weighted sum, output projection
        complexity.RECURRENCE: [9, 27],
        complexity.CONVOLUTION: [1, 1],
        complexity.DILATED: [1, 1],
    }
    assert paths == {
        complexity.ATTENTION: [1, 1],
        complexity.RECURRENCE: [9, 27],
        complexity.CONVOLUTION: [4, 13],  # (n - 1) / (k - 1)
        complexity.DILATED: [2, 3],  # log of n to the base k
    }


def test_gradients_reach_the_first_token_if_the_stack_does():
    torch.manual_seed(0)
    gradients = {kind: complexity.token_gradients(kind, length=64) for kind in complexity.KINDS}
    nonzero = {kind: sum(value > 0 for value in values) for kind, values in gradients.items()}
    reach = 1 + complexity.RECALL_LAYERS * (complexity.KERNEL - 1)
    assert nonzero == {
        complexity.ATTENTION: 64,
        complexity.RECURRENCE: 64,
        complexity.CONVOLUTION: reach,
        complexity.DILATED: 64,
    }
    first = {kind: values[0] / values[-1] for kind, values in gradients.items()}
    assert first[complexity.RECURRENCE] < first[complexity.ATTENTION] / 100


@pytest.mark.long
def test_recall_requires_a_short_path():
    accuracy = {kind: complexity.train_recall(kind, 64, seed=0, steps=100) for kind in complexity.KINDS}
    assert accuracy[complexity.ATTENTION] > 0.9
    assert accuracy[complexity.DILATED] > 0.9
    assert accuracy[complexity.RECURRENCE] < 0.3
    assert accuracy[complexity.CONVOLUTION] < 0.3


# 10. Heads (the models of the quickstart and of one layer)


@pytest.fixture(scope="module")
def translator(quickstart_folder):
    return trained.load_trained(quickstart_folder)


@pytest.mark.long
def test_heads_of_the_last_layer_align(translator):
    shares = head_roles.measure_roles(translator, translator.test[:100])
    aligned = {head.layer: [] for head in shares}
    for head, roles in shares.items():
        aligned[head.layer] += [roles[head_roles.ALIGNMENT]] if head_roles.ALIGNMENT in roles else []
    assert max(aligned[1]) > 0.9
    assert sum(aligned[1]) > sum(aligned[0])
    # A head without this role would find the noun of a sentence of about ten tokens in a tenth of the cases.
    assert shares[head_roles.best_head(shares, head_roles.SYNTAX)][head_roles.SYNTAX] > 0.4


def test_links_of_nouns_and_determiners():
    source = ["The", "red", "car", "is", "near", "two", "cats", "."]
    target = ["El", "coche", "rojo", "está", "cerca", "de", "dos", "gatos", "."]
    assert list(head_roles.noun_links(source, target)) == [(1, 2), (7, 6)]
    assert list(head_roles.determiner_links(source)) == [(0, 2), (5, 6)]


@pytest.mark.long
def test_one_head_cannot_attend_to_two_tokens():
    (single, one), (several, two) = (head_roles.train_heads(heads, seed=0, steps=400) for heads in (1, 2))
    assert single.num_parameters() == several.num_parameters()
    assert one < 0.6
    assert two > 0.95


# 11. Ablations


@pytest.mark.long
def test_removed_parts_of_the_translator(translator):
    def correct(replacements):
        return ablations.exact_match_with(translator, replacements, translator.test[:60])

    parts = ablations.parts(translator.model.config)
    share = {name: correct(parts[name]) for name in parts}
    assert share[ablations.COMPLETE] > 0.9
    assert share[ablations.NO_FFN] < 0.1
    assert share[ablations.NO_RESIDUALS] < 0.1
    assert share[ablations.NO_POSITIONS] < share[ablations.COMPLETE] - 0.2
    assert share[ablations.HARD] > share[ablations.COMPLETE] - 0.2


def test_no_residuals_passes_on_the_output_of_the_sub_layer():
    model = tasks.tiny_model(20, seed=0, encoder_layers=2, decoder_layers=2)
    layer = model.model.encoder.layers[0]
    ids = torch.arange(4, 12)[None]
    norm_inputs = []
    replacements = ablations.no_residuals(model.config)
    replacements["encoder.layers.0.self_attn.layer_norm"] = lambda states: norm_inputs.append(states) or states
    with intervene(model, replacements):
        model(input_ids=ids, labels=ids)
    states = model.model.encoder.embed(ids, torch.arange(ids.shape[1]), ids.shape[1])
    expected = layer.self_attn_layer_norm(layer.self_attn(states)[0])
    torch.testing.assert_close(norm_inputs[0], expected)


def test_hard_attention_has_no_gradient():
    weights = torch.tensor([[0.2, 0.5, 0.3]], requires_grad=True)
    assert ablations.hard(weights).tolist() == [[0, 1, 0]]
    assert not ablations.hard(weights).requires_grad
    straight_through = ablations.hard_straight_through(weights)
    torch.testing.assert_close(straight_through, torch.tensor([[0.0, 1.0, 0.0]]))
    straight_through[0, 0].backward()
    assert weights.grad.tolist() == [[1, 0, 0]]


@pytest.mark.long
def test_training_without_a_part():
    share = {
        name: ablations.train_without(name, seed=0, steps=200)
        for name in (ablations.NO_FFN, ablations.NO_RESIDUALS, ablations.HARD, ablations.STRAIGHT_THROUGH)
    }
    assert share[ablations.NO_FFN] > 0.9
    assert share[ablations.NO_RESIDUALS] < 0.1
    assert share[ablations.HARD] < share[ablations.STRAIGHT_THROUGH] - 0.2


# 12. Key-value memory


@pytest.mark.long
def test_units_of_the_feed_forward_network(quickstart_folder):
    result = key_value_memory.experiment(seed=0, folder=quickstart_folder, sentences=500)
    assert result.difference < 1e-4
    first, last = result.trained
    assert all(layer.active < 0.45 for layer in result.trained)
    assert last.same_next > first.same_next
    assert last.same_next > result.untrained[-1].same_next + 0.1
    assert last.agreement > 0.03
    assert all(layer.agreement < 0.01 for layer in result.untrained)
    unit_decrease, control_decrease = (
        sum(column) / len(result.switched_off) for column in zip(*result.switched_off, strict=True)
    )
    assert unit_decrease > 0.1
    assert unit_decrease > 2 * abs(control_decrease)


# 15. Sinusoids


def test_sinusoids_change_like_the_bits_of_a_binary_number():
    bits = sinusoids.count_changes(sinusoids.binary_numbers())
    assert bits == [2 ** (sinusoids.BITS - bit) - 1 for bit in range(sinusoids.BITS)]
    signs = sinusoids.count_changes(sinusoids.sinusoids(sinusoids.COUNTER_WIDTH)[1:, ::2] > 0)
    ratios = [before / after for before, after in itertools.pairwise(signs[:5])]
    assert all(1.9 < ratio < 2.2 for ratio in ratios)


def test_shifts_are_linear_for_sinusoids_only():
    torch.manual_seed(0)
    binary, encoding = (sinusoids.examine(t) for t in (sinusoids.binary_numbers(), sinusoids.sinusoids(64)))
    low, high = encoding.neighbors
    assert high - low < 1e-5
    assert binary.neighbors == (1, pytest.approx(10**0.5))
    assert encoding.shift_error < 1e-5
    assert binary.shift_error > 0.5


@pytest.mark.long
def test_positions_that_were_not_trained():
    inside, outside = (2, sinusoids.TRAINED_LENGTH), (2 * sinusoids.TRAINED_LENGTH, sinusoids.LONGEST)
    accuracy = {method: sinusoids.train_previous_token(method, seed=0, steps=900) for method in sinusoids.COLORS}
    for method in (sinusoids.LEARNED, sinusoids.SINUSOIDAL):
        assert sinusoids.mean_accuracy(accuracy[method], *inside) > 0.7
        assert sinusoids.mean_accuracy(accuracy[method], *outside) < 0.5
    assert sinusoids.mean_accuracy(accuracy[sinusoids.RANDOM_START], *outside) > 0.65
