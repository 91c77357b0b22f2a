"""Training that starts from a parent with another vocabulary."""

import pytest
import torch
from tokenizers import Regex, Tokenizer, pre_tokenizers, trainers
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedTokenizerFast

from modeling_random_transformer import RandomTransformerTokenizer
from modeling_random_transformer.extras.vocabulary_transfer.parent import pieces_of_tokens, with_vocabulary
from modeling_random_transformer.training.tokenizer import load_tokenizer
from tests.helpers.marian import train_sentencepiece
from tests.helpers.models import tiny_model
from tests.helpers.training import UNSCORED, run

OLD = RandomTransformerTokenizer.train(
    ["the red car", "a red dog"] * 4, vocab_size=290, languages=["en"], src_lang="en"
)
NEW = RandomTransformerTokenizer.train(["the red wagon"] * 4, vocab_size=300, languages=["sw", "en"])


def vocabularies(model):
    return {name: weight for name, weight in model.state_dict().items() if len(weight) == model.config.vocab_size}


@pytest.mark.parametrize(
    "options",
    [
        {"decoder_start_token_id": 0, "lm_head_bias": True, "share_embeddings": False, "tie_word_embeddings": False},
        {"position_embedding": "learned", "use_cache": False},  # as a Trainer saves it
    ],
)
def test_all_other_weights_and_shared_tokens_are_the_parents(options):
    parent = tiny_model(vocab_size=len(OLD), **options)
    child = with_vocabulary(parent, OLD, NEW)
    assert (child.config.vocab_size, child.config.decoder_start_token_id) == (len(NEW), NEW.bos_token_id)
    assert child.generation_config.use_cache
    known, tokens = OLD.get_vocab(), NEW.get_vocab()
    shared = [token for token in tokens if token in known and token not in ("<s>", "<unk>")]
    assert {"<pad>", "</s>", "__en__", "Ġred", "the", "Ã"} <= {*shared}
    new, old = ([ids[token] for token in shared] for ids in (tokens, known))
    for name, weight in child.state_dict().items():
        before = parent.state_dict()[name]
        if name not in vocabularies(child):
            assert torch.equal(weight, before)
            continue
        assert torch.equal(weight[new], before[old])
        assert torch.equal(weight[NEW.bos_token_id], before[parent.config.decoder_start_token_id])


def test_new_tokens_are_means_of_their_pieces():
    pieces = dict(zip(NEW.convert_ids_to_tokens(range(len(NEW))), pieces_of_tokens(OLD, NEW), strict=True))
    assert [OLD.convert_ids_to_tokens(ids) for ids in (pieces["Ġwagon"], pieces["Ġred"])] == [
        ["Ġ", "w", "a", "g", "o", "n"],
        ["Ġred"],
    ]
    assert pieces["__sw__"] == []
    parent = tiny_model(vocab_size=len(OLD))
    child = with_vocabulary(parent, OLD, NEW)
    embedding, weight = parent.get_input_embeddings().weight, child.get_input_embeddings().weight
    rows = embedding[pieces["Ġwagon"]]
    new_row = weight[NEW.convert_tokens_to_ids("Ġwagon")]
    torch.testing.assert_close(new_row.norm(), rows.norm(dim=1).mean())
    torch.testing.assert_close(new_row / new_row.norm(), rows.mean(dim=0) / rows.mean(dim=0).norm())
    torch.testing.assert_close(weight[NEW.convert_tokens_to_ids("__sw__")], embedding.mean(dim=0))


def test_words_of_a_sentencepiece_model_are_shared(tmp_path):
    pytest.importorskip("sentencepiece")
    pytest.importorskip("modeling_random_transformer.extras.sentencepiece")
    file = tmp_path / "parent.spm"
    train_sentencepiece(file, ["the red car", "a red dog", "big red cars"] * 9, vocab_size=40, model_type="bpe")
    parent = load_tokenizer(str(file))
    new = RandomTransformerTokenizer.train(["a red car"] * 9, vocab_size=300)
    parent_pieces = dict(zip(new.convert_ids_to_tokens(range(len(new))), pieces_of_tokens(parent, new), strict=True))
    assert parent.convert_ids_to_tokens(parent_pieces["Ġred"]) == ["▁red"]
    assert parent_pieces["Ã"] == []  # a part of a character
    back = dict(zip(parent.convert_ids_to_tokens(range(len(parent))), pieces_of_tokens(new, parent), strict=True))
    assert new.convert_ids_to_tokens(back["▁red"]) == ["Ġred"]


JOINED = ["don't can't l'eau", "क्‍ष می‌خواهم 👩‍🚀", "3,5 a_b x²"]


def with_other_pattern(pattern):
    """A tokenizer whose tokens the pattern of the package would split."""
    backend = Tokenizer.from_str(RandomTransformerTokenizer.train(["a"], vocab_size=300).backend_tokenizer.to_str())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), behavior="isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    names = ["<pad>", "<s>", "</s>", "<unk>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=names, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(JOINED * 9, trainer)
    roles = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), names, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=backend, **roles)


@pytest.mark.parametrize("parent", [with_other_pattern(r" ?\S+"), with_other_pattern(r" ?[^']+|'")])
@pytest.mark.parametrize("child", [with_other_pattern(r" ?\S+"), RandomTransformerTokenizer.train(JOINED * 9, 400)])
def test_every_token_of_both_vocabularies_is_its_only_piece(parent, child):
    known = parent.get_vocab()
    pieces = pieces_of_tokens(parent, child)
    shared = {token: index for token, index in child.get_vocab().items() if token in known}
    assert len(shared) > 270
    assert all(pieces[index] == [known[token]] for token, index in shared.items())


def test_a_parent_without_a_tokenizer_fails_early_with_its_name(finished, tmp_path):
    tiny_model().save_pretrained(tmp_path / "parent")
    options = {"config_overrides": "", "model_name_or_path": str(tmp_path / "parent"), "vocab_size": 270}
    with pytest.raises(ValueError, match=r"model_name_or_path must be a saved model with its tokenizer, got .*parent"):
        run(finished, tmp_path / "out", **options, **UNSCORED)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("vocab_size", [270, None])
def test_a_run_with_another_vocabulary(finished, tmp_path, vocab_size):
    NEW.save_pretrained(tmp_path / "tokenizer")
    saved = {"tokenizer": str(tmp_path / "tokenizer"), "source_lang": "en", "target_lang": "sw"}
    options = {"vocab_size": vocab_size} | ({} if vocab_size else saved)
    common = {"config_overrides": "", "model_name_or_path": str(finished / "out"), "max_steps": 2, **UNSCORED}
    result = run(finished, tmp_path / "out", **common, **options, learning_rate=1e-12, average_last=1)
    model, tokenizer = (
        auto_class.from_pretrained(result.folder) for auto_class in (AutoModelForSeq2SeqLM, AutoTokenizer)
    )
    parent = AutoModelForSeq2SeqLM.from_pretrained(finished / "out")
    assert model.config.vocab_size == len(tokenizer) != parent.config.vocab_size
    layer = "model.encoder.layers.0.fc1.weight"
    torch.testing.assert_close(model.state_dict()[layer], parent.state_dict()[layer])
    card = (result.folder / "README.md").read_text()
    assert "started from the weights of `out` and another vocabulary, trained on 120 pairs" in " ".join(card.split())
