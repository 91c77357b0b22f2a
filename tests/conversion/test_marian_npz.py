"""Marian's `.npz` files: logits and translations equal those of Marian's forward pass in NumPy."""

import json

import numpy as np
import pytest
import sentencepiece
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianTokenizer, pipeline

from modeling_random_transformer.conversion import convert_marian_npz, from_marian_npz
from tests.helpers.marian import ENGLISH
from tests.helpers.marian_npz import (
    PRE_NORM,
    TOKENS,
    UNTIED,
    marian_logits,
    options,
    opus_folder,
    random_weights,
    spm_folder,
    write_npz,
)
from tests.helpers.references import relative_difference, same_search

NEVER = -1e4  # the logit of the added id


def logits_of(weights, chosen):
    """The reference as a function of tensors; the last id of the converted model has its low logit."""
    tokens = max(chosen["dim-vocabs"])

    def logits(ids, mask, target):
        found = marian_logits(weights, chosen, ids.numpy(), mask.numpy(), target.numpy())
        missing = tokens + 1 - found.shape[-1]
        return torch.from_numpy(np.pad(found, ((0, 0), (0, 0), (0, missing)), constant_values=NEVER)).float()

    return logits


def model_file(path, positions=32, **changes):
    chosen = options(**changes)
    weights = random_weights(chosen, positions=positions)
    return write_npz(path / "model.npz", weights, chosen), weights, chosen


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {**PRE_NORM, "transformer-postprocess-top": ""},
        {"transformer-postprocess-top": "n", "transformer-postprocess": "an", "transformer-postprocess-emb": ""},
        {"transformer-preprocess": "d", "transformer-ffn-activation": "relu", "output-omit-bias": True},
        {"transformer-ffn-activation": "gelu", "dec-depth": 2, "transformer-heads": 4},
        {"transformer-train-position-embeddings": True},
        {**UNTIED, "tied-embeddings-src": True},
        {**UNTIED, "tied-embeddings-src": True, "tied-embeddings": True},
        {**UNTIED, "tied-embeddings": True, "tokens": (23, 17)},
        {**UNTIED, "tokens": (15, 21)},
    ],
    ids=str,
)
def test_logits(changes, tmp_path):
    path, weights, chosen = model_file(tmp_path, **changes)
    model, report = from_marian_npz(path)
    sizes = tuple(chosen["dim-vocabs"])
    reference = logits_of(weights, chosen)
    assert relative_difference(model, lambda *batch: reference(*batch)[..., : sizes[1]], sizes) < 1e-5
    assert model.config.vocab_size == max(sizes) + 1
    assert {mapped.source for mapped in report.mapped} == weights.keys()


def test_search(tmp_path):
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
        assert same_search(model, logits_of(weights, chosen), batch, beams)


def test_old_output_layer_is_transposed(tmp_path):
    chosen = options(**UNTIED)
    weights = random_weights(chosen)
    weights["decoder_ff_logit_out_W"] = weights.pop("decoder_ff_logit_out_Wt").T.copy()
    model, _ = from_marian_npz(write_npz(tmp_path / "model.npz", weights, chosen))
    reference = logits_of(weights, chosen)
    assert relative_difference(model, lambda *batch: reference(*batch)[..., :TOKENS], (TOKENS, TOKENS)) < 1e-5


@pytest.mark.parametrize(
    ("version", "expected"),
    [("v1.12.0 65bf82f 2023-02-21", "quick_gelu"), ("v1.12.14 2d067af 2024-02-16", "gelu"), (None, "quick_gelu")],
)
def test_gelu_depends_on_the_version(version, expected, tmp_path):
    path, _, _ = model_file(tmp_path, version=version, **{"transformer-ffn-activation": "gelu"})
    assert from_marian_npz(path)[0].config.activation_function == expected


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


def translate(weights, chosen, tokens, length=12):
    """Greedy search with the reference: ids of the target until `</s>`, which is 0. `<unk>` is 1."""
    target = [max(chosen["dim-vocabs"])]
    source = np.array([[*tokens, 0]])
    for _ in range(length):
        logits = marian_logits(weights, chosen, source, np.ones_like(source), np.array([target]))[0, -1]
        logits[1] = -np.inf
        target.append(int(logits.argmax()))
        if target[-1] == 0:
            break
    return [token for token in target[1:] if token != 0]


def read_vocabulary(path):
    entries = [line.rsplit(": ", 1) for line in path.read_text(encoding="utf-8").splitlines()]
    return {token.strip('"'): int(i) for token, i in entries}


@pytest.mark.parametrize("separate_vocabs", [False, True])
def test_folder_of_opus_mt(separate_vocabs, tmp_path):
    """Texts are split by spm_encode, numbered by vocab.yml, and joined as in OPUS-MT's postprocess.sh."""
    folder = tmp_path / "opus"
    weights, chosen = opus_folder(folder, separate_vocabs)
    report = convert_marian_npz(folder, tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert isinstance(tokenizer, MarianTokenizer)
    names = ("src.vocab.yml", "trg.vocab.yml") if separate_vocabs else ("vocab.yml", "vocab.yml")
    ids, target_ids = (read_vocabulary(folder / f"opus.spm32k-spm32k.{name}") for name in names)
    splitter = sentencepiece.SentencePieceProcessor(str(folder / "source.spm"))
    encoded = [[ids.get(piece, 1) for piece in splitter.encode(text, out_type=str)] for text in ENGLISH]
    assert tokenizer(ENGLISH)["input_ids"] == [[*row, 0] for row in encoded]
    pieces = {i: piece for piece, i in target_ids.items()}
    found = ["".join(pieces[i] for i in translate(weights, chosen, row)) for row in encoded]
    answers = pipeline("seq2seq", str(tmp_path / "out"))(ENGLISH, num_beams=1, max_new_tokens=12)
    assert [answer["generated_text"] for answer in answers] == [text.replace("▁", " ").strip() for text in found]
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    assert (model.generation_config.num_beams, model.generation_config.length_penalty) == (3, 0.6)
    assert any("MarianTokenizer" in note for note in report.notes)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["opus", "out"]


def test_folder_with_a_sentencepiece_vocabulary(tmp_path):
    weights, chosen = spm_folder(tmp_path / "model")
    convert_marian_npz(tmp_path / "model" / "model.npz", tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    processor = sentencepiece.SentencePieceProcessor(str(tmp_path / "model" / "vocab.spm"))
    encoded = [processor.encode(text) for text in ENGLISH]
    assert tokenizer(ENGLISH)["input_ids"] == [[*row, 0] for row in encoded]
    answers = pipeline("seq2seq", str(tmp_path / "out"))(ENGLISH, num_beams=1, max_new_tokens=12)
    expected = [processor.decode(translate(weights, chosen, row)) for row in encoded]
    assert [answer["generated_text"] for answer in answers] == expected


def test_model_without_vocabulary(tmp_path):
    path, _, _ = model_file(tmp_path)
    report = convert_marian_npz(path, tmp_path / "out")
    assert any("no tokenizer" in note for note in report.notes)
    assert not list((tmp_path / "out").glob("vocab*"))
