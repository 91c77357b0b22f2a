"""The HTTP API of LibreTranslate (https://docs.libretranslate.com), as an ASGI application."""

import asyncio
import hashlib
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client import generate_latest
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ...base.errors import format_names
from ...base.languages import canonical_code
from ...inference.candidates import Candidate
from ...inputs_random_transformer import TextError, check_positive
from ...tokenization_random_transformer import is_iterable_of_texts
from ..language_names import language_name
from .batches import Batcher, QueueFullError
from .directions import AUTO_LANGUAGE, Direction
from .metrics import CountRequests, Metrics
from .requests import BODY_SECONDS, TranslateRequest, read_fields

logger = logging.getLogger(__name__)

PAGES = Path(__file__).parent
# Bytes of a body: a character has up to 12 in JSON ("\\ud83d\\ude00") and in forms; and the other fields.
BYTES_PER_CHARACTER, OTHER_BYTES = 12, 2**14
LONGEST_CODE = 35  # characters of a code of a language, by BCP 47
ORIGIN = re.compile(r"https?://[^/\s]+|null|\*")  # the format of the header that browsers send

T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """The limits and options of a server.

    Attributes:
        max_characters: limit on the characters of a request.
        max_texts: limit on the texts of a request.
        max_waiting: limit on the texts of all requests that wait; above it, the answer is 429 with `Retry-After`.
        api_keys: the keys, of which a request must have one; empty if none is needed.
        cors_origins: origins of web pages that may use the server, such as `https://example.org`; `*` for all.

    Raises:
        ValueError: a limit is not positive, the keys or the origins are one string, or an origin has no scheme or a
            path.
    """

    max_characters: int = 10_000
    max_texts: int = 100
    max_waiting: int = 1000
    api_keys: Collection[str] = ()
    cors_origins: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_positive(max_characters=self.max_characters, max_texts=self.max_texts, max_waiting=self.max_waiting)
        for name, values in {"api_keys": self.api_keys, "cors_origins": self.cors_origins}.items():
            if not is_iterable_of_texts(values):  # each character of a string would be a key
                raise ValueError(f"{name} must be a collection of strings, got one {type(values).__name__}.")
        for origin in self.cors_origins:
            if not ORIGIN.fullmatch(origin):
                raise ValueError(f"cors_origins must be origins such as https://example.org, got {origin!r}.")


def create_app(directions: Sequence[Direction], settings: Settings | None = None) -> Starlette:
    """An ASGI application that translates. Its `state.api` is the `Api`, whose directions can be replaced.

    Args:
        directions: what it translates.
        settings: what it accepts.
    """
    api = Api(directions, settings or Settings())
    return Starlette(
        routes=[
            Route("/translate", api.translate, methods=["POST"]),
            Route("/languages", api.show_languages),
            Route("/health", show_health),
            Route("/metrics", api.show_metrics),
            Route("/openapi.json", show_description),
            Route("/docs", show_page),
        ],
        middleware=api.middleware(),
        exception_handlers=dict.fromkeys(ANSWERED_ERRORS, answer_error),
        lifespan=api.run,
    )


class Api:
    """The state of an application: what it translates, the queue, and the counters.

    Args:
        directions: what it translates.
        settings: what it accepts.
    """

    def __init__(self, directions: Sequence[Direction], settings: Settings):
        self.settings = settings
        self.keys = {key_digest(key) for key in settings.api_keys}
        self.metrics = Metrics()
        self.batcher = Batcher(settings.max_waiting, self.metrics.batches.observe)
        self.metrics.waiting.set_function(lambda: self.batcher.waiting)
        self.replace_directions(directions)

    def replace_directions(self, directions: Sequence[Direction]) -> None:
        """Replace the directions. Waiting texts are translated by the earlier models."""
        self.directions = directions_by_codes(directions)

    def middleware(self) -> list[Middleware]:
        """Middleware from the outside to the inside."""
        max_bytes = self.settings.max_characters * BYTES_PER_CHARACTER + OTHER_BYTES
        layers = [
            Middleware(CountRequests, metrics=self.metrics),
            Middleware(RequestBodyLimitMiddleware, max_body_size=max_bytes),
        ]
        if self.settings.cors_origins:
            origins = self.settings.cors_origins
            layers.append(Middleware(CORSMiddleware, allow_origins=origins, allow_methods=["GET", "POST"]))
        return layers

    @asynccontextmanager
    async def run(self, app: Starlette) -> AsyncIterator[None]:
        """Translate while the application runs."""
        app.state.api = self
        task = asyncio.create_task(self.batcher.run())
        yield
        task.cancel()

    async def translate(self, request: Request) -> JSONResponse:
        """Translate a text or an HTML document, or a list of them."""
        fields = await read_fields(request, self.settings.max_texts)
        self.check_key(fields.get("api_key"))
        translate_request = TranslateRequest.model_validate(fields)
        texts = [translate_request.q] if isinstance(translate_request.q, str) else translate_request.q
        check_size(texts, self.settings)
        direction = find_direction(self.directions, translate_request.source, translate_request.target)
        translations = await unless_disconnected(
            request, self.batcher.submit(translate_request.function(direction), texts)
        )
        self.metrics.characters.labels(direction.source, direction.target).inc(sum(map(len, texts)))
        answer = rated(translations) if translate_request.confidence else {"translatedText": translations}
        if canonical_code(translate_request.source) == AUTO_LANGUAGE:
            answer["detectedLanguage"] = [{"language": direction.source, "confidence": 100.0}] * len(texts)
        if isinstance(translate_request.q, str):
            return JSONResponse({name: values[0] for name, values in answer.items()})
        return JSONResponse(answer)

    def check_key(self, key: Any) -> None:
        """Raise an error without a valid key, if one is needed. Nothing else of a request has been examined before."""
        if self.keys and not (isinstance(key, str) and key_digest(key) in self.keys):
            raise HTTPException(403, "api_key must be a valid key.")

    async def show_languages(self, _: Request) -> JSONResponse:
        """The code, the name and the target languages of each source language."""
        targets: dict[str, list[str]] = {}
        for direction in dict.fromkeys(self.directions.values()):
            targets.setdefault(direction.source, []).append(direction.target)
        return JSONResponse(
            [{"code": code, "name": language_name(code), "targets": codes} for code, codes in targets.items()]
        )

    async def show_metrics(self, _: Request) -> PlainTextResponse:
        """Counters in Prometheus' format."""
        return PlainTextResponse(generate_latest(self.metrics.registry))


def rated(candidates: Sequence[Candidate]) -> dict[str, list[Any]]:
    """The fields of an answer with translations and their confidence."""
    return {
        "translatedText": [candidate.translation for candidate in candidates],
        "confidence": [candidate.confidence for candidate in candidates],
        "doubtful": [bool(candidate.problems) for candidate in candidates],
    }


async def show_health(_: Request) -> JSONResponse:
    """Whether the server runs."""
    return JSONResponse({"status": "ok"})


async def show_description(_: Request) -> FileResponse:
    """The description of the API by OpenAPI."""
    return FileResponse(PAGES / "openapi.json")


async def show_page(_: Request) -> FileResponse:
    """The page that describes the API, which needs no other host."""
    return FileResponse(PAGES / "docs.html")


def directions_by_codes(directions: Sequence[Direction]) -> dict[tuple[str, str], Direction]:
    """The directions by source and target; the source may be `auto` if it is the only one of its target."""
    by_codes = {}
    for direction in directions:
        pair = canonical_code(direction.source), canonical_code(direction.target)
        by_codes[pair] = direction
    sources = Counter(target for _, target in by_codes)
    detected = {}
    for (_, target), direction in by_codes.items():
        if sources[target] == 1:
            detected[AUTO_LANGUAGE, target] = direction
    return by_codes | detected


def code_and_parents(code: str) -> list[str]:
    """A code, and the same one without its region, script and so on: `zh-hans-cn`, `zh-hans`, `zh`."""
    parts = canonical_code(code[:LONGEST_CODE]).split("-")
    return ["-".join(parts[:count]) for count in range(len(parts), 0, -1)]


def find_direction(by_codes: dict[tuple[str, str], Direction], source: str, target: str) -> Direction:
    """The direction of these codes in any case, or of the languages without region; see `directions_by_codes`."""
    for pair in product(code_and_parents(source), code_and_parents(target)):
        if direction := by_codes.get(pair):
            return direction
    pairs = [
        f"{'auto' if code == 'auto' else direction.source} → {direction.target}"
        for (code, _), direction in by_codes.items()
    ]
    raise ValueError(f"source and target must be one of {format_names(pairs)}, got {source!r:.60} → {target!r:.60}.")


def key_digest(key: str) -> bytes:
    """A digest of a key, so that the time of a comparison does not depend on the key's first characters."""
    return hashlib.sha256(key.encode()).digest()


def check_size(texts: Sequence[str], settings: Settings) -> None:
    """Raise a `ValueError` for too many texts or characters."""
    if len(texts) > settings.max_texts:
        raise ValueError(f"q must have at most {settings.max_texts} texts, got {len(texts)}.")
    size = sum(map(len, texts))
    if size > settings.max_characters:
        raise ValueError(f"q must have at most {settings.max_characters} characters, got {size}.")


async def unless_disconnected(request: Request, work: "asyncio.Future[T]") -> T:
    """The result of a future, which is cancelled if the client disconnects."""
    disconnect: asyncio.Future[Any] = asyncio.ensure_future(request.receive())  # returns nothing else after the body
    try:
        await asyncio.wait({work, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise HTTPException(499, "The client has disconnected.")
        return work.result()
    finally:
        work.cancel()
        disconnect.cancel()


ANSWERED_ERRORS = (
    Exception,
    RuntimeError,
    ValueError,
    HTTPException,
    QueueFullError,
    TimeoutError,
    ClientDisconnect,
)


async def answer_error(_: Request, error: Exception) -> Response:
    """Answer an error as LibreTranslate does: `{"error": message}`."""
    status, message = status_and_message(error)
    headers = getattr(error, "headers", None)  # of an error of HTTP, such as the allowed methods
    if isinstance(error, QueueFullError):
        headers = {"Retry-After": str(error.seconds)}
    return JSONResponse({"error": message}, status, headers)


def status_and_message(error: Exception) -> tuple[int, str]:
    """The HTTP status and the message of an error."""
    match error:
        case HTTPException():
            return error.status_code, str(error.detail)
        case ClientDisconnect():
            logger.info("A client disconnected before its request was complete.")
            return 499, "The client has disconnected."
        case QueueFullError():
            return 429, f"Too many texts are waiting. Try again in {error.seconds} s."
        case TimeoutError():
            return 408, f"The body of a request must arrive within {BODY_SECONDS} s."
        case ValidationError():
            first = error.errors(include_url=False, include_input=False)[0]
            location = ".".join(map(str, first["loc"])) or "the body"
            return 400, f"{location}: {first['msg']}."
        case TextError():
            return 400, f"q: {error.reason}"
        case UnicodeDecodeError():
            return 400, "the body must be UTF-8."
        case ValueError():
            return 400, str(error)
    return 500, "The text was not translated."
