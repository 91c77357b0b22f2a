"""The command `evaluate`: scores of files in the variants of papers."""

import pytest
import sacrebleu

from modeling_random_transformer import cli
from modeling_random_transformer.extras.evaluation import score_variant

TEXTS = ["It isn't far: 3.5 km, said the Man.", "A well-known text (see below)."]
OTHERS = ["It isn't very far: 3.5 km, said the man.", "A well-known text (see below)!"]
CHINESE = ["男孩看见一个女孩。", "她吃了一个红色的苹果。"]
OTHER_CHINESE = ["男孩看到一个女孩。", "她吃了一个红苹果。"]


@pytest.fixture
def files(tmp_path):
    """The arguments of translations and references."""
    for name, lines in (("translations", TEXTS), ("references", OTHERS)):
        (tmp_path / name).write_text("\n".join(lines))
    return ["--input", str(tmp_path / "translations"), "--target_file", str(tmp_path / "references")]


@pytest.mark.parametrize(
    ("variant", "language"),
    [("cased", None), ("lowercased", None), ("tokenized", None), ("moses-lowercased", "en")],
)
def test_bleu_in_a_variant_and_chrf_of_plain_texts(variant, language, files, capsys):
    flags = ["--target_lang", language] if language else []
    assert cli.main(["evaluate", "--variant", variant, *files, *flags]) == 0
    bleu, *following_lines = capsys.readouterr().out.splitlines()
    expected = score_variant(TEXTS, OTHERS, variant, language)
    assert bleu == f"bleu {expected['score']:.2f} {expected['signature']}"
    is_plain = variant in ("cased", "lowercased")
    assert len(following_lines) == is_plain
    if is_plain:
        metric = sacrebleu.CHRF(word_order=2, lowercase=variant == "lowercased")
        assert following_lines[0].startswith(f"chrf {metric.corpus_score(TEXTS, [OTHERS]).score:.2f} nrefs:1")


def test_files_of_different_lengths_are_an_error(files, tmp_path, capsys):
    (tmp_path / "references").write_text("x\n")
    assert cli.main(["evaluate", *files]) == 2
    assert capsys.readouterr().err.endswith(f"got 2 in {files[1]}, 1 in {files[3]}.\n")


def test_standard_input_has_one_side_only(capsys):
    assert cli.main(["evaluate", "--target_file", "-"]) == 2
    assert "at most must be - (standard input), got input and target_file 1." in capsys.readouterr().err


def test_several_reference_files_and_a_tokenizer(tmp_path, capsys):
    for name, lines in {
        "input": OTHER_CHINESE,
        "first": CHINESE,
        "second": OTHER_CHINESE,
        "short": CHINESE[:1],
    }.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    files = {name: str(tmp_path / name) for name in ("input", "first", "second", "short")}
    command = ["evaluate", "--input", files["input"], "--target_file", files["first"]]
    for option in ("--target_lang=zh", "--tokenize=zh"):
        assert cli.main([*command, files["second"], option]) == 0
        assert capsys.readouterr().out.startswith("bleu 100.00 nrefs:2|case:mixed|eff:no|tok:zh")
    assert cli.main([*command, "--target_lang=zh", "--tokenize=13a"]) == 2
    error = capsys.readouterr().err
    assert "--tokenize must be unset with --target_lang, which selects it, got '13a'." in error
    assert cli.main([*command, files["short"]]) == 2
    error = capsys.readouterr().err
    counts = f"2 in {files['input']}, 2 in {files['first']}, 1 in {files['short']}"
    assert f"translations and references must have the same number of lines, got {counts}." in error
