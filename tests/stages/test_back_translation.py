"""Back-translation: aligned and deterministic outputs, methods, skipped lines, resuming, and the command."""

import io
import itertools
import re
import sys
from pathlib import Path

import pytest

from modeling_random_transformer.inference import one_line, translate
from modeling_random_transformer.inference import translation_files as files
from modeling_random_transformer.pipeline_random_transformer import Seq2SeqPipeline
from modeling_random_transformer.stages import add_noise, back_translate, back_translation
from tests.helpers.interruption import interrupt_at, killed_after
from tests.helpers.translation import random_tokenizer, some_texts

SHORT = {"max_new_tokens": 6, "progress": False}
LONG = "book " * 300
MONOLINGUAL = [*some_texts(12), "", " \t", LONG, "one\u2028line"]
VALID = [text for text in MONOLINGUAL if text.strip() and text != LONG]


@pytest.fixture(scope="module")
def limited():
    """A tokenizer with a limit on the tokens of a text."""
    tokenizer = random_tokenizer()
    tokenizer.model_max_length = 200
    return tokenizer


@pytest.fixture
def paths(tmp_path):
    """The monolingual text and both outputs."""
    mono = tmp_path / "mono.de"
    mono.write_text("".join(f"{line}\n" for line in MONOLINGUAL), encoding="utf-8")
    return mono, tmp_path / "synthetic.en", tmp_path / "synthetic.de"


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def test_noise_deletes_replaces_and_moves_words(monkeypatch):
    words = [f"w{number}" for number in range(2000)]
    text = " ".join(words)
    assert add_noise(text, "0 1") == add_noise(text, "0 1") != add_noise(text, "0 2")
    noised = add_noise(text, 0).split(" ")
    assert len(noised) == pytest.approx(1800, abs=60)
    assert noised.count("<blank>") == pytest.approx(180, abs=60)
    monkeypatch.setattr(back_translation, "REPLACEMENT", 0)
    monkeypatch.setattr(back_translation, "DELETION", 0)
    moved = add_noise(text, 0).split(" ")
    assert {abs(words.index(word) - position) for position, word in enumerate(moved)} == {0, 1, 2, 3}


def test_noise_keeps_at_least_one_word():
    assert all(add_noise("a b", seed) for seed in range(1000))  # both words are drawn for a deletion 10 times
    assert add_noise(" ", 0) == ""


@pytest.mark.parametrize("method", ["beam", "sampling", "noised_beam"])
def test_outputs_are_aligned_tagged_and_depend_on_the_seed_only(paths, translator, limited, method):
    texts = []
    for seed in (0, 0, 0 if method == "beam" else 1):
        report = back_translate(*paths, translator, limited, method=method, seed=seed, **SHORT)
        texts.append(paths[1].read_bytes())
    assert texts[0] == texts[1]
    assert (texts[0] == texts[2]) == (method == "beam")
    sources, targets = map(lines, paths[1:])
    assert all(source.startswith("<bt> ") for source in sources)
    assert len(sources) == len(targets) == report.pairs > 3
    assert [line for line in VALID if line in targets] == targets
    assert report.selection.lines == 16
    assert report.selection.first == {"blank": [13, 14], "of more than 200 tokens": [15]}
    assert sorted(path.name for path in paths[0].parent.iterdir()) == ["mono.de", "synthetic.de", "synthetic.en"]


def test_noised_beam_is_the_translation_with_noise(paths, translator, limited):
    back_translate(*paths, translator, limited, tag=None, **SHORT)
    clean = lines(paths[1])
    expected = [one_line(text) for text in translate(VALID, translator, limited, **SHORT) if text.strip()]
    assert [line.strip() for line in clean] == [text.strip() for text in expected]
    back_translate(*paths, translator, limited, tag=None, method="noised_beam", seed=3, **SHORT)
    assert lines(paths[1]) == [add_noise(text, f"3 {number}") for number, text in enumerate(clean, start=1)]


def test_pairs_with_an_empty_translation_are_skipped(paths, translator, limited, monkeypatch):
    answers = itertools.cycle([{"generated_text": text, "tokens": []} for text in ("text", " ")])

    def postprocess(_, outputs, **__):
        return [next(answers) for _ in outputs["sequences"]]

    monkeypatch.setattr(Seq2SeqPipeline, "postprocess", postprocess)
    report = back_translate(*paths, translator, limited, **SHORT)
    assert lines(paths[1]) == ["<bt> text"] * 7
    assert len(lines(paths[2])) == report.pairs == 7
    assert "6 with an empty translation" in str(report)


def test_resumes_and_reads_standard_input_again(paths, translator, limited, monkeypatch):
    options = {"chunk_size": 4, "method": "noised_beam", **SHORT}
    back_translate(*paths, translator, limited, **options)
    expected = [path.read_bytes() for path in paths[1:]]
    for path in paths[1:]:
        path.unlink()

    def from_standard_input(content, **more):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        back_translate("-", *paths[1:], translator, limited, **options, **more)

    calls = interrupt_at(2, files, "candidate_lines", monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        from_standard_input(paths[0].read_bytes())
    assert not any(path.exists() for path in paths[1:])
    with pytest.raises(ValueError, match="must have a line that can be translated, got input_file: 0 lines"):
        from_standard_input(b"")
    with pytest.raises(ValueError, match=r"input was .*: use another output, or discard the earlier work"):
        from_standard_input(b"another line\n")
    from_standard_input(paths[0].read_bytes())
    assert [path.read_bytes() for path in paths[1:]] == expected
    assert len(calls) == 5  # of four chunks
    calls.clear()
    with pytest.raises(KeyboardInterrupt):
        from_standard_input(paths[0].read_bytes())
    from_standard_input(b"another line\n", restart=True)
    assert lines(paths[2]) in (["another line"], [])


def test_a_call_during_another_one_with_the_same_output(paths, translator, limited, monkeypatch):
    candidate_lines = files.candidate_lines

    def call_again(*args, **options):
        with pytest.raises(ValueError, match=r"output_source must not be in use, got .*synthetic"):
            back_translate(*paths, translator, limited, restart=True, **SHORT)
        return candidate_lines(*args, **options)

    monkeypatch.setattr(files, "candidate_lines", call_again)
    assert back_translate(*paths, translator, limited, **SHORT).pairs > 3
    assert sorted(paths[0].parent.iterdir()) == sorted(paths)


@pytest.mark.slow
@pytest.mark.usefixtures("_state_on_cpu")
def test_resumes_after_a_kill_at_any_file_operation(paths, translator, limited):
    def work():
        back_translate(*paths, translator, limited, chunk_size=9, num_beams=1, max_new_tokens=2, progress=False)

    work()
    expected = [path.read_bytes() for path in paths[1:]]
    steps = 0
    while killed_after(steps, work, paths[0].parent):
        work()
        assert [path.read_bytes() for path in paths[1:]] == expected, f"killed after {steps} steps"
        assert len(list(paths[0].parent.iterdir())) == 3, f"killed after {steps} steps"
        for path in paths[1:]:
            path.unlink()
        steps += 3
    assert steps > 25


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "greedy"}, "method must be one of beam, sampling, noised_beam, got 'greedy'."),
        ({"tag": "<b t>"}, "tag must be None or text without whitespace, got '<b t>'."),
        ({"seed": 3}, "seed must be 0 with method 'beam', which draws nothing at random, got 3."),
        ({"text_key": "en"}, "text_key must be unset without a file with columns, got 'en'."),
        ({"max_tokens": 0}, "max_tokens must be None or a positive integer, got 0."),
        (
            {"temperature": 2.0},
            "temperature must be positive and given with method 'sampling', got 2.0 with method 'be",
        ),
        ({"temperature": 0.0, "method": "sampling"}, "temperature must be positive and given with method 'sampling'"),
        ({"temperature": "0.5", "method": "sampling"}, "temperature must be positive and given with method 'sampling'"),
        ({"seed": "3", "method": "noised_beam"}, "seed must be an integer, got '3'."),
        ({"n_best": 1}, "n_best must be unset in a back-translation, got 1."),
        ({"confidence": True}, "confidence must be unset in a back-translation, got True."),
        ({"output_format": "jsonl"}, "output_format must be unset in a back-translation, got 'jsonl'."),
        ({"prefix_file": "prefixes"}, "prefix_file must be unset in a back-translation, got 'prefixes'."),
    ],
)
def test_invalid_option(paths, translator, limited, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        back_translate(*paths, translator, limited, **options)


def test_invalid_files(paths, translator, limited, tmp_path):
    mono, source, target = paths
    for arguments, message in (
        ((tmp_path / "missing", source, target), "input_file must be a file"),
        ((mono, mono, target), "must be different files"),
        ((mono, "-", target), "output_source must be a file, got '-'."),
        ((mono, source, tmp_path / "a.tsv"), "output_target must be a file with one text per line, not .tsv"),
        ((mono, tmp_path / "missing" / "a", target), "output_source must be a file, new or not"),
        ((mono, source, tmp_path), "output_target must be a file, new or not"),
    ):
        with pytest.raises(ValueError, match=message):
            back_translate(*arguments, translator, limited)
    work = tmp_path / "synthetic.en.work"
    work.mkdir()
    (work / "notes.txt").write_text("")
    with pytest.raises(ValueError, match="must be new or the folder of an earlier call, got other files"):
        back_translate(mono, source, target, translator, limited)
    (work / "notes.txt").unlink()
    mono.write_text(" \n")
    with pytest.raises(ValueError, match=r"that can be translated, got .* 1 of 1 lines are invalid: 1 blank"):
        back_translate(*paths, translator, limited)
