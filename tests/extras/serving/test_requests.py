"""Bodies of requests: JSON and forms, invalid ones, and those whose validation would take long."""

import pytest

from modeling_random_transformer.extras.serving import Direction
from modeling_random_transformer.extras.serving.requests import TranslateRequest
from tests.helpers.serving import Echo, application
from tests.helpers.serving import ask_application as ask


@pytest.fixture
def direction(translator, tokenizer):
    return Direction("en", "es", translator, tokenizer)


@pytest.mark.parametrize("kind", ["", "; charset=UTF-8", "; charset=latin-1"])
@pytest.mark.parametrize("text", ["María 100% 日本", "a+b", ""])
def test_forms_are_utf_8(kind, text):
    body = f"q={text}&source=en&target=pt-br&x=1".replace("+", "%2B").encode()
    with application([Echo()]) as api:
        headers = {"Content-Type": f"application/x-www-form-urlencoded{kind}"}
        assert api.post("/translate", content=body, headers=headers).json() == {"translatedText": text}
        answer = api.post("/translate", content=b"q=\xff", headers=headers)
        assert (answer.status_code, answer.json()) == (400, {"error": "the body must be UTF-8."})


@pytest.mark.parametrize(
    ("charset", "text", "answer"),
    [
        ("", "María 日本".encode(), {"translatedText": "María 日本"}),
        ('; charset="UTF-8"', "María 日本".encode(), {"translatedText": "María 日本"}),
        ("; charset= utf-8", "María 日本".encode(), {"translatedText": "María 日本"}),
        ("", "María".encode("latin-1"), {"error": "the body must be UTF-8."}),
        ("", "日本".encode("shift_jis"), {"error": "the body must be UTF-8."}),
        ("; charset=latin-1", "María".encode(), {"error": "the body must be UTF-8."}),
        ("; charset=unknown", "María".encode(), {"error": "the body must be UTF-8."}),
    ],
)
def test_forms_of_several_parts_are_utf_8(charset, text, answer):
    fields = {"q": text, "source": b"en", "target": b"pt-br"}
    parts = [
        b'--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (name.encode(), value)
        for name, value in fields.items()
    ]
    headers = {"Content-Type": f"multipart/form-data; boundary=b{charset}"}
    with application([Echo()]) as api:
        assert api.post("/translate", content=b"".join([*parts, b"--b--\r\n"]), headers=headers).json() == answer


def test_form_of_many_names():
    body = "&".join(f"n{number}=" for number in range(10_000))
    with application([Echo()], api_keys=["key"]) as api:
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        assert api.post("/translate", content=body, headers=headers).status_code == 403
        assert api.post("/translate", content=f"{body}&api_key=key", headers=headers).status_code == 400


PART = '--b\r\nContent-Disposition: form-data; name="q"\r\n\r\n\r\n'
# Bodies of many parts or values, whose validation would take long.
EXPENSIVE = {
    "JSON": ("application/json", '{"q": [' + ",".join("0" * 60_000) + "]}"),
    "form": ("application/x-www-form-urlencoded", "&".join("q" * 60_000)),
    "multipart": (
        "multipart/form-data; boundary=b",
        '--b\r\nContent-Disposition: form-data; name="q"\r\n\r\n\r\n' * 2300,
    ),
}


@pytest.mark.parametrize("name", EXPENSIVE)
def test_large_body_without_a_key_is_not_validated(name, monkeypatch):
    content_type, body = EXPENSIVE[name]
    validated = []
    monkeypatch.setattr(TranslateRequest, "model_validate", validated.append)
    with application([Echo()], api_keys=["key"]) as api:
        answer = api.post("/translate", content=body, headers={"Content-Type": content_type})
    assert answer.status_code == (400 if name == "multipart" else 403)
    assert not validated


@pytest.mark.parametrize("options", [{}, {"content": b"{}"}, {"json": {"q": "María"}}, {"data": {"q": "María"}}])
def test_fields_may_be_query_parameters(options):
    with application([Echo()]) as api:
        fields = {"q": "María", "source": "en", "target": "pt-BR"}
        assert api.post("/translate", params=fields, **options).json() == {"translatedText": "María"}


@pytest.mark.parametrize("empty", [None, ""])
def test_empty_optional_fields(empty):
    with application([Echo()]) as api:
        assert ask(api, "a", target="pt-BR", format=empty, api_key=empty).json() == {"translatedText": "a"}


BODIES = {
    "invalid UTF-8": (b'{"q": "\xff\xfe", "source": "en", "target": "es"}', 400, "Invalid JSON"),
    "no JSON": (b"q", 400, "the body: Invalid JSON"),
    "lone surrogate": (rb'{"q": "\ud800", "source": "en", "target": "es"}', 400, "Invalid JSON"),
    "nested": (b"[" * 20_000, 400, "Invalid JSON: recursion limit exceeded"),
    "no source": (b'{"q": "a", "target": "es"}', 400, "source: Field required."),
    "number": (b'{"q": 3, "source": "en", "target": "es"}', 400, "q.str: Input should be a valid string."),
    "format": (
        b'{"q": "a", "source": "en", "target": "es", "format": "pdf"}',
        400,
        "format: Input should be 'text' or 'html'.",
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_invalid_bodies(name, direction):
    body, status, message = BODIES[name]
    with application([direction]) as api:
        answer = api.post("/translate", content=body)
        assert (answer.status_code, list(answer.json())) == (status, ["error"])
        assert message in answer.json()["error"]
        assert ask(api).status_code == 200


def test_large_forms(direction):
    with application([direction], max_characters=1_200_000, max_texts=2000) as api:
        for texts in ([" " * 1_100_000], [" "] * 1500):
            form = {"q": texts, "source": "en", "target": "es"}
            for headers in ({}, {"Content-Type": "Application/X-WWW-Form-Urlencoded"}):
                answer = api.post("/translate", data=form, headers=headers)
                assert answer.status_code == 200, answer.text
        parts = [(name, (None, value)) for name, value in (("q", "ü" * 1_100_000), ("source", "en"), ("target", "fr"))]
        assert "source and target must be one of" in api.post("/translate", files=parts).json()["error"]
