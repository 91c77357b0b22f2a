"""Conversion of fairseq's checkpoints, compared with a forward pass written for this test."""

import itertools
import math
import pickle
import sys
import types

import numpy
import pytest
import torch
from datasets import Dataset
from torch.nn.functional import gelu, relu, silu
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

from modeling_random_transformer.data.tokenization import tokenize_pairs
from modeling_random_transformer.extras.conversion import convert_fairseq, fairseq_tokenizer, from_fairseq
from modeling_random_transformer.extras.conversion.untrusted import read_checkpoint
from modeling_random_transformer.inference import score_pairs
from modeling_random_transformer.training.methods.bpe_dropout import BPEDropout
from tests.helpers.conversion import assert_same, batch_of
from tests.helpers.fairseq import (
    SOURCE_TOKENS,
    TARGET_TOKENS,
    checkpoint,
    folder_with_two_dictionaries,
    old_names,
    words,
    write_dictionary,
)
from tests.helpers.models import assert_near
from tests.helpers.references import FairseqReference, same_search

PRE = {"encoder_normalize_before": True, "decoder_normalize_before": True}
HEADS = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
CASES = {  # by the layout of the checkpoint
    "separate": ("args", {}),
    "tied target": ("cfg", {"share_decoder_input_output_embed": True, "activation_fn": "relu_squared"}),
    "shared pre-norm": ("nested", {**PRE, "share_all_embeddings": True, "activation_fn": "gelu"}),
    "not scaled": ("args", {"activation_fn": "swish", "no_scale_embedding": True, "layers": (3, 2)}),
    "learned": ("nested", {"encoder_learned_pos": True, "decoder_learned_pos": True, "activation_fn": "tanh"}),
    "learned and sinusoids": (
        "cfg",
        {"decoder_learned_pos": True, "layers": (1, 3), "activation_fn": "linear", **HEADS},
    ),
    "no options": ("args", {"encoder_normalize_before": None, "decoder_normalize_before": None}),
    "old names": ("args", {**PRE, "activation_fn": "gelu_accurate"}),
    "old shared": ("args", {"share_all_embeddings": True, "activation_fn": "gelu_fast"}),
}
ACTIVATIONS = {
    "relu": relu,
    "gelu": gelu,
    "swish": silu,
    "relu_squared": lambda x: relu(x).square(),
    "gelu_accurate": lambda x: gelu(x, approximate="tanh"),
    "gelu_fast": lambda x: gelu(x, approximate="tanh"),
    "tanh": torch.tanh,
    "linear": lambda x: x,
}


def reference_of(content: dict, **options) -> FairseqReference:
    heads, before = options.get("encoder_attention_heads", 2), bool(options.get("encoder_normalize_before"))
    act = ACTIVATIONS[options.get("activation_fn", "relu")]
    return FairseqReference(content["model"], heads, before, not options.get("no_scale_embedding"), act)


def check_same(model, content: dict, search: bool = False, **options) -> None:
    sizes = tuple(len(content["model"][f"{stack}.embed_tokens.weight"]) for stack in ("encoder", "decoder"))
    assert_same(model, reference_of(content, **options), sizes, pad=1, search=search)


@pytest.mark.parametrize("case", CASES)
def test_logits_and_search_equal_reference(case):
    layout, options = CASES[case]
    content = checkpoint(layout, **options)
    is_old = case.startswith("old")
    model, report = from_fairseq({**content, "model": old_names(content["model"])} if is_old else content)
    check_same(model, content, search="shared" in case or case == "separate", **options)
    assert {m.target for m in report.mapped} | set(report.defaults) == {name for name, _ in model.named_parameters()}
    if not is_old:
        assert {m.source for m in report.mapped} | set(report.unused) == set(content["model"])


def test_copies_of_a_layer_are_ignored():
    """Checkpoints of fairseq 0.12 contain matrices for PyTorch's fused layer, which are zero after a training."""
    content = checkpoint(layers=(2, 1))
    expected, _ = from_fairseq(content)
    copies = {
        f"encoder.layers.{layer}.{name}_{parameter}": torch.zeros(3)
        for layer in (0, 1)
        for name in ("in_proj", "out_proj", "fc1", "fc2")
        for parameter in ("weight", "bias")
    }
    model, report = from_fairseq({**content, "model": {**content["model"], **copies}})
    assert copies.keys() <= report.unused.keys()
    for name, parameter in expected.named_parameters():
        assert torch.equal(model.get_parameter(name), parameter)


def test_sinusoids_up_to_last_position():
    """The table of fairseq's sinusoids ends at max_source_positions."""
    content = checkpoint(max_source_positions=300, max_target_positions=300, share_all_embeddings=True)
    model, report = from_fairseq(content)
    assert model.config.max_position_embeddings == 300
    ids = torch.randint(4, SOURCE_TOKENS, (1, 300))
    with torch.no_grad():
        ours = model(ids, torch.ones_like(ids), ids).logits
    assert_near(ours, reference_of(content)(ids, torch.ones_like(ids), ids), 1e-5)
    assert any("sinusoids differ" in note for note in report.notes)


def test_ids_and_search():
    """Padded ids have the probability 0; <pad> is never generated, and </s> not as the first token."""
    model, _ = from_fairseq(checkpoint())
    batch = batch_of(SOURCE_TOKENS, 1)
    with torch.no_grad():
        probabilities = model(**batch, decoder_input_ids=batch["input_ids"] % TARGET_TOKENS).logits.softmax(-1)
        model.lm_head.bias[1], model.lm_head.bias[2] = 900.0, 800.0
    assert model.config.vocab_size == SOURCE_TOKENS
    assert probabilities[..., TARGET_TOKENS:].max() == 0
    for beams in (1, 4):
        tokens = model.generate(**batch, num_beams=beams, max_new_tokens=4)
        assert tokens.shape[1] == 3
        assert (tokens[:, 1] > 2).all()
        assert (tokens[:, 2] == 2).all()


def test_folder_without_dictionary(tmp_path):
    """Outputs are limited by the positions, also after loading."""
    torch.save(checkpoint(max_source_positions=30, max_target_positions=30), tmp_path / "model.pt")
    report = convert_fairseq(tmp_path / "model.pt", tmp_path / "out")
    assert any("no tokenizer" in note for note in report.notes)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    assert model.generate(**batch_of(SOURCE_TOKENS, 1), suppress_tokens=[1, 2]).shape == (3, 30)


class AverageMeter:
    """Stub for fairseq's class."""

    def __init__(self):
        self.sum = 3


def test_training_statistics_are_ignored(tmp_path, monkeypatch):
    """Known classes that fairseq stores are replaced, although fairseq is not installed."""
    module = types.ModuleType("fairseq.meters")
    module.AverageMeter = AverageMeter
    for name, value in (("fairseq", types.ModuleType("fairseq")), ("fairseq.meters", module)):
        monkeypatch.setitem(sys.modules, name, value)
    monkeypatch.setattr(AverageMeter, "__module__", "fairseq.meters")
    extra = {"meters": AverageMeter(), "best": numpy.float64(3.5), "seen": numpy.zeros(3)}
    for zipped in (True, False):
        torch.save({**checkpoint(), "extra_state": extra}, tmp_path / "c.pt", _use_new_zipfile_serialization=zipped)
        read = read_checkpoint(tmp_path / "c.pt")
        assert read["args"].encoder_attention_heads == 2
        assert type(read["extra_state"]["meters"]).__name__ == "PlainObject"
        check_same(from_fairseq(read)[0], checkpoint())


CODES = "#version: 0.2\nl o</w>\nh e\nhe l\no r\nw or\nl d</w>\ni n\nin g</w>\n"


@pytest.mark.parametrize("case", ["untied", "tied", "codes"])
def test_joined_vocabulary(case, tmp_path):
    """It has the source's tokens with their ids, those that only the target has, and intermediate pieces of BPE.

    A token that is missing from a dictionary has the embedding of `<unk>` there, and nearly no probability.
    """
    options = {"share_all_embeddings": case == "codes", "share_decoder_input_output_embed": case == "tied"}
    files = folder_with_two_dictionaries(tmp_path, **options)
    if case == "codes":
        del files["target_dict"]
        write_dictionary(files["source_dict"], ["hel@@", "lo", *words(SOURCE_TOKENS - 6, "s")])
        files["source_codes"] = tmp_path / "codes"
        files["source_codes"].write_text(CODES)
    convert_fairseq(output=tmp_path / "out", **files)
    names = [files.get(name) for name in ("source_dict", "source_codes")]
    made = fairseq_tokenizer(*names, target_dictionary=files.get("target_dict"))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    assert len(tokenizer) == model.config.vocab_size == len(made.source_ids) > SOURCE_TOKENS
    assert made.source_ids[:SOURCE_TOKENS] == [*range(SOURCE_TOKENS)]
    source_ids, target_ids = torch.tensor(made.source_ids), torch.tensor(made.target_ids)
    unknown = (target_ids == 3) & (torch.arange(len(target_ids)) != 3)

    def logits(ids, mask, target):
        known = reference_of(checkpoint(**options))(source_ids[ids], mask, target_ids[target])[..., target_ids]
        return known.masked_fill(unknown, -torch.inf)

    batch = tokenizer(["hello world", "s3", "hel@@ s4"], padding=True, return_tensors="pt")
    assert batch["input_ids"].max() >= SOURCE_TOKENS
    for beams in (1, 4):
        assert same_search(model, logits, batch, beams)
    target = torch.tensor([[2, SOURCE_TOKENS, 7, SOURCE_TOKENS + 9]] * 3)
    with torch.no_grad():
        probabilities = model(**batch, decoder_input_ids=target).logits.softmax(-1)
    assert_near(probabilities, logits(*batch.values(), target).softmax(-1), 1e-5)


def test_tokenizer_of_two_dictionaries(tmp_path):
    """It encodes sources and decodes targets, whose pieces are joined."""
    files = folder_with_two_dictionaries(tmp_path)
    tokenizer = fairseq_tokenizer(files["source_dict"], target_dictionary=files["target_dict"]).tokenizer
    assert tokenizer(["s0 s1 s2", "hel@@ s4"])["input_ids"] == [[4, 5, 6, 2], [SOURCE_TOKENS, 8, 2]]
    assert tokenizer(text_target="hel@@ lo t0")["input_ids"] == [SOURCE_TOKENS, SOURCE_TOKENS + 1, SOURCE_TOKENS + 4, 2]
    assert tokenizer.decode([2, *range(SOURCE_TOKENS, SOURCE_TOKENS + 4), 2], skip_special_tokens=True) == "hello world"


def test_separate_target_codes(tmp_path):
    files = folder_with_two_dictionaries(tmp_path)
    for name, merges in (("source_codes", "s 0</w>\ns 1</w>\n"), ("target_codes", CODES)):
        files[name] = tmp_path / name
        files[name].write_text(merges)
    report = convert_fairseq(output=tmp_path / "out", **files)
    assert any("by their own codes" in note for note in report.notes)
    AutoTokenizer.from_pretrained(tmp_path / "out").save_pretrained(tmp_path / "again")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "again")
    source, labels = [4, 5, 2], [*range(SOURCE_TOKENS, SOURCE_TOKENS + 4), 2]
    assert tokenizer("s0 s1")["input_ids"] == source
    assert tokenizer(text_target="hello world")["input_ids"] == labels
    assert tokenizer.decode(labels, skip_special_tokens=True) == "hello world"
    with pytest.raises(ValueError, match="lone surrogates"):
        tokenizer(text_target="\ud800")
    assert tokenizer.convert_tokens_to_ids(tokenizer.tokenize("s0 s1")) == source[:-1]  # sources again
    with pytest.raises(ValueError, match="bpe_dropout must be 0 for a tokenizer with different merges"):
        BPEDropout(tokenizer, 0.1)
    pairs = Dataset.from_dict({"line": [1, 2], "source": ["s0 s1", "s1"], "target": ["hello world", "hello"]})
    rows = tokenize_pairs(pairs, pickle.loads(pickle.dumps(tokenizer)))[0]
    assert rows["input_ids"][:] == [source, [5, 2]]
    assert rows["labels"][:] == [labels, [*labels[:2], 2]]
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    (score,) = score_pairs(model, tokenizer, [("s0 s1", "hello world")])
    with torch.no_grad():
        loss = model(input_ids=torch.tensor([source]), labels=torch.tensor([labels])).loss
    assert (score.tokens, score.log_probability) == (len(labels), pytest.approx(-len(labels) * float(loss), rel=1e-5))
    pipe = pipeline("seq2seq", model=model, tokenizer=tokenizer)
    assert pipe("s0 s1", target_prefix="hello", max_new_tokens=9)["generated_text"].startswith("hello")


def segment(word: str, codes: str) -> list[str]:
    """subword-nmt's algorithm for one word: repeatedly merge the pair that is first in the codes."""
    ranks = {tuple(line.split(" ")[:2]): i for i, line in enumerate(codes.splitlines()) if not line.startswith("#")}
    pieces = [*word[:-1], word[-1] + "</w>"]
    while len(pieces) > 1:
        best = min(itertools.pairwise(pieces), key=lambda pair: ranks.get(pair, math.inf))
        if best not in ranks:
            break
        merged, i = [], 0
        while i < len(pieces):
            joins = tuple(pieces[i : i + 2]) == best
            merged.append("".join(best) if joins else pieces[i])
            i += 2 if joins else 1
        pieces = merged
    return [piece.removesuffix("</w>") if piece.endswith("</w>") else f"{piece}@@" for piece in pieces]


@pytest.mark.parametrize("fastbpe", [False, True])
def test_segmentation_equals_subword_nmt(fastbpe, tmp_path):
    tokens = ["hel@@", "lo", "wor@@", "ld", "d@@", "in@@", "ing", "s", "o@@", "l@@", "l", "h@@", "e@@", "r@@"]
    dictionary = write_dictionary(tmp_path / "dict.txt", tokens)
    codes = tmp_path / "codes"
    lines = CODES.splitlines()[1:]
    codes.write_text("".join(f"{line} {9 - i}\n" for i, line in enumerate(lines)) if fastbpe else CODES)
    made = fairseq_tokenizer(dictionary, codes)
    ids = {token: i for i, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", *tokens])}
    made.tokenizer.save_pretrained(tmp_path / "saved")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert len(loaded) == len(made.source_ids) > len(ids)
    assert made.source_ids == made.target_ids == [*range(len(ids)), *[3] * (len(loaded) - len(ids))]
    for text in ("hello world", "lolling  holding\tdoing", "hell xoxo", "worl or orld", "日本 hel"):
        pieces = [piece for word in text.split() for piece in segment(word, CODES)]
        expected = [*(ids.get(piece, 3) for piece in pieces), 2]
        read = [made.source_ids[i] for i in loaded(text)["input_ids"]]
        assert read == expected, text
    assert loaded.decode(loaded("hello world")["input_ids"], skip_special_tokens=True) == "hello world"
