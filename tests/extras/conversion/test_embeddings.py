"""Embeddings, output layer and positions of other implementations."""

from pathlib import Path

import pytest
import torch

from modeling_random_transformer.extras.conversion.embeddings import (
    NEVER,
    NO_ROW,
    are_sinusoids,
    check_ids,
    map_embeddings,
    map_position_tables,
    pad_rows,
    select_rows,
    tensor2tensor_sinusoids,
)
from modeling_random_transformer.extras.conversion.weights import StateDictMapper
from modeling_random_transformer.modeling_random_transformer import sinusoids

SOURCE, TARGET, LM_HEAD = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"


def mapper_of(**weights):
    return StateDictMapper("original", weights)


def test_rows_without_an_original_are_padded():
    table = torch.arange(6.0).view(3, 2)
    rows = pad_rows(table, 5)
    assert rows == [0, 1, 2, NO_ROW, NO_ROW]
    assert select_rows(table, rows, missing=-7.0).tolist() == [[0, 1], [2, 3], [4, 5], [-7, -7], [-7, -7]]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_equal_weights_become_one_parameter(shared, tied):
    source = torch.randn(4, 2)
    target = source.clone() if shared else torch.randn(4, 2)
    output = target.clone() if tied else torch.randn(4, 2)
    mapper = mapper_of(src=source, tgt=target, out=output)
    map_embeddings(mapper, "src", "tgt", "out")
    assert mapper.config_fields == {
        "vocab_size": 4,
        "share_embeddings": shared,
        "tie_word_embeddings": tied,
        "lm_head_bias": False,
    }
    expected = {"model.shared.weight": source} if shared else {SOURCE: source, TARGET: target}
    if not tied:
        expected[LM_HEAD] = output
    assert mapper.state_dict.keys() == expected.keys()
    assert all(torch.equal(mapper.state_dict[name], weight) for name, weight in expected.items())
    assert not mapper.remaining


def test_ids_outside_the_smaller_target_vocabulary_are_never_generated():
    mapper = mapper_of(src=torch.randn(5, 2), tgt=torch.randn(3, 2), bias=torch.tensor([[1.0, 2.0, 3.0]]))
    map_embeddings(mapper, "src", "tgt", None, "bias")
    assert mapper.state_dict["lm_head.bias"].tolist() == [1, 2, 3, NEVER, NEVER]
    assert mapper.state_dict[TARGET][3:].eq(0).all()
    assert mapper.config_fields["vocab_size"] == 5
    assert "The smaller vocabulary is padded." in mapper.report.notes[0]


@pytest.mark.parametrize("layout", ["interleaved", "concatenated"])
def test_tables_of_sinusoids_are_computed(layout):
    table = sinusoids(torch.arange(7), 6, layout)
    mapper = mapper_of(encoder=table, decoder=table[:5])
    map_position_tables(mapper, "encoder", "decoder")
    assert mapper.config_fields == {
        "position_embedding": "sinusoidal",
        "sinusoid_layout": layout,
        "max_position_embeddings": 7,
    }
    assert not mapper.state_dict


def test_other_tables_are_learned_positions_of_the_shorter_length():
    encoder, decoder = torch.randn(7, 6), torch.randn(5, 6)
    mapper = mapper_of(encoder=encoder, decoder=decoder)
    map_position_tables(mapper, "encoder", "decoder")
    assert mapper.config_fields["position_embedding"] == "learned"
    assert mapper.config_fields["max_position_embeddings"] == 5
    assert torch.equal(mapper.state_dict["model.encoder.embed_positions.weight"], encoder[:5])
    assert torch.equal(mapper.state_dict["model.decoder.embed_positions.weight"], decoder)


def test_sinusoids_of_tensor2tensor_have_other_frequencies():
    table = tensor2tensor_sinusoids(9, 6)
    assert table.shape == (9, 6)
    assert table[1, 0].item() == pytest.approx(torch.tensor(1.0).sin().item())
    assert table[1, 2].item() == pytest.approx(torch.tensor(1e-4).sin().item(), rel=1e-4)
    assert not any(are_sinusoids(table, layout) for layout in ("interleaved", "concatenated"))
    assert tensor2tensor_sinusoids(2, 5)[:, 4].eq(0).all()
    with pytest.raises(ValueError, match="d_model must be at least 4 for sinusoids, got 3"):
        tensor2tensor_sinusoids(2, 3)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (range(2), "must have a token for each of 200 rows of the embedding, got 2"),
        ([*range(199), 200], "must have ids from 0 to 199, got 200"),
        ([*range(199), "x"], "must have ids from 0 to 199, got 'x'"),
        ([*range(199), -1], "must have ids from 0 to 199, got -1"),
    ],
)
def test_vocabularies_that_do_not_match_the_embedding(ids, message):
    with pytest.raises(ValueError, match=message):
        check_ids(Path("vocab.json"), ids, 200)
