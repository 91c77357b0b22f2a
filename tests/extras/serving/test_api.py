"""The HTTP API: answers, limits, keys and errors."""

import re
import time

import pytest
from starlette.testclient import TestClient

from modeling_random_transformer.commands.serve import read_keys
from modeling_random_transformer.extras.documents import translate_html
from modeling_random_transformer.extras.serving import Direction, Settings, create_app
from modeling_random_transformer.extras.serving.requests import TranslateRequest
from modeling_random_transformer.inference import translate
from modeling_random_transformer.inference.confidence import CALIBRATION, Calibration, Calibrations
from tests.helpers.translation import SENTENCES, multilingual_translator


def client(directions, **settings):
    return TestClient(create_app(directions, Settings(**settings)), raise_server_exceptions=False)


@pytest.fixture
def direction(translator, tokenizer):
    return Direction("en", "es", translator, tokenizer)


def ask(api, q=SENTENCES[0], source="en", target="es", **fields):
    return api.post("/translate", json={"q": q, "source": source, "target": target, **fields})


def test_text_list_and_forms(direction, translator, tokenizer):
    expected = translate(SENTENCES, translator, tokenizer)
    with client([direction]) as api:
        assert ask(api).json() == {"translatedText": expected[0]}
        language = {"language": "en", "confidence": 100.0}
        assert ask(api, SENTENCES[0], source="auto").json() == {
            "translatedText": expected[0],
            "detectedLanguage": language,
        }
        assert ask(api, SENTENCES[:2], source="auto").json()["detectedLanguage"] == [language] * 2
        assert ask(api, []).json() == {"translatedText": []}
        assert ask(api, ["", " "]).json() == {"translatedText": ["", ""]}
        form = {"q": SENTENCES[3], "source": "en", "target": "es"}
        assert api.post("/translate", data=form).json() == {"translatedText": expected[3]}
        parts = {name: (None, value) for name, value in form.items()}
        assert api.post("/translate", files=parts).json() == {"translatedText": expected[3]}


def test_html(direction, translator, tokenizer):
    documents = ["<p>the <b>boy</b> reads</p>", "<script>x</script>", f"<ul><li>{SENTENCES[1]}</ul>"]
    expected = translate_html(documents, translator, tokenizer)
    assert expected[1] == documents[1]
    with client([direction], max_characters=100) as api:
        assert ask(api, documents[0], format="html").json() == {"translatedText": expected[0]}
        assert ask(api, documents, format="html").json() == {"translatedText": expected}
        form = {"q": documents[0], "source": "en", "target": "es", "format": "html"}
        assert api.post("/translate", data=form).json() == {"translatedText": expected[0]}
        assert ask(api, documents[0], format="text").json()["translatedText"] != expected[0]
        answer = ask(api, "<p>" * 34, format="html")
        assert answer.json() == {"error": "q must have at most 100 characters, got 102."}


def test_confidence(translator, tokenizer, monkeypatch):
    ask_for = {"confidence": True}
    direction = Direction("en", "es", translator, tokenizer, {"repair": True})
    with client([direction]) as api:
        assert "make it by random-transformer calibrate" in ask(api, **ask_for).json()["error"]
        calibration = Calibration(50.0, 100, [0.5, 0.1, 0.2, 0.3, 0.1, 0.1], 0.0, 1.0, ["Han"])
        calibrations = Calibrations()
        calibrations.by_file[CALIBRATION] = calibration
        monkeypatch.setattr(translator, "calibrations", calibrations, raising=False)
        answer = ask(api, SENTENCES[0], **ask_for).json()
        assert answer["translatedText"] == ask(api, SENTENCES[0]).json()["translatedText"]
        assert 0 < answer["confidence"] < 1
        assert answer["doubtful"] is True  # no translation is in Chinese
        answer = ask(api, [SENTENCES[0], "", "12"], **ask_for).json()
        assert answer["confidence"][1:] == [None, None]
        assert answer["doubtful"][1:] == [False, False]
        assert ask(api, format="html", **ask_for).json() == {"error": "confidence must be false with html, got true."}


class Echo:
    """A direction that returns the texts."""

    def __new__(cls):
        direction = Direction("en", "pt-BR", None, None)
        object.__setattr__(direction, "translate", list)
        return direction


@pytest.mark.parametrize("kind", ["", "; charset=UTF-8", "; charset=latin-1"])
@pytest.mark.parametrize("text", ["María 100% 日本", "a+b", ""])
def test_forms_are_utf_8(kind, text):
    body = f"q={text}&source=en&target=pt-br&x=1".replace("+", "%2B").encode()
    with client([Echo()]) as api:
        headers = {"Content-Type": f"application/x-www-form-urlencoded{kind}"}
        assert api.post("/translate", content=body, headers=headers).json() == {"translatedText": text}
        answer = api.post("/translate", content=b"q=\xff", headers=headers)
        assert (answer.status_code, answer.json()) == (400, {"error": "the body must be UTF-8."})


def test_form_of_many_names():
    body = "&".join(f"n{number}=" for number in range(10_000))
    with client([Echo()], api_keys=["key"]) as api:
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
def test_large_body_without_a_key_is_cheap(name):
    content_type, body = EXPENSIVE[name]
    with client([Echo()], api_keys=["key"]) as api:
        start = time.process_time()
        answer = api.post("/translate", content=body, headers={"Content-Type": content_type})
        assert answer.status_code == (400 if name == "multipart" else 403)
        assert time.process_time() - start < 0.1


@pytest.mark.parametrize("options", [{}, {"content": b"{}"}, {"json": {"q": "María"}}, {"data": {"q": "María"}}])
def test_query_parameters(options):
    with client([Echo()]) as api:
        fields = {"q": "María", "source": "en", "target": "pt-BR"}
        assert api.post("/translate", params=fields, **options).json() == {"translatedText": "María"}


@pytest.mark.parametrize("empty", [None, ""])
def test_empty_optional_fields(empty):
    with client([Echo()]) as api:
        assert ask(api, "a", target="pt-BR", format=empty, api_key=empty).json() == {"translatedText": "a"}


@pytest.mark.parametrize(("source", "target"), [("EN", "pt-br"), ("en-US", "PT_BR"), ("en_Latn_GB", "pt-BR-x-a")])
def test_codes_match_without_case_and_with_a_region(source, target):
    with client([Echo()]) as api:
        assert ask(api, "a", source=source, target=target).json() == {"translatedText": "a"}
        assert ask(api, "a", source=source, target="pt-PT").status_code == 400
        assert ask(api, "a", source="-" * 5000, target="a-" * 2500).status_code == 400


@pytest.mark.parametrize("path", ["/health", "/languages", "/metrics", "/docs"])
def test_head(path):
    with client([Echo()]) as api:
        assert api.head(path).status_code == 200


def test_languages_of_several_models(direction):
    model, tokenizer = multilingual_translator()
    options = {"src_lang": "fr", "tgt_lang": "es"}
    with client([direction, Direction("fr", "es", model, tokenizer, options)]) as api:
        assert api.get("/languages").json() == [
            {"code": "en", "name": "English", "targets": ["es"]},
            {"code": "fr", "name": "French", "targets": ["es"]},
        ]
        found = ask(api, source="fr").json()["translatedText"]
        assert found == translate(SENTENCES[:1], model, tokenizer, **options)[0]
        assert found != ask(api, source="en").json()["translatedText"]
        for source, target in (("auto", "es"), ("es", "en"), ("en", "fr")):
            answer = ask(api, source=source, target=target)
            assert answer.status_code == 400
            assert "source and target must be one of en → es, fr → es, got" in answer.json()["error"]


def test_error_for_many_languages_is_short(direction):
    codes = [f"x{i}" for i in range(200)]
    many = [Direction(a, b, direction.model, direction.tokenizer) for a in codes for b in codes if a != b]
    with client(many) as api:
        assert len(ask(api).text) < 300


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
    with client([direction]) as api:
        answer = api.post("/translate", content=body)
        assert (answer.status_code, list(answer.json())) == (status, ["error"])
        assert message in answer.json()["error"]
        assert ask(api).status_code == 200


def test_limits(direction):
    with client([direction]) as api:
        for body in (b"a" * 10_000_000, iter([b"a" * 100_000] * 100)):  # with and without its length
            answer = api.post("/translate", content=body)
            assert answer.status_code == 413
            assert "Content Too Large" in answer.text
    with client([direction], max_characters=100, max_texts=2) as api:
        for q, message in (
            ("a " * 51, "q must have at most 100 characters, got 102."),
            (["a"] * 3, "q must have at most 2 texts, got 3."),
        ):
            answer = ask(api, q)
            assert (answer.status_code, answer.json()) == (400, {"error": message})


def test_text_that_cannot_be_translated(direction):
    """A text above the limit of the model is an error for its request only."""
    direction.tokenizer.model_max_length, before = 40, direction.tokenizer.model_max_length
    try:
        with client([direction]) as api:
            answer = ask(api, ["a", "x" * 41])
            assert answer.status_code == 400
            assert answer.json()["error"].startswith("q: texts must have at most 40 tokens")
    finally:
        direction.tokenizer.model_max_length = before


def test_large_forms(direction):
    with client([direction], max_characters=1_200_000, max_texts=2000) as api:
        for texts in ([" " * 1_100_000], [" "] * 1500):
            form = {"q": texts, "source": "en", "target": "es"}
            for headers in ({}, {"Content-Type": "Application/X-WWW-Form-Urlencoded"}):
                answer = api.post("/translate", data=form, headers=headers)
                assert answer.status_code == 200, answer.text
        parts = [(name, (None, value)) for name, value in (("q", "ü" * 1_100_000), ("source", "en"), ("target", "fr"))]
        assert "source and target must be one of" in api.post("/translate", files=parts).json()["error"]


@pytest.mark.parametrize("error", [IndexError, RuntimeError, ValueError])
def test_error_of_the_model(error, direction, monkeypatch, caplog):
    def fail(*_, **__):
        raise error("internal")

    monkeypatch.setattr(direction.model, "generate", fail)
    origin = "https://example.org"
    with client([direction], cors_origins=[origin]) as api:
        fields = {"q": "a", "source": "en", "target": "es"}
        answer = api.post("/translate", json=fields, headers={"Origin": origin})
        assert (answer.status_code, answer.json()) == (500, {"error": "The text was not translated."})
        assert answer.headers["access-control-allow-origin"] == origin
        assert 'random_transformer_requests_total{path="/translate",status="500"} 1.0' in api.get("/metrics").text
    assert "internal" in caplog.text


def test_application_can_be_started_again(direction):
    app = create_app([direction])
    for _ in range(2):
        with TestClient(app) as api:
            assert ask(api).status_code == 200


def test_keys_are_the_lines_of_a_file(tmp_path):
    (tmp_path / "keys").write_text("\ufeffone\n\n my secret key \r\n")
    assert read_keys(tmp_path / "keys") == ["one", "my secret key"]
    (tmp_path / "keys").write_text(" \n")
    with pytest.raises(ValueError, match="--api_keys must be a file with at least one key"):
        read_keys(tmp_path / "keys")


def test_api_keys(direction):
    with client([direction], api_keys=["one", "zwei ü"]) as api:
        assert ask(api, api_key="zwei ü").status_code == ask(api, api_key="one").status_code == 200
        for fields in ({}, {"api_key": ""}, {"api_key": "two"}):
            answer = ask(api, **fields)
            assert (answer.status_code, answer.json()) == (403, {"error": "api_key must be a valid key."})
        assert api.get("/languages").status_code == 200


def test_cors_is_off_unless_origins_are_given(direction):
    headers = {"Origin": "https://example.org"}
    for origins, expected in (((), None), (("https://example.org",), "https://example.org")):
        with client([direction], cors_origins=origins) as api:
            assert api.get("/health", headers=headers).headers.get("access-control-allow-origin") == expected
    with client([direction], cors_origins=("https://example.com",)) as api:
        assert "access-control-allow-origin" not in api.get("/health", headers=headers).headers


@pytest.mark.parametrize("origin", ["example.org", "https://example.org/page", ""])
def test_origins_have_a_scheme_and_no_path(origin):
    with pytest.raises(ValueError, match=f"cors_origins must be origins such as https://example.org, got '{origin}'"):
        Settings(cors_origins=[origin])


def test_health_metrics_and_openapi(direction):
    with client([direction]) as api:
        ask(api, SENTENCES[:3])
        ask(api, 5)
        assert api.get("/nothing").json() == {"error": "Not Found"}
        assert api.get("/translate").json() == {"error": "Method Not Allowed"}
        assert api.get("/health").json() == {"status": "ok"}
        answer = api.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        lines = answer.text.splitlines()
        labels = '{source="en",target="es"}'
        for line in (
            'random_transformer_requests_total{path="/translate",status="200"} 1.0',
            'random_transformer_requests_total{path="/translate",status="400"} 1.0',
            'random_transformer_requests_total{path="other",status="404"} 1.0',
            f"random_transformer_translated_characters_total{labels} {sum(map(len, SENTENCES[:3]))}.0",
            "random_transformer_batch_texts_sum 3.0",
            "random_transformer_waiting_texts 0.0",
        ):
            assert line in lines


def test_description_is_that_of_the_fields(direction):
    with client([direction]) as api:
        description = api.get("/openapi.json").json()
    assert description["components"]["schemas"]["TranslateRequest"] == TranslateRequest.model_json_schema()
    paths = {route.path for route in create_app([direction]).routes}
    assert set(description["paths"]) == paths - {"/docs", "/openapi.json"}


def test_docs_need_no_other_host():
    """Links and the form are relative, so that the page works under the prefix of a proxy, too."""
    with client([Echo()]) as api:
        page = api.get("/docs").text
        links = re.findall(r'(?:href|action|src)="([^"]*)"', page)
        assert set(links) == {"openapi.json", "translate", "languages", "health", "metrics"}
        assert "//" not in page
        assert "<script" not in page
        for path in set(links) - {"translate"}:
            assert api.get(f"/{path}").status_code == 200
        form = {"q": "a", "source": "auto", "target": "pt-BR", "format": "text", "api_key": ""}
        assert api.post("/translate", data=form).json()["translatedText"] == "a"
