"""Small files that describe values of any size: each is rejected with one short line, before time or memory is spent.

The limits of time and memory are those of `tests/robustness/readers.py`, which runs mutants of such files. Archives:
`test_archives_untrusted.py`.
"""

import argparse
import os
import zipfile

import pytest
import torch

from modeling_random_transformer.base.errors import format_names, format_value, printable
from modeling_random_transformer.commands.command_line import print_error
from modeling_random_transformer.extras.conversion import convert_fairseq, convert_marian_npz
from modeling_random_transformer.extras.conversion.untrusted import parse_yaml, read_checkpoint
from tests.helpers.conversion import Call, check_conversion_error
from tests.helpers.fairseq import checkpoint
from tests.helpers.marian_npz import save_npz

SHARED, ENDLESS = ["x"], []
for _ in range(30):
    SHARED = [SHARED] * 10
ENDLESS.append(ENDLESS)
VALUES = {
    "long": "x" * 10**6,
    "number": 10**500,
    "escapes": "\x1b[2J" * 9,
    # A list that contains a list ten times, thirty levels deep, has 10^30 items; its pickle has a kilobyte.
    "shared": SHARED,
    "endless": ENDLESS,
    "namespace": argparse.Namespace(x=SHARED),
}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &a [x]\nb: [*a, *a]", "in YAML, got an error: references to other values are not supported"),
        ("a: &a {x: 1}\nb:\n  <<: *a", "references to other values are not supported"),
        (f"a: {'[' * 1000}", "o must contain options in YAML"),
        ("3: 4", "o must contain options by their names, got dict"),
        ("", "o must contain options by their names, got NoneType"),
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
    check_conversion_error(message, tmp_path, parse_yaml, text.encode(), "o")


def test_yaml_that_is_allowed():
    text = "a: {b: [1, 2.5, yes, null, x]}\nc: v1.9.0\ne: 0x10"
    assert parse_yaml(text.encode(), "o") == {"a": {"b": [1, 2.5, True, None, "x"]}, "c": "v1.9.0", "e": 16}


@pytest.mark.parametrize("name", ["adaptive_input", "activation_fn", "max_source_positions", "decoder_embed_dim"])
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_options_of_fairseq(name, value, tmp_path):
    stored = checkpoint()
    setattr(stored["args"], name, value)
    if name == "decoder_embed_dim":  # is compared with this one
        stored["args"].encoder_embed_dim = VALUES["endless"]
    torch.save(stored, tmp_path / "model.pt")
    check_conversion_error(f"{name} must", tmp_path, convert_fairseq, tmp_path / "model.pt", tmp_path / "out")


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    ("call", "name"),
    [
        (Call(exec, "1"), "builtins.exec"),
        (Call(os.system, "touch ran"), "posix.system"),
        (Call(bytearray, 10**11), "builtins.bytearray"),
    ],
    ids=["exec", "system", "bytearray"],
)
def test_calls_in_a_checkpoint_are_named_and_not_executed(call, name, zipped, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({**checkpoint(), "extra": call}, tmp_path / "c.pt", _use_new_zipfile_serialization=zipped)
    message = f"contains {name}, which is not allowed"
    check_conversion_error(message, tmp_path, convert_fairseq, tmp_path / "c.pt", tmp_path / "out")


@pytest.mark.parametrize("kind", ["zip", "legacy", "npz"])
@pytest.mark.parametrize("part", [0.0, 0.5, 0.99])
def test_truncated_file_is_named(part, kind, tmp_path):
    convert, path = (convert_marian_npz, tmp_path / "a.npz") if kind == "npz" else (convert_fairseq, tmp_path / "a.pt")
    if kind == "npz":
        save_npz(path)
    else:
        torch.save(checkpoint(), path, _use_new_zipfile_serialization=kind == "zip")
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    check_conversion_error(
        rf"{path.name} must be a complete|{path.name} was not read", tmp_path, convert, path, tmp_path / "out"
    )


def expanded(path):
    torch.save({"a": [{"b": Call(torch.Tensor, 10**8)}]}, path)


def compressed(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(2**25))


@pytest.mark.parametrize(
    ("write", "name", "convert"),
    [
        (expanded, "model.pt", convert_fairseq),
        (compressed, "model.pt", convert_fairseq),
        (compressed, "model.npz", convert_marian_npz),
    ],
)
def test_values_that_the_file_does_not_contain(write, name, convert, tmp_path):
    write(tmp_path / name)
    message = "must be compressed at most 20 times, to 16777216 bytes"
    check_conversion_error(message, tmp_path, convert, tmp_path / name, tmp_path / "out")


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
    check_conversion_error(message, tmp_path, convert_fairseq, tmp_path / "model.pt", tmp_path / "out")


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
    assert len(format_value(SHARED)) < 500
    assert format_value("a'b") == '"a\'b"'


def test_a_folder_is_no_checkpoint(tmp_path):
    with pytest.raises(ValueError, match=r"checkpoint must be a file of weights, got the folder '.*'\."):
        read_checkpoint(tmp_path)
