"""Small files that describe values of any size: each is refused by one short line, before time or memory is spent.

The limits of time and memory are those of `tests/robustness/readers.py`, which runs mutants of such files. Archives:
`test_archives_untrusted.py`.
"""

import argparse
import zipfile

import numpy as np
import pytest
import torch

from modeling_random_transformer.commands.command_line import print_error
from modeling_random_transformer.conversion import convert_fairseq, convert_marian_npz
from modeling_random_transformer.conversion.untrusted import parse_yaml, read_checkpoint
from modeling_random_transformer.utils.errors import format_names, format_value, printable
from tests.helpers.conversion import Call, check_refused
from tests.helpers.fairseq import checkpoint
from tests.helpers.marian_npz import options, random_weights, write_npz


def shared_lists(levels=30, width=10):
    nested = ["x"]
    for _ in range(levels):
        nested = [nested] * width
    return nested


def endless():
    nested = []
    nested.append(nested)
    return nested


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &a [x]\nb: [*a, *a]", "in YAML, got an error: references to other values are not supported"),
        ("a: &a {x: 1}\nb:\n  <<: *a", "references to other values are not supported"),
        (f"a: {'[' * 1000}", "o must contain options in YAML"),
        ("3: 4", "o must contain options by their names, got dict"),
        ("a: " + "1" * 51, "numbers must have at most 50 characters"),
        ("a: " + "1:" * 50 + "1", "numbers must have at most 50 characters"),
        ("a: !!int ''", "o must contain options in YAML"),
        ("a: 2001-13-45", "o must contain options in YAML"),
        ("a: !!timestamp x", "o must contain options in YAML"),
        ("a: !!bool x", "o must contain options in YAML"),
        ("a: !!python/object/apply:os.system ['x']", "o must contain options in YAML"),
        ("? {a: 1}\n: 2", "o must contain options in YAML"),
        (f"a: !<{'y' * 5000}> 1", "o must contain options in YAML"),
        ("a: 1\n---\nb: 2", "o must contain options in YAML"),
        ("x" * (2**18 + 1), "o must have at most 262144 bytes of options, got more"),
    ],
)
def test_yaml(text, message, tmp_path):
    check_refused(message, tmp_path, parse_yaml, text.encode(), "o")


def test_yaml_that_is_allowed():
    text = "a: {b: [1, 2.5, yes, null, x]}\nc: v1.9.0\ne: 0x10"
    assert parse_yaml(text.encode(), "o") == {"a": {"b": [1, 2.5, True, None, "x"]}, "c": "v1.9.0", "e": 16}


def test_weights_that_are_not_finite(tmp_path):
    stored = checkpoint()
    stored["model"]["decoder.layers.0.fc1.weight"][0, 0] = torch.inf
    torch.save(stored, tmp_path / "model.pt")
    with pytest.raises(
        ValueError, match=r"decoder\.layers\.0\.fc1\.weight .* one with values that are infinite or not"
    ):
        convert_fairseq(tmp_path / "model.pt", tmp_path / "out")
    weights = random_weights(options())
    weights["encoder_l1_ffn_W1"][0, 0] = np.nan
    write_npz(tmp_path / "model.npz", weights, options())
    with pytest.raises(ValueError, match=r"encoder_l1_ffn_W1 of .* one with values that are infinite or not a number"):
        convert_marian_npz(tmp_path / "model.npz", tmp_path / "out")


VALUES = {
    "long": "x" * 10**6,
    "number": 10**500,
    "escapes": "\x1b[2J" * 9,
    # A list that contains a list ten times, thirty levels deep, has 10^30 items; its pickle has a kilobyte.
    "shared": shared_lists(),
    "endless": endless(),
    "namespace": argparse.Namespace(x=shared_lists()),
}


@pytest.mark.parametrize("name", ["adaptive_input", "activation_fn", "max_source_positions", "decoder_embed_dim"])
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_options_of_fairseq(name, value, tmp_path):
    stored = checkpoint()
    setattr(stored["args"], name, value)
    if name == "decoder_embed_dim":
        stored["args"].encoder_embed_dim = endless() if value is VALUES["endless"] else shared_lists()
    torch.save(stored, tmp_path / "model.pt")
    check_refused(f"{name} must", tmp_path, convert_fairseq, tmp_path / "model.pt", tmp_path / "out")


@pytest.mark.parametrize("legacy", [True, False])
def test_call_that_allocates_memory(legacy, tmp_path):
    path = tmp_path / "model.pt"
    torch.save({"a": Call(bytearray, 10**11)}, path, _use_new_zipfile_serialization=not legacy)
    check_refused(r"it contains builtins\.bytearray, which is not allowed", tmp_path, read_checkpoint, path)


def pack(path):
    """Compress a checkpoint."""
    torch.save({"a": torch.zeros(5 * 10**6)}, path.with_suffix(".stored"))
    with zipfile.ZipFile(path.with_suffix(".stored")) as stored, zipfile.ZipFile(path, "w") as packed:
        for name in stored.namelist():
            packed.writestr(name, stored.read(name), zipfile.ZIP_DEFLATED)


@pytest.mark.parametrize(
    ("write", "name", "read"),
    [
        (lambda path: torch.save({"a": [{"b": Call(torch.Tensor, 10**8)}]}, path), "model.pt", read_checkpoint),
        (pack, "model.pt", read_checkpoint),
        (lambda path: np.savez_compressed(path, a=np.zeros(5 * 10**6, np.float32)), "model.npz", convert_marian_npz),
    ],
    ids=["tensor", "zip", "npz"],
)
def test_values_that_the_file_does_not_contain(write, name, read, tmp_path):
    write(tmp_path / name)
    arguments = [tmp_path / name] if read is read_checkpoint else [tmp_path / name, tmp_path / "out"]
    check_refused("must be compressed at most 20 times, to 16777216 bytes", tmp_path, read, *arguments)


def test_checkpoint_with_a_vocabulary_and_shared_tensors(tmp_path):
    """What real checkpoints contain beside weights is allowed."""
    weight = torch.zeros(3, 3)
    content = {"a": weight, "b": weight.T, "words": {f"w{i}": i for i in range(10**4)}, "args": argparse.Namespace(x=1)}
    torch.save(content, tmp_path / "model.pt")
    assert read_checkpoint(tmp_path / "model.pt")["words"] == content["words"]


@pytest.mark.parametrize("name", ["\x1b[31mred", "x" * 10**6, "a\nb"])
def test_names_of_weights(name, tmp_path):
    stored = checkpoint()
    stored["model"][name] = torch.zeros(1)
    torch.save(stored, tmp_path / "model.pt")
    message = r"weights of .* must have printable names, got "
    check_refused(message, tmp_path, convert_fairseq, tmp_path / "model.pt", tmp_path / "out")


def test_printed_errors(capsys):
    print_error("convert", "a \x1b]0;title\x07 b" + "c" * 10**6)
    printed = capsys.readouterr().err
    assert printed.startswith("convert: error: a \\x1b]0;title\\x07 bccc")
    assert len(printed) < 2100


def test_printable():
    assert printable("größe 文 = 1") == "größe 文 = 1"
    assert printable("a\tb\u202e") == "a\\tb\\u202e"
    assert printable("abc", limit=2) == "ab…"
    assert format_names(["\x1b", "b"]) == "\\x1b, b"
    assert len(format_value(shared_lists(4))) < 500
    assert format_value("a'b") == '"a\'b"'
