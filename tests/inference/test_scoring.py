"""Log-probabilities of given translations: equal to the model's loss and to the scores of `generate()`."""

import pytest
import torch

from modeling_random_transformer.inference import score_pairs, translate
from modeling_random_transformer.inference.scoring import Scorer, label_log_probabilities
from tests.helpers.foreign import foreign_model
from tests.helpers.translation import multilingual_translator, random_tokenizer, some_texts

PAIRS = list(zip(some_texts(30, seed=1), some_texts(30, seed=2), strict=True))


def losses(model, tokenizer, pairs):
    """Reference: minus the model's own loss of each pair, summed over its tokens."""
    for source, target in pairs:
        inputs = tokenizer(source, text_target=target, return_tensors="pt")
        with torch.no_grad():
            yield -model(**inputs).loss.item() * inputs["labels"].shape[1]


@pytest.mark.parametrize("kind", ["own", "Marian"])
def test_equals_the_loss_of_each_pair(kind, model, tokenizer):
    if kind == "Marian":
        model = foreign_model(kind, vocab_size=len(tokenizer))
    scores = list(score_pairs(model, tokenizer, PAIRS, chunk_size=20, max_batch_tokens=100))
    assert [score.log_probability for score in scores] == pytest.approx(list(losses(model, tokenizer, PAIRS)), rel=1e-9)
    assert [score.tokens for score in scores] == [len(ids) for ids in tokenizer([t for _, t in PAIRS])["input_ids"]]
    assert scores[0].token_log_probabilities is None
    [score] = score_pairs(model, tokenizer, [("the boy", "")])  # the end token
    assert score.tokens == 1
    assert score.log_probability < 0


def test_extra_spaces_of_a_source_do_not_count(model, tokenizer):
    """Since `translate` removes them."""
    pairs = [("the boy reads", "el niño lee"), (" the  boy\t\xa0reads", "el niño lee")]
    plain, spaced = score_pairs(model, tokenizer, pairs, token_scores=True)
    assert spaced.source_tokens == plain.source_tokens
    assert spaced.token_log_probabilities == pytest.approx(plain.token_log_probabilities)


def test_missing_pairs_have_no_result_and_are_counted(model, tokenizer):
    class Unchanged(Scorer):
        def process(self, pairs, sources, targets):
            return [pair for pair, _, _ in zip(pairs, sources, targets, strict=True)]

    counted = []
    pairs = [None, ("the boy", ""), None]
    assert Unchanged(model, tokenizer)(pairs, 0, counted.append) == pairs
    assert sum(counted) == 3


def test_an_edit_of_the_output_changes_the_scores(model, tokenizer):
    """As it changes the loss and `generate()`."""

    class Edited(type(model)):
        def forward(self, *args, **kwargs):
            outputs = super().forward(*args, **kwargs)
            outputs.logits = 0.3 * outputs.logits
            return outputs

    edited = Edited(model.config).eval()
    edited.load_state_dict(model.state_dict())
    [score] = score_pairs(edited, tokenizer, PAIRS[:1])
    inputs = tokenizer(PAIRS[0][0], text_target=PAIRS[0][1], return_tensors="pt")
    with torch.no_grad():
        logits = model(**inputs).logits
    expected = (0.3 * logits).log_softmax(-1).gather(-1, inputs["labels"][..., None]).sum()
    assert score.log_probability == pytest.approx(expected.item(), rel=1e-5)


def test_a_forced_language_tag_is_not_scored(model, tokenizer, monkeypatch):
    [whole] = score_pairs(model, tokenizer, PAIRS[:1], token_scores=True)
    first = tokenizer(PAIRS[0][1])["input_ids"][0]
    monkeypatch.setattr(model.generation_config, "forced_bos_token_id", first)
    [score] = score_pairs(model, tokenizer, PAIRS[:1], token_scores=True)
    assert score.tokens == whole.tokens - 1
    assert score.token_log_probabilities == pytest.approx(whole.token_log_probabilities[1:])


def test_languages_of_a_model_of_several_languages():
    model, tokenizer = multilingual_translator()
    model.double()
    by_language = {}
    for target in ("es", "fr"):
        codes = {"src_lang": "en", "tgt_lang": target}
        scores = list(score_pairs(model, tokenizer, PAIRS, **codes))
        assert (tokenizer.src_lang, tokenizer.tgt_lang) == (None, None)
        for (source, text), score in zip(PAIRS[:3], scores, strict=False):
            tokenizer.src_lang, tokenizer.tgt_lang = codes.values()
            inputs = tokenizer(source, text_target=text, return_tensors="pt")
            tokenizer.src_lang = tokenizer.tgt_lang = None
            start = torch.full((1, 1), model.config.decoder_start_token_id)
            logits = model(
                **inputs | {"labels": None}, decoder_input_ids=torch.cat([start, inputs["labels"]], 1)
            ).logits
            terms = label_log_probabilities(logits[:, 1:-1], inputs["labels"][:, 1:])  # without the tag
            assert score.log_probability == pytest.approx(terms.sum().item())
            assert score.tokens == terms.shape[1]
        by_language[target] = scores
    assert by_language["es"] != by_language["fr"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_label_log_probabilities_equal_log_softmax(dtype, monkeypatch):
    monkeypatch.setattr("modeling_random_transformer.ops_random_transformer.LOSS_CHUNK_CPU", 50)
    logits = torch.randn(3, 7, 17, dtype=dtype)
    labels = torch.randint(17, (3, 7))
    labels[1, 3:] = -100
    expected = logits.to(torch.promote_types(dtype, torch.float32)).log_softmax(-1)
    expected = expected.gather(-1, labels.clamp(min=0)[..., None])[..., 0].masked_fill(labels == -100, 0)
    torch.testing.assert_close(label_log_probabilities(logits, labels), expected)


@pytest.mark.parametrize(
    ("pairs", "options", "message"),
    [
        ([("a", "b")], {"max_batch_tokens": 0}, "max_batch_tokens must be a positive integer, got 0"),
        ([("a", "b")], {"chunk_size": 0}, "chunk_size must be a positive integer, got 0"),
        ([("a", "b"), (" ", "b")], {}, "index 1: texts must not be blank"),
        ([("a", "b"), "cd"], {}, "index 1: pairs must be two strings, got 'cd'"),
        ([{"source": "a", "target": "b"}], {}, "index 0: pairs must be two strings, got {'source': 'a', "),
        ([("a", "b"), 5], {}, "index 1: pairs must be two strings, got 5"),
    ],
)
def test_invalid_input(model, tokenizer, pairs, options, message):
    with pytest.raises(ValueError, match=message):
        list(score_pairs(model, tokenizer, pairs, **options))


def test_long_texts_are_errors_without_truncation(model):
    limited = random_tokenizer()
    limited.model_max_length = 10
    long = "the boy reads a book in the garden " * 3
    for pair, name in (((long, "a"), "texts"), (("a", long), "targets")):
        with pytest.raises(ValueError, match=rf"index 0: {name} must have at most 10 tokens .* set truncation\."):
            list(score_pairs(model, limited, [pair]))
    [score] = score_pairs(model, limited, [(long, long)], truncation=True)
    assert score.tokens == 10


def test_arguments_in_the_order_of_another_function(model, tokenizer):
    """`translate` takes the texts first, `score_pairs` the model."""
    message = r"^model must be a model of transformers, got list\.$"
    with pytest.raises(ValueError, match=message):
        score_pairs([("a", "b")], model, tokenizer)
    with pytest.raises(ValueError, match=r"^tokenizer must be a tokenizer of transformers, got list\.$"):
        score_pairs(model, [("a", "b")], tokenizer)
    with pytest.raises(ValueError, match=message):
        translate(model, ["a"], tokenizer)
