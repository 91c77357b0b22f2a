"""Models that are exported to a class of transformers, and other programs that read them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_random_transformer.extras.conversion import convert_marian, from_marian
from modeling_random_transformer.extras.export import export_model, load_engine
from modeling_random_transformer.extras.export.transformers import native_model
from modeling_random_transformer.generation_random_transformer import pad_after_end
from modeling_random_transformer.modeling_random_transformer import RandomTransformerLayer
from tests.helpers.engines import BEAMS, LIMIT, TEXTS, check_translations, exportable, needs, own_translations
from tests.helpers.marian import ENGLISH, opus_folder
from tests.helpers.models import assert_near, padded_batch, random_ids
from tests.helpers.translation import SENTENCES, multilingual_translator

MARIAN, PEGASUS, BLENDERBOT = "MarianMTModel", "PegasusForConditionalGeneration", "BlenderbotForConditionalGeneration"
POST = {"norm_order": "post"}
(NEEDS_CTRANSLATE2,) = needs("ctranslate2")
REPRESENTABLE = [
    (MARIAN, {**POST, "lm_head_bias": False}),
    (MARIAN, {**POST, "attention_bias": False, "attention_scale": 0.3, "activation_function": "gelu"}),
    (MARIAN, {**POST, "sinusoid_layout": "concatenated", "scale_embedding": False}),
    (MARIAN, {**POST, "tie_word_embeddings": False}),
    (MARIAN, {**POST, "share_embeddings": False}),
    (MARIAN, {**POST, "share_embeddings": False, "tie_word_embeddings": False}),
    (PEGASUS, {"d_model": 18, "num_heads": 3, "max_position_embeddings": 2000}),
    (PEGASUS, {"tie_word_embeddings": False}),
    (BLENDERBOT, {"position_embedding": "learned", "position_offset": 2}),
]


@pytest.mark.parametrize(("name", "options"), REPRESENTABLE)
def test_logits_and_beams_equal_those_of_the_class(name, options):
    model, _ = exportable(layer_norm_eps=1e-5, **options)
    native = native_model(model)
    assert type(native).__name__ == name
    back, _ = from_marian(native)
    inputs = padded_batch([9, 5, 7])
    ids = inputs["input_ids"]
    model, native, back = (variant.double() for variant in (model, native, back))
    with torch.no_grad():
        logits, expected, converted = (
            variant(**inputs, decoder_input_ids=ids[:, 2:]).logits for variant in (native, model, back)
        )
    assert_near(logits, expected, 1e-5)  # q_proj was scaled in float32
    assert_near(converted, logits, 1e-9)
    native.generation_config = model.generation_config
    beams = [variant.generate(**inputs, num_beams=4, max_new_tokens=12) for variant in (model, native)]
    options = model.generation_config
    pad_after_end(beams[1], options.pad_token_id, options.eos_token_id)  # other classes fill with the end token
    assert torch.equal(*beams)


def test_the_epsilon_of_the_class_changes_little():
    """The classes have 1e-5, the default of this model is 1e-6."""
    for norm_order in ("post", "pre"):
        model, _ = exportable(norm_order=norm_order, d_model=128, num_heads=4)
        for parameter in model.parameters():
            parameter.data /= 2  # the initial spread
        ids = random_ids(2, 9)
        with torch.no_grad():
            native, expected = (
                variant(input_ids=ids, decoder_input_ids=ids).logits for variant in (native_model(model), model)
            )
        torch.testing.assert_close(native, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({**POST, "position_embedding": "learned"}, "position_embedding must be 'sinusoidal' .* got 'learned'"),
        ({"position_embedding": "none"}, "position_embedding must be 'sinusoidal' or 'learned' .* got 'none'"),
        ({**POST, "final_layer_norm": True}, f"final_layer_norm must be False for {MARIAN}, got True"),
        ({"final_layer_norm": False}, f"final_layer_norm must be True for {PEGASUS}, got False"),
        ({"d_k": 16, "d_v": 8}, "d_k must be d_model / num_heads=8 .* got 16"),
        ({"d_v": 4, "d_k": 8}, "d_v must be d_model / num_heads=8 .* got 4"),
        ({"position_offset": 2}, "position_offset must be 0 .* got 2"),
        ({"layer_norm_eps": 1e-3}, "layer_norm_eps must be at most 1e-05 .* got 0.001"),
        ({"share_embeddings": False}, f"share_embeddings must be True for {PEGASUS}, got False"),
        ({"decoder_start_token_id": None}, "decoder_start_token_id must be a token id .* got None"),
    ],
)
def test_what_no_class_computes(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        export_model(*exportable(**options), tmp_path / "out", engine="transformers")
    assert not list(tmp_path.iterdir())


def test_an_edited_model_is_an_error(tmp_path, monkeypatch):
    feed_forward = RandomTransformerLayer.feed_forward
    monkeypatch.setattr(RandomTransformerLayer, "feed_forward", lambda self, states: 2 * feed_forward(self, states))
    with pytest.raises(ValueError, match=f"model must compute what {PEGASUS} computes"):
        export_model(*exportable(), tmp_path / "out", engine="transformers")


def test_source_prefix_search_and_limits_are_exported(tmp_path):
    """Source prefix, options of the search, special tokens and limits, with a dtype."""
    model, tokenizer = exportable()
    model.config.prefix = "two red "
    model.generation_config.update(suppress_tokens=[9, 12], no_repeat_ngram_size=2, max_new_tokens=20)
    tokenizer.model_max_length = 99
    check_translations(model, tokenizer, tmp_path / "out", "transformers")
    native, fast = (
        auto_class.from_pretrained(tmp_path / "out") for auto_class in (AutoModelForSeq2SeqLM, AutoTokenizer)
    )
    assert (native.generation_config.max_new_tokens, native.generation_config.suppress_tokens) == (20, [9, 12])
    assert (fast.model_max_length, fast.model_input_names) == (99, ["input_ids", "attention_mask"])
    assert fast(TEXTS, padding=True).data == tokenizer(TEXTS, padding=True).data
    export_model(model, tokenizer, tmp_path / "half", engine="transformers", dtype="bfloat16")
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "half").dtype == torch.bfloat16


def test_settings_of_texts_are_kept(tmp_path):
    model, tokenizer = exportable()
    tokenizer.keep_line_breaks = not tokenizer.keep_line_breaks
    tokenizer.keep_without_letters = False
    export_model(model, tokenizer, tmp_path / "out", engine="transformers")
    convert_marian(tmp_path / "out", tmp_path / "back")
    back = AutoTokenizer.from_pretrained(tmp_path / "back")
    assert back.keep_line_breaks == tokenizer.keep_line_breaks
    assert back.keep_without_letters is False


def test_patience_is_reported_and_left_out(tmp_path, caplog):
    model, tokenizer = exportable()
    model.generation_config.patience = 2
    export_model(model, tokenizer, tmp_path / "out", engine="transformers")
    assert "transformers' own class has no patience, but the model has 2" in caplog.text
    native = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    assert not hasattr(native.generation_config, "patience")
    assert model.generation_config.patience == 2


def test_one_direction_of_several_languages(tmp_path):
    model, tokenizer = multilingual_translator()
    for src_lang, tgt_lang in ((None, "fr"), ("en", None)):
        tokenizer.src_lang, tokenizer.tgt_lang = src_lang, tgt_lang
        missing = "src_lang" if src_lang is None else "tgt_lang"
        with pytest.raises(ValueError, match=f"{missing} must be one of en, es, fr, got None"):
            export_model(model, tokenizer, tmp_path / "out", engine="transformers")
    tokenizer.src_lang, tokenizer.tgt_lang = "en", "fr"
    export_model(model, tokenizer, tmp_path / "out", engine="transformers")
    fast = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert fast.all_special_tokens == tokenizer.all_special_tokens
    assert "extra_special_tokens" not in json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    model.generation_config.forced_bos_token_id = tokenizer.get_lang_id("fr")
    expected = own_translations(model, tokenizer, 4)
    assert load_engine(tmp_path / "out", "transformers")(TEXTS, 4, LIMIT) == expected
    convert_marian(tmp_path / "out", tmp_path / "back")
    back = AutoTokenizer.from_pretrained(tmp_path / "back")
    assert (type(back), back.languages, back.src_lang) == (type(tokenizer), ["en", "es", "fr"], "en")
    assert back(SENTENCES).data == tokenizer(SENTENCES).data


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer.json", "{}", "must contain a tokenizer of the tokenizers library"),
        ("tokenizer_config.json", '{"languages": 3}', "must contain a tokenizer of the tokenizers library"),
        ("config.json", None, "normalize_before must be on, got False"),
    ],
)
def test_damaged_exports_are_not_converted(file, content, message, tmp_path):
    export_model(*exportable(), tmp_path / "out", engine="transformers")
    path = tmp_path / "out" / file
    path.write_text(content or path.read_text().replace('"normalize_before": true', '"normalize_before": false'))
    with pytest.raises(ValueError, match=message):
        convert_marian(tmp_path / "out", tmp_path / "back")
    assert not (tmp_path / "back").exists()


# Without this package: generation, steps of the Trainer, LoRA, and all of it after saving.
CONSUMER = """
import json, sys
sys.modules["modeling_random_transformer"] = None  # an import is an error
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, DataCollatorForSeq2Seq
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

folder, output, texts = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
inputs = tokenizer(texts, padding=True, return_tensors="pt")
search = {"num_beams": 4, "max_new_tokens": 24, "length_penalty": 0.6, "early_stopping": True}
print(json.dumps(tokenizer.batch_decode(model.generate(**inputs, **search), skip_special_tokens=True)))
rows = [dict(tokenizer(text, text_target=text.upper())) for text in texts] * 2
arguments = Seq2SeqTrainingArguments(
    output, max_steps=40, per_device_train_batch_size=8, learning_rate=1e-2, logging_steps=20, use_cpu=True,
    report_to="none", disable_tqdm=True, save_strategy="no",
)
lora = LoraConfig(task_type="SEQ_2_SEQ_LM", target_modules=["q_proj", "v_proj"])
for model in (model, get_peft_model(AutoModelForSeq2SeqLM.from_pretrained(folder), lora)):
    collator = DataCollatorForSeq2Seq(tokenizer, model)
    trainer = Seq2SeqTrainer(model, arguments, train_dataset=rows, eval_dataset=rows, data_collator=collator)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    print([before, trainer.evaluate()["eval_loss"]])
    model.save_pretrained(output)
    assert model.generate(**inputs, max_new_tokens=4).shape[0] == len(texts)
model = AutoModelForSeq2SeqLM.from_pretrained(output)  # with the adapter
"""


@pytest.mark.long
def test_the_exported_folder_works_without_this_package(tmp_path):
    model, tokenizer = exportable(norm_order="post")
    export_model(model, tokenizer, tmp_path / "out", engine="transformers")
    assert not list((tmp_path / "out").glob("*.py"))
    command = [sys.executable, "-c", CONSUMER, tmp_path / "out", tmp_path / "trained", json.dumps(TEXTS)]
    run = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=tmp_path, timeout=900)
    assert run.returncode == 0, run.stderr
    translations, *losses = (json.loads(line) for line in run.stdout.splitlines() if line.startswith("["))
    assert translations == own_translations(model, tokenizer, 4)
    assert len(losses) == 2
    for before, after in losses:
        assert after < before, losses


@NEEDS_CTRANSLATE2
@pytest.mark.parametrize("start", ["pre-norm", "zero vector"])
def test_converter_of_ctranslate2(start, tmp_path):
    """Its own converter, for pre-norm, and for models that were Marian's: their start token is a zero vector."""
    import ctranslate2
    from ctranslate2.converters import TransformersConverter

    model, tokenizer = exportable()
    if start == "zero vector":
        opus_folder(tmp_path / "opus")
        convert_marian(tmp_path / "opus", tmp_path / "model")
        model, tokenizer = (
            auto_class.from_pretrained(tmp_path / "model") for auto_class in (AutoModelForSeq2SeqLM, AutoTokenizer)
        )
    texts = ENGLISH if start == "zero vector" else TEXTS
    export_model(model, tokenizer, tmp_path / "out", engine="transformers")
    engine_folder = Path(TransformersConverter(str(tmp_path / "out")).convert(str(tmp_path / "engine")))
    config = json.loads((engine_folder / "config.json").read_text())
    config["decoder_start_token"] = tokenizer.convert_ids_to_tokens(model.config.decoder_start_token_id)
    if start == "pre-norm":  # the converter assumes <pad>
        (engine_folder / "config.json").write_text(json.dumps(config))
    engine = ctranslate2.Translator(str(engine_folder), intra_threads=1)
    sources = [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(texts)["input_ids"]]
    for num_beams in BEAMS:
        results = engine.translate_batch(
            sources, beam_size=num_beams, length_penalty=0.6, max_decoding_length=LIMIT, min_decoding_length=0
        )
        ids = [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]
        assert tokenizer.batch_decode(ids, skip_special_tokens=True) == own_translations(
            model, tokenizer, num_beams, texts
        )
