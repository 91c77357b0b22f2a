"""Packages of Argos Translate return the model's translations."""

import json
import zipfile

import pytest

from modeling_random_transformer import RandomTransformerTokenizer
from modeling_random_transformer.extras.export import export_model, load_engine
from modeling_random_transformer.extras.export.argos_tokenizer import PART_OF_CHARACTER, sentencepiece_model
from modeling_random_transformer.extras.sentencepiece.conversion import SPACE_SYMBOL
from tests.helpers.engines import BEAMS, LIMIT, TEXTS, exportable, needs, own_translations
from tests.helpers.models import EOS
from tests.helpers.translation import SENTENCES, multilingual_translator

pytestmark = needs("ctranslate2")
ASCII = [text for text in TEXTS if text.isascii()]


def suppress_hidden(model, tokenizer):
    """Suppress the tokens that Argos Translate would show by their names."""
    _, names = sentencepiece_model(tokenizer)
    parts = {i for i, name in names.items() if PART_OF_CHARACTER.fullmatch(name)}
    model.generation_config.suppress_tokens = sorted(parts | {*tokenizer.all_special_ids} - {EOS})


def test_package_translates_as_the_model_does(tmp_path):
    model, tokenizer = exportable()
    export_model(model, tokenizer, tmp_path / "out", engine="argos", source_lang="en", target_lang="es")
    [package] = (tmp_path / "out").glob("*.argosmodel")
    assert package.name == "translate-en_es-1_0.argosmodel"
    with zipfile.ZipFile(package) as archive:
        metadata = json.loads(archive.read("translate-en_es-1_0/metadata.json"))
    assert [metadata[name] for name in ("from_code", "from_name", "to_code")] == ["en", "English", "es"]
    assert "target_prefix" not in metadata
    translate = load_engine(tmp_path / "out", "argos")
    suppress_hidden(model, tokenizer)
    for num_beams in BEAMS:
        expected = own_translations(model, tokenizer, num_beams, ASCII)
        assert translate(ASCII, num_beams, LIMIT) == [
            text.replace(SPACE_SYMBOL, " ").removeprefix(" ") for text in expected
        ]


def test_languages_of_the_tokenizer(tmp_path):
    model, tokenizer = multilingual_translator(src_lang="en", tgt_lang="fr")
    export_model(model, tokenizer, tmp_path / "out", engine="argos")
    with zipfile.ZipFile(tmp_path / "out" / "translate-en_fr-1_0.argosmodel") as archive:
        assert json.loads(archive.read("translate-en_fr-1_0/metadata.json"))["target_prefix"] == " "
    suppress_hidden(model, tokenizer)
    model.generation_config.suppress_tokens.remove(tokenizer.get_lang_id("fr"))
    model.generation_config.forced_bos_token_id = tokenizer.get_lang_id("fr")
    expected = [text.removeprefix(" ") for text in own_translations(model, tokenizer, 1, ASCII)]
    assert load_engine(tmp_path / "out", "argos")(ASCII, 1, LIMIT) == expected


def test_package_has_a_sentence_splitter_or_says_that_it_needs_one(tmp_path):
    model, tokenizer = exportable()
    splitter = tmp_path / "en.onnx"
    splitter.write_bytes(b"model")
    options = {"engine": "argos", "source_lang": "en", "target_lang": "es"}
    for file, sentence in ((splitter, "translates offline"), (None, "--sentence_splitter en.onnx")):
        output = tmp_path / str(file is None)
        export_model(model, tokenizer, output, sentence_splitter=file, **options)
        with zipfile.ZipFile(output / "translate-en_es-1_0.argosmodel") as archive:
            assert sentence in archive.read("translate-en_es-1_0/README.md").decode()
            assert ("translate-en_es-1_0/minisbd/en.onnx" in archive.namelist()) == (file is not None)


def test_what_argos_translate_does_not_support(tmp_path):
    model, tokenizer = exportable()
    options = {"engine": "argos", "source_lang": "en", "target_lang": "es"}
    with pytest.raises(ValueError, match="source_lang and target_lang must be codes such as 'en', got 'en' and None"):
        export_model(model, tokenizer, tmp_path / "out", **options | {"target_lang": None})
    with pytest.raises(ValueError, match=r"sentence_splitter must be LANGUAGE\.onnx of MiniSBD, got 'en\.txt'"):
        export_model(model, tokenizer, tmp_path / "out", **options, sentence_splitter="en.txt")
    for code in ("../../escaped", "en/gb", "en gb"):
        with pytest.raises(ValueError, match=f"must be codes such as 'en', got '{code}' and 'es'"):
            export_model(model, tokenizer, tmp_path / "out", **options | {"source_lang": code})
    for code in ("en", "EN"):
        with pytest.raises(ValueError, match=f"must be two languages, got 'en' and '{code}'"):
            export_model(model, tokenizer, tmp_path / "out", **options | {"target_lang": code})
    assert not list(tmp_path.iterdir())
    model.generation_config.no_repeat_ngram_size = 3
    with pytest.raises(ValueError, match="no_repeat_ngram_size must not be set for Argos Translate, got 3"):
        export_model(model, tokenizer, tmp_path / "out", **options)
    normalizing = RandomTransformerTokenizer.train(SENTENCES * 3, vocab_size=320, normalization="NFKC")
    with pytest.raises(ValueError, match=r"normalization must be 'NFC' or None for argos, got .*NFKC"):
        sentencepiece_model(normalizing)
    words = RandomTransformerTokenizer.from_words(["a", "S", "E"], bos_token="S", eos_token="E")
    with pytest.raises(ValueError, match="tokenizer must be byte-level BPE or of SentencePiece"):
        sentencepiece_model(words)
    with pytest.raises(ValueError, match=r"folder must contain one \*.argosmodel, got 0"):
        load_engine(tmp_path, "argos")
