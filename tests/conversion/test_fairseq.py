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

from modeling_random_transformer.conversion import (
    convert_fairseq,
    fairseq_tokenizer,
    from_fairseq,
    read_checkpoint,
)
from modeling_random_transformer.data.bpe_dropout import BPEDropout
from modeling_random_transformer.data.tokenization import tokenize_pairs
from modeling_random_transformer.inference import score_pairs, translate
from modeling_random_transformer.training import (
    DataArguments,
    ModelArguments,
    TranslationTrainingArguments,
    train_translation,
)
from tests.helpers.conversion import assert_same, batch_of, check_refused
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
CASES = {
    "separate": {},
    "tied target": {"share_decoder_input_output_embed": True},
    "shared": {"share_all_embeddings": True},
    "pre-norm": PRE,
    "shared pre-norm gelu": {**PRE, "share_all_embeddings": True, "activation_fn": "gelu"},
    "swish, not scaled": {"activation_fn": "swish", "no_scale_embedding": True},
    "learned": {"encoder_learned_pos": True, "decoder_learned_pos": True},
    "learned and sinusoids": {
        "decoder_learned_pos": True,
        "layers": (1, 3),
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
    },
    "half the options": {"encoder_normalize_before": None, "decoder_normalize_before": None, "layers": (3, 2)},
    "old names": PRE,
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


@pytest.mark.parametrize(
    ("case", "layout"), [*((case, "args") for case in CASES), ("separate", "cfg"), ("learned", "nested")]
)
def test_logits_and_search_equal_reference(case, layout):
    content = checkpoint(layout, **CASES[case])
    model, report = from_fairseq(content if case != "old names" else {**content, "model": old_names(content["model"])})
    check_same(model, content, search=True, **CASES[case])
    assert {m.target for m in report.mapped} | set(report.defaults) == {name for name, _ in model.named_parameters()}
    if case != "old names":
        assert {m.source for m in report.mapped} | set(report.unused) == set(content["model"])


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(name):
    content = checkpoint(activation_fn=name, **PRE)
    check_same(from_fairseq(content)[0], content, activation_fn=name, **PRE)


def test_half_precision_is_not_rounded():
    """Float16 weights and float32 sinusoids result in a float32 model."""
    content = checkpoint()
    content["model"] = {name: weight.half() for name, weight in content["model"].items()}
    model, _ = from_fairseq(content)
    content["model"] = {name: weight.float() for name, weight in content["model"].items()}
    assert model.dtype == torch.float32
    check_same(model, content)


def test_sinusoids_up_to_last_position():
    """The table of fairseq's sinusoids ends at max_source_positions."""
    content = checkpoint(max_source_positions=300, max_target_positions=300, share_all_embeddings=True)
    model, report = from_fairseq(content)
    assert model.config.max_position_embeddings == 300
    ids = torch.randint(4, SOURCE_TOKENS, (1, 300))
    with torch.no_grad():
        ours = model(ids, torch.ones_like(ids), ids).logits
    assert_near(ours, reference_of(content)(ids, torch.ones_like(ids), ids), 1e-5)
    with pytest.raises(ValueError, match="max_position_embeddings=300"):
        model(torch.ones(1, 301, dtype=torch.long), decoder_input_ids=ids)
    assert any("sinusoids differ" in note for note in report.notes)


def test_padded_ids_have_probability_zero():
    content = checkpoint()
    model, report = from_fairseq(content)
    batch = batch_of(SOURCE_TOKENS, 1)
    with torch.no_grad():
        probabilities = model(**batch, decoder_input_ids=batch["input_ids"] % TARGET_TOKENS).logits.softmax(-1)
    assert model.config.vocab_size == SOURCE_TOKENS
    assert probabilities[..., TARGET_TOKENS:].max() == 0
    assert report.config["vocab_size"].value == SOURCE_TOKENS


def test_search_suppresses_padding_and_early_end():
    """<pad> and </s> have the highest logits; <pad> is never generated, </s> not as the first token."""
    model, _ = from_fairseq(checkpoint())
    with torch.no_grad():
        model.lm_head.bias[1], model.lm_head.bias[2] = 900.0, 800.0
    for beams in (1, 4):
        tokens = model.generate(**batch_of(SOURCE_TOKENS, 1), num_beams=beams, max_new_tokens=4)
        assert tokens.shape[1] == 3
        assert (tokens[:, 1] > 2).all()
        assert (tokens[:, 2] == 2).all()


def test_output_is_limited_by_the_positions(tmp_path):
    torch.save(checkpoint(max_source_positions=30, max_target_positions=30), tmp_path / "model.pt")
    convert_fairseq(tmp_path / "model.pt", tmp_path / "out")
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    assert model.generate(**batch_of(SOURCE_TOKENS, 1), suppress_tokens=[1, 2]).shape == (3, 30)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"layernorm_embedding": True}, "layernorm_embedding"),
        ({"quant_noise_pq": 0.1}, "quant_noise_pq"),
        ({"encoder_add_adapters": True}, "encoder_add_adapters"),
        ({"adaptive_softmax_cutoff": "10,20"}, "adaptive_softmax_cutoff"),
        ({"cross_self_attention": True}, "cross_self_attention"),
        ({"no_decoder_final_norm": True}, "no_decoder_final_norm"),
        ({"decoder_embed_dim": 32}, "decoder_embed_dim"),
        ({"decoder_ffn_embed_dim": 32}, "decoder_ffn_embed_dim"),
        ({"decoder_attention_heads": 4}, "decoder_attention_heads"),
        ({"decoder_normalize_before": True}, "decoder_normalize_before"),
        ({"decoder_output_dim": 8}, "decoder_output_dim"),
        ({"activation_fn": "glu"}, "activation_fn"),
        ({"encoder_attention_heads": None}, "num_heads"),
    ],
)
def test_unsupported_option_is_named(changes, name):
    content = checkpoint()
    vars(content["args"]).update(changes)
    with pytest.raises(ValueError, match=name):
        from_fairseq(content)


@pytest.mark.parametrize(
    ("part", "option"), [("quant_noise", "pq"), ("encoder", "add_adapters"), ("decoder", "layerdrop")]
)
def test_nested_option(part, option):
    content = checkpoint("nested")
    content["cfg"]["model"].setdefault(part, {})[option] = 0.1
    if option == "layerdrop":
        assert any("decoder_layerdrop=0.1" in note for note in from_fairseq(content)[1].notes)
    else:
        with pytest.raises(ValueError, match=f"^{part}_{option} must be off, got 0.1"):
            from_fairseq(content)


@pytest.mark.parametrize(
    "name",
    [
        "encoder.layers.0.fc3.weight",  # a gated feed-forward network
        "encoder.layers.0.encoder_attn.k_proj.weight",
        "encoder.layers.1.self_attn.relative_attention_bias.weight",
        "encoder.layernorm_embedding.weight",
        "encoder.layer_norm.weight",  # a final norm, which requires normalize_before
        "decoder.layers.0.adapter.weight",
    ],
)
def test_unexpected_weight_is_named(name):
    content = checkpoint()
    content["model"][name] = torch.zeros(2, 2)
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        from_fairseq(content)


def test_missing_weight_and_wrong_shape_are_named():
    content = checkpoint()
    weight = content["model"].pop("decoder.layers.0.encoder_attn.k_proj.bias")
    with pytest.raises(ValueError, match=r"decoder\.layers\.0\.encoder_attn\.k_proj\.bias.* missing"):
        from_fairseq(content)
    content["model"]["decoder.layers.0.encoder_attn.k_proj.bias"] = weight[:5]
    with pytest.raises(ValueError, match=r"encoder_attn\.k_proj\.bias.*got \[5\]"):
        from_fairseq(content)


def test_share_all_embeddings_with_different_weights():
    content = checkpoint(share_all_embeddings=True)
    content["model"]["decoder.embed_tokens.weight"] = torch.zeros(SOURCE_TOKENS, 16)
    with pytest.raises(ValueError, match="share_all_embeddings"):
        from_fairseq(content)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.99])
def test_truncated_checkpoint_is_named(part, zipped, tmp_path):
    path = tmp_path / "cut.pt"
    torch.save(checkpoint(), path, _use_new_zipfile_serialization=zipped)
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    check_refused(r"cut\.pt", tmp_path, convert_fairseq, path, tmp_path / "out")


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
        assert type(read["extra_state"]["meters"]).__name__ == "IgnoredObject"
        check_same(from_fairseq(read)[0], checkpoint())


@pytest.fixture
def files(tmp_path):
    return folder_with_two_dictionaries(tmp_path)


def with_joined_ids(reference: FairseqReference, made):
    """The reference's logits as a function of, and over, the ids of a joined vocabulary."""
    source_ids, target_ids = torch.tensor(made.source_ids), torch.tensor(made.target_ids)
    own = (target_ids != 3) | (torch.arange(len(target_ids)) == 3)

    def logits(ids, mask, target):
        known = reference(source_ids[ids], mask, target_ids[target])[..., target_ids]
        return known.masked_fill(~own, -torch.inf)

    return logits


@pytest.mark.parametrize("tied", [False, True])
def test_two_dictionaries_become_one_vocabulary(tied, tmp_path):
    """The source's tokens come first and keep their ids; one tokenizer encodes sources and decodes targets."""
    options = {"share_decoder_input_output_embed": tied}
    files = folder_with_two_dictionaries(tmp_path, **options)
    convert_fairseq(output=tmp_path / "out", **files)
    made = fairseq_tokenizer(files["source_dict"], target_dictionary=files["target_dict"])
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    assert len(tokenizer) == model.config.vocab_size == SOURCE_TOKENS + TARGET_TOKENS - 4
    batch = tokenizer(["s0 s1 s2", "s3", "hel@@ s4"], padding=True, return_tensors="pt")
    assert batch["input_ids"].tolist() == [[4, 5, 6, 2], [7, 2, 1, 1], [SOURCE_TOKENS, 8, 2, 1]]
    assert tokenizer(text_target="hel@@ lo t0")["input_ids"] == [SOURCE_TOKENS, SOURCE_TOKENS + 1, SOURCE_TOKENS + 4, 2]
    assert tokenizer.decode([2, *range(SOURCE_TOKENS, SOURCE_TOKENS + 4), 2], skip_special_tokens=True) == "hello world"
    reference = with_joined_ids(reference_of(checkpoint(**options)), made)
    for beams in (1, 4):
        assert same_search(model, reference, batch, beams)
    target = torch.tensor([[2, SOURCE_TOKENS, 7, SOURCE_TOKENS + 9]] * 3)
    with torch.no_grad():
        probabilities = model(**batch, decoder_input_ids=target).logits.softmax(-1)
    theirs = reference(*batch.values(), target).softmax(-1)
    assert_near(probabilities, theirs, 1e-5)
    pipe = pipeline("seq2seq", model=model, tokenizer=tokenizer)
    generated = pipe("s0 s1 s2", max_new_tokens=8, num_beams=4)["generated_text"]
    assert generated == translate(["s0 s1 s2"], model, tokenizer, max_new_tokens=8, num_beams=4)[0]
    assert generated
    assert all(word.startswith(("t", "hel", "lo", "wor", "ld")) for word in generated.split())


def test_separate_target_codes(files, tmp_path):
    codes = {"source_codes": tmp_path / "codes.de", "target_codes": tmp_path / "codes.en"}
    codes["source_codes"].write_text("s 0</w>\ns 1</w>\n")
    codes["target_codes"].write_text(CODES)
    report = convert_fairseq(output=tmp_path / "out", **files, **codes)
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
    assert score.tokens == len(labels)
    assert score.log_probability == pytest.approx(-len(labels) * float(loss), rel=1e-5)
    pipe = pipeline("seq2seq", model=model, tokenizer=tokenizer)
    assert pipe("s0 s1", target_prefix="hello", max_new_tokens=9)["generated_text"].startswith("hello")


def test_fine_tuning_with_separate_target_codes(files, tmp_path):
    """Training encodes targets by their own codes, and the new folder has both."""
    for language, merges in (("de", "s 0</w>\ns 1</w>\n"), ("en", CODES)):
        (tmp_path / f"codes.{language}").write_text(merges)
    codes = {"source_codes": tmp_path / "codes.de", "target_codes": tmp_path / "codes.en"}
    convert_fairseq(output=tmp_path / "out", **files, **codes)
    (tmp_path / "train.tsv").write_text("s0 s1\thello world\n")
    recipe = TranslationTrainingArguments(
        output_dir=str(tmp_path / "tuned"), max_steps=60, warmup_steps=5, learning_rate=0.01, use_cpu=True
    )
    train_translation(
        DataArguments(train_file=str(tmp_path / "train.tsv")),
        ModelArguments(model_name_or_path=str(tmp_path / "out"), vocab_size=None),
        recipe,
    )
    pipe = pipeline("seq2seq", model=str(tmp_path / "tuned"))
    assert pipe("s0 s1")["generated_text"] == "hello world"


def test_shared_embeddings_require_one_dictionary(tmp_path):
    files = folder_with_two_dictionaries(tmp_path, share_all_embeddings=True)
    write_dictionary(files["target_dict"], words(SOURCE_TOKENS - 4, "t"))
    with pytest.raises(ValueError, match="share_all_embeddings"):
        convert_fairseq(output=tmp_path / "out", **files)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: write_dictionary(f / "dict.de.txt", words(5, "s")), "a token for each row of the encoder's"),
        (lambda f: write_dictionary(f / "dict.en.txt", words(99, "t")), "a token for each row of the decoder's"),
        (lambda f: (f / "dict.de.txt").write_text("word\n"), "a token and its count"),
        (lambda f: (f / "dict.de.txt").write_text("a 1\na 1\n"), "each token once"),
        (lambda f: (f / "dict.de.txt").write_bytes(b"\xff\xfe 1\n"), "UTF-8"),
        (lambda f: (f / "dict.de.txt").unlink(), "cannot be read"),
        (lambda f: (f / "checkpoint.pt").unlink(), "an existing file"),
        (lambda f: torch.save({"a": 1}, f / "checkpoint.pt"), "fairseq checkpoint"),
        (lambda f: torch.save([1], f / "checkpoint.pt"), "fairseq checkpoint"),
        (lambda f: torch.save({"model": {"w": torch.ones(1)}}, f / "checkpoint.pt"), "options"),
        (lambda f: (f / "out").write_text("taken"), "new or an empty folder"),
    ],
)
def test_invalid_files_write_nothing(files, tmp_path, change, message):
    change(tmp_path)
    check_refused(message, tmp_path, convert_fairseq, output=tmp_path / "out", **files)


CODES = "#version: 0.2\nl o</w>\nh e\nhe l\no r\nw or\nl d</w>\ni n\nin g</w>\n"


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


def test_intermediate_pieces_are_unknown_tokens(tmp_path):
    """BPE pieces outside the dictionary have ids with the embedding of <unk> and a lower logit."""
    tokens = ["hel@@", "lo", *words(SOURCE_TOKENS - 6, "s")]
    dictionary = write_dictionary(tmp_path / "dict.txt", tokens)
    (tmp_path / "codes").write_text(CODES)
    content = checkpoint(share_all_embeddings=True)
    torch.save(content, tmp_path / "c.pt")
    convert_fairseq(tmp_path / "c.pt", tmp_path / "out", source_dict=dictionary, source_codes=tmp_path / "codes")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    assert len(tokenizer) == model.config.vocab_size > SOURCE_TOKENS
    batch = tokenizer(["hello world"], return_tensors="pt")
    assert batch["input_ids"].max() >= SOURCE_TOKENS
    target = torch.tensor([[2, 5, 6]])
    as_fairseq = batch["input_ids"].where(batch["input_ids"] < SOURCE_TOKENS, torch.tensor(3))
    with torch.no_grad():
        ours = model(**batch, decoder_input_ids=target).logits
    theirs = reference_of(content)(as_fairseq, batch["attention_mask"], target)
    assert_near(ours[..., :SOURCE_TOKENS], theirs, 1e-5)
    probabilities = ours.log_softmax(-1)[..., :SOURCE_TOKENS]
    assert_near(probabilities, theirs.log_softmax(-1), 1e-5)


@pytest.mark.parametrize(
    ("codes", "message"),
    [("e </w>\n", "version 0.2"), ("a b c d\n", "two symbols"), ("a b c\n", "two symbols"), ("", "at least one")],
)
def test_invalid_codes(codes, message, tmp_path):
    dictionary = write_dictionary(tmp_path / "dict.txt", ["a"])
    (tmp_path / "codes").write_text(codes)
    with pytest.raises(ValueError, match=message):
        fairseq_tokenizer(dictionary, tmp_path / "codes")


def test_target_codes_without_source_codes(tmp_path):
    dictionary = write_dictionary(tmp_path / "dict.txt", ["a"])
    with pytest.raises(ValueError, match="target_codes"):
        fairseq_tokenizer(dictionary, target_codes=tmp_path / "codes")
