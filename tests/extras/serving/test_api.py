"""The HTTP API: answers, limits, keys and errors."""

import re

import pytest
from starlette.testclient import TestClient

from modeling_random_transformer.extras.documents import translate_html
from modeling_random_transformer.extras.serving import Direction, Settings, create_app
from modeling_random_transformer.extras.serving.requests import TranslateRequest
from modeling_random_transformer.inference import translate
from modeling_random_transformer.inference.confidence import CALIBRATION, Calibration, Calibrations
from tests.helpers.serving import Echo, application
from tests.helpers.serving import ask_application as ask
from tests.helpers.translation import SENTENCES, multilingual_translator


@pytest.fixture
def direction(translator, tokenizer):
    return Direction("en", "es", translator, tokenizer)


def test_text_list_and_forms(direction, translator, tokenizer):
    expected = translate(SENTENCES, translator, tokenizer)
    with application([direction]) as api:
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


def test_html_is_translated_as_by_translate_html(direction, translator, tokenizer):
    documents = ["<p>the <b>boy</b> reads</p>", "<script>x</script>", f"<ul><li>{SENTENCES[1]}</ul>"]
    expected = translate_html(documents, translator, tokenizer)
    assert expected[1] == documents[1]
    with application([direction], max_characters=100) as api:
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
    with application([direction]) as api:
        assert "run random-transformer calibrate" in ask(api, **ask_for).json()["error"]
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


@pytest.mark.parametrize(("source", "target"), [("EN", "pt-br"), ("en-US", "PT_BR"), ("en_Latn_GB", "pt-BR-x-a")])
def test_codes_match_without_case_and_with_a_region(source, target):
    with application([Echo()]) as api:
        assert ask(api, "a", source=source, target=target).json() == {"translatedText": "a"}
        assert ask(api, "a", source=source, target="pt-PT").status_code == 400
        assert ask(api, "a", source="-" * 5000, target="a-" * 2500).status_code == 400


@pytest.mark.parametrize("path", ["/health", "/languages", "/metrics", "/docs"])
def test_the_method_head_is_answered(path):
    with application([Echo()]) as api:
        assert api.head(path).status_code == 200


def test_languages_of_several_models(direction):
    model, tokenizer = multilingual_translator()
    options = {"src_lang": "fr", "tgt_lang": "es"}
    with application([direction, Direction("fr", "es", model, tokenizer, options)]) as api:
        assert api.get("/languages").json() == [
            {"code": "en", "name": "English", "targets": ["es"]},
            {"code": "fr", "name": "French", "targets": ["es"]},
        ]
        translation = ask(api, source="fr").json()["translatedText"]
        assert translation == translate(SENTENCES[:1], model, tokenizer, **options)[0]
        assert translation != ask(api, source="en").json()["translatedText"]
        for source, target in (("auto", "es"), ("es", "en"), ("en", "fr")):
            answer = ask(api, source=source, target=target)
            assert answer.status_code == 400
            assert "source and target must be one of en → es, fr → es, got" in answer.json()["error"]


def test_error_for_many_languages_is_short(direction):
    codes = [f"x{i}" for i in range(200)]
    many = [Direction(a, b, direction.model, direction.tokenizer) for a in codes for b in codes if a != b]
    with application(many) as api:
        assert len(ask(api).text) < 300


def test_texts_above_the_limits_are_errors(direction):
    with application([direction]) as api:
        for body in (b"a" * 10_000_000, iter([b"a" * 100_000] * 100)):  # with and without its length
            answer = api.post("/translate", content=body)
            assert answer.status_code == 413
            assert "Content Too Large" in answer.text
    with application([direction], max_characters=100, max_texts=2) as api:
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
        with application([direction]) as api:
            answer = ask(api, ["a", "x" * 41])
            assert answer.status_code == 400
            assert answer.json()["error"].startswith("q: texts must have at most 40 tokens")
    finally:
        direction.tokenizer.model_max_length = before


@pytest.mark.parametrize("error", [IndexError, RuntimeError, ValueError])
def test_error_of_the_model(error, direction, monkeypatch, caplog):
    def fail(*_, **__):
        raise error("internal")

    monkeypatch.setattr(direction.model, "generate", fail)
    origin = "https://example.org"
    with application([direction], cors_origins=[origin]) as api:
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


def test_a_request_without_a_valid_key_is_forbidden(direction):
    with application([direction], api_keys=["one", "zwei ü"]) as api:
        assert ask(api, api_key="zwei ü").status_code == ask(api, api_key="one").status_code == 200
        for fields in ({}, {"api_key": ""}, {"api_key": "two"}):
            answer = ask(api, **fields)
            assert (answer.status_code, answer.json()) == (403, {"error": "api_key must be a valid key."})
        assert api.get("/languages").status_code == 200


@pytest.mark.parametrize("name", ["api_keys", "cors_origins"])
def test_one_string_is_no_collection_of_keys_or_origins(name):
    with pytest.raises(ValueError, match=f"{name} must be a collection of strings, got one str"):
        Settings(**{name: "secret"})


@pytest.mark.parametrize("name", ["max_characters", "max_texts", "max_waiting"])
def test_limits_are_positive(name):
    with pytest.raises(ValueError, match=f"{name} must be a positive integer, got 0"):
        Settings(**{name: 0})


def test_cors_is_off_unless_origins_are_given(direction):
    headers = {"Origin": "https://example.org"}
    for origins, expected in (((), None), (("https://example.org",), "https://example.org")):
        with application([direction], cors_origins=origins) as api:
            assert api.get("/health", headers=headers).headers.get("access-control-allow-origin") == expected
    with application([direction], cors_origins=("https://example.com",)) as api:
        assert "access-control-allow-origin" not in api.get("/health", headers=headers).headers


@pytest.mark.parametrize("origin", ["example.org", "https://example.org/page", ""])
def test_origins_have_a_scheme_and_no_path(origin):
    with pytest.raises(ValueError, match=f"cors_origins must be origins such as https://example.org, got '{origin}'"):
        Settings(cors_origins=[origin])


def test_health_metrics_and_openapi(direction):
    with application([direction]) as api:
        ask(api, SENTENCES[:3])
        ask(api, 5)
        assert api.get("/nothing").json() == {"error": "Not Found"}
        wrong_method = api.get("/translate")
        assert wrong_method.json() == {"error": "Method Not Allowed"}
        assert wrong_method.headers["allow"] == "POST"
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
    with application([direction]) as api:
        description = api.get("/openapi.json").json()
    assert description["components"]["schemas"]["TranslateRequest"] == TranslateRequest.model_json_schema()
    paths = {route.path for route in create_app([direction]).routes}
    assert set(description["paths"]) == paths - {"/docs", "/openapi.json"}


def test_docs_need_no_other_host():
    """Links and the form are relative, so that the page works under the prefix of a proxy, too."""
    with application([Echo()]) as api:
        page = api.get("/docs").text
        links = re.findall(r'(?:href|action|src)="([^"]*)"', page)
        assert set(links) == {"openapi.json", "translate", "languages", "health", "metrics"}
        assert "//" not in page
        assert "<script" not in page
        for path in set(links) - {"translate"}:
            assert api.get(f"/{path}").status_code == 200
        form = {"q": "a", "source": "auto", "target": "pt-BR", "format": "text", "api_key": ""}
        assert api.post("/translate", data=form).json()["translatedText"] == "a"
