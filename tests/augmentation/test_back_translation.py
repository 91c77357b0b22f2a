"""Back-translation: aligned and deterministic outputs, methods, skipped lines, resuming, and the command."""

import io
import itertools
import re
import sys

import pytest
from accelerate import PartialState

from modeling_random_transformer import cli
from modeling_random_transformer.augmentation import add_noise, back_translate, back_translation
from modeling_random_transformer.inference import translate
from modeling_random_transformer.inference import translation_files as files
from modeling_random_transformer.pipeline_random_transformer import Seq2SeqPipeline
from modeling_random_transformer.utils.compressed_files import open_binary, write_binary
from tests.helpers.interruption import killed_after
from tests.helpers.training import run, write_corpus
from tests.helpers.translation import random_tokenizer, random_translator, some_texts

SHORT = {"max_new_tokens": 6, "progress": False}
LONG = "book " * 300
MONOLINGUAL = [*some_texts(12), "", " \t", LONG, "one\u2028line"]
VALID = [text for text in MONOLINGUAL if text.strip() and text != LONG]


@pytest.fixture(scope="module")
def model():
    return random_translator()


@pytest.fixture(scope="module")
def tokenizer():
    tokenizer = random_tokenizer()
    tokenizer.model_max_length = 200
    return tokenizer


@pytest.fixture
def paths(tmp_path):
    """The monolingual text and both outputs."""
    mono = tmp_path / "mono.de"
    mono.write_text("".join(f"{line}\n" for line in MONOLINGUAL), encoding="utf-8")
    return mono, tmp_path / "synthetic.en", tmp_path / "synthetic.de"


def lines(path):
    return path.read_text(encoding="utf-8").split("\n")[:-1]


class TestNoise:
    WORDS = [f"w{number}" for number in range(2000)]
    TEXT = " ".join(WORDS)

    def test_same_seed_and_text_give_the_same_result(self):
        assert add_noise(self.TEXT, "0 1") == add_noise(self.TEXT, "0 1") != add_noise(self.TEXT, "0 2")

    def test_deletes_and_replaces_the_given_share_of_words(self):
        noised = add_noise(self.TEXT, 0, distance=0).split(" ")
        assert len(noised) == pytest.approx(1800, abs=60)
        assert noised.count("<blank>") == pytest.approx(180, abs=60)
        remaining = [word for word in noised if word != "<blank>"]
        assert remaining == sorted(remaining, key=self.WORDS.index)

    @pytest.mark.parametrize("distance", [0, 1, 3])
    def test_moves_no_word_by_more_than_the_distance(self, distance):
        noised = add_noise(self.TEXT, 0, deletion=0, replacement=0, distance=distance).split(" ")
        moves = {abs(self.WORDS.index(word) - position) for position, word in enumerate(noised)}
        assert moves == set(range(distance + 1))

    def test_keeps_one_word(self):
        assert add_noise("a b", 0, deletion=1, replacement=0) in ("a", "b")
        assert add_noise(" ", 0) == ""

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"deletion": 1.5}, "deletion must be between 0 and 1, got 1.5."),
            ({"replacement": -0.1}, "replacement must be between 0 and 1, got -0.1."),
            ({"distance": -1}, "distance must be at least 0, got -1."),
        ],
    )
    def test_invalid_option(self, options, message):
        with pytest.raises(ValueError, match=re.escape(message)):
            add_noise("a", 0, **options)


class TestBackTranslate:
    @pytest.mark.parametrize("method", ["beam", "sampling", "noised_beam"])
    def test_outputs_are_aligned_and_tagged(self, paths, model, tokenizer, method):
        report = back_translate(*paths, model, tokenizer, method=method, **SHORT)
        sources, targets = map(lines, paths[1:])
        assert all(source.startswith("<bt> ") for source in sources)
        assert len(sources) == len(targets) == report.pairs == len(VALID) - report.empty
        assert [line for line in VALID if line in targets] == targets
        assert report.selection.lines == 16
        assert report.selection.first == {"blank": [13, 14], "of more than 200 tokens": [15]}
        assert sorted(path.name for path in paths[0].parent.iterdir()) == ["mono.de", "synthetic.de", "synthetic.en"]

    def test_compressed_files(self, paths, model, tokenizer):
        back_translate(*paths, model, tokenizer, **SHORT)
        compressed = [
            path.with_name(f"{path.name}{suffix}") for path, suffix in zip(paths, (".gz", ".zst", ".gz"), strict=True)
        ]
        write_binary(compressed[0], [paths[0].read_bytes()])
        back_translate(*compressed, model, tokenizer, **SHORT)
        for path, plain in zip(compressed[1:], paths[1:], strict=True):
            with open_binary(path) as file:
                assert file.read() == plain.read_bytes()

    def test_standard_input_is_read_again_to_resume(self, paths, model, tokenizer, monkeypatch):
        back_translate(*paths, model, tokenizer, **SHORT)
        expected = [path.read_bytes() for path in paths[1:]]
        with monkeypatch.context() as patch:
            patch.setattr(back_translation, "write_outputs", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                back_translate(*paths, model, tokenizer, **SHORT)
        monkeypatch.setattr(files, "translate_chunk", None)  # nothing is translated again
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
        with pytest.raises(ValueError, match="must have a line that can be translated, got input_file: 0 lines"):
            back_translate("-", *paths[1:], model, tokenizer, **SHORT)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(paths[0].read_bytes())))
        back_translate("-", *paths[1:], model, tokenizer, **SHORT)
        assert [path.read_bytes() for path in paths[1:]] == expected

    def test_progress_of_the_selection(self, paths, model, tokenizer, capsys):
        back_translate(*paths, model, tokenizer, max_new_tokens=2, progress=True)
        assert re.search(r"\b16line", capsys.readouterr().err)

    def test_beam_equals_translate(self, paths, model, tokenizer):
        back_translate(*paths, model, tokenizer, tag=None, **SHORT)
        expected = [text for text in translate(VALID, model, tokenizer, **SHORT) if text.strip()]
        assert [line.strip() for line in lines(paths[1])] == [re.sub(r"\r\n|\r|\n", " ", t).strip() for t in expected]

    def test_noised_beam_is_the_beam_with_noise(self, paths, model, tokenizer):
        back_translate(*paths, model, tokenizer, tag=None, **SHORT)
        clean = lines(paths[1])
        back_translate(*paths, model, tokenizer, tag=None, method="noised_beam", seed=3, **SHORT)
        assert lines(paths[1]) == [add_noise(text, f"3 {number}") for number, text in enumerate(clean, start=1)]

    def test_sampling_depends_on_the_seed_only(self, paths, model, tokenizer):
        results = []
        for seed in (0, 0, 1):
            back_translate(*paths, model, tokenizer, method="sampling", seed=seed, **SHORT)
            results.append(paths[1].read_bytes())
        assert results[0] == results[1] != results[2]

    def test_pairs_with_an_empty_translation_are_skipped(self, paths, model, tokenizer, monkeypatch):
        answers = itertools.cycle([{"generated_text": text, "tokens": []} for text in ("text", " ")])
        monkeypatch.setattr(Seq2SeqPipeline, "postprocess", lambda *_, **__: next(answers))
        report = back_translate(*paths, model, tokenizer, **SHORT)
        assert lines(paths[1]) == ["<bt> text"] * 7
        assert len(lines(paths[2])) == 7
        assert (report.pairs, report.empty) == (7, 6)

    @pytest.mark.parametrize("interrupted", ["in the translation", "before the outputs"])
    def test_resumes(self, paths, model, tokenizer, monkeypatch, interrupted):
        options = {"chunk_size": 4, "method": "noised_beam", **SHORT}
        back_translate(*paths, model, tokenizer, **options)
        expected = [path.read_bytes() for path in paths[1:]]
        for path in paths[1:]:
            path.unlink()

        translate_chunk, calls = files.translate_chunk, itertools.count()

        def interrupt_second(*args, **options):
            if interrupted == "in the translation" and next(calls) == 1:
                raise KeyboardInterrupt
            return translate_chunk(*args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(files, "translate_chunk", interrupt_second)
            if interrupted == "before the outputs":
                patch.setattr(back_translation, "write_outputs", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                back_translate(*paths, model, tokenizer, **options)
        assert not paths[1].exists()
        assert not paths[2].exists()

        chunks = []

        def count_chunks(*args, **options):
            chunks.append(args)
            return translate_chunk(*args, **options)

        monkeypatch.setattr(files, "translate_chunk", count_chunks)
        back_translate(*paths, model, tokenizer, **options)
        assert [path.read_bytes() for path in paths[1:]] == expected
        assert len(chunks) == (3 if interrupted == "in the translation" else 0)

    @pytest.mark.parametrize("same_input", [False, True])
    def test_a_call_during_another_one_with_the_same_outputs(self, paths, model, tokenizer, monkeypatch, same_input):
        back_translate(*paths, model, tokenizer, **SHORT)
        expected = [path.read_bytes() for path in paths[1:]]
        other = paths[0] if same_input else paths[0].with_name("other.de")
        other.write_bytes(paths[0].read_bytes() if same_input else b"another line\n")
        translate_chunk, calls = files.translate_chunk, itertools.count()

        def call_again(*args, **options):
            if next(calls) == 0:
                third = paths[0].with_name("third")
                for outputs, name in (
                    (paths[1:], "source"),
                    ((third, paths[2]), "target"),
                    ((paths[2], third), "source"),
                ):
                    for restart in (False, True):
                        with pytest.raises(ValueError, match=f"output_{name} must not be in use, got .*synthetic"):
                            back_translate(other, *outputs, model, tokenizer, restart=restart, **SHORT)
            return translate_chunk(*args, **options)

        monkeypatch.setattr(files, "translate_chunk", call_again)
        back_translate(*paths, model, tokenizer, chunk_size=4, **SHORT)
        assert [path.read_bytes() for path in paths[1:]] == expected
        assert sorted(paths[0].parent.iterdir()) == sorted({*paths, other})
        back_translate(other, *paths[1:], model, tokenizer, **SHORT)  # after it

    @pytest.mark.slow
    @pytest.mark.usefixtures("_reset_accelerate")
    def test_resumes_after_a_kill_at_any_file_operation(self, paths, model, tokenizer):
        def run():
            back_translate(*paths, model, tokenizer, chunk_size=9, num_beams=1, max_new_tokens=2, progress=False)

        PartialState(cpu=True)  # child processes inherit it
        run()
        expected = [path.read_bytes() for path in paths[1:]]
        steps = 0
        while killed_after(steps, run, paths[0].parent):
            run()
            assert [path.read_bytes() for path in paths[1:]] == expected, f"killed after {steps} steps"
            assert len(list(paths[0].parent.iterdir())) == 3, f"killed after {steps} steps"
            for path in paths[1:]:
                path.unlink()
            steps += 2
        assert steps > 25

    def test_finished_translation_of_another_input_is_not_reused(self, paths, model, tokenizer, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr(back_translation, "write_outputs", lambda *_: 0)
            back_translate(*paths, model, tokenizer, **SHORT)
        paths[0].write_text("another line\n")
        with pytest.raises(ValueError, match=r"texts was .*: use another output, or discard the earlier work"):
            back_translate(*paths, model, tokenizer, **SHORT)
        assert back_translate(*paths, model, tokenizer, restart=True, **SHORT).pairs <= 1
        assert lines(paths[2]) in (["another line"], [])

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"method": "greedy"}, "method must be one of beam, sampling, noised_beam, got 'greedy'."),
            ({"tag": "<b t>"}, "tag must be None or text without whitespace, got '<b t>'."),
            ({"tag": ""}, "tag must be None or text without whitespace, got ''."),
            ({"max_tokens": 0}, "max_tokens must be None or a positive integer, got 0."),
            ({"num_return_sequences": 2}, "num_return_sequences must not be given, got 2."),
        ],
    )
    def test_invalid_option(self, paths, model, tokenizer, options, message):
        with pytest.raises(ValueError, match=re.escape(message)):
            back_translate(*paths, model, tokenizer, **options)

    def test_invalid_files(self, paths, model, tokenizer, tmp_path):
        mono, source, target = paths
        for arguments, message in (
            ((tmp_path / "missing", source, target), "input_file must be a file"),
            ((mono, mono, target), "must be different files"),
            ((mono, source, source), "must be different files"),
            ((mono, tmp_path / "missing" / "a", target), "output_source must be a file, new or not"),
            ((mono, source, tmp_path), "output_target must be a file, new or not"),
        ):
            with pytest.raises(ValueError, match=message):
                back_translate(*arguments, model, tokenizer)
        work = tmp_path / "synthetic.en.work"
        work.mkdir()
        (work / "notes.txt").write_text("")
        with pytest.raises(
            ValueError, match="must contain only the files of an earlier call, got others, such as notes"
        ):
            back_translate(mono, source, target, model, tokenizer)
        (work / "notes.txt").unlink()
        mono.write_text(" \n")
        with pytest.raises(ValueError, match=r"that can be translated, got .* 1 of 1 lines are invalid: 1 blank"):
            back_translate(*paths, model, tokenizer)
        assert not work.exists()
        mono.write_bytes(b"caf\xe9\n")
        with pytest.raises(ValueError, match="must be UTF-8 text, but line 1 is not"):
            back_translate(*paths, model, tokenizer)


@pytest.mark.usefixtures("_reset_accelerate")
def test_model_card_states_the_synthetic_share(tmp_path):
    write_corpus(tmp_path)
    for name, tag in (("a", "<bt> "), ("b", "")):
        synthetic = [f"{tag}{line}\n" for line in lines(tmp_path / f"train.{name}")[:40]]
        (tmp_path / f"synthetic.{name}").write_text("".join(synthetic))
    files = {
        f"{side}_file": [str(tmp_path / f"{corpus}.{name}") for corpus in ("train", "synthetic")]
        for side, name in (("source", "a"), ("target", "b"))
    }
    result = run(tmp_path, "out", **files, special_tokens=["<bt>"], max_steps=1, average_last=1)
    card = (result.folder / "README.md").read_text()
    assert "The sources of 25% of the pairs of an epoch begin with the tag `<bt>`." in card


@pytest.fixture
def folder(tmp_path, model, tokenizer):
    folder = tmp_path / "de-en"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def flags(folder, paths):
    names = ("--input", "--output_source", "--output_target")
    outputs = [text for name, path in zip(names, paths, strict=True) for text in (name, str(path))]
    return ["back-translate", "--model", str(folder), *outputs, "--device", "cpu"]


@pytest.mark.usefixtures("_reset_accelerate")
class TestCommand:
    def test_writes_both_files_and_prints_the_counts(self, folder, paths, capsys):
        assert cli.main([*flags(folder, paths), "--method", "sampling", "--no_tag", "--max_tokens", "20"]) == 0
        error = capsys.readouterr().err
        assert "of 16 lines are invalid" in error
        assert "2 blank (line 13, 14)" in error
        assert "of more than 20 tokens (line" in error
        sources, targets = map(lines, paths[1:])
        assert len(sources) == len(targets) > 3
        assert not any(source.startswith("<bt>") for source in sources)

    def test_column_and_standard_input(self, folder, paths, tmp_path, monkeypatch):
        (tmp_path / "mono.tsv").write_text("".join(f"7\t{text}\n" for text in VALID))
        given = flags(folder, (tmp_path / "mono.tsv", *paths[1:]))
        assert cli.main([*given, "--text_key", "2", "--num_beams", "1"]) == 0
        expected = [path.read_bytes() for path in paths[1:]]
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(VALID).encode())))
        assert cli.main([*flags(folder, ("-", *paths[1:])), "--num_beams", "1"]) == 0
        assert [path.read_bytes() for path in paths[1:]] == expected

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            (["--temperature", "2"], "--temperature must be given with --method sampling, got --method beam."),
            (
                ["--method", "sampling", "--num_beams", "2"],
                "--num_beams must be 1 or unset with --method sampling, got 2.",
            ),
            (["--tag", "<bt>", "--no_tag"], "not allowed with argument"),
        ],
    )
    def test_contradicting_flags(self, folder, paths, capsys, more, message):
        with pytest.raises(SystemExit) as exit_:
            cli.main([*flags(folder, paths), *more])
        assert exit_.value.code == 2
        assert message in capsys.readouterr().err

    def test_same_file_is_a_one_line_error(self, folder, paths, capsys):
        assert cli.main(flags(folder, (paths[0], paths[0], paths[2]))) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert line.startswith("random-transformer back-translate: error: input_file, output_source and output_target")
