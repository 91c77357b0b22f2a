"""Marian's `.npz` files: logits and translations equal those of Marian's forward pass, written for this test."""

import json

import numpy as np
import pytest
import sentencepiece
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianTokenizer, pipeline

from modeling_random_transformer.extras.conversion import convert_marian_npz, from_marian_npz
from tests.helpers.conversion import pad_vocabulary
from tests.helpers.marian import ENGLISH
from tests.helpers.marian_npz import (
    PRE_NORM,
    TOKENS,
    UNTIED,
    MarianReference,
    options,
    opus_folder,
    random_weights,
    spm_folder,
    write_npz,
)
from tests.helpers.references import Search, relative_difference, same_search

NEVER = -1e4  # the logit of the added id


def model_file(path, **changes):
    chosen = options(**changes)
    weights = random_weights(chosen)
    return write_npz(path / "model.npz", weights, chosen), weights, chosen


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {**PRE_NORM, "transformer-postprocess-top": ""},
        {"transformer-postprocess-top": "n", "transformer-postprocess": "an", "transformer-postprocess-emb": ""},
        {"transformer-preprocess": "d", "transformer-ffn-activation": "relu", "output-omit-bias": True},
        {"transformer-ffn-activation": "relu", "dec-depth": 2, "transformer-heads": 4},
        {"transformer-train-position-embeddings": True},
        {**UNTIED, "tied-embeddings-src": True},
        {**UNTIED, "tied-embeddings-src": True, "tied-embeddings": True},
        {**UNTIED, "tied-embeddings": True, "tokens": (23, 17)},
        {**UNTIED, "tokens": (15, 21)},
    ],
    ids=str,
)
def test_logits_equal_reference(changes, tmp_path):
    path, weights, chosen = model_file(tmp_path, **changes)
    model, report = from_marian_npz(path)
    sizes = tuple(chosen["dim-vocabs"])
    assert relative_difference(model, MarianReference(weights, chosen), sizes) < 1e-5
    assert model.config.vocab_size == max(sizes) + 1
    assert {mapped.source for mapped in report.mapped} == weights.keys()


def test_search_equals_reference(tmp_path):
    """The decoder starts from a zero vector and never returns padding or `<unk>`."""
    path, weights, chosen = model_file(tmp_path, **PRE_NORM)
    model, _ = from_marian_npz(path)
    assert model.config.decoder_start_token_id == model.config.pad_token_id == TOKENS
    assert not model.model.shared.weight[TOKENS].any()
    assert model.lm_head.bias[TOKENS] == NEVER
    assert (model.config.eos_token_id, model.generation_config.suppress_tokens) == (0, [1])
    ids = torch.tensor([[5, 9, 7, 3, 0], [8, 4, 0, TOKENS, TOKENS]])
    batch = {"input_ids": ids, "attention_mask": (ids != TOKENS).long()}
    for beams in (1, 3):
        assert same_search(model, pad_vocabulary(MarianReference(weights, chosen), TOKENS + 1), batch, beams)


def test_old_output_layer_is_transposed(tmp_path):
    chosen = options(**UNTIED)
    weights = random_weights(chosen)
    stored = {name: weight for name, weight in weights.items() if name != "decoder_ff_logit_out_Wt"}
    stored["decoder_ff_logit_out_W"] = weights["decoder_ff_logit_out_Wt"].T.copy()
    model, _ = from_marian_npz(write_npz(tmp_path / "model.npz", stored, chosen))
    assert relative_difference(model, MarianReference(weights, chosen), (TOKENS, TOKENS)) < 1e-5


@pytest.mark.parametrize(("dtype", "order"), [(np.float16, "C"), (np.float64, "F"), (">f4", "C"), (np.float32, "F")])
def test_dtype_and_order(dtype, order, tmp_path):
    chosen = options()
    weights = {name: weight.astype(dtype, order) for name, weight in random_weights(chosen).items()}
    model, _ = from_marian_npz(write_npz(tmp_path / "model.npz", weights, chosen))
    assert torch.equal(model.model.shared.weight[:TOKENS], torch.tensor(weights["Wemb"].astype(float)).to(model.dtype))


def test_options_of_the_training(tmp_path):
    """`<model>.yml` has all options if the model has none, and the rates of dropout in any case."""
    chosen = options(**{"transformer-dropout": 0.3, "transformer-dropout-ffn": 0.2})
    path = write_npz(tmp_path / "model.npz", random_weights(chosen), None)
    (tmp_path / "model.npz.yml").write_text(json.dumps(chosen))  # JSON is YAML
    config = from_marian_npz(path)[0].config
    assert (config.dropout, config.activation_dropout, config.encoder_layers) == (0.3, 0.2, 2)


def check_translations(folder, weights, chosen, encoded, decode):
    """The pipeline encodes `ENGLISH` as these ids and returns what the reference does, decoded."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert isinstance(tokenizer, MarianTokenizer)
    assert tokenizer(ENGLISH)["input_ids"] == [[*row, 0] for row in encoded]
    config = AutoModelForSeq2SeqLM.from_pretrained(folder).generation_config
    tokens, limits = config.pad_token_id + 1, {"num_beams": 1, "max_new_tokens": 12}
    search = Search(pad_vocabulary(MarianReference(weights, chosen), tokens), config, tokens)
    sequences = search.generate(**tokenizer(ENGLISH, padding=True, return_tensors="pt"), use_cache=False, **limits)
    expected = [decode([i for i in row if i not in (0, config.pad_token_id)]) for row in sequences.tolist()]
    answers = pipeline("seq2seq", str(folder))(ENGLISH, **limits)
    assert [answer["generated_text"] for answer in answers] == expected
    return config


def read_vocabulary(path):
    entries = [line.rsplit(": ", 1) for line in path.read_text(encoding="utf-8").splitlines()]
    return {token.strip('"'): int(i) for token, i in entries}


@pytest.mark.parametrize("separate_vocabs", [False, True])
def test_folder_of_opus_mt(separate_vocabs, tmp_path):
    """Texts are split by spm_encode, numbered by vocab.yml, and joined as in OPUS-MT's postprocess.sh."""
    folder = tmp_path / "opus"
    weights, chosen = opus_folder(folder, separate_vocabs)
    report = convert_marian_npz(folder, tmp_path / "out")
    names = ("src.vocab.yml", "trg.vocab.yml") if separate_vocabs else ("vocab.yml", "vocab.yml")
    ids, target_ids = (read_vocabulary(folder / f"opus.spm32k-spm32k.{name}") for name in names)
    splitter = sentencepiece.SentencePieceProcessor(str(folder / "source.spm"))
    encoded = [[ids.get(piece, 1) for piece in splitter.encode(text, out_type=str)] for text in ENGLISH]
    pieces = {i: piece for piece, i in target_ids.items()}

    def decode(row):
        return "".join(pieces[i] for i in row).replace("▁", " ").strip()

    config = check_translations(tmp_path / "out", weights, chosen, encoded, decode)
    assert (config.num_beams, config.length_penalty) == (3, 0.6)
    assert any("MarianTokenizer" in note for note in report.notes)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["opus", "out"]


def test_folder_with_a_sentencepiece_vocabulary(tmp_path):
    weights, chosen = spm_folder(tmp_path / "model")
    convert_marian_npz(tmp_path / "model" / "model.npz", tmp_path / "out")
    processor = sentencepiece.SentencePieceProcessor(str(tmp_path / "model" / "vocab.spm"))
    check_translations(tmp_path / "out", weights, chosen, [*map(processor.encode, ENGLISH)], processor.decode)


def test_model_without_vocabulary(tmp_path):
    path, _, _ = model_file(tmp_path)
    report = convert_marian_npz(path, tmp_path / "out")
    assert any("no tokenizer" in note for note in report.notes)
    assert not list((tmp_path / "out").glob("vocab*"))
