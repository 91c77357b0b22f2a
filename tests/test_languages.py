"""Several languages in one model: the pipeline, `translate` and `generate()` with language tags."""

import pytest
from transformers import (
    M2M100Config,
    M2M100ForConditionalGeneration,
    M2M100Tokenizer,
    MBart50Tokenizer,
    pipeline,
)

from modeling_random_transformer import cli
from modeling_random_transformer.inference import score_pairs, translate, translate_file
from modeling_random_transformer.inference.loading import load_translator
from modeling_random_transformer.inputs_random_transformer import tokenizer_languages
from tests.helpers.marian import train_pieces, write_json
from tests.helpers.translation import (
    SENTENCES,
    multilingual_translator,
    random_tokenizer,
    random_translator,
    some_texts,
)

TEXTS = some_texts(7)
SHORT = {"max_new_tokens": 8, "num_beams": 3}


@pytest.fixture
def translator():
    model, tokenizer = multilingual_translator()
    return model.double(), tokenizer


def reference(model, tokenizer, text, source, target, **options):
    tokenizer.src_lang = source
    tag = tokenizer.get_lang_id(target)
    output = model.generate(**tokenizer(text, return_tensors="pt"), forced_bos_token_id=tag, **options)
    assert output[0, 1] == tag
    tokenizer.src_lang = None
    return tokenizer.decode(output[0], skip_special_tokens=True)


def test_the_pipeline_translates_between_any_two_languages(translator):
    model, tokenizer = translator
    pipe = pipeline("seq2seq", model=model, tokenizer=tokenizer, device="cpu", src_lang="en", **SHORT)
    answers = {}
    for source, target in (("en", "es"), ("en", "fr"), ("es", "en")):
        answers[source, target] = [
            answer["generated_text"] for answer in pipe(TEXTS, batch_size=3, src_lang=source, tgt_lang=target)
        ]
        expected = [reference(model, tokenizer, text, source, target, **SHORT) for text in TEXTS]
        assert answers[source, target] == expected
        assert pipe(TEXTS[0], src_lang=source, tgt_lang=target)["generated_text"] == expected[0]
    assert len(set(map(tuple, answers.values()))) == 3
    assert [answer["generated_text"] for answer in pipe(TEXTS, tgt_lang="fr")] == answers["en", "fr"]
    assert (tokenizer.src_lang, tokenizer.tgt_lang) == (None, None)  # the tokenizer of the user is unchanged


@pytest.mark.parametrize("default", [None, "es"])
def test_forced_prefixes_begin_after_the_tag_of_the_target_language(translator, default):
    model, tokenizer = translator
    tokenizer.tgt_lang = default
    prefixes = ["les", "", "a b"]
    translations = translate(TEXTS[:3], model, tokenizer, prefixes=prefixes, src_lang="en", tgt_lang="fr", **SHORT)
    for text, prefix, translation in zip(TEXTS[:3], prefixes, translations, strict=True):
        words = tokenizer.backend_tokenizer.encode(prefix, add_special_tokens=False).ids
        forced = [tokenizer.get_lang_id("fr"), *words]

        def next_tokens(_, ids, forced=forced):
            return forced[len(ids) - 1 : len(ids)] or list(range(len(tokenizer)))

        assert translation.startswith(prefix)
        assert translation == reference(
            model, tokenizer, text, "en", "fr", prefix_allowed_tokens_fn=next_tokens, **SHORT
        )
    assert tokenizer.tgt_lang == default


def test_a_missing_or_unknown_language_raises(translator, tmp_path):
    model, tokenizer = translator
    pipe = pipeline("seq2seq", model=model, tokenizer=tokenizer, device="cpu")
    (tmp_path / "in.txt").write_text("the boy\n")
    for run in (
        pipe,
        lambda text, **options: translate([text], model, tokenizer, **options),
        lambda text, **options: score_pairs(model, tokenizer, [(text, text)], **options),
        lambda _, **options: translate_file(tmp_path / "in.txt", tmp_path / "out.txt", model, tokenizer, **options),
    ):
        with pytest.raises(ValueError, match=r"tgt_lang must be one of en, es, fr, got None\."):
            run("the boy", src_lang="en")
        with pytest.raises(ValueError, match=r"src_lang must be one of en, es, fr, got None\."):
            run("the boy", tgt_lang="fr")
        with pytest.raises(ValueError, match=r"src_lang must be one of en, es, fr, got 'de'\."):
            run("the boy", src_lang="de", tgt_lang="en")
    plain = pipeline("seq2seq", model=random_translator(), tokenizer=random_tokenizer(), device="cpu")
    with pytest.raises(ValueError, match=r"tgt_lang must be None for a model without language tags, got 'de'\."):
        plain("the boy", tgt_lang="de")


def test_the_command_translates_a_saved_model(translator, tmp_path, capsys):
    model, tokenizer = translator
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    arguments = ["--model", str(tmp_path), "--num_beams", "1", "--device", "cpu", "--source_lang", "en"]
    assert cli.main(["translate", *arguments, "--target_lang", "es", *TEXTS]) == 0
    expected = translate(TEXTS, *load_translator(tmp_path), num_beams=1, src_lang="en", tgt_lang="es")
    assert capsys.readouterr().out.splitlines() == expected
    assert cli.main(["translate", *arguments, *TEXTS]) == 2
    assert "tgt_lang must be one of en, es, fr, got None." in capsys.readouterr().err


# Other models with language tags


def m2m_tokenizer(folder):
    pieces = train_pieces(folder / "spm.model", SENTENCES)
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *pieces]
    write_json(folder / "vocab.json", {token: index for index, token in enumerate(tokens)})
    return M2M100Tokenizer(folder / "vocab.json", folder / "spm.model")


def mbart_tokenizer(_folder):
    return MBart50Tokenizer()


@pytest.mark.parametrize(
    ("make_tokenizer", "source", "target"),
    [
        (m2m_tokenizer, "de", "fr"),
        (mbart_tokenizer, "de_DE", "fr_XX"),
    ],
)
def test_tokenizers_of_transformers(make_tokenizer, source, target, tmp_path):
    tokenizer = make_tokenizer(tmp_path)
    initial = tokenizer.src_lang
    stacks = {f"{stack}_{name}": 1 for stack in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    sizes = {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    config = M2M100Config(vocab_size=300, decoder_start_token_id=2, **stacks, **sizes)
    model = M2M100ForConditionalGeneration(config).eval().double()
    pipe = pipeline("seq2seq", model=model, tokenizer=tokenizer, device="cpu", max_new_tokens=5, return_scores=True)
    answer = pipe("ab", src_lang=source, tgt_lang=target)
    assert tokenizer.src_lang == initial
    built = tokenizer._build_translation_inputs("ab", return_tensors="pt", src_lang=source, tgt_lang=target)
    tokenizer.src_lang = initial
    output = model.generate(**built, max_new_tokens=5, return_dict_in_generate=True, output_scores=True)
    assert answer["generated_text"] == tokenizer.decode(output.sequences[0], skip_special_tokens=True)
    transitions = model.compute_transition_scores(output.sequences, output.scores, normalize_logits=True)
    assert answer["score"] == pytest.approx(transitions.sum().item())
    assert {source, target} <= set(tokenizer_languages(tokenizer))
    with pytest.raises(ValueError, match=r"tgt_lang must be one of .*, got None\."):
        pipe("ab")
    with pytest.raises(ValueError, match=r"tgt_lang must be one of .*, got 'xx'\."):
        pipe("ab", tgt_lang="xx")
