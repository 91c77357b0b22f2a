"""Reads requests: JSON and forms with the fields of LibreTranslate, and fields of the query."""

import asyncio
import re
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import parse_qs

from pydantic import BaseModel, Field, ValidationInfo, field_validator
from pydantic_core import from_json
from starlette.requests import Request

from .batches import TranslateTexts
from .directions import Direction

BODY_SECONDS = 30  # within which the body of a request must arrive
OTHER_FIELDS = 20  # parts of a form beside its texts
URLENCODED, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
OTHER_CHARSET = re.compile(r"charset\s*=\s*+(?!\"?utf-?8\b)")


class TranslateRequest(BaseModel):
    """The fields of `POST /translate`, as JSON or as a form."""

    q: str | list[str] = Field(description="A text, or several", examples=["Hello world."])
    source: str = Field(description="Code of the source language; `auto` if there is only one", examples=["en"])
    target: str = Field(description="Code of the target language", examples=["de"])
    format: Literal["text", "html"] = Field("text", description="`html`: tags are kept, inline ones on their words")
    confidence: bool = Field(False, description="Also return the confidence of each text, 0 to 1, without `html`")
    api_key: str = ""

    @field_validator("format", "confidence", "api_key", mode="before")
    @classmethod
    def default_if_empty(cls, value: Any, info: ValidationInfo) -> Any:
        """The default of an optional field for `null` and `""`, which clients send for a missing one."""
        return cls.model_fields[str(info.field_name)].default if value in (None, "") else value

    def function(self, direction: Direction) -> TranslateTexts:
        """The function that translates the texts, to strings or to candidates with a confidence.

        Raises:
            ValueError: a confidence is requested of a document, or of a model without a calibration.
        """
        if not self.confidence:
            return direction.translate_html if self.format == "html" else direction.translate
        if self.format == "html":
            raise ValueError("confidence must be false with html, got true.")
        direction.check_confidence()
        return direction.rate


async def read_fields(request: Request, max_texts: int) -> dict[str, Any]:
    """The known fields of a body and of the query, without validation. Those of the body come first.

    Args:
        request: a request whose body has a limit.
        max_texts: limit on the texts of a form, which costs more than its bytes.

    Raises:
        ValueError: the body is not what its type says.
        TimeoutError: the body did not arrive in time.
    """
    query = read_form(request.scope["query_string"])
    content_type = request.headers.get("content-type", "").lower()
    async with asyncio.timeout(BODY_SECONDS):
        body = await request.body()
        if content_type.startswith(MULTIPART):
            if OTHER_CHARSET.search(content_type):
                raise ValueError("the body must be UTF-8.")
            body.decode()  # starlette reads another encoding as Latin-1
            async with request.form(max_fields=max_texts + OTHER_FIELDS, max_part_size=2**30) as form:
                return query | one_or_list({name: form.getlist(name) for name in form})
    if content_type.startswith(URLENCODED):
        return query | read_form(body)
    if query and not body.strip():
        return query
    return query | parse_json(body)


def read_form(body: bytes) -> dict[str, Any]:
    """The known fields of a form or a query in UTF-8, whether their characters are encoded or not."""
    fields = parse_qs(body.decode(), keep_blank_values=True, errors="strict")
    return one_or_list({name: fields[name] for name in fields if name in TranslateRequest.model_fields})


def parse_json(body: bytes) -> dict[str, Any]:
    """The object of a body in JSON."""
    try:
        content = from_json(body)
    except ValueError as error:
        raise ValueError(f"the body: Invalid JSON: {error}.") from error
    if not isinstance(content, dict):
        raise ValueError("the body must be a JSON object.")
    return content


def one_or_list(values: Mapping[str, list[Any]]) -> dict[str, Any]:
    """The value of each name, or the list of its values if there are several."""
    return {name: several if len(several) > 1 else several[0] for name, several in values.items()}
