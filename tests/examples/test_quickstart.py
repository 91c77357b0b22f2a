"""The quickstart: sample data, input files, complete runs."""

import itertools
import re
import shlex
import shutil
from collections import Counter
from pathlib import Path
from statistics import mean

import pytest
import quickstart
import yaml

from modeling_random_transformer import cli
from modeling_random_transformer.extras.pairs import alignments
from modeling_random_transformer.inference.loading import load_translator
from tutorials import pruning, sample_data, training_helpers
from tutorials.exercises.head_roles import noun_links

PAIRS = sample_data.sample(2000, seed=1)


# Sample data


def test_sample_depends_only_on_the_random_seed():
    assert sample_data.sample(50, seed=3) == sample_data.sample(50, seed=3) != sample_data.sample(50, seed=4)


def test_sources_are_unique():
    assert len(PAIRS) == len({source for source, _ in PAIRS}) == 2000


def test_sentences_have_capitals_and_punctuation():
    for english, spanish in PAIRS:
        assert re.fullmatch(r"[A-Z][A-Za-z' ]*[.?]", english), english
        assert re.fullmatch(r"¿[A-ZÁÉÍÓÚ].*\?|[A-ZÁÉÍÓÚ][^¿?]*\.", spanish), spanish
        assert english.endswith("?") == spanish.endswith("?")
        assert "  " not in english + spanish


def test_articles_agree_with_their_nouns():
    """Checked against a word list that is independent of the generator."""
    gender = {"gato": "m", "perro": "m", "libro": "m", "mapa": "m", "mesa": "f", "flor": "f", "casa": "f", "llave": "f"}
    singular = {"el": "m", "un": "m", "este": "m", "la": "f", "una": "f", "esta": "f"}
    plural = {"los": "m", "estos": "m", "las": "f", "estas": "f"}
    seen = Counter()
    for _, spanish in PAIRS:
        for article, word in itertools.pairwise(re.findall(r"\w+", spanish.lower())):
            for articles, noun in ((singular, word), (plural, word.removesuffix("s"))):
                if article in articles and noun in gender:
                    assert articles[article] == gender[noun], spanish
                    seen[noun] += 1
    assert len(seen) == len(gender), f"nouns missing from the sample: {set(gender) - set(seen)}"


def test_adjectives_agree_with_their_nouns():
    endings = {"el": "o", "la": "a", "los": "os", "las": "as"}
    pattern = re.compile(r"\b(el|la|los|las) (\w+) (roj|negr|blanc|viej|modern|cansad|enferm)(o|a|os|as)\b")
    matches = [(match, spanish) for _, spanish in PAIRS for match in pattern.finditer(spanish.lower())]
    assert len(matches) > 50
    for match, spanish in matches:
        if match[2] not in ("águila", "aula"):  # feminine nouns with a masculine article
            assert endings[match[1]] == match[4], spanish


def test_contractions_and_special_constructions_occur():
    text = "\n".join(spanish for _, spanish in PAIRS)
    for example in (" al ", " del ", "¿", "gusta", "gustan", " no "):
        assert example in text
    assert not re.search(r"\b(a|de) el\b", text)


def test_held_out_sentences_are_not_in_the_training_files(tmp_path):
    sample_data.write_sample(tmp_path)
    sources = {name: (tmp_path / f"{name}.en").read_text().splitlines() for name in ("train", "test")}
    assert len(sources["train"]) == 6000
    assert len(sources["test"]) == len(set(sources["test"])) == 300
    assert not set(sources["train"]) & set(sources["test"])
    targets = (tmp_path / "train.es").read_text().splitlines()
    assert ("hello world", "hola mundo") in zip(sources["train"], targets, strict=True)


# Input files


@pytest.fixture
def files(tmp_path):
    (tmp_path / "a.en").write_text("".join(f"number {i}\n" for i in range(40)))
    (tmp_path / "a.es").write_text("".join(f"número {i}\n" for i in range(40)))
    (tmp_path / "a.tsv").write_text("".join(f"number {i}\tnúmero {i}\n" for i in range(40)))
    return tmp_path


@pytest.mark.parametrize("names", [["--source", "a.en", "--target", "a.es"], ["--tsv", "a.tsv"]])
def test_tenth_of_the_input_files_is_held_out(names, files):
    args = quickstart.parse_arguments([str(files / name) if "." in name else name for name in names])
    assert len(args.train) == 36
    assert len(args.test) == 4
    assert not {source for source, _ in args.train} & {source for source, _ in args.test}
    assert all(target == source.replace("number", "número") for source, target in args.train + args.test)


# Complete runs


@pytest.mark.slow
def test_insufficient_training_exits_with_1(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(training_helpers, "MAX_TOKENS", 16)  # an untrained model does not generate the end token
    assert quickstart.main(["--output_dir", str(tmp_path), "--max_steps", "3"]) == 1
    output = capsys.readouterr().out
    assert "Exact match of held-out sentences is too low" in output
    assert {"loss.png", "attention.png", "model.safetensors", "tokenizer.json"} <= {p.name for p in tmp_path.iterdir()}
    assert quickstart.main(["--output_dir", str(tmp_path), "--translate_only", "I see her."]) == 0
    assert "I see her." in capsys.readouterr().out
    check_next_commands(output, tmp_path, monkeypatch)


def check_next_commands(output, folder, monkeypatch):
    """The commands at the end of the demo work, also where the environment is not activated."""
    lines = [line for line in output.splitlines() if f"--model {folder}" in line or f" explore {folder}" in line]
    calls = [shlex.split(line) for line in lines]
    assert [arguments[1] for arguments in calls] == ["translate", "explore"]
    assert all(shutil.which(arguments[0]) for arguments in calls)
    monkeypatch.chdir(folder)  # of outputs/explorer.html
    assert [cli.main(arguments[1:]) for arguments in calls] == [0, 0]
    assert (folder / "outputs" / "explorer.html").is_file()


@pytest.mark.slow
def test_default_run_reaches_the_required_exact_match(quickstart_folder):
    """The run of `make demo`."""
    output = (quickstart_folder / "output.txt").read_text()
    assert float(re.search(r"greedy\s+([\d.]+)%", output)[1]) >= 95
    assert "'hello world' → 'hola mundo'" in output


def test_pages_agree_on_the_scores():
    """Metadata and table of the model card, README and guide: all are from one `make demo`."""
    root = Path(__file__).parents[2]
    card = (root / "model_card.md").read_text(encoding="utf-8")
    (exact, bleu) = yaml.safe_load(card.split("---\n")[1])["model-index"][0]["results"][0]["metrics"]
    assert f"| greedy | {exact['value']}% | {bleu['value']} |" in card
    words = (root / "docs" / "getting_started.md").read_text(encoding="utf-8").split()
    assert f"{exact['value']}% exact match with greedy search" in " ".join(words)
    beams = re.search(r"^\| beam size 4 \| (.+?%)", card, re.MULTILINE)[1]
    assert f"| {beams} exact match (4 beams)" in (root / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_nouns_are_aligned(quickstart_folder):
    """The shares of nouns in docs/how_to/scores_and_ensembles.md, with wide margins."""
    pairs, (model, tokenizer) = held_out_pairs(quickstart_folder), load_translator(quickstart_folder)

    def share(layer, step):
        hits = []
        for pair, links in zip(pairs, alignments(model, tokenizer, pairs, layer=layer, step=step), strict=True):
            source, target = ([re.sub(r"'s?$|[¿¡.,?!]", "", word) for word in text.split()] for text in pair)
            hits += [(position, noun) in links for noun, position in noun_links(source, target)]
        assert len(hits) > 100
        return mean(hits)

    assert share(1, "output") > 0.9
    assert share(0, "output") < 0.9
    assert max(share(0, "input"), share(1, "input")) < 0.5


@pytest.mark.slow
def test_pruning_of_the_trained_model(quickstart_folder):
    """The result of docs/explanation/pruning.md, with wide margins."""
    pairs = held_out_pairs(quickstart_folder)
    result = pruning.measure_pruning(*quickstart.load(quickstart_folder), pairs[:150], pairs[150:250])
    by_importance, *random_orders = ([point.bleu for point in points] for points in result.all_heads.values())
    assert by_importance[0] > 95
    assert by_importance[-1] < 5
    assert mean(by_importance) > min(map(mean, random_orders))
    half = {kind: points[pruning.POINTS // 2].bleu for kind, points in result.by_kind.items()}
    none = {kind: points[-1].bleu for kind, points in result.by_kind.items()}
    assert half["encoder self-attention"] > 75
    assert none["encoder self-attention"] > 1.5 * max(none[kind] for kind in pruning.KINDS if "decoder" in kind)


def held_out_pairs(folder):
    return quickstart.read_pairs(folder / "data" / "test.en", folder / "data" / "test.es")
