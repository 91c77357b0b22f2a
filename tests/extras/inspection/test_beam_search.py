"""The candidates of a beam search, compared with `generate()`."""

import copy
import itertools

import pytest
import torch

from modeling_random_transformer.extras.inspection.beam_search import record_search, trim_padding

SENTENCE = "the old king visits the white houses"
OPTIONS = (
    {},
    {"length_penalty": 0.0},
    {"length_penalty": 2.0, "early_stopping": True},
    {"length_penalty": 2.0, "early_stopping": True, "patience": 2},
    {"num_beams": 1},
    {"forced_bos_token_id": 20, "no_repeat_ngram_size": 2},
)


@pytest.fixture(scope="module", params=OPTIONS, ids=str)
def search(request, translator, tokenizer):
    """Options, the record of a search, and the output of the same search without a record."""
    inputs = tokenizer(SENTENCE, return_tensors="pt")
    options = {"num_beams": 4, "max_new_tokens": 9, **request.param}
    options["num_return_sequences"] = options["num_beams"]
    recorded, candidates = record_search(translator, inputs, **options)
    settings = {"do_sample": False, "return_dict_in_generate": True, "output_scores": True}
    return options, recorded, candidates, translator.generate(**inputs, **options, **settings)


def path(candidates, one):
    """The candidates from the first token to this one."""
    return [] if one.parent is None else [*path(candidates, candidates[one.parent]), one]


def test_sequences_and_scores_are_those_of_generate(search):
    options, recorded, candidates, expected = search
    assert torch.equal(recorded.sequences, expected.sequences)
    finished = sorted((one for one in candidates if one.place is not None), key=lambda one: one.place)
    assert len(finished) == len(expected.sequences)
    for one, ids in zip(finished, expected.sequences, strict=True):
        assert [step.id for step in path(candidates, one)] == trim_padding(ids, torch.tensor([2]))[1:].tolist()
    if options["num_beams"] > 1:
        torch.testing.assert_close(torch.tensor([one.score for one in finished]), expected.sequences_scores)
    else:
        rows = [logits[0].log_softmax(-1) for logits in expected.scores]
        total = sum(row[step.id].item() for row, step in zip(rows, path(candidates, finished[0]), strict=True))
        assert finished[0].total == pytest.approx(total, abs=1e-4)


def test_each_status_follows_from_the_candidates_of_its_step(search):
    """Each status follows from the values of the candidates of its step."""
    options, _, candidates, _ = search
    num_beams, penalty = options["num_beams"], options.get("length_penalty", 1.0)
    worst = min(one.score for one in candidates if one.place is not None)
    for depth, group in itertools.groupby(candidates[1:], key=lambda one: one.depth):
        step = list(group)
        assert [one.rank for one in step] == list(range(len(step)))
        assert all(first.total >= second.total for first, second in itertools.pairwise(step))
        kept = [one for one in step if one.status == "kept"]
        assert len(kept) <= num_beams
        for one in step:
            assert one.total == pytest.approx(candidates[one.parent].total + one.log_probability)
            assert candidates[one.parent].status == "kept"
            ends = one.id == 2
            assert (one.score is None) == (not ends and one.place is None)
            assert one.score is None or one.score == pytest.approx(one.total / depth**penalty)
            assert (one.attention is not None) == (one.status == "kept")
            assert (one.status == "finished") == (one.place is not None)
            if one.status == "low":
                assert not ends
                assert all(one.total <= better.total for better in kept)
            elif one.status == "late":
                assert ends
                assert one.rank >= num_beams
            elif one.status == "displaced":
                assert one.score <= worst
            elif one.status == "stopped":
                assert depth == candidates[-1].depth


def test_statuses_occur(translator, tokenizer):
    """In the searches above; otherwise the conditions were not tested."""
    inputs = tokenizer(SENTENCE, return_tensors="pt")
    statuses = set()
    for options in OPTIONS:
        statuses |= {
            one.status
            for one in record_search(translator, inputs, **{"num_beams": 4, "max_new_tokens": 9, **options})[1]
        }
    assert statuses == {"kept", "finished", "low", "late", "displaced", "stopped"}


def test_options_of_a_generation_config(translator, tokenizer):
    inputs = tokenizer([SENTENCE], return_tensors="pt")
    config = copy.deepcopy(translator.generation_config)
    config.update(length_penalty=2.0, max_new_tokens=8, num_beams=2, num_return_sequences=2)
    outputs, candidates = record_search(translator, inputs, num_beams=2, generation_config=config)
    scores = {one.place: one.score for one in candidates if one.place is not None}
    torch.testing.assert_close(torch.tensor([scores[0], scores[1]]), outputs.sequences_scores)


def test_several_sources_are_an_error(translator, tokenizer):
    with pytest.raises(ValueError, match="inputs must be one row, got 2"):
        record_search(translator, tokenizer([SENTENCE, "the boy"], padding=True, return_tensors="pt"), num_beams=2)


def test_sampling_is_an_error(translator, tokenizer):
    with pytest.raises(ValueError, match="do_sample must be False for a beam search, got True"):
        record_search(translator, tokenizer(SENTENCE, return_tensors="pt"), num_beams=2, do_sample=True)


def test_cross_attention_of_a_candidate(translator, tokenizer):
    """The means over the heads while its last token was predicted."""
    inputs = tokenizer(SENTENCE, return_tensors="pt")
    _, candidates = record_search(translator, inputs, num_beams=3, max_new_tokens=6, min_new_tokens=6)
    one = next(one for one in candidates if one.depth == 4 and one.rank == 2)
    ids = torch.tensor([[candidates[0].id, *(step.id for step in path(candidates, one))]])
    translator.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = translator(**inputs, decoder_input_ids=ids[:, :-1], output_attentions=True).cross_attentions
    translator.set_attn_implementation("sdpa")
    expected = torch.stack([weights[0, :, -1].mean(0) for weights in attentions])
    torch.testing.assert_close(candidates[one.parent].attention, expected, rtol=0, atol=1e-5)


def test_padding_after_the_first_end_token_is_trimmed():
    ends = torch.tensor([2])
    assert trim_padding(torch.tensor([1, 5, 2, 0, 0]), ends).tolist() == [1, 5, 2]
    assert trim_padding(torch.tensor([2, 5, 6]), ends).tolist() == [2, 5, 6]
