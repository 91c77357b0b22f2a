"""Exercises 13, 14, 16 and 17: word vectors, subwords, long inputs, compression."""

from itertools import chain

import pytest
import torch

from tests.helpers.models import padded_batch, tiny_model
from tutorials.exercises import compression, long_inputs, subwords, word_vectors
from tutorials.sample_data import held_out_sample

# 13. Word vectors


@pytest.mark.long
def test_embeddings_of_nouns_separate_gender_and_number(quickstart_folder):
    result = word_vectors.experiment(seed=0, folder=quickstart_folder)
    assert result.one_hot_similarity == 0
    assert result.lookup_difference == 0
    assert abs(result.translations) < 0.15
    assert "roja" in dict(result.neighbors["rojo"])
    for nouns in result.languages.values():
        assert len(nouns.nouns) == 114
        assert min(nouns.accuracy.values()) > 0.8
        assert max(nouns.random.values()) < 0.7
        assert nouns.similarity["same kind"] > nouns.similarity["different kind"]
        assert nouns.analogies < 0.5  # nothing in the task requires a relation of singular and plural


def test_held_out_projections_of_separated_vectors():
    nouns = word_vectors.read_nouns("Spanish")
    genders = torch.tensor([[1.0 if noun.gender == "f" else -1.0] for noun in nouns])
    vectors = torch.cat([3 * genders, torch.zeros(len(nouns), 1)], dim=1)
    projections = word_vectors.held_out_projections(nouns, vectors, "gender")
    assert projections == pytest.approx(genders[:, 0].tolist())
    assert word_vectors.accuracy(nouns, projections, "gender") == 1


# 14. Subwords


@pytest.fixture(scope="module")
def texts():
    train, test = held_out_sample(subwords.PAIRS)
    return [*chain(*train)], [*chain(*test)]


def test_subwords_are_shorter_than_characters_and_have_no_unknown_words(texts):
    train, test = texts
    tokenizers = {kind: subwords.train_tokenizer(kind, train) for kind in subwords.COLORS}
    results = {kind: subwords.measure(tokenizer, test, bleu=0.0) for kind, tokenizer in tokenizers.items()}
    assert results["word"].unknown > 0.1
    assert "<unk>" in results["word"].sentence
    for kind in ("WordPiece", "BPE", "unigram"):
        assert results["word"].length < results[kind].length < results["character"].length / 2
    for kind in set(subwords.COLORS) - {"word"}:
        assert results[kind].unknown == 0
        assert "".join(results[kind].sentence).replace("##", "") == "▁" + subwords.SENTENCE.replace(" ", "▁")
        ids = tokenizers[kind](test)["input_ids"]
        assert tokenizers[kind].batch_decode(ids, skip_special_tokens=True) == test


@pytest.mark.long
def test_translators_of_words_and_characters_are_worse():
    result = subwords.experiment(seed=0, kinds=("word", "character", "BPE"))
    bleu = {kind: of.bleu for kind, of in result.kinds.items()}
    assert bleu["BPE"] > bleu["word"] + 3
    assert bleu["BPE"] > 2 * bleu["character"]


# 16. Long inputs


def test_memory_of_long_inputs():
    """Four times the length: eager attention needs 16 times the memory, the others about four times."""
    short, long = (long_inputs.measure_costs(length, seed=0, repeats=1) for length in (1024, 4096))
    growth = {name: long[name].megabytes / short[name].megabytes for name in short}
    assert growth.pop("eager") > 12
    assert all(3 < factor < 5 for factor in growth.values())


def test_peak_memory_counts_each_storage_once():
    with long_inputs.PeakMemory() as memory:
        first = torch.zeros(1000)
        _second = first.view(10, 100) + 1
        del first
        torch.zeros(500)
    assert memory.peak == 8000
    assert memory.total == 4000


@pytest.mark.long
def test_attention_must_reach_what_it_copies():
    near, far = long_inputs.COPY_LENGTHS[0], long_inputs.COPY_LENGTHS[-1]
    accuracy = {name: long_inputs.learn_to_copy(name, far, seed=0, steps=250) for name in ("sdpa", "copy_local")}
    accuracy["copy_strided"] = long_inputs.learn_to_copy("copy_strided", far, seed=0, steps=100)
    assert accuracy["sdpa"] > 0.7
    assert accuracy["copy_strided"] > 0.9
    assert accuracy["copy_local"] < 0.15  # 1/16 by chance
    assert long_inputs.learn_to_copy("copy_local", near, seed=0, steps=250) > 0.9


# 17. Compression


def test_shared_layers_have_the_weights_of_one_layer():
    model, one_layer = (tiny_model(encoder_layers=n, decoder_layers=n) for n in (3, 1))
    compression.share_layers(model)
    assert compression.weight_size(model) == compression.weight_size(one_layer)
    inputs = padded_batch([7, 4])
    model(**inputs, labels=inputs["input_ids"]).loss.backward()
    first, last = (model.model.decoder.layers[i] for i in (0, 2))
    assert first.encoder_attn.q_proj.weight is last.encoder_attn.q_proj.weight
    assert last.encoder_attn.layer_idx == 2


def test_shared_layers_generate_with_a_cache():
    model = tiny_model(spread=1.5).double()
    compression.share_layers(model)
    options = {"max_new_tokens": 8, "do_sample": False}
    expected = model.generate(**padded_batch([7, 4]), use_cache=False, **options)
    assert torch.equal(model.generate(**padded_batch([7, 4]), **options), expected)


def test_size_of_a_head():
    """A model with half of the heads is smaller by half of all heads of all attentions."""
    two, one = (tiny_model(num_heads=heads, d_k=8, encoder_layers=1, decoder_layers=1) for heads in (2, 1))
    difference = compression.weight_size(two) - compression.weight_size(one)
    assert difference == pytest.approx(3 * compression.head_size(two))


def test_first_layer_remains():
    model = tiny_model(encoder_layers=2, decoder_layers=3)
    compression.keep_first_layer(model)
    assert [len(stack.layers) for stack in model.model.stacks] == [1, 1]
    assert model.generate(**padded_batch([7, 4]), max_new_tokens=3).shape[0] == 2


@pytest.mark.long
def test_size_and_quality_of_compressed_models(quickstart_folder):
    result = compression.experiment(seed=0, folder=quickstart_folder, pruned=(0.25, 0.75))
    complete, int8, quarter, most, shared, first = result
    assert complete.bleu > 95
    assert int8.megabytes < 0.5 * complete.megabytes
    assert int8.bleu > complete.bleu - 3
    assert complete.megabytes > quarter.megabytes > most.megabytes > shared.megabytes == first.megabytes
    assert quarter.bleu > 60 > 30 > most.bleu
    assert shared.bleu > most.bleu + 30
