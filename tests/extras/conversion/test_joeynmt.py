"""Conversion of JoeyNMT's models, compared with a forward pass written for the tests."""

import shutil

import pytest
import torch
from sentencepiece import SentencePieceProcessor
from torch.nn.functional import gelu, silu
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_random_transformer.extras.conversion import convert_joeynmt, from_joeynmt
from tests.extras.sentencepiece.test_sentencepiece import CORPUS, train
from tests.helpers.conversion import Call, assert_same_as_reference, check_conversion_error
from tests.helpers.other_tools import Original, random_weights, write_joeynmt

PRE = {"encoder_normalize_before": True}
STACKS = ("encoder", "decoder")


def both(name, value):
    return {f"model__{stack}__{name}": value for stack in STACKS}


@pytest.mark.parametrize(
    ("options", "changes", "reference"),
    [
        (PRE, {}, {}),
        ({"share_decoder_input_output_embed": True}, both("layer_norm", "post"), {}),
        (PRE, both("activation", "swish") | both("embeddings__scale", False), {"scale": False, "act": silu}),
        (PRE, both("activation", "gelu"), {"act": gelu}),
    ],
    ids=["pre-norm", "post-norm", "swish, not scaled", "gelu"],
)
def test_logits_and_search_equal_reference(options, changes, reference, tmp_path):
    weights = random_weights(**options)
    write_joeynmt(tmp_path, weights, **changes)
    report = convert_joeynmt(tmp_path, tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    is_pre_norm = bool(options.get("encoder_normalize_before"))
    original = Original(weights, tokenizer, before=is_pre_norm, **{"epsilon": 1e-6, **reference})
    assert_same_as_reference(model, tokenizer, report, original)
    assert model.config.decoder_start_token_id == tokenizer.bos_token_id


def test_folder_with_two_vocabularies_and_codes(tmp_path):
    """The tokenizer joins the vocabularies. A token that is missing from one is <unk> there."""
    weights = random_weights(**PRE)
    lower_case = {"data__src__lowercase": True, "data__trg__lowercase": True}
    search = {"testing__repetition_penalty": 1.2, "testing__no_repeat_ngram_size": -1}
    write_joeynmt(tmp_path, weights, **lower_case, **search)
    report = convert_joeynmt(tmp_path, tmp_path / "out")
    dropped = [note.partition(" was dropped")[0] for note in report.notes if "was dropped" in note]
    assert dropped == ["testing.beam_alpha=1.0", "testing.repetition_penalty=1.2"]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("S3 Hello s0")["input_ids"])
    assert tokens == ["s3</w>", "hel", "lo</w>", "s0</w>", "</s>"]
    assert tokenizer.decode(tokenizer("hello world")["input_ids"], skip_special_tokens=True) == "hello world"
    assert (model.generation_config.num_beams, model.generation_config.min_new_tokens) == (5, 1)
    assert model.generation_config.suppress_tokens == [tokenizer.pad_token_id, tokenizer.bos_token_id]


SPECIAL_TOKENS = ["<unk>", "<pad>", "<s>", "</s>"]


def test_sentencepiece_model(tmp_path):
    """The tokens are those of sentencepiece, and each has the embedding of JoeyNMT's row."""
    processor: SentencePieceProcessor = train(tmp_path / "sp.model")
    pieces = [processor.id_to_piece(i) for i in range(len(processor))]
    tokens = [*SPECIAL_TOKENS, *(piece for piece in pieces if piece not in SPECIAL_TOKENS), "<de>"]
    weights = random_weights(share_all_embeddings=True, **PRE)
    table = torch.randn(len(tokens), 16)
    weights |= {name: table for name in weights if "embed_tokens" in name or "output_projection" in name}
    sides = {f"data__{side}__tokenizer_type": "sentencepiece" for side in ("src", "trg")}
    sides |= {f"data__{side}__tokenizer_cfg": {"model_file": "/other/sp.model"} for side in ("src", "trg")}
    write_joeynmt(tmp_path, weights, **sides)
    for side in ("src", "trg"):
        (tmp_path / f"{side}_vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    convert_joeynmt(tmp_path / "best.ckpt", tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    ids = tokenizer(CORPUS[0])["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == [*processor.encode(CORPUS[0], out_type=str), "</s>"]
    rows = [tokens.index(token) for token in tokenizer.convert_ids_to_tokens(ids)]
    assert torch.equal(model.model.shared.weight[ids], table[rows])
    assert tokenizer.decode(ids, skip_special_tokens=True) == CORPUS[0]
    assert "<de>" in tokenizer.get_vocab()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model__encoder__type": "recurrent"}, "model.encoder.type must be 'transformer', got 'recurrent'"),
        (
            {"model__decoder__layer_norm": "post"},
            "model.decoder.layer_norm must be model.encoder.layer_norm='pre', got",
        ),
        ({"model__encoder__layer_norm": None, "model__decoder__layer_norm": None}, "model.decoder.layer_norm must be"),
        ({"model__decoder__num_heads": 4}, "model.decoder.num_heads must be model.encoder.num_heads=2, got 4"),
        ({"model__encoder__num_layers": 3}, "must contain the weight 'encoder.layers.2.*', which is missing"),
        ({"model__decoder__num_layers": 1}, "without a counterpart in this model, got decoder.layers.1."),
        ({"model__encoder__num_heads": -1}, "model.encoder.num_heads must be an integer from 1 to"),
        ({"model__encoder__activation": "tanh"}, "model.encoder.activation must be one of relu, gelu, swish"),
        (
            {"model__decoder__embeddings__scale": False},
            "model.decoder.embeddings.scale must be model.encoder.embeddings.scale=True, got",
        ),
        ({"model__encoder__alpha": 1.5}, "model.encoder.alpha must be 1.0, got 1.5"),
        ({"model__initializer": "xavier_normal"}, "model.initializer must be another one than 'xavier_normal', got"),
        ({"data__special_symbols__sep_token": "<sep>"}, "data.special_symbols.sep_token must be off"),
        ({"data__special_symbols__eos_token": "<end>"}, "must contain the special tokens, but lacks <end>"),
        ({"data__special_symbols__bos_token": "</s>"}, "special tokens of .*src_vocab.txt must differ from each other"),
        ({"data__src__level": "char"}, "data.src.level must be one of bpe, word, got 'char'"),
        ({"data__trg__level": "word"}, "data.trg.tokenizer_type must be that of data.src, subword-nmt, got 'word'"),
        ({"data__src__lowercase": True}, "data.trg.lowercase must be data.src.lowercase=True, got False"),
        ({"data__trg__lowercase": True}, "data.trg.lowercase must be data.src.lowercase=False, got True"),
        ({"data__src": "de"}, "data.src.level must be one of bpe, word"),  # JoeyNMT 1
        ({"data__src__tokenizer_cfg": {"codes": "bpe.codes", "separator": "|"}}, "separator must be '@@', got"),
    ],
    ids=str,
)
def test_unsupported_option_is_named(changes, message, tmp_path):
    write_joeynmt(tmp_path, random_weights(**PRE), **changes)
    check_conversion_error(message, tmp_path, convert_joeynmt, tmp_path, tmp_path / "out")


def add_layer(index):
    """Adds a weight of a layer with this index."""

    def change(folder):
        weights = random_weights(**PRE) | {f"encoder.layers.{index}.fc1.bias": torch.ones(24)}
        write_joeynmt(folder, weights, model__encoder__num_layers=None)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "best.ckpt").unlink(), "a folder with best.ckpt or latest.ckpt"),
        (lambda f: torch.save({"model_state": Call(print, "x")}, f / "best.ckpt"), "builtins.print, which is not"),
        (lambda f: torch.save({"model_state": {"w": 1}}, f / "best.ckpt"), "'model_state' of .* must be a state dict"),
        (lambda f: torch.save([], f / "best.ckpt"), "'model_state' of .* must be a state dict"),
        (add_layer("9" * 150), "encoder_layers must be an integer from 1 to 4096, got 10"),
        (lambda f: (f / "config.yaml").write_text("model: !!python/object/apply:os.system [x]"), "options in YAML"),
        (lambda f: (f / "config.yaml").write_text("{" * 2000), "options in YAML"),
        (lambda f: (f / "config.yaml").write_text("model: 3"), "model.encoder.type must be 'transformer', got"),
        (lambda f: (f / "src_vocab.txt").unlink(), "must contain the file of 'src_vocab.txt', which is missing"),
        (lambda f: (f / "src_vocab.txt").write_text("<unk>\n<pad>\n<s>\n</s>\n"), "as many rows as"),
        (lambda f: (f / "trg_vocab.txt").write_text("a\na\n"), "each token once, got 'a' again"),
        (lambda f: (f / "bpe.codes").write_text("x\n"), "two symbols"),
        (lambda f: (f / "out").write_text("taken"), "new or an empty folder"),
    ],
)
def test_invalid_files_write_nothing(change, message, tmp_path):
    change(write_joeynmt(tmp_path, random_weights(**PRE)))
    check_conversion_error(message, tmp_path, convert_joeynmt, tmp_path, tmp_path / "out")


def test_vocabularies_of_another_sentencepiece_model(tmp_path):
    train(tmp_path / "sp.model")
    sides = {f"data__{side}__tokenizer_type": "sentencepiece" for side in ("src", "trg")}
    sides |= {f"data__{side}__tokenizer_cfg": {"model_file": "sp.model"} for side in ("src", "trg")}
    write_joeynmt(tmp_path, random_weights(**PRE), **sides)
    check_conversion_error(
        "must be the model of the vocabularies, but has no", tmp_path, convert_joeynmt, tmp_path, tmp_path / "o"
    )


def test_the_latest_checkpoint_is_converted_if_there_is_no_best_one(tmp_path):
    write_joeynmt(tmp_path, random_weights(**PRE))
    shutil.move(tmp_path / "best.ckpt", tmp_path / "latest.ckpt")
    model, report = from_joeynmt(tmp_path)
    assert report.origin.endswith("latest.ckpt")
    assert not model.training


def test_a_second_conversion_replaces_its_own_files_only(tmp_path):
    """A second conversion replaces the files of the first one, and only those."""
    write_joeynmt(tmp_path, random_weights(**PRE))
    out = tmp_path / "out"
    convert_joeynmt(tmp_path, out)
    (out / "notes.txt").write_text("of others")
    check_conversion_error(
        "must be a new or an empty folder without overwrite", tmp_path, convert_joeynmt, tmp_path, out
    )
    weights = random_weights(**PRE)
    weights["encoder.layer_norm.bias"] += 1
    write_joeynmt(tmp_path, weights)
    convert_joeynmt(tmp_path, out, overwrite=True)
    assert (out / "notes.txt").read_text() == "of others"
    model = AutoModelForSeq2SeqLM.from_pretrained(out)
    assert torch.equal(model.model.encoder.layer_norm.bias, weights["encoder.layer_norm.bias"])
