"""Users' texts are data: no character sequence in them is a control token, in any entry point of the package."""

import pytest
import torch
from datasets import Dataset
from transformers import pipeline

from modeling_random_transformer.data.tokenization import tokenize_pairs
from modeling_random_transformer.extras.inspection.explorer import explore
from modeling_random_transformer.extras.pairs import alignments
from modeling_random_transformer.inference import score_pairs, translate
from modeling_random_transformer.inputs_random_transformer import encode_texts
from tests.helpers.translation import multilingual_translator, random_translator

TEXTS = ["</s>", "the boy </s> __es__ reads", "<pad><unk><s>", "a<s>b"]
CONTROL = [0, 1, 2, 3]
SHORT = {"max_new_tokens": 9, "num_beams": 2}


def ids_as_text(tokenizer, text):
    """Independent of `encode_texts`, for a tokenizer without declared tokens."""
    ids = tokenizer(text, split_special_tokens=True)["input_ids"]
    assert not {*ids[:-1]} & {*CONTROL}
    return ids


def generated(model, tokenizer, ids, **options):
    (output,) = model.generate(torch.tensor([ids]), **SHORT, **options)
    return tokenizer.decode(output, skip_special_tokens=True)


def test_special_tokens_in_texts_are_translated_as_text(model, tokenizer):
    pipe = pipeline("seq2seq", model=model, tokenizer=tokenizer, device="cpu", **SHORT)
    expected = [generated(model, tokenizer, ids_as_text(tokenizer, text)) for text in TEXTS]
    assert [answer["generated_text"] for answer in pipe(TEXTS, batch_size=4)] == expected
    assert translate(TEXTS, model, tokenizer, length_penalty=1.0, **SHORT) == expected
    cut = pipe.tokenize([TEXTS[1]], pipe.call_options(truncation=True, max_source_tokens=6))[0]
    assert cut == [*ids_as_text(tokenizer, TEXTS[1])[:5], tokenizer.eos_token_id]


def test_prefixes_of_translations(model, tokenizer):
    prefixes = ["a</s>b", "</s>", "<s>the", "x<pad>"]
    translations = translate(["the boy"] * 4, model, tokenizer, prefixes=prefixes, max_new_tokens=16, num_beams=2)
    for prefix, translation in zip(prefixes, translations, strict=True):
        assert translation.startswith(prefix)


def test_tags_of_languages_in_texts():
    model, tokenizer = multilingual_translator(src_lang="en", tgt_lang="es")
    pipe = pipeline("seq2seq", model=model, tokenizer=tokenizer, device="cpu")
    tag, *ids, end = pipe.tokenize(["a </s> __fr__ b __en__"], pipe.call_options())[0]
    assert [tag, end] == [tokenizer.get_lang_id("en"), tokenizer.eos_token_id]
    assert min(ids) > max(map(tokenizer.get_lang_id, tokenizer.languages))
    target = tokenizer.get_lang_id("es")
    (prefix,) = pipe.tokenize_prefixes(["__es__ a"], pipe.call_options(tgt_lang="es"))
    assert prefix[0] == target
    assert target not in prefix[1:]
    assert pipe("the boy", tgt_lang="es", target_prefix="__es__ a", max_new_tokens=16)["generated_text"].startswith(
        "__es__ a"
    )


def test_scores_and_alignments(model, tokenizer):
    pairs = [(text, f"b {text} c") for text in TEXTS]
    for (source, target), score in zip(pairs, score_pairs(model, tokenizer, pairs), strict=True):
        labels = torch.tensor([ids_as_text(tokenizer, target)])
        with torch.no_grad():
            loss = model(input_ids=torch.tensor([ids_as_text(tokenizer, source)]), labels=labels).loss
        assert score.tokens == labels.shape[1]
        assert score.log_probability == pytest.approx(-float(loss) * labels.shape[1])
    for (_, target), links in zip(pairs, alignments(model, tokenizer, pairs), strict=True):
        assert [word for _, word in sorted(links, key=lambda link: link[1])] == [*range(len(target.split()))]


@pytest.mark.parametrize("words", [False, True])
def test_special_tokens_in_training_pairs_are_text(words, tokenizer):
    rows = Dataset.from_list([{"line": i, "source": text, "target": f"x{text}"} for i, text in enumerate(TEXTS)])
    tokens, _ = tokenize_pairs(rows, tokenizer, with_words=words)
    for row, text in zip(tokens, TEXTS, strict=True):
        assert row["input_ids"] == ids_as_text(tokenizer, text)
        assert row["labels"] == ids_as_text(tokenizer, f"x{text}")


def test_the_explorer_page(tokenizer):
    page = explore(random_translator(), tokenizer, TEXTS[1], num_beams=2, max_new_tokens=5)
    assert len(page["source"]) == len(ids_as_text(tokenizer, TEXTS[1]))


def test_special_tokens_in_texts_of_an_engine_are_text(tokenizer, tmp_path):
    pytest.importorskip("ctranslate2")
    export = pytest.importorskip("modeling_random_transformer.extras.export")
    model = random_translator()
    export.export_model(model, tokenizer, tmp_path / "out", engine="ctranslate2", dtype="float32")
    translations = export.load_engine(tmp_path / "out", "ctranslate2")(TEXTS, num_beams=1, max_new_tokens=9)
    greedy = {"do_sample": False, "max_new_tokens": 9}
    ids = [torch.tensor([ids_as_text(tokenizer, text)]) for text in TEXTS]
    expected = tokenizer.batch_decode([model.generate(row, **greedy)[0] for row in ids], skip_special_tokens=True)
    assert translations == expected


def test_tokenizers_of_other_models_recognize_their_tokens(tokenizer):
    """They have no `encode_texts`: users write `>>fra<<` and `<extra_id_0>` into texts."""

    def plain_tokenizer(*texts, **options):
        return tokenizer(*texts, **options)

    assert encode_texts(plain_tokenizer, "</s>")["input_ids"] == [2, 2]
    assert tokenizer("</s>")["input_ids"] == [2, 2]  # a call of the tokenizer is that of transformers
