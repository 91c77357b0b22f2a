"""Word dropout: which tokens are replaced, and when."""

import pytest
import torch

from modeling_random_transformer import RandomTransformerTokenizer
from modeling_random_transformer.training.methods.word_dropout import WordDropout
from tests.helpers.trainer import VOCAB_SIZE, new_trainer, pairs

TOKENIZER = RandomTransformerTokenizer.train(["a b"], vocab_size=VOCAB_SIZE, extra_special_tokens=["<tag>"])
CPU = torch.device("cpu")


def test_tokens_become_unk_with_the_probability_and_special_tokens_stay():
    torch.manual_seed(0)
    ids = torch.randint(4, 260, (100, 50))
    ids[:, :6] = torch.tensor([0, 1, 2, 3, TOKENIZER.convert_tokens_to_ids("<tag>"), 2])
    dropped = WordDropout(TOKENIZER, 0.3, CPU)(ids)
    assert torch.equal(dropped[:, :6], ids[:, :6])
    changed = dropped != ids
    assert (dropped[changed] == TOKENIZER.unk_token_id).all()
    assert changed[:, 6:].float().mean().item() == pytest.approx(0.3, abs=0.03)


def test_a_tokenizer_without_unk_token_raises_value_error():
    words = RandomTransformerTokenizer.from_words(["a", "S", "E"], bos_token="S", eos_token="E")
    with pytest.raises(ValueError, match=r"word_dropout must be 0 without a tokenizer with unk_token, got 0\.1"):
        WordDropout(words, 0.1, CPU)


def test_only_the_inputs_of_training_are_changed(tmp_path):
    trainer = new_trainer(
        tmp_path, word_dropout=0.5, max_steps=1, eval_dataset=pairs(6), save_strategy="no", predict_with_generate=False
    )
    seen = []

    def record(model, _args, kwargs):
        seen.append((model.training, kwargs["input_ids"], kwargs["decoder_input_ids"]))

    trainer.model.register_forward_pre_hook(record, with_kwargs=True)
    trainer.train()
    trainer.evaluate()
    unknown = trainer.processing_class.unk_token_id
    for training, source, target in seen:
        assert [(ids == unknown).any().item() for ids in (source, target)] == [training, training]
    assert {training for training, *_ in seen} == {True, False}
