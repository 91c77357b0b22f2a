"""The parser: trees of the sample data, linearization, bracket scores, constrained decoding, the command."""

import re

import parse_sentences
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from nltk import Tree

from tests.helpers.models import tiny_model
from tutorials import sample_data
from tutorials.parsing_decoding import (
    TreeLogitsProcessor,
    max_constituents,
    max_target_length,
)
from tutorials.parsing_model import (
    decode_tree,
    encode_trees,
    parse,
    source_ids,
    target_ids,
    train_tokenizer,
    word_tokens,
)
from tutorials.parsing_trees import (
    bracket_scores,
    delinearize,
    is_word,
    linearize,
    normalize,
    one_line,
    read_trees,
    words_of,
)

WORDS = ("the", "king", "XX", "(NP", ")", "</s>", "'s", ".", "ñandú")
LABELS = ("S", "NP", "VP", "PRT|ADVP")
LABELS_OF_SAMPLE = ("S", "SQ", "NP", "VP", "PP", "ADJP")
SAMPLE = sample_data.sample_trees(300, seed=1)


def parsed(text: str) -> Tree:
    return Tree.fromstring(text)


def constituents(children: st.SearchStrategy) -> st.SearchStrategy:
    return st.builds(Tree, st.sampled_from(LABELS), st.lists(children, min_size=1, max_size=4))


TAGGED_WORDS = st.sampled_from(WORDS).map(lambda word: Tree("XX", [word]))
TREES = constituents(st.recursive(TAGGED_WORDS, constituents, max_leaves=12))
SENTENCES = st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=6), min_size=1, max_size=3)


# Sample data


def test_sample_has_a_tree_for_each_sentence():
    assert [spanish for _, spanish in SAMPLE] == [spanish for _, spanish in sample_data.sample(300, seed=1)]
    trees = [parsed(tree) for tree, _ in SAMPLE]
    assert {tree.label() for tree in trees} == {"S", "SQ"}
    assert {node.label() for tree in trees for node in tree.subtrees() if not is_word(node)} == set(LABELS_OF_SAMPLE)
    for tree, (english, _) in zip(trees, sample_data.sample(300, seed=1), strict=True):
        assert "".join(tree.leaves()) == english.replace(" ", "")
        assert not re.search(r"\bcan not\b| '", english)


@pytest.mark.parametrize(
    ("verb", "tree"),
    [
        ("see", "(VP (XX see) (NP (XX it)))"),
        ("look for", "(VP (XX look) (PP (XX for) (NP (XX it))))"),
        ("want", "(VP (XX want) (NP (XX it)))"),
        ("wants to go to", "(VP (XX wants) (S (VP (XX to) (VP (XX go) (PP (XX to) (NP (XX it)))))))"),
        ("near", "(PP (XX near) (NP (XX it)))"),
        ("", "(NP (XX it))"),
    ],
)
def test_verb_phrases(verb, tree):
    assert sample_data.verb_phrase(verb, "(NP (XX it))") == tree


# Trees


@pytest.mark.parametrize(
    "tokens", ["", "XX", "(S )S", "(S XX )NP", "(S XX )S (S )S", ")S (S XX )S", "(S XX )S )S", "("]
)
def test_invalid_linearizations(tokens):
    with pytest.raises(ValueError, match="tokens must be one tree over 1 words"):
        delinearize(tokens.split(), ["word"])


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ("(ROOT (S (NP-SBJ (NN x))))", "(S (NP (NN x)))"),
        ("( (S (NP=2 (NN x)) (VP (-NONE- *)) (: -LRB-)))", "(S (NP (NN x)) (: -LRB-))"),
        ("(TOP (NN x))", "(TOP (NN x))"),
        ("((NP (NN x)) (. .))", "(ROOT (NP (NN x)) (. .))"),
    ],
)
def test_normalization(tree, expected):
    assert normalize(parsed(tree)) == parsed(expected)


@pytest.mark.parametrize("line", ["(S (NN x)", "(S x)", "(NN x)", "(S (-NONE- *))", "(S (NP (NN x) y))"])
def test_invalid_lines(line, tmp_path):
    (tmp_path / "a.ptb").write_text(f"(S (NN x))\n{line}\n")
    with pytest.raises(ValueError, match=r"each line must be a bracketed tree, got '.*' in line 2 of"):
        read_trees(tmp_path / "a.ptb")
    (tmp_path / "a.ptb").write_text("")
    with pytest.raises(ValueError, match="must have at least one tree, got none"):
        read_trees(tmp_path / "a.ptb")


def test_parentheses_of_a_sentence_are_written_as_in_treebanks():
    assert words_of(" I (can) see :( ") == ["I", "-LRB-can-RRB-", "see", ":-LRB-"]


# Scores


GOLD = "(S (NP (DT the) (NN dog)) (VP (VBZ sees) (NP (NP (DT a) (NN cat)) (PP (IN in) (NP (NN town))))) (. .))"
ATTACHED_TO_THE_VERB = (
    "(S (NP (XX the) (XX dog)) (VP (XX sees) (NP (XX a) (XX cat)) (PP (XX in) (NP (XX town)))) (XX .))"
)


@pytest.mark.parametrize(
    ("predicted", "gold", "expected"),
    [
        (GOLD, GOLD, (100, 100, 100, 100)),
        (ATTACHED_TO_THE_VERB, GOLD, (100, 600 / 7, 1200 / 13, 0)),
        # NP instead of ADVP, with the same span
        ("(S (NP (XX a)) (NP (XX b)))", "(S (NP (NN a)) (ADVP (RB b)))", (200 / 3, 200 / 3, 200 / 3, 0)),
        # two NP with one span, one of them in the prediction
        ("(S (NP (XX a)) (XX b))", "(S (NP (NP (NN a))) (NN b))", (100, 200 / 3, 80, 0)),
        # punctuation is not scored: its position and its constituents
        ("(S (NP (XX a) (XX ,)) (VP (XX b)))", "(S (NP (NN a)) (PRN (, ,)) (VP (VB b)))", (100, 100, 100, 100)),
        # PRT and ADVP are equivalent; the root is not scored
        ("(ROOT (XX a) (ADVP (XX b)))", "(TOP (NN a) (PRT (RP b)))", (100, 100, 100, 100)),
        ("(NP (XX a))", "(ROOT (NN a))", (0, 0, 0, 0)),
    ],
)
def test_scores_computed_by_hand(predicted, gold, expected):
    scores = bracket_scores([parsed(predicted)], [parsed(gold)])
    assert (scores.precision, scores.recall, scores.f1, scores.complete_match) == pytest.approx(expected)


def test_scores_of_a_corpus_are_those_of_all_constituents():
    """7 and 1 constituents, of which 6 and 0 are found."""
    predicted, gold = [ATTACHED_TO_THE_VERB, "(NP (XX a))"], [GOLD, "(VP (VB a))"]
    scores = bracket_scores(map(parsed, predicted), map(parsed, gold))
    assert scores.precision == pytest.approx(600 / 7)
    assert scores.recall == pytest.approx(600 / 8)
    assert scores.f1 == pytest.approx(1200 / 15)


def test_invalid_scores():
    with pytest.raises(ValueError, match="predicted must have the words of gold"):
        bracket_scores([parsed("(S (XX a))")], [parsed("(S (XX b))")])
    with pytest.raises(ValueError, match="at least one tree"):
        bracket_scores([], [])


# Constrained decoding

TOKENIZER = train_tokenizer([Tree(label, [Tree("XX", [word]) for word in WORDS]) for label in LABELS] * 3, 320)


def random_parser(seed):
    return tiny_model(seed, spread=2.0, vocab_size=len(TOKENIZER), norm_order="pre").eval()


DECODINGS = [
    {"do_sample": False},
    {"num_beams": 3},
    {"num_beams": 3, "use_cache": False},
    {"do_sample": True},
    {"do_sample": True, "top_k": 2, "top_p": 0.5},
    {"num_beams": 2, "length_penalty": 2.0, "early_stopping": "never"},
    {"do_sample": True, "temperature": 5.0, "use_cache": False},
]


@pytest.mark.parametrize("decoding", DECODINGS, ids=str)
@given(seed=st.integers(0, 5), sentences=SENTENCES)
@settings(max_examples=5)
def test_output_of_a_random_model_is_a_tree_over_the_words(decoding, seed, sentences):
    torch.manual_seed(seed)
    trees = parse(random_parser(seed), TOKENIZER, sentences, **decoding)
    assert [tree.leaves() for tree in trees] == sentences
    for tree in trees:
        assert tree == delinearize(linearize(tree), tree.leaves())
        assert all(len(node) > 0 for node in tree.subtrees())
        assert sum(not is_word(node) for node in tree.subtrees()) <= max_constituents(len(tree.leaves()))


@given(TREES)
def test_every_tree_is_allowed(tree):
    """Up to the limit of constituents; only the end-of-sequence token may follow a complete tree."""
    assume(sum(not is_word(node) for node in tree.subtrees()) <= max_constituents(len(tree.leaves())))
    words = word_tokens(TOKENIZER, tree.leaves())
    processor = TreeLogitsProcessor(TOKENIZER, [words])
    ids = [TOKENIZER.bos_token_id, *target_ids(TOKENIZER, tree, words)]
    assert len(ids) - 1 <= max_target_length(words)
    for length in range(1, len(ids)):
        may_follow = processor.next_tokens(torch.tensor([ids[:length]]))[0]
        assert may_follow[ids[length]], TOKENIZER.convert_ids_to_tokens(ids[: length + 1])
    assert may_follow.nonzero().tolist() == [[TOKENIZER.eos_token_id]]


OPENING = "(NP (PRT|ADVP (S (VP"


@pytest.mark.parametrize(
    ("prefix", "next_tokens"),
    [
        ("", OPENING),
        ("(S", f"d {OPENING}"),
        ("(S d", "o"),  # the first word has two tokens
        ("(S d o", f"x {OPENING}"),  # the root has all words
        ("(S (NP d o", f"x {OPENING} )NP"),
        ("(S (NP d o )NP (VP x", ")VP"),
        ("(S (NP d o )NP (VP x )VP", ")S"),
        ("(S d o x )S", "</s>"),
        ("(S d o x )S </s> <pad>", "</s>"),  # generate() replaces it by <pad>
        ("(S (S (S (S (S (S", "d"),  # the limit of constituents
    ],
)
def test_tokens_after_a_prefix(prefix, next_tokens):
    """The words `do` and `x`; each prefix also as the second of two copies of the second source."""
    ids = TOKENIZER.convert_tokens_to_ids([TOKENIZER.bos_token, *prefix.split()])
    expected = sorted(TOKENIZER.convert_tokens_to_ids(next_tokens.split()))
    words = [TOKENIZER.convert_tokens_to_ids(["d", "o"]), TOKENIZER.convert_tokens_to_ids(["x"])]
    rows = TreeLogitsProcessor(TOKENIZER, [words]).next_tokens(torch.tensor([ids]))
    assert rows[0].nonzero()[:, 0].tolist() == expected
    rows = TreeLogitsProcessor(TOKENIZER, [words * 3, words]).next_tokens(torch.tensor([ids] * 4))
    assert rows[3].nonzero()[:, 0].tolist() == expected


def test_next_word_has_the_probability_of_all_words():
    """A model that is certain of another word must not open constituents instead."""
    words = [TOKENIZER.convert_tokens_to_ids(["d", "o"]), TOKENIZER.convert_tokens_to_ids(["x"])]
    ids = torch.tensor([TOKENIZER.convert_tokens_to_ids([TOKENIZER.bos_token, "(S", "d", "o"])])
    probabilities = torch.full((1, len(TOKENIZER)), 0.1 / len(TOKENIZER), dtype=torch.float64)
    probabilities[0, TOKENIZER.convert_tokens_to_ids("d")] += 0.9
    scores = TreeLogitsProcessor(TOKENIZER, [words])(ids, probabilities.log())
    brackets = len(TOKENIZER.get_added_vocab())
    word, opening = (scores[0, TOKENIZER.convert_tokens_to_ids(token)].exp().item() for token in ("x", "(NP"))
    assert word == pytest.approx(1 - brackets * 0.1 / len(TOKENIZER))
    assert opening == pytest.approx(0.1 / len(TOKENIZER))
    assert scores.argmax().item() == words[1][0]


@pytest.mark.parametrize("decoding", [{"do_sample": False}, {"num_beams": 3}], ids=str)
def test_other_sentences_of_a_batch_do_not_change_a_tree(decoding):
    model = random_parser(0).double()
    sentences = [["the"], ["king", "'s", "the", "XX"], ["</s>", "(NP"]]
    alone = [parse(model, TOKENIZER, [sentence], **decoding)[0] for sentence in sentences]
    assert parse(model, TOKENIZER, sentences, **decoding) == alone


@pytest.mark.parametrize(
    ("sentences", "options", "message"),
    [
        ([["the"], []], {}, "sentences must have words with tokens"),
        (
            [["the"]],
            {"max_new_tokens": 3},
            r"must be options among num_beams, .*, got max_new_tokens=3\.$",
        ),
        ([["the"]], {"logits_processor": []}, r"got logits_processor=\[\]"),
    ],
)
def test_invalid_calls(sentences, options, message):
    with pytest.raises(ValueError, match=message):
        parse(random_parser(0), TOKENIZER, sentences, **options)


def test_words_are_not_special_tokens():
    words = word_tokens(TOKENIZER, WORDS)
    assert not {token for word in words for token in word} & set(TOKENIZER.get_added_vocab().values())
    assert TOKENIZER.decode(source_ids(TOKENIZER, words)) == f" {' '.join(WORDS)}</s>"


@given(TREES)
def test_targets_are_decoded_to_the_tree(tree):
    words = word_tokens(TOKENIZER, tree.leaves())
    ids = target_ids(TOKENIZER, tree, words)
    assert decode_tree(TOKENIZER, ids, tree.leaves(), words) == tree
    (example,) = encode_trees(TOKENIZER, [tree])
    assert example == {"input_ids": source_ids(TOKENIZER, words), "labels": ids}


# Command


@pytest.fixture
def files(tmp_path):
    for name, part in (("train", SAMPLE[:30]), ("dev", SAMPLE[30:33]), ("test", SAMPLE[33:36])):
        (tmp_path / f"{name}.ptb").write_text("".join(f"(ROOT {tree})\n" for tree, _ in part))
    names = {"train": "train", "validation": "dev", "test": "test"}
    return [part for name, file in names.items() for part in (f"--{name}_file", str(tmp_path / f"{file}.ptb"))]


def test_command_trains_and_parses(files, tmp_path, capsys):
    size = "encoder_layers=1,decoder_layers=1,d_model=16,d_ff=16,num_heads=2"
    flags = ["--output_dir", str(tmp_path / "parser"), "--max_steps", "2", "--config_overrides", size]
    assert parse_sentences.main([*files, *flags]) == 0
    output = capsys.readouterr().out
    assert "30 training trees, 3 for validation, 3 held out" in output
    assert all(row in output for row in ("validation, greedy", "validation, 4 beams", "test, "))
    sentence = "The boy (who) sees her ."
    assert parse_sentences.main(["--parse_only", sentence, "--output_dir", str(tmp_path / "parser")]) == 0
    tree = parsed(capsys.readouterr().out)
    assert tree.leaves() == words_of(sentence)
    assert one_line(tree).endswith(")")
