"""Pruning of attention heads: masks, importance, pruned models, the command. The curve of the quickstart's model is
measured in test_quickstart.py.
"""

import prune_heads
import pytest
import torch

from modeling_random_transformer.extras.inspection import intervene
from tests.helpers.translation import SENTENCES, random_translator
from tutorials import pruning
from tutorials.exercises.head_roles import path_of
from tutorials.pruning import KINDS, Head

PAIRS = list(zip(SENTENCES[:3], SENTENCES[3:], strict=True)) * 2


@pytest.fixture
def model():
    """Two encoder and three decoder layers with two heads: 16 heads."""
    model = random_translator()
    model.generation_config.max_new_tokens = 5
    return model


def logits(model, tokenizer):
    inputs = tokenizer([source for source, _ in PAIRS], return_tensors="pt", padding=True)
    with torch.no_grad():
        return model(**inputs, decoder_input_ids=inputs["input_ids"]).logits


def test_pruned_heads_have_no_output_and_are_restored(model, tokenizer):
    model.double()
    complete = logits(model, tokenizer)
    heads = [Head("encoder self-attention", 1, 0), Head("encoder-decoder attention", 2, 1)]
    with pruning.prune(model, heads):
        pruned = logits(model, tokenizer)
    with intervene(model, {f"{path_of(head)}.output": 0 for head in heads}):
        torch.testing.assert_close(logits(model, tokenizer), pruned)
    assert not torch.allclose(pruned, complete)
    torch.testing.assert_close(logits(model, tokenizer), complete, rtol=0, atol=0)


def test_importance_of_a_head_without_output_is_zero(model, tokenizer):
    with pruning.prune(model, [Head("decoder self-attention", 0, 1)]):
        importance = pruning.head_importance(model, tokenizer, PAIRS)
    assert len(importance) == 2 * 2 + 3 * 2 + 3 * 2
    assert importance[Head("decoder self-attention", 0, 1)] == 0
    importance_with_output = importance[Head("decoder self-attention", 0, 0)]
    assert importance_with_output == pytest.approx(1)  # the values of a layer have the norm 1
    assert all(0 < value < 1 for head, value in importance.items() if head.layer != 0)


def test_gradient_is_that_of_each_sentence(model, tokenizer):
    """A batch gives the gradients of its sentences alone."""
    model = model.double()
    together = pruning.mask_gradients(model, tokenizer, PAIRS[:3])
    for row, pair in enumerate(PAIRS[:3]):
        for key, gradients in pruning.mask_gradients(model, tokenizer, [pair]).items():
            torch.testing.assert_close(together[key][row].double(), gradients[0].double(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("heads", "expected"), [(24, [0, 3, 6, 9, 12, 15, 18, 21, 24]), (2, [0, 0, 0, 1, 1, 1, 2, 2, 2])]
)
def test_curves_are_from_none_to_all_heads(heads, expected):
    assert pruning.counts(heads) == expected


def test_command_draws_the_curves(model, tokenizer, tmp_path, capsys):
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    for name, side in (("a.en", 0), ("a.es", 1)):
        (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in PAIRS))
    files = ["--source_file", str(tmp_path / "a.en"), "--target_file", str(tmp_path / "a.es")]
    flags = ["--model", str(tmp_path / "model"), "--output", str(tmp_path / "plots" / "pruning.png")]
    assert prune_heads.main([*flags, *files]) == 0
    output = capsys.readouterr().out
    assert "by importance" in output
    assert all(kind in output for kind in KINDS)
    assert (tmp_path / "plots" / "pruning.png").stat().st_size > 10_000
