"""CTranslate2 returns the model's translations."""

import json
import re
import shutil
from itertools import cycle
from operator import ne
from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig

from modeling_random_transformer import RandomTransformerTokenizer
from modeling_random_transformer.export import export_model, load_engine
from modeling_random_transformer.export.engines import UNSUPPORTED as SEARCH_OPTIONS
from modeling_random_transformer.export.web import page_settings
from tests.helpers.engines import BEAMS, CONFIGS, LIMIT, TEXTS, exportable, needs, own_translations
from tests.helpers.models import EOS, assert_near, random_ids, tiny_model
from tests.helpers.translation import multilingual_translator

pytestmark = needs("ctranslate2")
GUIDE = Path(__file__).parents[2] / "docs" / "how_to" / "export.md"


ACTIVATIONS = ["relu", "gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "silu", "tanh", "sigmoid"]


@pytest.mark.parametrize(("name", "activation"), [*zip(CONFIGS, cycle(ACTIVATIONS), strict=False)])
def test_float32_translations_equal_model(name, activation, tmp_path):
    model, tokenizer = exportable(**{"activation_function": activation, **CONFIGS[name]})
    export_model(model, tokenizer, tmp_path / "out", engine="ctranslate2")
    translate = load_engine(tmp_path / "out", "ctranslate2")
    for num_beams in BEAMS:
        expected = own_translations(model, tokenizer, num_beams)
        assert len(set(expected)) > 1, "translations must differ to be compared"
        assert translate(TEXTS, num_beams, LIMIT) == expected


def test_activations_of_one_kind_are_equal():
    from transformers.activations import ACT2FN

    from modeling_random_transformer.export.ctranslate2 import ACTIVATIONS

    inputs = torch.linspace(-6, 6, 1001)
    for kind in set(ACTIVATIONS.values()):
        equal = [ACT2FN[name](inputs) for name, value in ACTIVATIONS.items() if value == kind]
        for outputs in equal:
            assert_near(outputs, equal[0], 1e-6)


@pytest.mark.parametrize("num_beams", BEAMS)
def test_generated_ids_equal_model(num_beams, exported):
    """Without torch: tokens in, tokens out."""
    import ctranslate2

    model, tokenizer, folder = exported
    sources = [tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"]) for text in TEXTS]
    assert all(source[-1] == "</s>" for source in sources)
    engine = ctranslate2.Translator(str(folder))
    options = {"beam_size": num_beams, "max_decoding_length": LIMIT, "min_decoding_length": 0, "return_end_token": True}
    results = engine.translate_batch(sources, **options)
    for text, result in zip(TEXTS, results, strict=True):
        inputs = tokenizer(text, return_tensors="pt")
        search = {"num_beams": num_beams, "early_stopping": num_beams > 1, "max_new_tokens": LIMIT, "do_sample": False}
        expected = model.generate(**inputs, **search)[0, 1:]
        assert tokenizer.convert_tokens_to_ids(result.hypotheses[0]) == expected.tolist()


def log_probabilities(model, tokenizer, folder):
    """Those of random targets for `TEXTS`, by the model and by an exported one: `[texts, target_len]`."""
    import ctranslate2

    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    targets = random_ids(len(TEXTS), 12, vocab_size=len(tokenizer))
    labels = torch.nn.functional.pad(targets, (0, 1), value=EOS)
    with torch.no_grad():
        own = model(**inputs, labels=labels).logits.log_softmax(-1).gather(2, labels[..., None])[..., 0]
    sources = [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(TEXTS)["input_ids"]]
    engine = ctranslate2.Translator(str(folder))
    scored = engine.score_batch(sources, [tokenizer.convert_ids_to_tokens(ids) for ids in targets.tolist()])
    return own, torch.tensor([each.log_probs for each in scored])


def test_scores_equal_log_probabilities(exported):
    own, scored = log_probabilities(*exported)
    assert_near(scored, own, 1e-4)


@pytest.mark.parametrize(("dtype", "limit"), [("bfloat16", 0.006), ("int8", 0.034)])
@pytest.mark.parametrize("name", ["pre-norm", "narrow values", "nothing shared"])
def test_bfloat16_and_int8(dtype, limit, name, tmp_path):
    """The limits are 1.25 times the largest error of these models at the level AVX2: 0.0048 and 0.0267.

    With int8 weights of 8 bits, the error is 0.014 with VNNI and 0.4 without, where the engine's products saturate.
    """
    _, tokenizer = exportable()
    model = tiny_model(vocab_size=len(tokenizer), norm_order="pre", lm_head_bias=True, **CONFIGS[name])
    before = {key: value.clone() for key, value in model.state_dict().items()}
    for kind in ("float32", dtype):
        export_model(model, tokenizer, tmp_path / kind, dtype=kind)
    sizes = [(tmp_path / kind / "model.bin").stat().st_size for kind in ("float32", dtype)]
    assert sizes[1] < 0.75 * sizes[0]
    own, scored = log_probabilities(model, tokenizer, tmp_path / dtype)
    assert 0 < (scored - own).std() < limit * own.std()
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), f"{key} was changed"


def test_ctranslate2_converter_writes_the_same_file(tmp_path):
    """The loader is registered for CTranslate2's own converter."""
    from ctranslate2.converters import TransformersConverter

    model, tokenizer = exportable(d_k=3, d_v=11)
    export_model(model, tokenizer, tmp_path / "exported")
    for saved in (model, tokenizer):
        saved.save_pretrained(tmp_path / "model")
    TransformersConverter(str(tmp_path / "model")).convert(str(tmp_path / "converted"), quantization="float32")
    exported, converted = (tmp_path / name / "model.bin" for name in ("exported", "converted"))
    assert exported.read_bytes() == converted.read_bytes()


def test_half_precision_model(tmp_path):
    model, tokenizer = exportable()
    rounded, _ = exportable()
    for parameter in rounded.parameters():
        parameter.data = parameter.bfloat16().float()
    export_model(model.to(torch.bfloat16), tokenizer, tmp_path / "out")
    assert load_engine(tmp_path / "out")(TEXTS, 1, LIMIT) == own_translations(rounded, tokenizer, 1)


@pytest.mark.parametrize(("kind", "positions"), [("learned", 64), ("sinusoidal", 1024), ("none", 1024)])
def test_maximum_length(kind, positions, tmp_path):
    model, tokenizer = exportable(position_embedding=kind)
    export_model(model, tokenizer, tmp_path / "out")
    longest = "z" * (positions - 1)  # plus the end token
    assert load_engine(tmp_path / "out")([longest], 1, 5) == own_translations(model, tokenizer, 1, [longest], limit=5)
    with pytest.raises(RuntimeError, match=f"No position encodings are defined for positions >= {positions}"):
        load_engine(tmp_path / "out")([longest + "z"], 1, 5)


def test_vocabulary_larger_than_tokenizer(tmp_path):
    _, tokenizer = exportable()
    model = tiny_model(spread=2.0, norm_order="pre", vocab_size=len(tokenizer) + 7)
    export_model(model, tokenizer, tmp_path / "out")
    assert load_engine(tmp_path / "out")(TEXTS, 1, LIMIT) == own_translations(model, tokenizer, 1)


def test_word_tokenizer_without_unknown_token(tmp_path):
    """The ten words of the blog post: no unknown token, no padding, other special tokens."""
    words = ["hello", "mundo", "world", "how", "?", "EOS", "SOS", "a", "hola", "c"]
    tokenizer = RandomTransformerTokenizer.from_words(words, bos_token="SOS", eos_token="EOS")
    special = {"pad_token_id": 5, "bos_token_id": 6, "eos_token_id": 5, "decoder_start_token_id": 6}
    model = tiny_model(spread=2.0, vocab_size=10, norm_order="pre", **special)
    export_model(model, tokenizer, tmp_path / "out")
    texts = ["hello world", "how a c ?", "mundo"]
    for num_beams in BEAMS:
        expected = own_translations(model, tokenizer, num_beams, texts)
        assert load_engine(tmp_path / "out")(texts, num_beams, LIMIT) == expected


OPTIONS = {
    "min_new_tokens": ({"min_new_tokens": 6}, ""),
    "min_length": ({"min_length": 7}, ""),
    "no_repeat_ngram_size": ({"no_repeat_ngram_size": 3}, ""),
    "bad_words_ids": ({}, ""),
    # In beam search, the engine misses an empty translation after a forced token.
    "forced_bos_token_id": ({"forced_bos_token_id": 20, "min_new_tokens": 2}, ""),
    "prefix of the texts": ({}, "reads "),
    "all": ({"min_new_tokens": 6, "no_repeat_ngram_size": 3, "forced_bos_token_id": 20, "suppress_tokens": [48]}, "a "),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_generation_equal_model(name, tmp_path):
    options, prefix = OPTIONS[name]
    model, tokenizer = exportable()
    defaults = [own_translations(model, tokenizer, num_beams) for num_beams in BEAMS]
    model.config.prefix = prefix
    if name == "bad_words_ids":  # pairs of tokens in a translation
        ids = model.generate(**tokenizer(TEXTS[2], return_tensors="pt"), max_new_tokens=LIMIT, do_sample=False)
        options = {name: ids[0, 1:].unfold(0, 2, 1).tolist()}
    model.generation_config.update(**options)
    expected = [own_translations(model, tokenizer, num_beams) for num_beams in BEAMS]
    assert all(map(ne, expected, defaults)), "the option must have an effect"
    export_model(model, tokenizer, tmp_path / "out")
    translate = load_engine(tmp_path / "out")
    assert [translate(TEXTS, num_beams, LIMIT) for num_beams in BEAMS] == expected


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A model, its tokenizer, and the folder that they were exported to."""
    model, tokenizer = exportable()
    folder = tmp_path_factory.mktemp("exported") / "out"
    export_model(model, tokenizer, folder)
    return model, tokenizer, folder


def test_blank_texts_have_blank_translations(exported):
    model, tokenizer, folder = exported
    translate, texts = load_engine(folder), ["   ", TEXTS[0], "", "\t\n", TEXTS[1]]
    for num_beams in BEAMS:
        found = translate(texts, num_beams, LIMIT)
        assert found == own_translations(model, tokenizer, num_beams, texts)
        assert found[0] == found[2] == found[3] == ""
    assert translate([" "], 1, LIMIT) == [""]


def test_export_of_an_earlier_version(exported, tmp_path):
    shutil.copytree(exported[2], tmp_path / "out")
    settings = json.loads((tmp_path / "out" / "config.json").read_text())
    (tmp_path / "out" / "config.json").write_text(json.dumps({k: v for k, v in settings.items() if k != "search"}))
    with pytest.raises(ValueError, match=r"folder must contain a config.json with 'search', got .*: export it again"):
        load_engine(tmp_path / "out")


def test_language_of_the_target(tmp_path):
    """The generation config selects it, as in `generate()`, or else the tokenizer."""
    model, tokenizer = multilingual_translator(src_lang="en")
    with pytest.raises(ValueError, match="tgt_lang must be one of en, es, fr, got None"):
        export_model(model, tokenizer, tmp_path / "out")
    assert not list(tmp_path.iterdir())
    tokenizer.tgt_lang = "fr"
    for forced, code in ((tokenizer.get_lang_id("es"), "es"), (None, "fr")):
        model.generation_config.forced_bos_token_id = forced
        export_model(model, tokenizer, tmp_path / code)
        model.generation_config.forced_bos_token_id = tokenizer.get_lang_id(code)
        assert load_engine(tmp_path / code)(TEXTS, 1, LIMIT) == own_translations(model, tokenizer, 1)


def test_code_of_the_guide_for_several_languages(tmp_path, monkeypatch):
    """The exported options are passed to `translate_batch`, of which the tag of the target language is one."""
    model, tokenizer = multilingual_translator(src_lang="en")
    model.generation_config.update(forced_bos_token_id=tokenizer.get_lang_id("fr"), min_new_tokens=4)
    export_model(model, tokenizer, tmp_path / "served")
    (code,) = re.findall(r"^```python\n(import json\n.+?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    namespace = {"sentences": TEXTS}
    monkeypatch.chdir(tmp_path)
    exec(code, namespace)
    assert namespace["translations"] == own_translations(model, tokenizer, 4, limit=128)


UNSUPPORTED = {
    "activation_function": ({"activation_function": "mish"}, "activation_function must be one of .* got 'mish'"),
    "eos_token_id": ({"eos_token_id": [2, 3]}, r"eos_token_id must be one token id .* got \[2, 3\]"),
    "no eos_token_id": ({"eos_token_id": None}, "eos_token_id must be one token id .* got None"),
    "no start": (
        {"decoder_start_token_id": None, "bos_token_id": None},
        "decoder_start_token_id must be one token id .* got None",
    ),
    "vocab_size": ({"vocab_size": 20}, "tokenizer must match the model's vocab_size=20, got "),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_option_is_named(name, tmp_path):
    overrides, message = UNSUPPORTED[name]
    _, tokenizer = exportable()
    model = tiny_model(**{"vocab_size": len(tokenizer), **overrides})
    with pytest.raises(ValueError, match=message):
        export_model(model, tokenizer, tmp_path / "out")
    assert not list(tmp_path.iterdir())


UNSUPPORTED_OPTIONS = {
    "begin_suppress_tokens": [5],
    "encoder_no_repeat_ngram_size": 2,
    "encoder_repetition_penalty": 1.5,
    "exponential_decay_length_penalty": (3, 1.1),
    "guidance_scale": 1.5,
    "max_time": 9.0,
    "repetition_penalty": 1.2,
    "sequence_bias": [[[5], 2.0]],
    "stop_strings": ["."],
    "token_healing": True,
    "watermarking_config": {"bias": 2.5},
}


def test_unsupported_option_of_generation_is_named(tmp_path):
    model, tokenizer = exportable()
    defaults = model.generation_config
    for name, value in UNSUPPORTED_OPTIONS.items():
        model.generation_config = GenerationConfig(**{**defaults.to_dict(), name: value})
        with pytest.raises(ValueError, match=rf"^{name} must be .* for CTranslate2, got "):
            export_model(model, tokenizer, tmp_path / "out")
        with pytest.raises(ValueError, match=rf"^{name} must be .* for the web page, got "):
            page_settings(model, tokenizer, "int8")
    assert not list(tmp_path.iterdir())


WITHOUT_EFFECT = {  # on a search without sampling, or given by the call
    *("do_sample", "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"),
    *("max_length", "max_new_tokens", "num_beams", "num_return_sequences", "length_penalty", "early_stopping"),
    *("forced_eos_token_id", "renormalize_logits", "remove_invalid_values"),
    *("output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate"),
    *("use_cache", "cache_implementation", "cache_config", "compile_config", "disable_compile", "prefill_chunk_size"),
    *("max_cache_len", "low_memory", "continuous_batching_config", "pad_token_id", "transformers_version"),
    # other modes of decoding: with an assistant, which does not change the result, or of code on the Hub
    *("is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold"),
    *("assistant_early_exit", "assistant_lookbehind", "target_lookbehind", "assistant_ensemble_weight"),
    *("prompt_lookup_num_tokens", "max_matching_ngram_size", "speculation_type", "use_mtp"),
    *("penalty_alpha", "dola_layers", "diversity_penalty", "num_beam_groups", "constraints", "force_words_ids"),
}


def test_every_option_of_generation_is_known():
    """A new option of transformers must be exported or refused, or must have no effect."""
    exported = {"eos_token_id", "bos_token_id", "decoder_start_token_id", "suppress_tokens", "bad_words_ids"}
    exported |= {"forced_bos_token_id", "min_length", "min_new_tokens", "no_repeat_ngram_size"}
    known = exported | WITHOUT_EFFECT | SEARCH_OPTIONS.keys()
    assert {name for name in GenerationConfig().to_dict() if not name.startswith("_")} - known == set()
