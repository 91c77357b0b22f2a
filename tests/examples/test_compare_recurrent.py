"""The recurrent models, and their comparison with the Transformer."""

import re

import compare_recurrent
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from tests.helpers.models import VOCAB_SIZE, padded_batch, random_ids
from tutorials.recurrent_comparison import CANDIDATES, LENGTHS, Result, sample_texts
from tutorials.recurrent_model import (
    AdditiveAttention,
    RecurrentConfig,
    RecurrentForConditionalGeneration,
    gru_step,
    lstm_step,
)
from tutorials.recurrent_report import summarize


@pytest.fixture(params=["lstm", "gru"])
def cell(request):
    return request.param


def tiny_model(cell: str, spread: float = 1.0, **overrides) -> RecurrentForConditionalGeneration:
    """A random model in evaluation mode; `spread` multiplies its weights, which makes its predictions more varied."""
    settings = {"vocab_size": VOCAB_SIZE, "d_model": 12, "hidden_size": 16, "dropout": 0.2, **overrides}
    model = RecurrentForConditionalGeneration(RecurrentConfig(cell=cell, **settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(spread)
    return model


# The model


def test_additive_attention_follows_its_formula():
    attention = AdditiveAttention(5)
    w, u, v = attention.query.weight, attention.key.weight, attention.score.weight[0]
    states, source = torch.randn(2, 5), torch.randn(2, 4, 5)
    lengths = [4, 2]
    mask = torch.arange(4) < torch.tensor(lengths)[:, None]
    contexts, weights = attention(states, attention.key(source), source, mask)
    for row, length in enumerate(lengths):
        scores = torch.stack([v @ torch.tanh(w @ states[row] + u @ h) for h in source[row, :length]])
        expected = scores.exp() / scores.exp().sum()
        torch.testing.assert_close(weights[row, :length], expected)
        torch.testing.assert_close(contexts[row], sum(a * h for a, h in zip(expected, source[row], strict=False)))
        assert not weights[row, length:].any()


def test_gates_are_those_of_torch():
    inputs, hidden, memory = torch.randn(3, 5), torch.randn(3, 4), torch.randn(3, 4)
    lstm, gru = torch.nn.LSTMCell(5, 4), torch.nn.GRUCell(5, 4)
    for actual, expected in zip(lstm_step(inputs, hidden, memory, lstm), lstm(inputs, (hidden, memory)), strict=True):
        torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(gru_step(inputs, hidden, gru), gru(inputs, hidden))


def test_open_and_closed_gates():
    """With forget gate 1 and input gate 0, an LSTM keeps its cell state; with update gate 1, a GRU its state."""
    inputs, hidden, memory = torch.randn(3, 5), torch.randn(3, 4), torch.randn(3, 4)
    lstm, gru = torch.nn.LSTMCell(5, 4), torch.nn.GRUCell(5, 4)
    with torch.no_grad():
        store, forget, _, _ = lstm.bias_ih.view(4, 4)
        store.fill_(-100)
        forget.fill_(100)
        gru.bias_ih.view(3, 4)[1].fill_(100)
    torch.testing.assert_close(lstm(inputs, (hidden, memory))[1], memory)
    torch.testing.assert_close(gru(inputs, hidden), hidden)


def test_padding_does_not_change_logits(cell):
    model = tiny_model(cell, spread=3.0)
    lengths = [3, 9, 1, 6]
    batch, targets = padded_batch(lengths), random_ids(4, 7, seed=1)
    together = model(**batch, decoder_input_ids=targets)
    for row, length in enumerate(lengths):
        alone = model(batch["input_ids"][row : row + 1, :length], decoder_input_ids=targets[row : row + 1])
        torch.testing.assert_close(together.logits[row], alone.logits[0])
        torch.testing.assert_close(together.cross_attentions[0][row, 0, :, :length], alone.cross_attentions[0][0, 0])
        assert not together.cross_attentions[0][row, 0, :, length:].any()


def test_loss_is_the_mean_over_labels(cell):
    model = tiny_model(cell)
    batch = padded_batch([4, 6])
    rows = [random_ids(1, 3)[0], random_ids(1, 5, seed=1)[0]]
    loss = model(**batch, labels=pad_sequence(rows, batch_first=True, padding_value=-100)).loss
    alone = [
        model(batch["input_ids"][row : row + 1, :length], labels=labels[None]).loss
        for row, (length, labels) in enumerate(zip([4, 6], rows, strict=True))
    ]
    torch.testing.assert_close(loss, (3 * alone[0] + 5 * alone[1]) / 8)


def test_greedy_decoding_equals_the_argmax_of_teacher_forcing(cell):
    model = tiny_model(cell, spread=4.0)
    batch = padded_batch([5, 8, 2])
    generated = model.generate(**batch, do_sample=False, max_new_tokens=12, eos_token_id=None)
    choices = model(**batch, decoder_input_ids=generated[:, :-1]).logits.argmax(dim=-1)
    assert torch.equal(generated[:, 1:], choices)
    assert len(generated.unique()) > 5  # not one token repeated
    assert torch.equal(
        generated, model.generate(**batch, do_sample=False, max_new_tokens=12, eos_token_id=None, use_cache=False)
    )


def test_bias_of_the_forget_and_update_gates_is_one(cell):
    model = tiny_model(cell)
    for rnn in (model.encoder.rnn, model.decoder.cell):
        for name, bias in rnn.named_parameters():
            if name.startswith("bias"):
                gates = bias.view(-1, rnn.hidden_size)
                expected = [index == 1 and name.startswith("bias_ih") for index in range(len(gates))]
                assert torch.equal(gates, torch.tensor(expected).float()[:, None].expand_as(gates)), name


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"cell": "rnn"}, "cell must be one of lstm, gru, got 'rnn'"), ({"hidden_size": 7}, "hidden_size must be even")],
)
def test_invalid_configurations_raise(wrong, message):
    with pytest.raises(ValueError, match=message):
        RecurrentConfig(**wrong)


# The comparison


class Vocabulary:
    """A tokenizer that has only a size."""

    def __len__(self):
        return 1500


def test_models_have_nearly_the_same_number_of_parameters():
    sizes = [candidate.build(Vocabulary()).num_parameters() for candidate in CANDIDATES.values()]
    assert max(sizes) < 1.01 * min(sizes)


def test_no_sentence_occurs_twice():
    train, test = sample_texts(50, 10, seed=1)
    assert (len(train), len(test)) == (50, 10)
    sentences = [sentence for text in train + test for sentence in re.findall(r".+?[.?](?: |$)", text.source)]
    assert len(sentences) == len(set(sentences)) == sum(text.length for text in train + test)
    assert {text.length for text in test} == set(LENGTHS)


def test_summary_of_results():
    fast = Result("fast", 1, 200.0, {1: 90.0, 2: 50.0, 3: 30.0, 4: 10.0})
    good = Result("good", 1, 150.0, {1: 90.0, 2: 80.0, 3: 75.0, 4: 75.0})
    speed, match, length = summarize([good, fast])
    assert speed == "Training throughput: fast 200 tokens/s, good 0.75 times."
    assert match == "Exact match: good 80.0%, fast 45.0%."
    assert "good 75% (66% if errors were independent of the length), fast 10% (66% if" in length


@pytest.mark.long
def test_a_small_run(tmp_path, capsys):
    sizes = ["--epochs", "1", "--train_size", "24", "--test_size", "4", "--output_dir", str(tmp_path)]
    assert compare_recurrent.main(sizes) == 0
    assert (tmp_path / "comparison.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    for name in CANDIDATES:
        assert re.search(rf"{name} +[\d,]+ +[\d,]+( +[\d.]+%){{5}}", printed), printed
