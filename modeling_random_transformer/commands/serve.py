"""Serve one or more models over HTTP, with the API of LibreTranslate.

    random-transformer serve --model outputs/several --engine ctranslate2
    random-transformer serve --model en:de=outputs/en-de en:fr=outputs/en-fr --host 0.0.0.0 --api_keys keys.txt
    curl http://127.0.0.1:5000/translate -d q="Hello world." -d source=en -d target=de

The page /docs describes the API. SIGTERM and Ctrl-C stop the server after it has answered the accepted requests. SIGHUP
loads the models again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from ..base import DTYPES
from ..base.flags import from_values
from ..data.readers import read_texts
from ..extras.parser import InputFile
from ..extras.serving import Settings, create_app, load_directions, serve
from ..inference.translation import TranslationOptions
from .command_line import EngineArguments


@dataclass(frozen=True, kw_only=True)
class Arguments(EngineArguments):
    """Arguments of `serve`.

    Args:
        model: saved models with their tokenizers; en:de=FOLDER sets the languages of a model without language tags
        host: address to listen on; 0.0.0.0 for all addresses
        port: port to listen on; 0 for a free port
        no_split_sentences: translate each text as a whole, not sentence by sentence
        num_beams: beam size
        max_tokens_per_batch: batch size: texts × beams × tokens of the longest text; increase it on a GPU
        max_characters: maximum number of characters of a request
        max_texts: maximum number of texts of a request
        max_waiting: maximum number of waiting texts of all requests; above it, requests get status 429
        api_keys: file with one key per line; a request must contain one of the keys
        access_log: log the client, the path, the status and the time of each request; texts and keys are never logged
        cors_origins: origins of web pages that may use the server, such as https://example.org
        dtype: dtype of the weights; auto: the saved dtype; int8: also quantize activations, which is faster on a CPU
    """

    model: list[str] = field(metadata={"nargs": "+", "metavar": "FOLDER"})
    host: str = "127.0.0.1"
    port: int = field(default=5000, metadata={"type": int})
    no_split_sentences: bool = False
    num_beams: int = 4
    max_tokens_per_batch: int = 4096
    max_characters: int = Settings.max_characters
    max_texts: int = Settings.max_texts
    max_waiting: int = Settings.max_waiting
    api_keys: InputFile | None = None
    access_log: bool = False
    cors_origins: Sequence[str] = field(default=(), metadata={"metavar": "ORIGIN"})
    dtype: str = field(default="auto", metadata={"choices": ("auto", *DTYPES)})


def run(arguments: Arguments) -> None:
    """Load the models and serve them."""
    keys = () if arguments.api_keys is None else read_keys(arguments.api_keys)
    settings = from_values(Settings, vars(arguments) | {"api_keys": keys})
    device = arguments.device or str(torch.accelerator.current_accelerator(check_available=True) or "cpu")
    options = {
        "split_sentences": not arguments.no_split_sentences,
        "repair": True,
        "num_beams": arguments.num_beams,
        "max_batch_tokens": arguments.max_tokens_per_batch,
    }
    TranslationOptions.from_kwargs(**options)  # raises the error of an invalid option before the models are loaded
    load = partial(load_directions, arguments.model, arguments.dtype, device, options, **arguments.engine_options)
    app = create_app(load(), settings)
    serve(app, arguments.host, arguments.port, reload=load, access_log=arguments.access_log)


def read_keys(path: Path) -> list[str]:
    """The lines of a file that are not blank.

    Raises:
        ValueError: there are none, or a line is not UTF-8.
    """
    keys = [*filter(None, map(str.strip, read_texts(path)))]
    if not keys:
        raise ValueError(f"--api_keys must be a file with at least one key, got {path}.")
    return keys
