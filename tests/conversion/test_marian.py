"""Conversion of MarianMT models and folders, compared with the originals."""

import json
import os

import pytest
import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    MarianMTModel,
    MarianTokenizer,
    T5Config,
    T5ForConditionalGeneration,
    pipeline,
)

from modeling_random_transformer.conversion import convert_marian, from_marian
from modeling_random_transformer.inference import translate
from tests.helpers.conversion import Call, check_refused
from tests.helpers.marian import ENGLISH, SPANISH, opus_folder, tiny_marian
from tests.helpers.references import relative_difference

VOCABULARY = {"</s>": 0, "<unk>": 1, **{f"▁w{i}": i + 2 for i in range(58)}, "<pad>": 60}
CASES = {
    "as OPUS-MT": {},
    "relu": {"activation_function": "relu", "encoder_layers": 1, "decoder_layers": 3},
    "gelu, not scaled": {"activation_function": "gelu", "scale_embedding": False},
    "mish, 4 heads": {"activation_function": "mish", "encoder_attention_heads": 4, "decoder_attention_heads": 4},
    "untied": {"tie_word_embeddings": False},
    "separate": {"share_encoder_decoder_embeddings": False},
    "separate, untied": {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False},
    "odd width": {"d_model": 15, "encoder_attention_heads": 3, "decoder_attention_heads": 3},
    "other specials": {"pad_token_id": 3, "decoder_start_token_id": 3, "eos_token_id": 7, "forced_eos_token_id": None},
    "one layer": {"d_model": 8, "encoder_layers": 1, "encoder_ffn_dim": 10, "decoder_ffn_dim": 10},
}


def batch_for(model: MarianMTModel) -> dict:
    mask = (torch.arange(9) < torch.tensor([9, 4, 1])[:, None]).long()
    ids = torch.randint(8, 60, mask.shape, generator=torch.Generator().manual_seed(2))
    return {"input_ids": ids.where(mask.bool(), model.config.pad_token_id), "attention_mask": mask}


def logits_of(model: MarianMTModel):
    return lambda ids, mask, target: model(input_ids=ids, attention_mask=mask, decoder_input_ids=target).logits


@pytest.mark.parametrize("case", CASES)
def test_logits_and_generation_equal_original(case):
    original = tiny_marian(**CASES[case])
    model, report = from_marian(original)
    assert relative_difference(model, logits_of(original)) < 1e-5
    batch = batch_for(original)
    for beams in (1, 4):
        options = {"num_beams": beams, "max_new_tokens": 14}
        assert torch.equal(model.generate(**batch, **options), original.generate(**batch, **options))
    assert {m.target for m in report.mapped} == {name for name, _ in model.named_parameters()}
    assert {m.source for m in report.mapped} | set(report.unused) == set(original.state_dict())
    changes = CASES[case]
    tied = changes.get("tie_word_embeddings", True)
    assert model.config.tie_word_embeddings == tied
    # Without tie_word_embeddings, transformers shares nothing, regardless of share_encoder_decoder_embeddings.
    assert model.config.share_embeddings == (tied and changes.get("share_encoder_decoder_embeddings", True))
    assert model.config.position_embedding == ("learned" if case == "odd width" else "sinusoidal")


def test_shared_embeddings_with_untied_output():
    original = tiny_marian(tie_word_embeddings=False)
    with torch.no_grad():
        for stack in (original.model.encoder, original.model.decoder):
            stack.embed_tokens.weight.copy_(original.model.shared.weight)
    model, _ = from_marian(original)
    assert model.config.share_embeddings
    assert not model.config.tie_word_embeddings
    assert relative_difference(model, logits_of(original)) < 1e-5


def test_generation_config_is_copied():
    original = tiny_marian()
    original.generation_config.update(num_beams=4, max_length=20, renormalize_logits=True)
    model, _ = from_marian(original)
    batch = batch_for(original)
    assert model.generation_config.to_dict() == original.generation_config.to_dict()
    assert torch.equal(model.generate(**batch), original.generate(**batch))
    assert model.generation_config is not original.generation_config


def test_output_is_limited_by_the_positions():
    """If Marian's generation config has no limit, with which MarianMTModel returns 20 tokens."""
    original = tiny_marian()
    original.generation_config.max_length = None
    model, _ = from_marian(original)
    ids = batch_for(original)["input_ids"]
    positions = original.config.max_position_embeddings
    assert model.generate(ids, min_length=positions - 1).shape[1] == positions
    original.generation_config.max_new_tokens = 5
    assert from_marian(original)[0].generation_config.max_length is None


def test_padding_is_suppressed():
    """The pad token has the highest logit and is only generated without OPUS-MT's `bad_words_ids`."""
    original = tiny_marian()
    original.final_logits_bias[0, 60] = 50.0
    model, _ = from_marian(original)
    batch, options = batch_for(original), {"num_beams": 4, "max_new_tokens": 5}
    suppressed = model.generate(**batch, **options)
    assert torch.equal(suppressed, original.generate(**batch, **options))
    assert suppressed[0, 1] != 60
    model.generation_config.bad_words_ids = None
    assert model.generate(**batch, **options)[0, 1] == 60


def test_trained_positions_become_learned_positions():
    original = tiny_marian()
    torch.nn.init.normal_(original.model.decoder.embed_positions.weight)
    model, report = from_marian(original)
    assert report.config["position_embedding"].value == "learned"
    assert relative_difference(model, logits_of(original)) < 1e-5


def test_half_precision_is_kept():
    original = tiny_marian().to(torch.bfloat16)
    model, _ = from_marian(original)
    assert model.dtype == torch.bfloat16
    assert model.config.position_embedding == "sinusoidal"
    assert relative_difference(model, logits_of(original)) < 2**-5


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "opus"
    tiny_marian().save_pretrained(path)
    (path / "vocab.json").write_text(json.dumps(VOCABULARY, ensure_ascii=False), encoding="utf-8")
    for name in ("source.spm", "target.spm"):
        (path / name).write_bytes(b"spm")
    # As on the Hub: without the class, which AutoTokenizer knows from Marian's model_type.
    (path / "tokenizer_config.json").write_text('{"source_lang": "en", "target_lang": "de"}')
    return path


def to_old_format(folder):
    """Rewrite a folder as in older releases: .bin weights with positions, and generation options in config.json."""
    model = MarianMTModel.from_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    config = json.loads((folder / "config.json").read_text())
    config |= {"bad_words_ids": [[60]], "num_beams": 6, "max_length": 24, "static_position_embeddings": True}
    config |= {"add_bias_logits": False, "normalize_before": False, "add_final_layer_norm": False}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").unlink()
    (folder / "generation_config.json").unlink()


@pytest.mark.parametrize("old", [False, True])
def test_convert_folder(folder, old, tmp_path):
    if old:
        to_old_format(folder)
    report = convert_marian(folder, tmp_path / "out")
    original = MarianMTModel.from_pretrained(folder).eval()
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    assert type(model).__name__ == "RandomTransformerForConditionalGeneration"
    assert relative_difference(model, logits_of(original)) < 1e-5
    batch = batch_for(original)
    assert model.generation_config.bad_words_ids == [[60]]
    assert model.generation_config.num_beams == original.generation_config.num_beams
    assert torch.equal(model.generate(**batch, max_length=24), original.generate(**batch, max_length=24))
    for name in ("source.spm", "target.spm", "vocab.json"):
        assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes()
    assert any("sentencepiece" in note for note in report.notes)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["opus", "out"]


@pytest.mark.parametrize("separate_vocabs", [False, True])
def test_tokenizer_is_copied(separate_vocabs, tmp_path):
    """AutoTokenizer, the pipeline and `translate` return the same results as with Marian's folder."""
    original = opus_folder(tmp_path / "opus", separate_vocabs)
    convert_marian(tmp_path / "opus", tmp_path / "out")
    tokenizer, theirs = (AutoTokenizer.from_pretrained(tmp_path / name) for name in ("out", "opus"))
    assert isinstance(tokenizer, MarianTokenizer)
    assert (tokenizer.source_lang, tokenizer.target_lang) == ("en", "es")
    batch = tokenizer(ENGLISH, text_target=SPANISH, padding=True)
    assert batch == theirs(ENGLISH, text_target=SPANISH, padding=True)
    assert tokenizer.batch_decode(batch["labels"], skip_special_tokens=True) == SPANISH
    options = {"num_beams": 4, "max_new_tokens": 12}
    expected = [answer["generated_text"] for answer in pipeline("seq2seq", str(tmp_path / "opus"))(ENGLISH, **options)]
    assert len(set(expected)) == len(ENGLISH)
    pipe = pipeline("seq2seq", str(tmp_path / "out"))
    assert [answer["generated_text"] for answer in pipe(ENGLISH, **options)] == expected
    translated = translate(ENGLISH, original, theirs, progress=False, **options)
    assert translate(ENGLISH, pipe.model, tokenizer, progress=False, **options) == translated


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "target_vocab.json").write_text("{"), "target_vocab.json must be a JSON file"),
        (lambda folder: (folder / "target_vocab.json").unlink(), "lacks target_vocab.json"),
        (lambda folder: (folder / "target.spm").unlink(), "lacks target.spm"),
        (
            lambda folder: (folder / "target_vocab.json").write_text(
                json.dumps({"<pad>": 29, "</s>": 0, **{f"w{i}": 1000 + i for i in range(28)}})
            ),
            "target_vocab.json must have ids from 0 to 29.*got 1027",
        ),
    ],
)
def test_invalid_tokenizer_writes_nothing(change, message, tmp_path):
    opus_folder(tmp_path / "opus", separate_vocabs=True)
    change(tmp_path / "opus")
    check_refused(message, tmp_path, convert_marian, tmp_path / "opus", tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoder_attention_heads": 4}, "^decoder_attention_heads must be encoder_attention_heads=2, got 4"),
        ({"decoder_ffn_dim": 32}, "^decoder_ffn_dim must be encoder_ffn_dim=24, got 32"),
        ({"decoder_vocab_size": 70, "share_encoder_decoder_embeddings": False}, "decoder_vocab_size"),
        ({"normalize_before": True}, "normalize_before"),
        ({"normalize_embedding": True}, "normalize_embedding"),
        ({"add_final_layer_norm": True}, "add_final_layer_norm"),
    ],
)
def test_unsupported_option_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        from_marian(tiny_marian(**changes))


def change_config(**changes):
    def change(folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))

    return change


def change_weights(change):
    def changed(folder):
        from safetensors.torch import load_file, save_file

        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return changed


def truncate(name: str, part: float):
    def change(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(part * len(content))])

    return change


def another_architecture(folder):
    config = T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    T5ForConditionalGeneration(config).save_pretrained(folder)


def another_vocabulary(**changes):
    return lambda folder: (folder / "vocab.json").write_text(json.dumps({**VOCABULARY, **changes}))


def with_code(folder):
    (folder / "model.safetensors").unlink()
    torch.save({"model.shared.weight": Call(os.system, f"touch {folder.parent}/ran")}, folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (another_architecture, "'t5'"),
        (with_code, "contains"),
        (truncate("model.safetensors", 0.5), "complete Marian model"),
        (truncate("model.safetensors", 0.0), "complete Marian model"),
        (truncate("config.json", 0.5), "config.json must be a JSON file"),
        (lambda f: (f / "config.json").unlink(), "config.json must be a JSON file"),
        (lambda f: (f / "config.json").write_text("[]"), "JSON object"),
        (lambda f: (f / "model.safetensors").unlink(), "complete Marian model"),
        (change_config(vocab_size=70, decoder_vocab_size=70), "shapes of config.json"),
        (change_config(activation_function="sine"), "sine"),
        (change_config(add_final_layer_norm=True), "add_final_layer_norm"),
        (change_weights(lambda w: w.pop("model.encoder.layers.1.fc1.bias")), r"lack model\.encoder\.layers\.1\.fc1"),
        (change_weights(lambda w: w.update({"adapter.weight": torch.ones(2)})), r"got adapter\.weight"),
        (another_vocabulary(more=61), "61 rows of the embedding, got 62"),
        (another_vocabulary(**{"▁w0": 61}), "ids from 0 to 60, got 61"),
        (another_vocabulary(**{"<pad>": 5}), "<pad>"),
        (another_vocabulary(**{"</s>": 5}), "</s>"),
        (lambda f: (f / "vocab.json").write_text("{"), "vocab.json"),
        (lambda f: tiny_marian(vocab_size=300).save_pretrained(f), "300 rows of the embedding, got 61"),
    ],
)
def test_invalid_folder_writes_nothing(folder, change, message, tmp_path):
    change(folder)
    check_refused(message, tmp_path, convert_marian, folder, tmp_path / "out")


def test_existing_output_is_not_overwritten(folder):
    with pytest.raises(ValueError, match="new or an empty folder"):
        convert_marian(folder, folder)
    assert (folder / "model.safetensors").is_file()


@pytest.mark.parametrize("wrong", [3, torch.nn.Linear(2, 2)])
def test_argument_of_wrong_type_raises(wrong):
    with pytest.raises(ValueError, match="MarianMTModel"):
        from_marian(wrong)
