"""Mutants of a saved folder: a reproducible list of small changes to one file each."""

import json
import pickle
import random
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from modeling_random_transformer import RandomTransformerConfig
from tests.helpers.conversion import Call

SEED = 2017
TRACE = "CODE_WAS_RUN"  # the file that executed code writes next to the folder
INDEX = "model.safetensors.index.json"
SHARD = "model-00001-of-00002.safetensors"
# The number of mutants of each file.
COUNTS = {
    "config.json": 420,
    "generation_config.json": 200,
    "tokenizer_config.json": 160,
    "tokenizer.json": 220,
    "model.safetensors": 170,
    INDEX: 80,
    SHARD: 30,
}
VALUES: list[Any] = [
    *(None, True, False, -1, 0, 1, 7, 10**12, 1.5, float("inf"), float("nan"), "", "x", "7", "none", "../x"),
    *([], [[]], [1], ["x"], {}, {"x": 1}, "é" * 5000),
]
# Optional keys: aliases, fields of transformers, references to code.
EXTRA_KEYS = {
    "config.json": [
        *(*RandomTransformerConfig.attribute_map, *RandomTransformerConfig().to_dict(), "torch_dtype", "num_labels"),
        *("layer_types", "quantization_config", "attn_implementation", "per_layer_config", "custom_pipelines"),
        *("max_length", "num_beams", "base_model_tp_plan", "attribute_map", "unknown"),
    ],
    "generation_config.json": [*GenerationConfig().to_dict(), "custom_generate", "unknown"],
    "tokenizer_config.json": [
        *("add_prefix_space", "padding_side", "truncation_side", "model_input_names"),
        *("extra_special_tokens", "unknown", "additional_special_tokens", "added_tokens_decoder"),
        *("chat_template", "clean_up_tokenization_spaces", "split_special_tokens", "add_bos_token"),
        *("add_eos_token", "sep_token", "cls_token", "mask_token", "vocab_file"),
    ],
    "tokenizer.json": ["unknown"],
}
# References to a module of the folder that writes a file if it is imported.
HOSTILE: dict[str, list[Any]] = {
    "config.json": [
        {"auto_map": {"AutoConfig": "hostile.Hostile", "AutoModelForSeq2SeqLM": "hostile.Hostile"}},
        {"auto_map": {"AutoModelForSeq2SeqLM": "hostile.Hostile"}, "model_type": "hostile"},
        {"auto_map": {"AutoConfig": "other/repository--hostile.Hostile"}, "model_type": "hostile"},
        {"custom_pipelines": {"seq2seq": {"impl": "hostile.Hostile", "pt": ["AutoModelForSeq2SeqLM"]}}},
        {"quantization_config": {"quant_method": "hostile.Hostile"}},
    ],
    "generation_config.json": [{"custom_generate": "hostile.py"}, {"auto_map": {"AutoModel": "hostile.Hostile"}}],
    "tokenizer_config.json": [
        {"auto_map": {"AutoTokenizer": ["hostile.Hostile", "hostile.Hostile"]}},
        {"tokenizer_class": "Hostile", "auto_map": {"AutoTokenizer": ["hostile.Hostile", None]}},
    ],
}


@dataclass(frozen=True)
class Mutant:
    """One change to one file.

    Attributes:
        file: the file's name.
        operation: `"set"` a value of a JSON file, or of the `"header"` of a safetensors file, `"update"` several,
            damage `"bytes"`, `"remove"` the file, or replace it with a `"directory"` or a hostile `"pickle"`.
        path: keys and indices from the top; `("+",)` is a new key.
        value: the new value, `"delete"` or `"rename"`; for a new key, the key and its value; for bytes, the kind of
            damage and its position as a fraction of the file's length.
    """

    file: str
    operation: str
    path: tuple[Any, ...] = ()
    value: Any = None

    @property
    def sharded(self) -> bool:
        return self.file in (INDEX, SHARD)

    def __str__(self) -> str:
        value = repr(self.value)
        return f"{self.file} {self.operation} {'.'.join(map(str, self.path))} {value[:60]}"

    def apply(self, folder: Path) -> None:
        """Change the file in this folder."""
        file = folder / self.file
        if self.operation == "bytes":
            file.write_bytes(damage_bytes(file.read_bytes(), *self.value))
        elif self.operation == "header":
            content = file.read_bytes()
            length = struct.unpack("<Q", content[:8])[0]
            header = json.dumps(self.mutated(json.loads(content[8 : 8 + length]))).encode()
            file.write_bytes(struct.pack("<Q", len(header)) + header + content[8 + length :])
        elif self.operation in ("set", "update"):
            file.write_text(json.dumps(self.mutated(json.loads(file.read_bytes()))))
        else:
            file.unlink()
            if self.operation == "directory":
                file.mkdir()
            elif self.operation == "pickle":
                code = f"open({str(folder.parent / TRACE)!r}, 'w').close()"
                (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Call(exec, code)))

    def mutated(self, content: Any) -> Any:
        """The changed JSON value."""
        if self.operation == "update":
            return {**content, **self.value}
        *parents, last = self.path
        place = content
        for key in parents:
            place = place[key]
        if last == "+":  # a new key
            place[self.value[0]] = self.value[1]
        elif self.value == "delete":
            del place[last]
        elif self.value == "rename":
            place[f"{last}_"] = place.pop(last)
        else:
            place[last] = self.value
        return content


def damage_bytes(content: bytes, kind: str, where: float) -> bytes:
    """The bytes of a file, damaged at this fraction of its length."""
    place = int(where * len(content))
    return {
        "empty": b"",
        "cut": content[:place],
        "flip": content[:place] + bytes([content[place] ^ 0x41]) + content[place + 1 :] if content else b"",
        "not UTF-8": content[:place] + b"\xff" + content[place:],
        "insert": content[:place] + b'"' + content[place:],
        "drop": content[:place] + content[place + 1 :],
        "append": content + b"\0" * 100,
        "zeros": content[:place] + b"\0" * (len(content) - place),
        "nested": b"[" * 100_000,
        "list": b"[1]",
        "number": b"7",
        "null": b"null",
        "string": b'"text"',
        "object": b"{}",
        "long header": struct.pack("<Q", 2**62) + content[8:],
        "short header": struct.pack("<Q", 3) + content[8:],
    }[kind]


JSON_DAMAGE = ["empty", "cut", "flip", "not UTF-8", "insert", "drop", "append"]
JSON_WHOLE = ["nested", "list", "number", "null", "string", "object", "empty"]
TENSOR_DAMAGE = ["empty", "cut", "cut", "flip", "append", "zeros", "drop", "long header", "short header", "nested"]


def all_mutants(folder: Path, sharded: Path) -> list[Mutant]:
    """All mutants; deterministic."""
    draw = random.Random(SEED)
    mutants: list[Mutant] = []
    for name, count in COUNTS.items():
        file = (sharded if name in (INDEX, SHARD) else folder) / name
        if file.suffix == ".safetensors":
            mutants += tensor_mutants(file, count, draw)
        else:
            mutants += json_mutants(file, count, draw)
    return mutants


def json_mutants(file: Path, count: int, draw: random.Random) -> list[Mutant]:
    """Distinct mutants of a JSON file: references to code, damaged files, then changed values."""
    content = json.loads(file.read_bytes())
    mutants = [Mutant(file.name, "remove"), Mutant(file.name, "directory")]
    mutants += [Mutant(file.name, "update", (), value) for value in HOSTILE.get(file.name, [])]
    mutants += [Mutant(file.name, "bytes", (), (kind, 0.0)) for kind in JSON_WHOLE]
    for _ in range(count // 10):
        mutants.append(Mutant(file.name, "bytes", (), (draw.choice(JSON_DAMAGE), round(draw.random(), 4))))
    paths = list(paths_in(content))
    extra = [key for key in EXTRA_KEYS.get(file.name, []) if key not in content]
    while len(mutants) < count:
        path = draw.choice(paths)
        choice = draw.random()
        if extra and choice < 0.35:
            mutant = Mutant(file.name, "set", ("+",), (draw.choice(extra), draw.choice(VALUES)))
        elif choice < 0.45:
            operations = ["delete"] if isinstance(path[-1], int) else ["delete", "rename"]
            mutant = Mutant(file.name, "set", path, draw.choice(operations))
        else:
            mutant = Mutant(file.name, "set", path, draw.choice(VALUES))
        if not any(repr(mutant) == repr(earlier) for earlier in mutants):
            mutants.append(mutant)
    return mutants


def tensor_mutants(file: Path, count: int, draw: random.Random) -> list[Mutant]:
    """Mutants of a safetensors file: of its bytes, and of single fields of its header."""
    content = file.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    mutants = [Mutant(file.name, operation) for operation in ("remove", "directory")]
    mutants.append(Mutant(file.name, "pickle"))
    names = [name for name in header if name != "__metadata__"]
    values = [*VALUES, [4, 4], [64, 16], [0, 64], [64, 0], "I32", "F16", "BF16", "F64", "BOOL", "F8_E4M3"]
    while len(mutants) < count:
        if draw.random() < 0.3:
            mutants.append(Mutant(file.name, "bytes", (), (draw.choice(TENSOR_DAMAGE), round(draw.random(), 4))))
            continue
        path: tuple[Any, ...] = (draw.choice(names),)
        value: Any = draw.choice(["delete", "rename"])
        if draw.random() < 0.7:
            path += (draw.choice(["dtype", "shape", "data_offsets"]),)
            value = draw.choice(values)
        elif draw.random() < 0.2:
            path, value = ("__metadata__",), draw.choice(["delete", {}, {"format": "tf"}, 7])
        mutants.append(Mutant(file.name, "header", path, value))
    return mutants


def paths_in(content: Any, path: tuple[Any, ...] = (), width: int = 12) -> Iterator[tuple[Any, ...]]:
    """The paths of all nested values; of a long list or object, of the first `width` values only."""
    keys = range(len(content)) if isinstance(content, list) else content if isinstance(content, dict) else ()
    wide = len(path) > 1
    for key in list(keys)[: width if wide else None]:
        yield (*path, key)
        yield from paths_in(content[key], (*path, key), width)


def copy_folder(folder: Path, target: Path) -> Path:
    """Replace `target` by a copy of a flat folder."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder, target)
    return target
