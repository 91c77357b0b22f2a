"""Mutants of files from other tools, built from the structure of each format: YAML, pickle, npz, zip and tar.

Each mutant is converted in a process of its own, with limits of time and memory. It may be converted, or raise one
short line; anything else is a finding.
"""

import atexit
import gzip
import io
import json
import pickletools
import random
import shutil
import struct
import tarfile
import zipfile
from argparse import Namespace
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
import yaml

from modeling_random_transformer.extras.conversion import (
    convert_archive,
    convert_eole,
    convert_fairseq,
    convert_joeynmt,
    convert_marian,
    convert_marian_npz,
    convert_opennmt,
)
from modeling_random_transformer.extras.conversion.joeynmt import FORMAT as JOEYNMT
from modeling_random_transformer.extras.conversion.opennmt import FORMAT as OPENNMT
from modeling_random_transformer.extras.export import export_model
from tests.helpers.conversion import Call
from tests.helpers.engines import exportable
from tests.helpers.fairseq import checkpoint
from tests.helpers.marian_npz import options, save_npz, write_npz
from tests.helpers.marian_npz import random_weights as marian_weights
from tests.helpers.other_tools import (
    joeynmt_config,
    opennmt_checkpoint,
    random_weights,
    write_eole,
    write_joeynmt,
    write_opennmt,
    write_opennmt2,
)

from .processes import Report, in_process

SECONDS, MEMORY = 5, 2**30  # CPU time, and bytes beyond those of the process that starts the conversion
MAX_MESSAGE = 3000
SEARCH = ("beam-size", "normalize", "word-penalty", "allow-unk", "vocabs")  # options of Marian's search
OPCODES = [ord(opcode.code) for opcode in pickletools.opcodes]

Writer = Callable[[random.Random, Path], Path]


# Scalars and tags in YAML.
SCALARS = (
    "true",
    "~",
    ".nan",
    "-.inf",
    "1e999",
    "1" * 60,
    "9" * 19,
    "0x" + "f" * 15,
    "1:2:3",
    "'x",
    '"\\x1b[2J"',
    "-1",
    "2",
)
TAGS = ("int", "float", "timestamp", "binary", "omap", "set", "python/object/apply:os.system", "str")


def yaml_value(draw: random.Random, anchors: list[str], depth: int = 0) -> str:
    """A random value in YAML's flow style, with anchors, references to earlier ones, tags and unusual numbers."""
    kind = draw.choice(("scalar", "scalar", "list", "mapping", "alias", "tag", "anchor"))
    if kind == "alias" and anchors:
        return f"*{draw.choice(anchors)}"
    if kind == "anchor" and depth < 6:
        value = yaml_value(draw, anchors, depth + 3).lstrip("*&")
        anchors.append(f"n{len(anchors)}")
        return f"&{anchors[-1]} [{value}]"
    if kind == "list" and depth < 6:
        return f"[{', '.join(yaml_value(draw, anchors, depth + 1) for _ in range(draw.randrange(4)))}]"
    if kind == "mapping" and depth < 6:
        keys = [draw.choice(("a", "b", "<<", "1", "[x]", "? y")) for _ in range(draw.randrange(4))]
        return f"{{{', '.join(f'{key}: {yaml_value(draw, anchors, depth + 1)}' for key in keys)}}}"
    if kind == "tag":
        return f"!!{draw.choice(TAGS)} {draw.choice(('', '1', 'x', '2001-99-99', '[a]', '{a: b}'))}"
    return draw.choice(SCALARS)


def yaml_bomb(draw: random.Random) -> str:
    """Mappings or lists that each refer to the one before several times."""
    width, levels, merge = draw.randrange(1, 12), draw.randrange(1, 40), draw.random() < 0.5
    lines = ["a0: &a0 {x: 1}"]
    for i in range(1, levels):
        references = ", ".join([f"*a{i - 1}"] * width)
        lines.append(f"a{i}: &a{i} {{<<: [{references}]}}" if merge else f"a{i}: &a{i} [{references}]")
    return "\n".join(lines)


def yaml_mutant(draw: random.Random, folder: Path) -> Path:
    """A Marian model whose options or options of the search are damaged."""
    lines = yaml_bomb(draw).split("\n") if draw.random() < 0.2 else []
    anchors: list[str] = []
    names = [*draw.sample(sorted(options()), draw.randrange(2)), *draw.sample(SEARCH, 3)]
    lines += [f"{name}: {yaml_value(draw, anchors)}" for name in names]
    text = "\n".join(lines)
    if draw.random() < 0.5:
        save_npz(folder / "model.npz")
        (folder / "decoder.yml").write_text(text)
        return folder / "model.npz"
    weights = marian_weights(options())
    stored = "\n".join(f"{name}: {json.dumps(value)}" for name, value in options().items() if name not in names)
    weights["special:model.yml"] = np.frombuffer(f"{text}\n{stored}".encode() + b"\0", np.int8)
    return write_npz(folder / "model.npz", weights, None)


def pickle_value(draw: random.Random) -> Any:
    """A value that a checkpoint should not contain where an option or a weight is expected."""
    shared: Any = ["x"]
    for _ in range(draw.randrange(30)):
        shared = [shared] * draw.randrange(1, 12)
    endless: dict[str, Any] = {}
    endless["self"] = endless
    one, size = torch.zeros(1), 10 ** draw.randrange(1, 12)
    values = [
        shared,
        endless,
        {"k": shared},
        Namespace(x=shared),
        "\x1b" * draw.randrange(1, 10**5),
        10**600,
        -1,
        2**62,
    ]
    values += [Call(bytearray, size), Call(torch.Tensor, size), one.expand(size), one.to_sparse(), one.to(torch.int8)]
    values += [one.to("meta"), one * torch.nan, torch.zeros(0), torch.zeros(()), torch.zeros([1] * 60), float("nan")]
    return draw.choice([*values, True, None, b"\xff" * 100, (), {1: 2}])


def pickle_mutant(draw: random.Random, folder: Path) -> Path:
    """A fairseq checkpoint with a strange option or weight, or with changed bytes of its pickle."""
    stored = checkpoint(draw.choice(("args", "cfg", "nested")))
    part = draw.choice(("option", "option", "weight", "top", "bytes"))
    model = stored["model"]
    if part == "option" and isinstance(stored["args"], Namespace):
        setattr(stored["args"], draw.choice(sorted(vars(stored["args"]))), pickle_value(draw))
    elif part == "weight":
        names = [*sorted(model), "x" * 10**5, "\x1b[2J", "encoder.layers.999999.fc1.weight"]
        model[draw.choice(names)] = pickle_value(draw)
    elif part != "bytes":
        stored[draw.choice(("args", "model", "cfg", "task", "extra"))] = pickle_value(draw)
    path = folder / "model.pt"
    torch.save(stored, path, _use_new_zipfile_serialization=draw.random() < 0.7)
    if part == "bytes":
        damage_pickle(draw, path)
    return path


def opennmt_mutant(draw: random.Random, folder: Path) -> Path:
    """A checkpoint of OpenNMT-py with a strange option, weight, token or vocabulary, or changed bytes of its pickle."""
    content = opennmt_checkpoint(random_weights(encoder_normalize_before=True))
    part = draw.choice(("opt", "opt", "model", "generator", "vocab", "src", "top", "bytes"))
    if part == "opt":
        setattr(content["opt"], draw.choice(OPENNMT.options).name, pickle_value(draw))
    elif part == "src":
        content["vocab"]["src"][draw.randrange(9)] = pickle_value(draw)
    elif part == "top":
        content[draw.choice(("model", "generator", "opt", "optim"))] = pickle_value(draw)
    elif part != "bytes":
        content[part][draw.choice(sorted(content[part]))] = pickle_value(draw)
    write = write_opennmt if draw.random() < 0.5 or not isinstance(content["generator"], dict) else write_opennmt2
    path = write(folder, content)
    if part == "bytes":
        damage_pickle(draw, path)
    return path


def damage_pickle(draw: random.Random, path: Path) -> None:
    """Replace some bytes of the pickles, mostly by other opcodes."""

    def damage(content: bytes) -> bytes:
        changed = bytearray(content)
        for _ in range(draw.randrange(1, 4)):
            changed[draw.randrange(len(changed))] = draw.choice(OPCODES) if draw.random() < 0.7 else draw.randrange(256)
        return bytes(changed)

    if zipfile.is_zipfile(path):
        members = read_members(path)
        members = {name: damage(content) if name.endswith(".pkl") else content for name, content in members.items()}
        write_members(path, members, draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))
    else:
        content = path.read_bytes()
        path.write_bytes(damage(content[:3000]) + content[3000:])


def read_members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_members(path: Path, members: dict[str, bytes], compression: int) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def npz_mutant(draw: random.Random, folder: Path) -> Path:
    """A Marian model with a strange array, a changed array header, or changed bytes."""
    path = save_npz(folder / "model.npz")
    members = read_members(path)
    name = draw.choice(sorted(members))
    kind = draw.choice(("header", "array", "bytes", "zeros"))
    if kind == "header":
        shape = draw.choice(("(10000000000,)", "(-1,)", "(1, 2, 3)", "()", "(" * 300, "(True,)", "(1.5,)", "10**9"))
        dtype = draw.choice(("'<f4'", "'|O'", "'<M8[ns]'", "[('a', '<f4')]", "'|V1000000000'", "'>f8'", "'<i1'"))
        text = f"{{'descr': {dtype}, 'fortran_order': {draw.choice(('True', 'False', '1'))}, 'shape': {shape}}}\n"
        length = draw.choice((len(text), 2**16 - 1, 0))
        members[name] = b"\x93NUMPY\x01\x00" + struct.pack("<H", length) + text.encode() + bytes(draw.randrange(99))
    elif kind == "array":
        buffer = io.BytesIO()
        value = draw.choice((np.zeros(0), np.full((3, 3), np.nan), np.zeros((1,) * 30), np.zeros(9, "S5"), np.ones(2)))
        np.lib.format.write_array(buffer, value)
        members[name] = buffer.getvalue()
    elif kind == "zeros":
        members[draw.choice((name, "more.npy", "a/../b", "\x1b[2J.npy"))] = bytes(10 ** draw.randrange(9))
    compressions = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    write_members(path, members, draw.choice(compressions))
    if kind == "bytes":
        change_bytes(draw, path)
    return path


def change_bytes(draw: random.Random, path: Path) -> None:
    """Change bytes near the start or the end, where archives have their headers."""
    content = bytearray(path.read_bytes())
    for _ in range(draw.randrange(1, 6)):
        offset = draw.randrange(min(600, len(content)))
        content[draw.choice((offset, -1 - offset))] = draw.randrange(256)
    path.write_bytes(content[: draw.choice((None, None, draw.randrange(len(content)))) or None])


def zip_mutant(draw: random.Random, folder: Path) -> Path:
    """An archive with a model and strange members."""
    model = save_npz(folder / "model.npz").read_bytes()
    path = folder / "a.zip"
    with zipfile.ZipFile(path, "w", draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        archive.writestr("m/model.npz", model)
        for i in range(draw.choice((0, 1, 5, 11_000))):
            archive.writestr(draw.choice((f"m/{i}", f"m/vocab{i}.yml", "../x", f"m/\x1b{i}")), b"")
        if draw.random() < 0.3:
            archive.writestr(draw.choice(("m/vocab.yml", "m/decoder.yml", "big")), bytes(10 ** draw.randrange(9)))
    if draw.random() < 0.5:
        change_bytes(draw, path)
    return path


def tar_mutant(draw: random.Random, folder: Path) -> Path:
    """An archive with a model behind strange headers."""
    model = save_npz(folder / "model.npz").read_bytes()
    blocks = []
    for _ in range(draw.choice((0, 1, 2, 40))):
        info = tarfile.TarInfo(draw.choice(("m/x", "../x", "m/" + "y" * 5000)))
        info.type = draw.choice((*b"0LKxgSDV123567", 0)).to_bytes(1, "big")
        info.size = draw.choice((0, 0, 512, 10**5, 2**33, 2**31))
        info.pax_headers = {"GNU.sparse.size": str(2**40), "GNU.sparse.map": "0,1"} if draw.random() < 0.2 else {}
        keys = "".join(f"{len(str(i)) * 2 + 8} k{i}=v{i}\n" for i in range(draw.randrange(2000)))
        content = draw.choice((b"", bytes(512), keys.encode(), b"9" * 600))[: min(info.size, 10**5)]
        header = info.tobuf(draw.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)))
        blocks.append(header + content + bytes(-len(content) % 512))
    info = tarfile.TarInfo("m/model.npz")
    info.size = len(model)
    content = b"".join([*blocks, info.tobuf(), model, bytes(-len(model) % 512 + 1024)])
    path = folder / "a.tar.gz"
    path.write_bytes(gzip.compress(content, 1))
    if draw.random() < 0.3:
        change_bytes(draw, path)
    return path


def config_mutant(draw: random.Random, folder: Path) -> Path:
    """A folder of JoeyNMT with strange options in YAML, or a damaged vocabulary or BPE codes."""
    names = [option.name for option in JOEYNMT.options] + ["testing.beam_size", "testing.beam_alpha"]
    write_joeynmt(folder, random_weights(encoder_normalize_before=True))
    anchors: list[str] = []
    config = joeynmt_config(**{name.replace(".", "__"): "CHANGED" for name in draw.sample(names, draw.randrange(1, 4))})
    parts = yaml.safe_dump(config).split("CHANGED")
    text = parts[0] + "".join(yaml_value(draw, anchors) + part for part in parts[1:])
    (folder / "config.yaml").write_text("\n".join([yaml_bomb(draw), text]) if draw.random() < 0.2 else text)
    if draw.random() < 0.3:
        change_bytes(draw, folder / draw.choice(("src_vocab.txt", "bpe.codes", "best.ckpt")))
    return folder


def json_mutant(draw: random.Random, folder: Path) -> Path:
    """A folder of eole with strange options or tokens, or changed bytes."""
    write_eole(folder, random_weights(encoder_normalize_before=True))
    for name in draw.sample(("config.json", "vocab.json"), draw.randrange(1, 3)):
        change_json(draw, folder / name)
    if draw.random() < 0.3:
        change_bytes(draw, folder / draw.choice(("config.json", "vocab.json", "model.00.safetensors", "bpe.codes")))
    return folder


def change_json(draw: random.Random, path: Path) -> None:
    """Change one value of a JSON file, at any depth."""
    content = json.loads(path.read_text())
    part = content
    while True:
        key = draw.choice(sorted(part))
        if not isinstance(part[key], dict) or not part[key] or draw.random() < 0.2:
            break
        part = part[key]
    deep: Any = []
    for _ in range(draw.randrange(500)):
        deep = [deep] if draw.random() < 0.5 else {"a.b": deep}
    part[key] = draw.choice((deep, None, True, -1, 10**400, 1e308, "\x1b[2J", "x" * 10**6, [1], {}, [{}], 0.5, 2**31))
    path.write_text(json.dumps(content))


def native_mutant(draw: random.Random, folder: Path) -> Path:
    """An export to a class of transformers with another value in one of its JSON files."""
    path = folder / "native"
    shutil.copytree(native_folder(), path)
    names = ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json")
    change_json(draw, path / draw.choice(names))
    return path


@cache
def native_folder() -> Path:
    """An exported model and its tokenizer."""
    folder = Path(mkdtemp()) / "native"
    export_model(*exportable(norm_order="post"), folder, engine="transformers")
    atexit.register(shutil.rmtree, folder.parent)
    return folder


READERS: dict[str, tuple[Writer, Callable[[Path, Path], Any]]] = {
    "yaml": (yaml_mutant, convert_marian_npz),
    "config": (config_mutant, convert_joeynmt),
    "json": (json_mutant, convert_eole),
    "pickle": (pickle_mutant, convert_fairseq),
    "fields": (opennmt_mutant, convert_opennmt),
    "npz": (npz_mutant, convert_marian_npz),
    "zip": (zip_mutant, convert_archive),
    "tar": (tar_mutant, convert_archive),
    "native": (native_mutant, convert_marian),
}


def attempt(convert: Callable[[Path, Path], Any], path: Path, output: Path) -> str:
    """`"converted"`, `"rejected"` with one short line, or a description of another outcome."""
    try:
        report = str(convert(path, output))
    except ValueError as error:
        message = str(error)
        short = len(message) <= MAX_MESSAGE and message.isprintable()
        return "rejected" if short else f"a message of {len(message)} characters: {message[:200]!r}"
    return "converted" if all(line.isprintable() for line in report.split("\n")) else "a report that is not printable"


def fuzz_readers(count: int, folder: Path) -> Report:
    """Write `count` mutants of each format, and convert each in a process of its own."""
    report = Report()
    for reader, (write, convert) in READERS.items():
        for seed in range(count):
            scratch = folder / f"{reader}-{seed}"
            scratch.mkdir()
            path = write(random.Random(f"{reader} {seed}"), scratch)
            outcome = in_process(partial(attempt, convert, path, scratch / "out"), SECONDS, MEMORY)
            report.outcomes[f"{reader} {outcome if outcome in ('converted', 'rejected') else 'finding'}"] += 1
            if outcome not in ("converted", "rejected"):
                report.findings.append(f"{reader} {seed}: {outcome[:500]}")
    return report
