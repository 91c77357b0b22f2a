"""The tokenizer of a run: special tokens that are added to a saved one, and the ids of a new model."""

from types import SimpleNamespace

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_random_transformer.training.tokenizer import load_tokenizer, special_ids
from tests.helpers.training import run


def test_special_tokens_are_added_to_a_saved_tokenizer(trained, corpus):
    saved = trained[1].folder
    options = {"tokenizer": str(saved), "vocab_size": None, "special_tokens": ["<bt>"], "max_steps": 2}
    result = run(corpus, "out", **options)
    base, tokenizer = (AutoTokenizer.from_pretrained(folder) for folder in (saved, result.folder))
    assert tokenizer("<bt> abc")["input_ids"] == [len(base), *base("abc")["input_ids"]]
    assert tokenizer.decode([len(base)], skip_special_tokens=True) == ""
    model = AutoModelForSeq2SeqLM.from_pretrained(result.folder)
    assert model.config.vocab_size == len(tokenizer) == len(base) + 1
    assert run(corpus, "out", **options).steps == 2
    assert len(load_tokenizer(str(result.folder), ["<bt>"])) == len(tokenizer)


@pytest.mark.parametrize(("bos_token_id", "start"), [(1, 1), (None, 0)])
def test_targets_start_with_the_padding_token_without_a_start_token(bos_token_id, start):
    tokenizer = SimpleNamespace(pad_token_id=0, bos_token_id=bos_token_id, eos_token_id=2)
    ids = {"pad_token_id": 0, "bos_token_id": bos_token_id, "eos_token_id": 2}
    assert special_ids(tokenizer) == {**ids, "decoder_start_token_id": start}
