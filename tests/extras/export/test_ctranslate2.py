"""CTranslate2 returns the model's translations."""

import copy
import re
from operator import eq, ne
from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig

from modeling_random_transformer import RandomTransformerTokenizer
from modeling_random_transformer.extras.export import export_model, load_engine
from modeling_random_transformer.extras.export.search import UNSUPPORTED_OPTIONS as SEARCH_OPTIONS
from modeling_random_transformer.extras.export.web import page_settings
from modeling_random_transformer.modeling_random_transformer import RandomTransformerDecoderLayer
from tests.helpers.engines import BEAMS, CONFIGS, LIMIT, TEXTS, check_translations, exportable, needs, own_translations
from tests.helpers.models import EOS, assert_near, random_ids, tiny_model
from tests.helpers.translation import multilingual_translator

pytestmark = needs("ctranslate2")
GUIDE = Path(__file__).parents[3] / "docs" / "how_to" / "export.md"


ACTIVATIONS = ["relu", "gelu", "gelu_python", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python_tanh"]
ACTIVATIONS += ["gelu_accurate", "quick_gelu", "silu", "tanh", "sigmoid"]


@pytest.mark.parametrize(("name", "activation"), [*zip(CONFIGS, ACTIVATIONS, strict=True)])
def test_float32_translations_equal_model(name, activation, tmp_path):
    model, tokenizer = exportable(**{"activation_function": activation, **CONFIGS[name]})
    check_translations(model, tokenizer, tmp_path / "out", "ctranslate2")


def test_half_precision_model(tmp_path):
    model, tokenizer = exportable()
    rounded, _ = exportable()
    for parameter in rounded.parameters():
        parameter.data = parameter.bfloat16().float()
    check_translations(model.to(torch.bfloat16), tokenizer, tmp_path / "out", "ctranslate2", same=rounded)


@pytest.mark.parametrize("kind", ["more rows than tokens", "words"])
def test_other_vocabularies(kind, tmp_path):
    """Words: those of the blog post, without an unknown token and padding, with other special tokens."""
    _, tokenizer = exportable()
    texts, options = TEXTS, {"vocab_size": len(tokenizer) + 7}
    if kind == "words":
        words = ["hello", "mundo", "world", "how", "?", "EOS", "SOS", "a", "hola", "c"]
        tokenizer = RandomTransformerTokenizer.from_words(words, bos_token="SOS", eos_token="EOS")
        special = {"pad_token_id": 5, "bos_token_id": 6, "eos_token_id": 5, "decoder_start_token_id": 6}
        texts, options = ["hello world", "how a c ?", "mundo"], {"vocab_size": 10, **special}
    model = tiny_model(spread=2.0, norm_order="pre", **options)
    check_translations(model, tokenizer, tmp_path / "out", "ctranslate2", texts)


def log_probabilities(model, tokenizer, folder):
    """Those of random targets for `TEXTS`, by the model and by an exported one: `[texts, target_len]`."""
    import ctranslate2

    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    targets = random_ids(len(TEXTS), 12, vocab_size=len(tokenizer))
    labels = torch.nn.functional.pad(targets, (0, 1), value=EOS)
    with torch.no_grad():
        expected = model(**inputs, labels=labels).logits.log_softmax(-1).gather(2, labels[..., None])[..., 0]
    sources = [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(TEXTS)["input_ids"]]
    engine = ctranslate2.Translator(str(folder))
    scored = engine.score_batch(sources, [tokenizer.convert_ids_to_tokens(ids) for ids in targets.tolist()])
    return expected, torch.tensor([result.log_probs for result in scored])


@pytest.mark.parametrize(("dtype", "limit"), [("bfloat16", 0.006), ("int8", 0.034)])
@pytest.mark.parametrize("name", ["pre-norm", "narrow values", "nothing shared"])
def test_scores_and_rounded_weights(dtype, limit, name, tmp_path):
    """The scores are log-probabilities, also with rounded weights.

    The limits are 1.25 times the largest error of these models at the level AVX2: 0.0048 and 0.0267. With int8 weights
    of 8 bits, the error is 0.014 with VNNI and 0.4 without, where the engine's products saturate.
    """
    _, tokenizer = exportable()
    model = tiny_model(vocab_size=len(tokenizer), norm_order="pre", lm_head_bias=True, **CONFIGS[name])
    before = {key: value.clone() for key, value in model.state_dict().items()}
    for kind in ("float32", dtype):
        export_model(model, tokenizer, tmp_path / kind, dtype=kind)
    sizes = [(tmp_path / kind / "model.bin").stat().st_size for kind in ("float32", dtype)]
    assert sizes[1] < 0.75 * sizes[0]
    expected, scored = log_probabilities(model, tokenizer, tmp_path / "float32")
    assert_near(scored, expected, 1e-4)
    expected, scored = log_probabilities(model, tokenizer, tmp_path / dtype)
    assert 0 < (scored - expected).std() < limit * expected.std()
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), f"{key} was changed"


@pytest.mark.parametrize(("kind", "positions"), [("learned", 64), ("sinusoidal", 1024), ("none", 1024)])
def test_maximum_length(kind, positions, tmp_path):
    model, tokenizer = exportable(position_embedding=kind)
    export_model(model, tokenizer, tmp_path / "out")
    longest = "z" * (positions - 1)  # plus the end token
    assert load_engine(tmp_path / "out")([longest], 1, 5) == own_translations(model, tokenizer, 1, [longest], limit=5)
    with pytest.raises(RuntimeError, match=f"No position encodings are defined for positions >= {positions}"):
        load_engine(tmp_path / "out")([longest + "z"], 1, 5)


def test_invalid_texts(tmp_path):
    model, tokenizer = exportable()
    tokenizer.model_max_length = 3
    export_model(model, tokenizer, tmp_path / "out")
    translate = load_engine(tmp_path / "out")
    with pytest.raises(ValueError, match=r"index 1: texts must have at most tokenizer.model_max_length=3 tokens, got"):
        translate(["a", TEXTS[0]], 1, LIMIT)
    with pytest.raises(ValueError, match="index 0: texts must be strings, got 3"):
        translate([3], 1, LIMIT)


# By name: options, given the tokens of a translation.
OPTIONS = {
    "min_new_tokens": lambda _: {"min_new_tokens": 6},
    "min_length": lambda _: {"min_length": 7},
    "no_repeat_ngram_size": lambda _: {"no_repeat_ngram_size": 3},
    "pairs of tokens": lambda ids: {"bad_words_ids": ids.unfold(0, 2, 1).tolist()},
    "tokens": lambda ids: {"bad_words_ids": [[ids[0].item()]], "suppress_tokens": [ids[1].item()]},
    "tokens, no bias on logits": lambda ids: {"bad_words_ids": [[ids[0].item()]], "suppress_tokens": [ids[1].item()]},
    # transformers ignores the end token in `bad_words_ids`; ids outside the vocabulary have no effect.
    "no effect": lambda _: {"bad_words_ids": [[EOS]], "suppress_tokens": [9999]},
    # In beam search, the engine misses an empty translation after a forced token.
    "forced_bos_token_id": lambda _: {"forced_bos_token_id": 20, "min_new_tokens": 2},
    "prefix of the texts": lambda _: {},
    "all": lambda _: {
        "min_new_tokens": 6,
        "no_repeat_ngram_size": 3,
        "forced_bos_token_id": 20,
        "suppress_tokens": [48],
    },
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_generation_equal_model(name, tmp_path):
    model, tokenizer = exportable(lm_head_bias=name != "tokens, no bias on logits")
    defaults = [own_translations(model, tokenizer, num_beams) for num_beams in BEAMS]
    ids = model.generate(**tokenizer(TEXTS[2], return_tensors="pt"), max_new_tokens=LIMIT, do_sample=False)[0, 1:]
    model.generation_config.update(**OPTIONS[name](ids))
    model.config.prefix = {"prefix of the texts": "reads ", "all": "a "}.get(name, "")
    expected = [own_translations(model, tokenizer, num_beams) for num_beams in BEAMS]
    assert all(map(eq if name == "no effect" else ne, expected, defaults))
    export_model(model, tokenizer, tmp_path / "out")
    translate = load_engine(tmp_path / "out")
    assert [translate(TEXTS, num_beams, LIMIT) for num_beams in BEAMS] == expected


def test_blank_texts_have_blank_translations(tmp_path):
    model, tokenizer = exportable()
    export_model(model, tokenizer, tmp_path / "out")
    translate = load_engine(tmp_path / "out")
    texts = ["   ", TEXTS[0], "", "\u200b\n", f" {TEXTS[1]} ", "42", TEXTS[0].replace(" ", "  ")]
    for num_beams in BEAMS:
        translations = translate(texts, num_beams, LIMIT)
        first, second = own_translations(model, tokenizer, num_beams, [TEXTS[0], TEXTS[1]])
        assert translations == ["", first, "", "", second, "42", first]
    assert translate([" "], 1, LIMIT) == [""]


def test_folder_without_an_export(translator_folder):
    with pytest.raises(ValueError, match=r"folder must contain a config.json with 'search', got .*: export it again"):
        load_engine(translator_folder)


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
    model.generation_config.update(
        forced_bos_token_id=tokenizer.get_lang_id("fr"), min_new_tokens=4, length_penalty=0.6
    )
    export_model(model, tokenizer, tmp_path / "served")
    (code,) = re.findall(r"^```python\n(import json\n.+?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    namespace = {"sentences": TEXTS}
    monkeypatch.chdir(tmp_path)
    exec(code, namespace)
    assert namespace["translations"] == own_translations(model, tokenizer, 4, limit=128)


def test_patience_is_exported(tmp_path):
    model, tokenizer = exportable()
    model.generation_config.update(early_stopping=True, length_penalty=2.0)
    before = own_translations(model, tokenizer, 4)
    model.generation_config.patience = 3
    check_translations(model, tokenizer, tmp_path / "out", "ctranslate2")
    assert own_translations(model, tokenizer, 4) != before


UNSUPPORTED_OPTIONS = {
    "activation_function": ({"activation_function": "mish"}, "activation_function must be one of .* got 'mish'"),
    "eos_token_id": ({"eos_token_id": [2, 3]}, r"eos_token_id must be one token id .* got \[2, 3\]"),
    "no eos_token_id": ({"eos_token_id": None}, "eos_token_id must be one token id .* got None"),
    "vocab_size": ({"vocab_size": 20}, "tokenizer must match the model's vocab_size=20, got "),
}


@pytest.mark.parametrize("name", UNSUPPORTED_OPTIONS)
def test_unsupported_option_is_named(name, tmp_path):
    overrides, message = UNSUPPORTED_OPTIONS[name]
    _, tokenizer = exportable()
    model = tiny_model(**{"vocab_size": len(tokenizer), **overrides})
    with pytest.raises(ValueError, match=message):
        export_model(model, tokenizer, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_unsupported_option_of_generation_is_named(tmp_path):
    model, tokenizer = exportable()
    for name in SEARCH_OPTIONS:
        model.generation_config = copy.copy(exportable()[0].generation_config)
        setattr(model.generation_config, name, 7)
        with pytest.raises(ValueError, match=rf"^{name} must be .* for CTranslate2, got 7"):
            export_model(model, tokenizer, tmp_path / "out")
        with pytest.raises(ValueError, match=rf"^{name} must be .* for the web page, got 7"):
            page_settings(model, tokenizer, "int8")
    assert not list(tmp_path.iterdir())


def test_edited_code_is_not_exported_as_the_original(tmp_path, monkeypatch):
    original = RandomTransformerDecoderLayer.feed_forward
    monkeypatch.setattr(RandomTransformerDecoderLayer, "feed_forward", lambda *args: -original(*args))
    with pytest.raises(ValueError, match=r"must compute what CTranslate2 computes, but .* its logits differ by"):
        export_model(*exportable(), tmp_path / "out")
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
    """A new option of transformers must be exported or rejected, or must have no effect."""
    exported = {"eos_token_id", "bos_token_id", "decoder_start_token_id", "suppress_tokens", "bad_words_ids"}
    exported |= {"forced_bos_token_id", "min_length", "min_new_tokens", "no_repeat_ngram_size"}
    known = exported | WITHOUT_EFFECT | SEARCH_OPTIONS.keys()
    assert {name for name in GenerationConfig().to_dict() if not name.startswith("_")} - known == set()
