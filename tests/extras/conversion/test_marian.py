"""Conversion of MarianMT models and folders, compared with the originals."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    MarianMTModel,
    MarianTokenizer,
    PegasusConfig,
    PegasusForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
    pipeline,
)

from modeling_random_transformer.extras.conversion import convert_marian, from_marian
from tests.helpers.conversion import Call, check_conversion_error
from tests.helpers.marian import ENGLISH, OPTIONS, SPANISH, opus_folder, tiny_marian
from tests.helpers.marian_npz import save_npz
from tests.helpers.references import relative_difference

NESTED = '{"a":' * 100_000
SEPARATE, UNTIED = {"share_encoder_decoder_embeddings": False}, {"tie_word_embeddings": False}
CASES = {
    "as OPUS-MT": {},
    "relu": {"activation_function": "relu", "encoder_layers": 1, "decoder_layers": 3},
    "mish, 4 heads": {"activation_function": "mish", "encoder_attention_heads": 4, "decoder_attention_heads": 4},
    "untied": UNTIED,
    "separate": {**SEPARATE, "activation_function": "gelu", "scale_embedding": False},
    "separate, untied": {**SEPARATE, **UNTIED},
    "odd width": {"d_model": 15, "encoder_attention_heads": 3, "decoder_attention_heads": 3},
    "other specials": {"pad_token_id": 3, "decoder_start_token_id": 3, "eos_token_id": 7, "forced_eos_token_id": None},
    "equal, untied": UNTIED,
    "trained positions": {},
}


def batch_for(model: MarianMTModel) -> dict:
    mask = (torch.arange(9) < torch.tensor([9, 4, 1])[:, None]).long()
    ids = torch.randint(8, 60, mask.shape, generator=torch.Generator().manual_seed(2))
    return {"input_ids": ids.where(mask.bool(), model.config.pad_token_id), "attention_mask": mask}


def logits_of(model: MarianMTModel):
    return lambda ids, mask, target: model(input_ids=ids, attention_mask=mask, decoder_input_ids=target).logits


@pytest.mark.parametrize("case", CASES)
def test_logits_and_generation_equal_original(case):
    changes = CASES[case]
    original = tiny_marian(**changes)
    if case == "equal, untied":
        for stack in (original.model.encoder, original.model.decoder):
            stack.embed_tokens.weight.data = original.model.shared.weight.data.clone()
    if case == "trained positions":
        torch.nn.init.normal_(original.model.decoder.embed_positions.weight)
    model, report = from_marian(original)
    assert relative_difference(model, logits_of(original)) < 1e-5
    batch, options = batch_for(original), {"num_beams": 4, "max_new_tokens": 10}
    assert torch.equal(model.generate(**batch, **options), original.generate(**batch, **options))
    assert {m.target for m in report.mapped} == {name for name, _ in model.named_parameters()}
    assert {m.source for m in report.mapped} | set(report.unused) == set(original.state_dict())
    tied = changes.get("tie_word_embeddings", True)
    assert model.config.tie_word_embeddings == tied
    # Without tie_word_embeddings, transformers shares nothing, regardless of share_encoder_decoder_embeddings.
    shared = case == "equal, untied" or (tied and changes.get("share_encoder_decoder_embeddings", True))
    assert model.config.share_embeddings == shared
    is_learned = case in ("odd width", "trained positions")
    assert model.config.position_embedding == ("learned" if is_learned else "sinusoidal")


def test_pegasus_without_a_start_token():
    """Its configuration has no field for `<s>`."""
    sizes = {name: value for name, value in OPTIONS.items() if "token" not in name}
    original = PegasusForConditionalGeneration(PegasusConfig(**sizes)).eval()
    model, _ = from_marian(original)
    assert relative_difference(model, logits_of(original)) < 1e-5
    assert model.config.bos_token_id == getattr(original.config, "bos_token_id", None)


def test_half_precision_is_kept():
    original = tiny_marian().to(torch.bfloat16)
    model, _ = from_marian(original)
    assert model.dtype == torch.bfloat16
    assert model.config.position_embedding == "sinusoidal"
    assert relative_difference(model, logits_of(original)) < 2**-5


def test_generation_config_is_copied():
    """Without a limit, outputs are limited by the positions; MarianMTModel returns 20 tokens."""
    original = tiny_marian()
    original.generation_config.update(num_beams=4, max_length=20, renormalize_logits=True)
    model, _ = from_marian(original)
    batch = batch_for(original)
    assert model.generation_config.to_dict() == original.generation_config.to_dict()
    assert torch.equal(model.generate(**batch), original.generate(**batch))
    assert model.generation_config is not original.generation_config
    original.generation_config.max_length = None
    model, _ = from_marian(original)
    ids = batch_for(original)["input_ids"]
    positions = original.config.max_position_embeddings
    assert model.generate(ids, min_length=positions - 1).shape[1] == positions
    original.generation_config.max_new_tokens = 5
    assert from_marian(original)[0].generation_config.max_length is None


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """Folders with one vocabulary and with one for each language."""
    folder = tmp_path_factory.mktemp("marian")
    return {
        separate: (folder / str(separate), opus_folder(folder / str(separate), separate)) for separate in (False, True)
    }


@pytest.fixture
def folder(originals, tmp_path):
    return Path(shutil.copytree(originals[True][0], tmp_path / "opus"))


def add_to(path: Path, **entries: Any) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, **entries}))


def test_folder_of_an_old_release(originals, tmp_path):
    """.bin weights with positions, and the options of the search in config.json."""
    folder = Path(shutil.copytree(originals[False][0], tmp_path / "opus"))
    original = MarianMTModel.from_pretrained(folder).eval()
    torch.save(original.state_dict(), folder / "pytorch_model.bin")
    options = {"bad_words_ids": [[original.config.pad_token_id]], "num_beams": 6, "max_length": 24}
    add_to(folder / "config.json", **options, static_position_embeddings=True, add_final_layer_norm=False)
    (folder / "model.safetensors").unlink()
    (folder / "generation_config.json").unlink()
    convert_marian(folder, tmp_path / "out")
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    assert type(model).__name__ == "RandomTransformerForConditionalGeneration"
    assert relative_difference(model, logits_of(original)) < 1e-5
    saved_options = model.generation_config.to_dict()
    assert {name: saved_options[name] for name in options} == options
    assert sorted(path.name for path in tmp_path.iterdir()) == ["opus", "out"]


@pytest.mark.parametrize("separate_vocabs", [False, True])
def test_tokenizer_is_copied(originals, separate_vocabs, tmp_path):
    """AutoTokenizer and the pipeline return the same results as with Marian's folder."""
    source, original = originals[separate_vocabs]
    report = convert_marian(source, tmp_path / "out")
    assert any("sentencepiece" in note for note in report.notes)
    tokenizer, theirs = (AutoTokenizer.from_pretrained(path) for path in (tmp_path / "out", source))
    assert isinstance(tokenizer, MarianTokenizer)
    assert (tokenizer.source_lang, tokenizer.target_lang) == ("en", "es")
    batch = tokenizer(ENGLISH, text_target=SPANISH, padding=True)
    assert batch == theirs(ENGLISH, text_target=SPANISH, padding=True)
    assert tokenizer.batch_decode(batch["labels"], skip_special_tokens=True) == SPANISH
    pipe, options = pipeline("seq2seq", str(tmp_path / "out")), {"num_beams": 4, "max_new_tokens": 12}
    inputs = theirs(ENGLISH, padding=True, return_tensors="pt")
    expected = theirs.batch_decode(original.generate(**inputs, **options), skip_special_tokens=True)
    assert len(set(expected)) == len(ENGLISH)
    assert [answer["generated_text"] for answer in pipe(ENGLISH, **options)] == expected


def test_folder_without_a_tokenizer(folder, tmp_path):
    (folder / "vocab.json").unlink()
    report = convert_marian(folder, tmp_path / "out")
    assert any("no tokenizer was copied" in note for note in report.notes)
    assert not list((tmp_path / "out").glob("*.spm"))


def test_unknown_settings_are_not_copied(folder, tmp_path):
    """They may refer to code or to other files."""
    settings = {
        "auto_map": {"AutoTokenizer": ["tokenization_evil.Evil", None]},
        "special_tokens_map_file": "/etc/passwd",
        "sp_model_kwargs": {"nbest_size": 0, "model_file": "/etc/passwd"},
        "model_max_length": 77,
    }
    add_to(folder / "tokenizer_config.json", **settings)
    add_to(folder / "special_tokens_map.json", eos_token="</s>", auto_map={"AutoTokenizer": "evil.Evil"})
    add_to(folder / "generation_config.json", auto_map={"a": "b"}, custom_generate="evil/evil", num_beams=3)
    add_to(folder / "config.json", transformers_weights="../x.safetensors")
    report = convert_marian(folder, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    expected = {"source_lang": "en", "target_lang": "es", "separate_vocabs": True, "model_max_length": 77}
    assert written == {**expected, "eos_token": "</s>", "tokenizer_class": "MarianTokenizer"}
    assert any("auto_map" in note for note in report.notes)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").model_max_length == 77
    search = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert search["num_beams"] == 3
    assert not {"auto_map", "custom_generate"} & search.keys()


Change = Callable[[Path], Any]


def change_json(name: str, **changes: Any) -> Change:
    return lambda folder: add_to(folder / name, **changes)


def change_weights(change: Callable[[dict], Any]) -> Change:
    def changed(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return changed


def replace(name: str, text: str | None) -> Change:
    return lambda folder: (folder / name).write_text(text) if text is not None else (folder / name).unlink()


def another_architecture(folder: Path) -> None:
    config = T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    T5ForConditionalGeneration(config).save_pretrained(folder)


def with_code(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"model.shared.weight": Call(os.system, f"touch {folder.parent}/ran")}, folder / "pytorch_model.bin")


def shards_in_other_folder(folder: Path) -> None:
    """Only files in the folder are read."""
    shutil.move(folder / "model.safetensors", folder.parent / "x.safetensors")
    names = load_file(folder.parent / "x.safetensors")
    add_to(folder / "model.safetensors.index.json", weight_map=dict.fromkeys(names, "../x.safetensors"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (another_architecture, "'t5'"),
        (with_code, "contains"),
        (shards_in_other_folder, "must contain the weights as model.safetensors or pytorch_model.bin, got neither"),
        (replace("model.safetensors", "x"), "model.safetensors must be a complete file of weights"),
        (replace("config.json", None), "config.json must be a JSON file"),
        (replace("config.json", "[]"), "JSON object"),
        *(
            (replace(name, NESTED), ".")
            for name in ("config.json", "tokenizer_config.json", "vocab.json", "generation_config.json")
        ),
        (
            change_json("config.json", vocab_size=70, decoder_vocab_size=70),
            "must have the shape .* of config.json, got",
        ),
        (change_json("config.json", activation_function="sine"), "sine"),
        (change_json("config.json", decoder_attention_heads=4), "must be encoder_attention_heads=2, got 4"),
        (change_json("config.json", decoder_vocab_size=70), "decoder_vocab_size must be vocab_size=30, got 70"),
        (change_json("config.json", normalize_embedding=True), "normalize_embedding must be off, got True"),
        (change_json("config.json", encoder_layers=10**6), "encoder_layers must be .* 1 to 4096, got 1000000"),
        (
            change_weights(lambda w: w.pop("model.encoder.layers.1.fc1.bias")),
            r"must contain all weights .* got none for .*\.layers\.1\.fc1\.bias",
        ),
        (
            change_weights(lambda w: w.update({"adapter.weight": torch.ones(2)})),
            r"must contain only weights .* got adapter\.weight",
        ),
        (change_json("vocab.json", more=61), "rows of the embedding, got "),
        (change_json("target_vocab.json", **{"▁w": 61}), "rows of the embedding, got "),
        (change_json("target_vocab.json", **{"<unk>": 1027}), "target_vocab.json must have ids from 0 to 29.*got 1027"),
        (change_json("vocab.json", **{"</s>": 5}), "must map </s> to eos_token_id of config.json, 0, got 5"),
        (replace("target_vocab.json", "{"), "target_vocab.json must be a JSON file"),
        (replace("target.spm", None), "lacks target.spm"),
    ],
)
def test_invalid_folder_writes_nothing(folder, change, message, tmp_path):
    change(folder)
    check_conversion_error(message, tmp_path, convert_marian, folder, tmp_path / "out")


def test_other_arguments(tmp_path):
    """For Marian's own format, the other function is suggested."""
    with pytest.raises(ValueError, match=r"must be a folder or one of MarianMTModel, .*, got Linear"):
        from_marian(torch.nn.Linear(2, 2))
    for path in (save_npz(tmp_path / "model.npz"), tmp_path):
        message = r"must contain a MarianMT model, got a \.npz file for convert_marian_npz in "
        check_conversion_error(message, tmp_path, convert_marian, path, tmp_path / "out")
