"""The HTTP API of LibreTranslate (https://docs.libretranslate.com), as an ASGI application."""

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, TypeVar
from urllib.parse import unquote_to_bytes

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import generate_latest
from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from ... import __version__
from ...base.errors import format_names
from ...base.languages import language_name
from ...inputs_random_transformer import TextError
from .batches import Batcher, QueueFullError
from .directions import Direction
from .metrics import AnswerHead, CountRequests, Metrics

logger = logging.getLogger(__name__)

BODY_SECONDS = 30  # within which the body of a request must arrive
# Bytes of a body: a character has up to 12 in JSON ("\\ud83d\\ude00") and in forms; and the other fields.
BYTES_PER_CHARACTER, OTHER_BYTES = 12, 2**14

URLENCODED, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
LONGEST_CODE = 35  # characters of a code of a language, by BCP 47

T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """What a server accepts.

    Attributes:
        max_characters: limit on the characters of a request.
        max_texts: limit on the texts of a request.
        max_waiting: limit on the texts of all requests that wait; above it, the answer is 429 with `Retry-After`.
        api_keys: the keys, of which a request must have one; empty if none is needed.
        cors_origins: origins of web pages that may use the server, such as `https://example.org`.
    """

    max_characters: int = 10_000
    max_texts: int = 100
    max_waiting: int = 1000
    api_keys: Collection[str] = ()
    cors_origins: Sequence[str] = ()


class TranslateRequest(BaseModel):
    """The fields of `POST /translate`, as JSON or as a form."""

    q: str | list[str] = Field(description="A text, or several", examples=["Hello world."])
    source: str = Field(description="Code of the source language; `auto` if there is only one", examples=["en"])
    target: str = Field(description="Code of the target language", examples=["de"])
    format: Literal["text", "html"] = Field("text", description="`html`: tags are kept, inline ones on their words")
    api_key: str = ""

    @field_validator("format", "api_key", mode="before")
    @classmethod
    def default_if_empty(cls, value: Any, info: ValidationInfo) -> Any:
        """The default of an optional field for `null` and `""`, which clients send for a missing one."""
        return cls.model_fields[str(info.field_name)].default if value in (None, "") else value


class TranslateResponse(BaseModel):
    """The translation, or the list of translations."""

    translatedText: str | list[str]  # noqa: N815, LibreTranslate's name
    # Present if `source` is `auto`
    detectedLanguage: dict[str, Any] | list[dict[str, Any]] | None = None  # noqa: N815


def create_app(directions: Sequence[Direction], settings: Settings | None = None) -> FastAPI:
    """An ASGI application that translates.

    Args:
        directions: what it translates.
        settings: what it accepts.
    """
    settings = settings or Settings()
    metrics = Metrics()
    batcher = Batcher(settings.max_waiting, metrics.batches.observe)
    metrics.waiting.set_function(lambda: batcher.waiting)
    keys = {digest(key) for key in settings.api_keys}
    by_codes = directions_by_codes(directions)

    @asynccontextmanager
    async def run_batcher(_: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(batcher.run())
        yield
        task.cancel()

    app = FastAPI(title="random-transformer", version=__version__, lifespan=run_batcher)
    if settings.cors_origins:
        app.add_middleware(CORSMiddleware, allow_origins=settings.cors_origins, allow_methods=["GET", "POST"])
    max_bytes = settings.max_characters * BYTES_PER_CHARACTER + OTHER_BYTES
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=max_bytes)
    app.add_middleware(CountRequests, metrics=metrics)
    app.add_middleware(AnswerHead)
    add_error_handlers(app)

    @app.post("/translate", response_model=TranslateResponse, openapi_extra={"requestBody": request_body()})
    async def translate_texts(request: Request) -> JSONResponse:
        """Translate a text or an HTML document, or a list of them."""
        given = await read_request(request, max_bytes)
        if keys and digest(given.api_key) not in keys:
            raise HTTPException(403, "api_key must be a valid key.")
        texts = [given.q] if isinstance(given.q, str) else given.q
        check_size(texts, settings)
        direction = find_direction(by_codes, given.source, given.target)
        translate = direction.translate_html if given.format == "html" else direction.translate
        translations = await unless_disconnected(request, batcher.submit(translate, texts))
        metrics.characters.labels(direction.source, direction.target).inc(sum(map(len, texts)))
        answer: dict[str, Any] = {"translatedText": translations[0] if isinstance(given.q, str) else translations}
        if normalize_code(given.source) == "auto":
            language = {"language": direction.source, "confidence": 100.0}
            answer["detectedLanguage"] = language if isinstance(given.q, str) else [language] * len(texts)
        return JSONResponse(answer)

    # FastAPI's own route describes the API; what it adds takes as long as the rest of a request.
    app.router.routes.insert(0, Route("/translate", translate_texts, methods=["POST"]))

    @app.get("/languages")
    async def languages() -> list[dict[str, Any]]:
        """The source languages with their target languages."""
        return describe_languages(directions)

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Whether the server runs."""
        return {"status": "ok"}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def show_metrics() -> bytes:
        """Counters in Prometheus' format."""
        return generate_latest(metrics.registry)

    return app


def describe_languages(directions: Sequence[Direction]) -> list[dict[str, Any]]:
    """The code, the name and the target languages of each source language."""
    targets: dict[str, list[str]] = {}
    for each in directions:
        targets.setdefault(each.source, []).append(each.target)
    return [{"code": code, "name": language_name(code), "targets": found} for code, found in targets.items()]


def directions_by_codes(directions: Sequence[Direction]) -> dict[tuple[str, str], Direction]:
    """The directions by source and target; the source may be `auto` if it is the only one of its target."""
    found = {(normalize_code(each.source), normalize_code(each.target)): each for each in directions}
    sources = Counter(target for _, target in found)
    return found | {("auto", target): each for (_, target), each in found.items() if sources[target] == 1}


def normalize_code(code: str) -> str:
    """A code of a language in lower case, with hyphens."""
    return code.replace("_", "-").lower()


def code_and_parents(code: str) -> list[str]:
    """A code, and the same one without its region, script and so on: `zh-hans-cn`, `zh-hans`, `zh`."""
    parts = normalize_code(code[:LONGEST_CODE]).split("-")
    return ["-".join(parts[:count]) for count in range(len(parts), 0, -1)]


def find_direction(by_codes: dict[tuple[str, str], Direction], source: str, target: str) -> Direction:
    """The direction of these codes in any case, or of the languages without region; see `directions_by_codes`."""
    for pair in product(code_and_parents(source), code_and_parents(target)):
        if direction := by_codes.get(pair):
            return direction
    allowed = format_names(
        f"{'auto' if code == 'auto' else one.source} → {one.target}" for (code, _), one in by_codes.items()
    )
    raise ValueError(f"source and target must be one of {allowed}, got {source!r:.60} → {target!r:.60}.")


def digest(key: str) -> bytes:
    """A digest of a key, so that the time of a comparison does not depend on the key's first characters."""
    return hashlib.sha256(key.encode()).digest()


def check_size(texts: Sequence[str], settings: Settings) -> None:
    """Raise a `ValueError` for too many texts or characters."""
    if len(texts) > settings.max_texts:
        raise ValueError(f"q must have at most {settings.max_texts} texts, got {len(texts)}.")
    if (size := sum(map(len, texts))) > settings.max_characters:
        raise ValueError(f"q must have at most {settings.max_characters} characters, got {size}.")


async def read_request(request: Request, max_bytes: int) -> TranslateRequest:
    """Read JSON or a form, as clients of LibreTranslate send; fields that it lacks may be in the query."""
    query = read_form(request.scope["query_string"])
    kind = request.headers.get("content-type", "").lower()
    async with asyncio.timeout(BODY_SECONDS):
        if kind.startswith(MULTIPART):
            async with request.form(max_fields=max_bytes, max_part_size=max_bytes) as form:  # the body has this limit
                return TranslateRequest.model_validate(query | one_or_list(form.multi_items()))
        body = await request.body()
    if kind.startswith(URLENCODED):
        return TranslateRequest.model_validate(query | read_form(body))
    if not query:
        return TranslateRequest.model_validate_json(body)
    fields = from_json(body) if body.strip() else {}
    return TranslateRequest.model_validate(query | fields if isinstance(fields, dict) else fields)


def read_form(body: bytes) -> dict[str, Any]:
    """The known fields of a form or a query in UTF-8, whether its characters are encoded or not."""
    pairs = []
    for part in body.split(b"&"):
        name, _, value = (unquote_to_bytes(side) for side in part.replace(b"+", b" ").partition(b"="))
        try:
            pairs.append((name.decode(), value.decode()))
        except UnicodeDecodeError as error:
            raise ValueError("the body must be UTF-8.") from error
    return one_or_list(pairs)


def one_or_list(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The value of each known field, or the list of its values."""
    values: dict[str, list[Any]] = {}
    for name, value in pairs:
        if name in TranslateRequest.model_fields:
            values.setdefault(name, []).append(value)
    return {name: several if several[1:] else several[0] for name, several in values.items()}


def request_body() -> dict[str, Any]:
    """The description of `read_request` for OpenAPI."""
    schema = TranslateRequest.model_json_schema()
    return {
        "required": True,
        "content": {kind: {"schema": schema} for kind in ("application/json", URLENCODED, MULTIPART)},
    }


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


def add_error_handlers(app: FastAPI) -> None:
    """Answer errors as LibreTranslate does: `{"error": message}`."""

    async def answer(_: Request, error: Exception) -> JSONResponse:
        status, message = status_and_message(error)
        headers = {"Retry-After": str(error.seconds)} if isinstance(error, QueueFullError) else None
        return JSONResponse({"error": message}, status, headers)

    for kind in (Exception, RuntimeError, ValueError, HTTPException, QueueFullError, TimeoutError, ClientDisconnect):
        app.add_exception_handler(kind, answer)


def status_and_message(error: Exception) -> tuple[int, str]:
    """The HTTP status and the message of an error."""
    match error:
        case HTTPException():
            return error.status_code, str(error.detail)
        case ClientDisconnect():
            logger.warning("A client disconnected before its request was complete.")
            return 499, "The client has disconnected."
        case QueueFullError():
            return 429, f"Too many texts are waiting. Try again in {error.seconds} s."
        case TimeoutError():
            return 408, f"The body of a request must arrive within {BODY_SECONDS} s."
        case ValidationError():
            first = error.errors(include_url=False, include_input=False)[0]
            return 400, f"{'.'.join(map(str, first['loc'])) or 'the body'}: {first['msg']}."
        case TextError():
            return 400, f"q: {error.reason}"
        case ValueError():
            return 400, str(error)
    return 500, "The text was not translated."
