"""BLEU in the variants of published results."""

import pytest
import sacrebleu

from modeling_random_transformer.extras.evaluation import score_variant

TEXTS = ["It isn't far: 3.5 km, said the Man.", "A well-known text (see below)."]
OTHERS = ["It isn't very far: 3.5 km, said the man.", "A well-known text (see below)!"]
# By hand, as tokenizer.perl tokenizes them.
TOKENS = ["it isn &apos;t far : 3.5 km , said the man .", "a well-known text ( see below ) ."]
OTHER_TOKENS = ["it isn &apos;t very far : 3.5 km , said the man .", "a well-known text ( see below ) !"]


@pytest.mark.parametrize(
    ("variant", "language", "options", "texts", "case_and_tokens"),
    [
        ("cased", None, {}, (TEXTS, OTHERS), "case:mixed|eff:no|tok:13a"),
        ("lowercased", None, {"lowercase": True}, (TEXTS, OTHERS), "case:lc|eff:no|tok:13a"),
        ("tokenized", None, {"tokenize": "none"}, (TOKENS, OTHER_TOKENS), "case:mixed|eff:no|tok:none"),
        ("moses-lowercased", "en", {"tokenize": "none"}, (TOKENS, OTHER_TOKENS), "case:lc|eff:no|tok:moses-en-"),
    ],
)
def test_variants_of_bleu(variant, language, options, texts, case_and_tokens):
    texts_and_references = (TEXTS, OTHERS) if language else texts
    expected = sacrebleu.BLEU(**options).corpus_score(texts[0], [texts[1]]).score
    result = score_variant(*texts_and_references, variant, language)
    assert result["score"] == expected
    assert case_and_tokens in result["signature"]


def test_invalid_variants():
    with pytest.raises(ValueError, match="language must be given with variant 'moses-lowercased', got None"):
        score_variant(TEXTS, OTHERS, "moses-lowercased")
    for variant, options in (("tokenized", {"language": "de"}), ("moses-lowercased", {"tokenize": "zh"})):
        [(name, value)] = options.items()
        with pytest.raises(ValueError, match=f"{name} must be None with variant {variant!r}, got {value!r}"):
            score_variant(TEXTS, OTHERS, variant, **{"language": "de", **options})
    with pytest.raises(ValueError, match=r"variant must be one of cased, .*, got 'multi-bleu'"):
        score_variant(TEXTS, OTHERS, "multi-bleu")


FRENCH = ["L'homme d'aujourd'hui.", "C'est qu'il faut."]


@pytest.mark.parametrize("code", ["fr-CA", "FR", "fr_Latn"])
def test_a_region_does_not_change_the_tokens_of_moses(code):
    others = ["L'homme d'hier.", "C'est ce qu'il faut."]
    expected = score_variant(FRENCH, others, "moses-lowercased", "fr")
    assert score_variant(FRENCH, others, "moses-lowercased", code) == expected
    assert "tok:moses-fr-" in expected["signature"]


def test_a_language_without_rules_of_moses_is_a_warning():
    with pytest.warns(UserWarning, match="Moses has no rules for the language 'gn', and uses those of English"):
        score_variant(FRENCH, FRENCH, "moses-lowercased", "gn")
