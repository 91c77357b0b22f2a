"""Vocabularies of Marian: files of tokens and ids, SentencePiece models, and how they are found next to a model."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from transformers import GenerationConfig

from modeling_random_transformer.extras.conversion import ConversionReport, convert_marian_npz
from modeling_random_transformer.extras.conversion.marian_npz import set_search_options
from modeling_random_transformer.extras.conversion.marian_npz_files import find_files, read_vocabulary
from tests.helpers.conversion import check_conversion_error
from tests.helpers.marian_npz import opus_folder, save_npz, spm_folder

SPECIAL = "</s>: 0\n<unk>: 1\n"
VOCABULARY = "opus.spm32k-spm32k.vocab.yml"


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("marian")
    opus_folder(folder / "opus")
    spm_folder(folder / "spm")
    return folder


@pytest.fixture
def opus(originals, tmp_path):
    return Path(shutil.copytree(originals / "opus", tmp_path / "opus"))


@pytest.fixture
def spm(originals, tmp_path):
    return Path(shutil.copytree(originals / "spm", tmp_path / "spm"))


TOKENS = [
    *("▁no", "no", "yes", "null", "1", "1.5", "0x1f", "~", "a", "日本", "é", "𝒳", "👍", "\u00a0", "\u200b", "\ufeff"),
    *("#", ":", "?", "-", ",", "[", "]", "{", "}", "&", "*", "!", "|", ">", "%", "@", "`", "''", '""', "\\", "\\n"),
    *("a:b", "▁:", ": ", "a: 3", "a b", "\u0085", "\u2028", "'", '"', "x" * 2000),
]


def escaped(token):
    return yaml.dump(token, default_style='"', width=10**6, allow_unicode=False).strip()


def raw_double(token):
    return '"' + token.replace("\\", "\\\\").replace('"', '\\"') + '"'


def single(token):
    return "'" + token.replace("'", "''") + "'"


PLAIN = [token for token in TOKENS if token[0] not in "'\"#" and ": " not in token]


@pytest.mark.parametrize(("quote", "tokens"), [(escaped, TOKENS), (raw_double, TOKENS), (single, TOKENS), (str, PLAIN)])
def test_tokens(quote, tokens, tmp_path):
    """Each token keeps its text."""
    ids = {token: i for i, token in enumerate(["</s>", "<unk>", *tokens])}
    text = "".join(f"{quote(token)}: {i}\n" for token, i in ids.items())
    (tmp_path / "vocab.yml").write_bytes(text.encode())
    assert read_vocabulary(tmp_path / "vocab.yml") == ids


LONG = [
    "",
    "▁\u0085",
    "\u2028",
    "x" * 128,
    "─" * 500,
    "it's " * 30,
    '"' * 200,
    "\\" * 300,
    "a\nb",
    "? a",
    "▁" + " " * 130,
]


@pytest.mark.parametrize("style", [None, "'", '"'])
@pytest.mark.parametrize("unicode", [False, True])
def test_keys_of_several_lines(unicode, style, tmp_path):
    """As PyYAML writes them, which OPUS-MT uses: `? "\\u2581\\N"` and `: 2`."""
    tokens = ["</s>", *LONG, "<unk>", *TOKENS]
    if unicode:  # PyYAML would not read its own output
        tokens = [token for token in tokens if "\u0085" not in token]
    ids = {token: i for i, token in enumerate(tokens)}
    dump = yaml.dump(ids, allow_unicode=unicode, default_style=style, sort_keys=False)
    text = dump if style is None else re.sub(r'!!int [\'"](\d+)[\'"]', r"\1", dump)
    (tmp_path / "vocab.yml").write_bytes(text.encode())
    assert "? " in text
    assert read_vocabulary(tmp_path / "vocab.yml") == yaml.safe_load(text) == ids


def test_formats_of_a_vocabulary(tmp_path):
    """Marian reads a file that is neither YAML, JSON nor SentencePiece as one token per line."""
    ids = {token: i for i, token in enumerate(["</s>", "<unk>", *(token for token in TOKENS if token)])}
    (tmp_path / "a.json").write_text(json.dumps(ids), encoding="utf-8")
    for name in ("a.vocab", "a.txt"):
        (tmp_path / name).write_bytes("".join(f"{token}\n" for token in ids).encode())
    assert all(read_vocabulary(tmp_path / name) == ids for name in ("a.json", "a.vocab", "a.txt"))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.vocab", "</s>\n<unk>\n\na\n", "line 3 of .* must be a token without a score, got ''"),
        ("a.vocab", "<unk>\t0\n</s>\t0\n▁\t-2.5\n", "line 1 of .* must be a token without a score, got '<unk>.*0'"),
        ("a.txt", "</s>\n<unk>\na\na\n", "must have each token and each id once, but one is repeated"),
        ("a.txt", "a\n", "must contain the tokens </s> and <unk>, but lacks </s>, <unk>"),
        ("a.json", "[1", "must be an object of tokens and ids in JSON, got an error: "),
        ("a.json", '[["</s>", 1]]', "must be an object of tokens and ids in JSON, got "),
        ("a.json", '{"</s>": 0, "<unk>": "1"}', "must be an object of tokens and ids in JSON, got "),
        ("a.json", '{"</s>": 0, "<unk>": 1, "a": 2, "a": 3}', "must have each token and each id once"),
        ("a.yml", f'{SPECIAL}? "a', "line 3 of .* must be a token and its id, got "),
        ("a.yml", f"{SPECIAL}? a\n: b\n", "line 3 of .* must be a token and its id, got "),
        ("a.yml", f'{SPECIAL}? "\\q\n  b"\n: 2\n', "line 3 of .* must be a token and its id, got "),
        ("a.yml", f"{SPECIAL}? [\n  [\n: 2\n", "line 3 of .* must be a token and its id, got "),
    ],
)
def test_invalid_vocabulary(name, text, message, tmp_path):
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message) as caught:
        read_vocabulary(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_raw_characters(tmp_path):
    """U+0085 and U+2028 are line breaks in YAML 1.1, but not in Marian's files."""
    (tmp_path / "vocab.yml").write_text(
        f'---\n# a comment\n{SPECIAL}a\u0085: 2\n"\u2028": 3\nb: 4 \n\n...\n', encoding="utf-8"
    )
    assert read_vocabulary(tmp_path / "vocab.yml") == {"</s>": 0, "<unk>": 1, "a\u0085": 2, "\u2028": 3, "b": 4}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must contain the tokens </s> and <unk>, but lacks </s>, <unk>"),
        (SPECIAL + "a\n", "line 3 of .* must be a token and its id, got 'a'"),
        (SPECIAL + "a: -1\n", "line 3 of .* got 'a: -1'"),
        (SPECIAL + '"a: 2\n', "line 3 of .* got '\"a: 2'"),
        (SPECIAL + '"\\q": 2\n', "line 3 of .* must be a token and its id, got "),
        (SPECIAL + "a: 2\na: 3\n", "must have each token and each id once, but one is repeated"),
        (SPECIAL + "a: 2\nb: 2\n", "must have each token and each id once, but one is repeated"),
        (b"</s>: 0\n\xff: 1\n", "must be UTF-8 text, but line 2 is not"),
    ],
)
def test_invalid_file(text, message, tmp_path):
    path = tmp_path / "vocab.yml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=message) as caught:
        read_vocabulary(path)
    assert "\n" not in str(caught.value)


def check_error(folder, message, **options):
    check_conversion_error(message, folder.parent, convert_marian_npz, folder, folder.parent / "out", **options)


def test_vocabulary_of_another_model(opus, spm):
    text = (opus / VOCABULARY).read_text(encoding="utf-8")
    rows = len(text.splitlines())
    (opus / VOCABULARY).write_text(text.rpartition("\n▁")[0] + "\nother: 1000\n", encoding="utf-8")
    check_error(opus, rf"vocab\.yml must have ids from 0 to {rows - 1}, got 1000")
    (opus / VOCABULARY).write_text(f"{text}other: {rows}\n", encoding="utf-8")
    check_error(opus, rf"vocab\.yml must have a token for each of {rows} rows of the embedding, got {rows + 1}")
    check_error(opus, r"vocab\.spm must have a token for each of", vocabs=[spm / "vocab.spm"])


@pytest.mark.parametrize("content", [b"", b"text"])
def test_damaged_sentencepiece_model(content, opus, spm):
    for path in (opus / "target.spm", spm / "vocab.spm"):
        path.write_bytes(content)
        check_error(path.parent, rf"{path.name} must be a SentencePiece model, got ")


@pytest.mark.parametrize("token", ["</s>", "<unk>"])
def test_special_tokens_with_two_ids(token, tmp_path):
    """A `MarianTokenizer` would end targets with the id of the source, and drop this id from translations."""
    folder = tmp_path / "opus"
    opus_folder(folder, separate_vocabs=True)
    target = folder / "opus.spm32k-spm32k.trg.vocab.yml"
    lines = target.read_text(encoding="utf-8").splitlines(keepends=True)
    number = ["</s>", "<unk>"].index(token)
    other = lines[5].rpartition(":")[0]
    lines[number] = f"{other}: {number}\n"
    lines[5] = f"{token}: 5\n"
    target.write_text("".join(lines), encoding="utf-8")
    changed = [0, 1]
    changed[number] = 5
    check_error(folder, rf"^vocabs must have the same ids of .*, got \[0, 1\] and {re.escape(str(changed))}")


def test_without_sentencepiece_models(opus, tmp_path):
    """For example of a model with BPE: the model is converted, without a tokenizer."""
    (opus / "source.spm").unlink()
    report = convert_marian_npz(opus, tmp_path / "out")
    assert any("SentencePiece models, such as source.spm and target.spm" in note for note in report.notes)
    assert not (tmp_path / "out" / "vocab.json").exists()


def test_given_files(opus, tmp_path):
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("source.spm", "target.spm", VOCABULARY):
        shutil.move(opus / name, moved / name)
    spm = [moved / "source.spm", moved / "target.spm"]
    convert_marian_npz(opus, tmp_path / "out", vocabs=[moved / VOCABULARY], spm=spm)
    assert (tmp_path / "out" / "target.spm").read_bytes() == spm[1].read_bytes()
    assert json.loads((tmp_path / "out" / "vocab.json").read_text(encoding="utf-8"))["</s>"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocabs": ["a.yml"]}, "^vocabs must be existing files, got 'a.yml'"),
        ({"spm": ["a.spm"]}, "^spm must be existing files, got 'a.spm'"),
        ({"vocabs": ["{}/LICENSE"]}, "^vocabs must be files of one kind, .*, got LICENSE"),
        ({"vocabs": ["{}/decoder.yml"] * 3}, "^vocabs must be one file, or one for each language, got 3 files"),
        ({"vocabs": ["{}/decoder.yml", "{}/source.spm"]}, "^vocabs must be files of one kind, .*, got decoder.yml"),
        ({"vocabs": ["{}/source.spm"], "spm": ["{}/source.spm"]}, "^spm must not be given with vocabs in .spm files"),
    ],
)
def test_invalid_arguments(options, message, opus):
    check_error(opus, message, **{name: [path.format(opus) for path in paths] for name, paths in options.items()})


ENDE = ("vocab.de.yml", "vocab.en.yml")
PATHS = ["/home/user/vocab.en.yml", "..\\vocab.de.yml"]  # of another machine: only the names count
AMBIGUOUS = r"^vocabs must be given if a folder contains several vocabularies, got .* extract it and run `.*--vocabs`"


@pytest.mark.parametrize(
    ("names", "vocabs", "expected"),
    [
        (("config.yml", "README.md"), None, None),
        (("vocab.yml",), None, ("vocab.yml", "vocab.yml")),
        (("vocab.yml", "._vocab.yml"), None, ("vocab.yml", "vocab.yml")),
        (("a.trg.vocab.yml", "a.src.vocab.yml"), None, ("a.src.vocab.yml", "a.trg.vocab.yml")),
        (("srcvocab.ende.spm", "trgvocab.ende.spm"), None, ("srcvocab.ende.spm", "trgvocab.ende.spm")),
        (ENDE, PATHS, ("vocab.en.yml", "vocab.de.yml")),
        (("en.vocab", "de.txt", "vocab.yml"), ["en.vocab", "de.txt"], ("en.vocab", "de.txt")),
        (("source.vocab", "vocab.yml"), None, ("vocab.yml", "vocab.yml")),
        *((("vocab.en.yml",), vocabs, ("vocab.en.yml", "vocab.en.yml")) for vocabs in (PATHS, [3], "a", [])),
        (ENDE, None, AMBIGUOUS),
        (("src.vocab.yml", "source.vocab.yml"), None, AMBIGUOUS),
    ],
)
def test_vocabularies_in_a_folder(names, vocabs, expected, tmp_path):
    """Those that `decoder.yml` names, if they exist, or those with such names."""
    for name in names:
        (tmp_path / name).write_text("")
    (tmp_path / "decoder.yml").write_text(json.dumps({"vocabs": vocabs}))
    if expected == AMBIGUOUS:
        with pytest.raises(ValueError, match=AMBIGUOUS):
            find_files(tmp_path / "model.npz")
    else:
        paths = find_files(tmp_path / "model.npz").vocabs
        assert (paths and tuple(path.name for path in paths)) == expected


@pytest.mark.parametrize(
    ("text", "beams", "penalty", "dropped"),
    [
        ("beam-size: 5\nnormalize: 1\nword-penalty: 0.5", 5, 1.0, ["word-penalty=0.5"]),
        ("beam-size: 1\nnormalize: 0.6\n", 1, None, ["normalize=0.6"]),
        ("normalize: 0.6\n", None, None, ["normalize=0.6"]),
        ("beam-size: 4\nnormalize: .nan\n", 4, None, ["normalize=nan"]),
        ("beam-size: 4\nnormalize: true\n", 4, None, ["normalize=True"]),
        ("beam-size: 1000000000\n", None, None, ["beam-size=1000000000"]),
        ("beam-size: true\n", None, None, ["beam-size=True"]),
    ],
)
def test_options_of_the_search(text, beams, penalty, dropped):
    config, report = GenerationConfig(suppress_tokens=[1]), ConversionReport("Marian")
    set_search_options(config, yaml.safe_load(text), report)
    assert (config.num_beams, config.length_penalty, config.suppress_tokens) == (beams, penalty, [1])
    assert [note.split(" ")[0] for note in report.notes if "was dropped" in note] == dropped


def test_search_in_a_folder(tmp_path):
    """The file that Marian writes is read first."""
    save_npz(tmp_path / "model.npz")
    (tmp_path / "model.npz.decoder.yml").write_text("beam-size: 5\nallow-unk: true\n")
    (tmp_path / "decoder.yml").write_text("beam-size: 6\n")
    convert_marian_npz(tmp_path, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert (config["num_beams"], config.get("suppress_tokens")) == (5, None)


def test_damaged_options_of_the_search(tmp_path):
    save_npz(tmp_path / "model.npz")
    (tmp_path / "decoder.yml").write_text("[1")
    check_error(tmp_path / "model.npz", r"decoder\.yml must contain options")
