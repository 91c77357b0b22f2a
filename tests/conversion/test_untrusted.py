"""Small files that describe values of any size: each is refused by one short line, before time or memory is spent.

The limits of time and memory are those of `tests/robustness/readers.py`, which runs mutants of such files.
"""

import argparse
import gzip
import io
import tarfile
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from modeling_random_transformer.commands.command_line import print_error
from modeling_random_transformer.conversion import archives, convert_archive, convert_fairseq, convert_marian_npz
from modeling_random_transformer.conversion.untrusted import parse_yaml, read_checkpoint
from modeling_random_transformer.utils.errors import format_names, format_value, printable
from tests.helpers.conversion import Call
from tests.helpers.fairseq import checkpoint
from tests.helpers.marian_npz import options, random_weights, save_npz, write_npz

ALIASES = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9))
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i}\n  <<: [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9))


def shared_lists(levels=30, width=10):
    nested = ["x"]
    for _ in range(levels):
        nested = [nested] * width
    return nested


def check_short(caught):
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 1000
    assert message.isprintable()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ALIASES, "o must contain at most 100000 values, counting repeated ones, in 50 levels, got more"),
        (MERGES, "o must contain at most 100000 values"),
        ("a: &a [*a]", "o must contain at most 100000 values"),
        (f"a: {'[' * 60}{']' * 60}", "in 50 levels, got more"),
        (f"a: {'[' * 5000}", "o must contain options in YAML"),
        ("3: 4", "o must contain options by their names, got dict"),
        ("a: " + "1" * 51, "numbers must have at most 50 characters, got '111"),
        ("a: " + "1:" * 50 + "1", "numbers must have at most 50 characters, got "),
        ("a: !!int ''", "o must contain options in YAML"),
        ("a: !!float 'x'", "o must contain options in YAML"),
        (
            "a: !!timestamp 2001-01-01",
            "o must contain options in YAML, got an error: could not determine a constructor",
        ),
        ("a: !!binary aGk=", "o must contain options in YAML"),
        ("a: !!set {x}", "o must contain options in YAML"),
        ("? {a: 1}\n: 2", "o must contain options in YAML"),
        (f"a: !<{'y' * 5000}> 1", "o must contain options in YAML"),
        ("a: 1\n---\nb: 2", "o must contain options in YAML"),
        ("x" * (2**18 + 1), "o must have at most 262144 bytes of options, got more"),
    ],
)
def test_yaml(text, message):
    with pytest.raises(ValueError, match=message) as caught:
        parse_yaml(text.encode(), "o")
    check_short(caught)


def test_yaml_that_is_allowed():
    text = "a: &a {b: [1, 2.5, yes, null, x]}\nc:\n  <<: *a\n  d: 2024-01-01\ne: 0x10"
    shared = {"b": [1, 2.5, True, None, "x"]}
    assert parse_yaml(text.encode(), "o") == {"a": shared, "c": {**shared, "d": "2024-01-01"}, "e": 16}


@pytest.mark.parametrize("text", [ALIASES, MERGES, "beam-size: !!timestamp 2001-01-01", "beam-size: !!int ''"])
def test_options_of_the_search(text, tmp_path):
    save_npz(tmp_path / "model.npz")
    (tmp_path / "decoder.yml").write_text(text)
    with pytest.raises(ValueError, match=r"decoder\.yml must contain") as caught:
        convert_marian_npz(tmp_path / "model.npz", tmp_path / "out")
    check_short(caught)
    assert not (tmp_path / "out").exists()


def test_beam_size_without_a_limit(tmp_path):
    save_npz(tmp_path / "model.npz")
    (tmp_path / "decoder.yml").write_text("beam-size: 1000000000")
    report = convert_marian_npz(tmp_path / "model.npz", tmp_path / "out")
    assert "beam-size=1000000000 of the search was dropped: it must be an integer from 1 to 1000." in report.notes


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(value, tmp_path):
    stored = checkpoint()
    stored["model"]["decoder.layers.0.fc1.weight"][0, 0] = value
    torch.save(stored, tmp_path / "model.pt")
    with pytest.raises(
        ValueError, match=r"decoder\.layers\.0\.fc1\.weight .* one with values that are infinite or not"
    ):
        convert_fairseq(tmp_path / "model.pt", tmp_path / "out")
    weights = random_weights(options())
    weights["encoder_l1_ffn_W1"][0, 0] = value
    write_npz(tmp_path / "model.npz", weights, options())
    with pytest.raises(ValueError, match=r"encoder_l1_ffn_W1 of .* one with values that are infinite or not a number"):
        convert_marian_npz(tmp_path / "model.npz", tmp_path / "out")


def endless():
    nested = []
    nested.append(nested)
    return nested


VALUES = {
    "long": "x" * 10**6,
    "number": 10**500,
    "escapes": "\x1b[2J" * 9,
    "nested": [["y" * 99] * 9] * 9,
}


@pytest.mark.parametrize("name", ["adaptive_input", "activation_fn", "max_source_positions", "decoder_embed_dim"])
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_options_of_fairseq(name, value, tmp_path):
    stored = checkpoint()
    setattr(stored["args"], name, value)
    torch.save(stored, tmp_path / "model.pt")
    with pytest.raises(ValueError, match=f"{name} must") as caught:
        convert_fairseq(tmp_path / "model.pt", tmp_path / "out")
    check_short(caught)


@pytest.mark.parametrize("value", [shared_lists(), endless()], ids=["shared", "endless"])
def test_nested_option_of_fairseq(value, tmp_path):
    """A list that contains a list ten times, thirty levels deep, has 10^30 items; its pickle has a kilobyte."""
    torch.save(checkpoint(activation_fn=value), tmp_path / "model.pt")
    with pytest.raises(ValueError, match=r"model\.pt must contain at most 1000000 values"):
        convert_fairseq(tmp_path / "model.pt", tmp_path / "out")


@pytest.mark.parametrize("legacy", [True, False])
@pytest.mark.parametrize("size", [10**4, 10**11])
def test_call_that_allocates_memory(legacy, size, tmp_path):
    torch.save({"a": Call(bytearray, size)}, tmp_path / "model.pt", _use_new_zipfile_serialization=not legacy)
    with pytest.raises(ValueError, match=r"it contains builtins\.bytearray, which is not allowed"):
        read_checkpoint(tmp_path / "model.pt")


def test_tensor_that_the_file_does_not_contain(tmp_path):
    torch.save({"a": Call(torch.Tensor, 10**8)}, tmp_path / "model.pt")
    with pytest.raises(ValueError, match="must be compressed at most 20 times"):
        read_checkpoint(tmp_path / "model.pt")


def test_compressed_checkpoint(tmp_path):
    torch.save({"a": torch.zeros(5 * 10**6)}, tmp_path / "stored.pt")
    with zipfile.ZipFile(tmp_path / "stored.pt") as stored, zipfile.ZipFile(tmp_path / "model.pt", "w") as packed:
        for name in stored.namelist():
            packed.writestr(name, stored.read(name), zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match="must be compressed at most 20 times, to 16777216 bytes, got 2"):
        read_checkpoint(tmp_path / "model.pt")


def test_checkpoint_with_a_vocabulary_and_shared_tensors(tmp_path):
    """What real checkpoints contain beside weights is allowed."""
    weight = torch.zeros(3, 3)
    content = {"a": weight, "b": weight.T, "words": {f"w{i}": i for i in range(10**4)}, "args": argparse.Namespace(x=1)}
    torch.save(content, tmp_path / "model.pt")
    assert read_checkpoint(tmp_path / "model.pt")["words"] == content["words"]


def test_compressed_npz(tmp_path):
    np.savez_compressed(tmp_path / "model.npz", a=np.zeros(5 * 10**6, np.float32))
    with pytest.raises(ValueError, match="must be compressed at most 20 times"):
        convert_marian_npz(tmp_path / "model.npz", tmp_path / "out")


def tar_with(*infos):
    content = b"".join(info if isinstance(info, bytes) else info.tobuf(tarfile.PAX_FORMAT) for info in infos)
    return gzip.compress(content + bytes(1024))


def pax_header(size):
    info = tarfile.TarInfo("header")
    info.type, info.size = tarfile.XHDTYPE, size
    record = b"30 comment=" + b"x" * 18 + b"\n"
    return info.tobuf(tarfile.USTAR_FORMAT) + (record * (size // 30 + 1))[:size]


@pytest.mark.parametrize("repeat", [40])
def test_chained_headers(repeat, tmp_path):
    """Extended headers follow each other, before any file."""
    (tmp_path / "a.tar.gz").write_bytes(tar_with(*[pax_header(2**25 // 512 // repeat * 512)] * repeat))
    with pytest.raises(ValueError, match="must have headers of at most 16777216 bytes, got more") as caught:
        convert_archive(tmp_path / "a.tar.gz", tmp_path / "out")
    check_short(caught)


def test_sparse_file(tmp_path):
    info = tarfile.TarInfo("model.npz")
    info.pax_headers = {"GNU.sparse.size": str(2**31), "GNU.sparse.map": f"0,0,{2**31},0"}
    (tmp_path / "a.tar.gz").write_bytes(tar_with(info))
    with pytest.raises(ValueError, match=r"must contain no sparse files, got 'model\.npz'"):
        convert_archive(tmp_path / "a.tar.gz", tmp_path / "out")


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz"])
def test_compressed_archive(name, tmp_path):
    content = bytes(2**25)
    if name == "a.zip":
        with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("model.npz", content)
    else:
        with tarfile.open(tmp_path / name, "w:gz") as archive:
            info = tarfile.TarInfo("model.npz")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    with pytest.raises(ValueError, match="must be compressed at most 20 times, to 16777216 bytes, got 33554432"):
        convert_archive(tmp_path / name, tmp_path / "out")


def test_free_space(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(save_npz(tmp_path / "model.npz"), "model.npz")
    monkeypatch.setattr(archives.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(ValueError, match=r"output must be on a disk with \d+ free bytes, got 1000"):
        convert_archive(tmp_path / "a.zip", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["\x1b[31mred", "x" * 10**6, "a\nb"])
def test_names_of_weights(name, tmp_path):
    stored = checkpoint()
    stored["model"][name] = torch.zeros(1)
    torch.save(stored, tmp_path / "model.pt")
    with pytest.raises(ValueError, match=r"weights of .* must have printable names, got ") as caught:
        convert_fairseq(tmp_path / "model.pt", tmp_path / "out")
    check_short(caught)


@pytest.mark.parametrize("name", ["\x1b[31m../x", "\u202e/" + "x" * 10**5])
def test_names_of_members(name, tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo(f"/{name}"))
    with pytest.raises(ValueError, match="relative paths without") as caught:
        convert_archive(tmp_path / "a.tar", tmp_path / "out")
    check_short(caught)


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
