"""Translation of files: lines, resuming after an interruption, and parts that the processes of a launcher write."""

import functools
import io
import os
from types import SimpleNamespace

import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st

from modeling_random_transformer.base.compressed_files import create_binaries, open_binary
from modeling_random_transformer.inference import (
    encode_lines,
    one_line,
    read_lines,
    translate_file,
    translate_stream,
)
from modeling_random_transformer.inference import translation_files as files
from tests.helpers.interruption import killed_after
from tests.helpers.translation import random_translator, some_texts

TEXTS = some_texts(40)
SHORT = {"max_new_tokens": 6, "num_beams": 1}
# Characters at which str.splitlines() would split, and a carriage return within a line.
ODD_LINES = ["one\u2028two", "one\x0btwo\x0c", "one\x85two\x1e", "one\rtwo", "", "  \t ", "end"]
ITEMS = [str(index) for index in range(35)]


class TestLines:
    def test_only_a_line_feed_ends_a_line_and_a_byte_order_mark_is_removed(self):
        content = "\n".join(ODD_LINES).encode()
        assert list(read_lines(io.BytesIO(content))) == ODD_LINES
        assert list(read_lines(io.BytesIO(content.replace(b"\n", b"\r\n") + b"\n"))) == ODD_LINES
        assert list(read_lines(io.BytesIO("\ufeffone\n\ufefftwo".encode()))) == ["one", "\ufefftwo"]

    def test_invalid_utf8_error_names_the_line(self):
        lines = read_lines(io.BytesIO(b"one\ntwo\nthr\xffee\n"), "my.txt")
        assert [next(lines), next(lines)] == ["one", "two"]
        with pytest.raises(ValueError, match=r"^my.txt must be UTF-8 text, but line 3 is not: .*0xff"):
            next(lines)

    @given(st.lists(st.text()))
    def test_each_text_is_one_line(self, texts):
        written = b"".join(encode_lines(texts))
        assert written.count(b"\n") == len(texts)
        assert list(read_lines(io.BytesIO(b"\n" + written)))[1:] == [one_line(text) for text in texts]
        assert len(list(io.StringIO(written.decode(), newline=None))) == len(texts)  # open()'s universal newlines
        assert one_line("a\nb\r\nc\rd\te\u2028f") == "a b c d\te\u2028f"


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source.txt"
    path.write_text("\n".join([*TEXTS[:10], *ODD_LINES, *TEXTS[10:20]]), encoding="utf-8", newline="")
    return path


@pytest.fixture
def output(tmp_path):
    return tmp_path / "output.txt"


def translated(source, model, tokenizer, **options) -> bytes:
    """The reference for files: the lines of a stream."""
    with open(source, "rb") as file:
        return b"".join(encode_lines(translate_stream(read_lines(file), model, tokenizer, **options)))


@pytest.mark.usefixtures("_state_on_cpu")
class TestFiles:
    def test_line_n_of_the_replaced_output_translates_line_n(self, source, output, model, tokenizer):
        output.write_text("earlier")
        link = output.with_name("link.txt")
        link.symlink_to(output)
        translate_file(source, link, model, tokenizer, chunk_size=5, **SHORT)
        assert output.read_bytes() == translated(source, model, tokenizer, **SHORT)
        assert output.read_bytes().count(b"\n") == 27
        assert link.is_symlink()
        assert sorted(output.parent.iterdir()) == [link, output, source]

    @pytest.mark.parametrize(
        ("suffix", "options"), [(".gz", {}), (".zst", {"do_sample": True, "top_k": 0, "seed": 5})], ids=[".gz", ".zst"]
    )
    def test_compressed_files_and_samples_resume(self, source, output, model, tokenizer, suffix, options):
        output, options = output.with_name(f"output.txt{suffix}"), {"chunk_size": 4, **SHORT, **options}
        compressed = source.with_name(f"source.txt{suffix}")
        with create_binaries([compressed]) as [file]:
            file.write(source.read_bytes())
        run = functools.partial(translate_file, compressed, output, model, tokenizer, **options)
        killed_after(30, run, output.parent)
        assert not output.exists()
        run()
        with open_binary(output) as file:
            assert file.read() == translated(source, model, tokenizer, **options)

    @pytest.mark.parametrize(("content", "lines"), [(b"", 0), (b"\r\n\n", 2), (b"the", 1)])
    def test_files_of_no_and_one_line_keep_the_number_of_lines(
        self, tmp_path, output, model, tokenizer, content, lines
    ):
        source = tmp_path / "source.txt"
        source.write_bytes(content)
        translate_file(source, output, model, tokenizer, **SHORT)
        assert output.read_bytes().count(b"\n") == lines

    @pytest.mark.slow
    def test_resumed_output_after_a_kill_at_any_file_operation(self, source, output, model, tokenizer):
        def run():
            translate_file(source, output, model, tokenizer, chunk_size=9, **SHORT)

        steps, expected = 0, translated(source, model, tokenizer, **SHORT)
        while killed_after(steps, run, output.parent):
            assert not output.exists() or output.read_bytes() == expected, f"incomplete output after {steps} steps"
            run()
            assert output.read_bytes() == expected, f"killed after {steps} steps"
            assert sorted(output.parent.iterdir()) == [output, source], f"killed after {steps} steps"
            output.unlink()
            steps += 1
        assert steps > 25

    def test_a_part_that_has_changed_is_an_error(self, source, output, model, tokenizer):
        def run():
            translate_file(source, output, model, tokenizer, chunk_size=2, **SHORT)

        assert killed_after(20, run, output.parent)
        part = min(output.with_name(f"{output.name}.parts").glob("0*.txt"))
        complete = part.read_bytes()
        for changed in (b"", complete[:-1], complete + b"\n", complete.replace(b"\n", b"x\n"), b"\xff\n"):
            part.write_bytes(changed)
            with pytest.raises(
                ValueError, match=r"00000000\..*\.txt must be unchanged since it was written, got other content: del"
            ):
                run()
        part.unlink()
        run()
        assert output.read_bytes() == translated(source, model, tokenizer, **SHORT)

    def test_resuming_requires_the_same_inputs(self, tmp_path, tokenizer):
        model = random_translator()  # of its own: other tests complete the configuration, which the record contains
        perturbed, penalized = random_translator(), random_translator()
        perturbed.lm_head.bias.data[7] += 1e-3
        penalized.generation_config.repetition_penalty = 1.5
        source, output = tmp_path / "source.txt", tmp_path / "output.txt"
        source.write_text("\n".join(TEXTS))

        def resume(model=model, tokenizer=tokenizer, **options):
            translate_file(source, output, model, tokenizer, **{"chunk_size": 8, **SHORT, **options})
            return output.read_bytes()

        assert killed_after(20, resume, tmp_path)
        for options, difference in (
            ({"num_beams": 2}, "length_penalty was None, now 0.6; num_beams was 1, now 2"),
            ({"max_source_tokens": 7}, "max_source_tokens was"),
            ({"do_sample": True, "seed": 1}, "do_sample was False, now True; .*seed was None, now 1"),
            ({"chunk_size": 9}, "chunk_size was 8, now 9"),
            ({"model": perturbed}, "model was"),
            ({"model": penalized}, "model was"),
            ({"tokenizer": type(tokenizer).train(TEXTS, vocab_size=320)}, "model was"),
        ):
            message = rf"output.txt.parts must contain an earlier attempt .*{difference}.*with restart"
            with pytest.raises(ValueError, match=message):
                resume(**options)
        with pytest.raises(ValueError, match="stopping_criteria must be a plain value for translate_file"):
            resume(stopping_criteria=[len], restart=True)
        source.write_text("\n".join(TEXTS).replace("boy", "man"))
        with pytest.raises(ValueError, match="input was"):
            resume()
        source.write_text("\n".join(TEXTS))
        # The folder of the model, the state of the tokenizer's backend and the batch size may differ.
        model.save_pretrained(tmp_path / "copy")
        tokenizer(["a", "longer one"], padding=True, truncation=True, max_length=5)
        resumed = resume(model=type(model).from_pretrained(tmp_path / "copy"), max_batch_tokens=50)
        assert resumed == resume()
        sampling = {"do_sample": True, "seed": 1}
        assert killed_after(20, functools.partial(resume, **sampling), tmp_path)
        with pytest.raises(ValueError, match="max_batch_tokens was 4096, now 50"):
            resume(**sampling, max_batch_tokens=50)

    def test_truncation_may_be_added(self, tmp_path, tokenizer):
        """Otherwise a text that is too long, late in the file, would require translating from the start."""
        model = random_translator(position_embedding="learned", max_position_embeddings=30)
        source, output = tmp_path / "long.txt", tmp_path / "cut.txt"
        source.write_text("the\n" * 5 + "the" * 40)
        with pytest.raises(ValueError, match=r"long.txt, line 6: .* got 41"):
            translate_file(source, output, model, tokenizer, chunk_size=2, **SHORT)
        assert len(list(output.with_name("cut.txt.parts").glob("0*.txt"))) == 2
        translate_file(source, output, model, tokenizer, chunk_size=2, max_source_tokens=30, **SHORT)
        assert output.read_bytes().count(b"\n") == 6

    def test_paths_are_checked_before_anything_is_written(self, source, output, model, tokenizer, monkeypatch):
        monkeypatch.setattr(model, "generate", None)
        link, invalid = output.with_name("link.txt"), output.with_name("invalid.txt")
        link.symlink_to(source)
        invalid.write_bytes(b"the boy\n" * 5 + b"the \xff boy\n")
        before = sorted(output.parent.iterdir())
        no_file = "output_file must be a file, new or not, in a folder that exists, got"
        for source_file, written, message in (
            (invalid, output, r"invalid.txt must be UTF-8 text, but line 6 is not"),
            (source, output.parent, no_file),
            (source, output.parent / "missing" / "output.txt", no_file),
            (source, os.devnull, no_file),
            (source, link, "output_file must differ from input_file"),
            (output.with_name("pairs.tsv.gz"), output, "input_file must be a file with one text per line, not .tsv"),
            (output.with_name("missing.txt"), output, r"missing\.txt"),
        ):
            with pytest.raises((ValueError, FileNotFoundError), match=message):
                translate_file(source_file, written, model, tokenizer, chunk_size=2)
            assert sorted(output.parent.iterdir()) == before
        foreign = output.with_name("output.txt.parts") / "foreign.txt"
        foreign.parent.mkdir()
        foreign.write_text("foreign")
        with pytest.raises(ValueError, match=r"output.txt.parts must contain only the parts of output.txt"):
            translate_file(source, output, model, tokenizer, **SHORT)


@pytest.fixture
def shared_output(tmp_path, monkeypatch):
    """An output that three processes write, which run after each other: each waits for none of the others."""
    monkeypatch.setattr(files, "process_state", process_state)
    monkeypatch.setattr(files, "call_on_main_process", lambda function: function())
    monkeypatch.setattr(files.Parts, "finish", lambda *_: None)
    return tmp_path / "output.txt"


def process_state(rank):
    return SimpleNamespace(num_processes=3, process_index=rank, is_main_process=rank == 0)


def write(output, rank, process=lambda items, *_: items, readings=(ITEMS, ITEMS)):
    texts = iter(readings)
    work = SimpleNamespace(source="in.txt", output=output, model=SimpleNamespace(device=rank), unit="text")
    work.read = lambda: iter(next(texts))
    work.describe = lambda: {"model": "digest"}
    work.lines = process
    files.write_in_parts(work, chunk_size=3, restart=False, progress=False)


@pytest.mark.usefixtures("_state_on_cpu")
class TestProcesses:
    def test_missing_chunks_are_distributed(self, shared_output):
        written = []

        def process(items, first, _):
            assert items == ITEMS[first : first + 3]
            written.append(first // 3)
            return items

        for rank in (0, 0, 1):
            write(shared_output, rank, process)
        assert written == [0, 3, 6, 9, 1, 5, 10, 4, 11]
        parts = files.Parts(shared_output, {}, []).folder
        assert sorted(path.name[:8] for path in parts.glob("*.txt")) == [f"{n:08}" for n in sorted(written)]

    @pytest.mark.parametrize("changed", [ITEMS[:5], [*ITEMS[:-1], "x"]])
    def test_an_input_that_changes_is_an_error(self, shared_output, changed):
        with pytest.raises(ValueError, match=r"the input must not change while .*output.txt is written"):
            write(shared_output, 2, readings=(ITEMS, changed))

    def test_a_second_call_is_an_error(self, shared_output):
        write(shared_output, 0)
        message = r"output_file must not be in use, got .*output.txt' with another call"
        with FileLock(files.Parts(shared_output, {}, []).lock_file), pytest.raises(ValueError, match=message):
            write(shared_output, 0)
