"""The description of the API: a document of OpenAPI, and a page without scripts that works offline."""

from importlib import resources
from typing import Any

from pydantic import BaseModel

from ... import __version__
from .requests import JSON, MULTIPART, URLENCODED, TranslateRequest

PAGE = (resources.files(__package__) / "docs.html").read_text(encoding="utf-8")


class TranslateResponse(BaseModel):
    """The translation, or the list of translations."""

    translatedText: str | list[str]  # noqa: N815, LibreTranslate's name
    # Present if `source` is `auto`
    detectedLanguage: dict[str, Any] | list[dict[str, Any]] | None = None  # noqa: N815


class ErrorResponse(BaseModel):
    """Why a request was not answered."""

    error: str


def describe_api() -> dict[str, Any]:
    """The document of OpenAPI. Its paths are relative to the address of the server, also behind a proxy."""
    schema = TranslateRequest.model_json_schema()
    body = {content_type: {"schema": schema} for content_type in (JSON, URLENCODED, MULTIPART)}
    translate = {
        "summary": "Translate a text or an HTML document, or a list of them",
        "requestBody": {"required": True, "content": body},
        "responses": {
            "200": json_answer("The translation", TranslateResponse.model_json_schema()),
            "default": json_answer("The request was not answered", ErrorResponse.model_json_schema()),
        },
    }
    queries = {
        "/languages": ("The source languages with their target languages", JSON),
        "/health": ("Whether the server runs", JSON),
        "/metrics": ("Counters in Prometheus' format", "text/plain"),
    }
    paths: dict[str, Any] = {"/translate": {"post": translate}}
    for path, (summary, content_type) in queries.items():
        answer = {"description": summary, "content": {content_type: {}}}
        paths[path] = {"get": {"summary": summary, "responses": {"200": answer}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "random-transformer", "version": __version__},
        "servers": [{"url": "."}],
        "paths": paths,
    }


def json_answer(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    """An answer in JSON, as OpenAPI describes it."""
    return {"description": description, "content": {JSON: {"schema": schema}}}
