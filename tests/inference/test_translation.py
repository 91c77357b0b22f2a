"""Translation of lists, streams and files: order, batches, lines, and resuming after an interruption."""

import functools
import io
import math
import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from modeling_random_transformer import inputs_random_transformer as inputs_module
from modeling_random_transformer.base.compressed_files import create_binaries, open_binary
from modeling_random_transformer.inference import (
    encode_lines,
    longest_target,
    one_line,
    read_lines,
    translate,
    translate_file,
    translate_stream,
)
from modeling_random_transformer.inference.translation import Translator
from tests.helpers.interruption import killed_after
from tests.helpers.models import EOS
from tests.helpers.translation import random_translator, some_texts

TEXTS = some_texts(40)
FEW = TEXTS[:16]
SHORT = {"max_new_tokens": 6, "num_beams": 1}
# Characters at which str.splitlines() would split, and a carriage return within a line.
ODD_LINES = ["one\u2028two", "one\x0btwo\x0c", "one\x85two\x1e", "one\rtwo", "", "  \t ", "end"]


@pytest.fixture
def _short_limits(monkeypatch):
    """Limit translations to the source length plus 2 instead of 50, for speed."""
    monkeypatch.setattr(inputs_module, "LONGER_THAN_SOURCE", 2)


def one_by_one(texts, model, tokenizer, num_beams=4, max_new_tokens=None, **options):
    """Reference: generate() for each text separately."""
    options["num_beams"] = num_beams
    if num_beams > 1:
        options.setdefault("length_penalty", 0.6)
    translations = []
    for text in texts:
        inputs = tokenizer(text, return_tensors="pt")
        limit = max_new_tokens or -(-inputs["input_ids"].shape[1] // 16) * 16 + inputs_module.LONGER_THAN_SOURCE
        ids = model.generate(**inputs, max_new_tokens=limit, **options)
        translations += tokenizer.batch_decode(ids, skip_special_tokens=True)
    return translations


@pytest.mark.usefixtures("_short_limits")
class TestTexts:
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"num_beams": 1, "no_repeat_ngram_size": 2},
            {"num_beams": 3, "length_penalty": 2.0, "early_stopping": True, "max_new_tokens": 5},
        ],
        ids=str,
    )
    def test_batching_does_not_change_translations(self, model, tokenizer, options):
        expected = one_by_one(FEW, model, tokenizer, **options)
        assert len(set(expected)) > 12, "the outputs must differ for the test to be meaningful"
        for sizes in ({}, {"max_batch_tokens": 200}, {"chunk_size": 7}):
            assert translate(FEW, model, tokenizer, **sizes, **options) == expected

    def test_the_length_penalty_is_that_of_the_model_unless_another_one_is_given(self, tokenizer):
        model = random_translator().double()
        models_own = {}
        for penalty in (None, 0.6, -2.0):
            model.generation_config.length_penalty = penalty
            models_own[penalty] = translate(FEW, model, tokenizer, max_new_tokens=12)
            assert translate(FEW, model, tokenizer, length_penalty=0.6, max_new_tokens=12) == models_own[None]
        assert models_own[None] == models_own[0.6] != models_own[-2.0]
        assert models_own[-2.0] == translate(FEW, model, tokenizer, length_penalty=-2.0, max_new_tokens=12)

    def test_blank_texts_are_not_passed_to_the_model(self, model, tokenizer, monkeypatch):
        expected = translate(["two", "one"], model, tokenizer, **SHORT)
        texts = ["", "two", " \t\u2003", "one", "\n"]
        assert translate(texts, model, tokenizer, **SHORT) == ["", expected[0], "", expected[1], ""]
        monkeypatch.setattr(model, "generate", None)
        assert translate(["", " "], model, tokenizer) == ["", ""]
        assert translate([], model, tokenizer) == []

    @pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.1}], ids=str)
    def test_texts_without_letters_are_unchanged(self, model, tokenizer, options):
        expected = translate(["two", "one"], model, tokenizer, seed=3, **SHORT, **options)
        texts = ["two", "42", "one", "- 3.5 %", "\u200b\ufeff"]
        translations = translate(texts, model, tokenizer, seed=3, **SHORT, **options)
        assert (translations[1], translations[3]) == ("42", "- 3.5 %")
        assert translations[4] == ""
        assert [translations[0], translations[2]] == expected

    @given(lengths=st.lists(st.integers(1, 50), max_size=40), budget=st.integers(1, 300), num_beams=st.integers(1, 5))
    def test_batches_do_not_exceed_the_budget(self, model, tokenizer, lengths, budget, num_beams):
        pipe = Translator(model, tokenizer, max_batch_tokens=budget, num_beams=num_beams).pipe
        batches = pipe.group(lengths, [0] * len(lengths), 1, pipe.call_options())
        assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
        assert all(len({longest_target(lengths[i], model.config) for i in batch}) == 1 for batch in batches)
        longest = [max(lengths[i] for i in batch) for batch in batches]
        assert longest == sorted(longest, reverse=True)
        for batch, length in zip(batches, longest, strict=True):
            assert len(batch) * length * num_beams <= budget or len(batch) == 1

    def test_stream_is_read_lazily(self, model, tokenizer):
        read = []

        def texts():
            for text in TEXTS:
                read.append(text)
                yield text

        stream = translate_stream(texts(), model, tokenizer, chunk_size=10, **SHORT)
        assert not read
        for done, _ in enumerate(stream):
            assert len(read) == 10 * (done // 10 + 1)
            assert torch.is_grad_enabled()  # for the caller
            assert not torch.is_inference_mode_enabled()
        assert read == TEXTS

    def test_sampling_is_reproducible_with_a_seed(self, model, tokenizer):
        sampling = {"do_sample": True, "top_k": 0, "chunk_size": 10, **SHORT}
        first = translate(TEXTS, model, tokenizer, seed=1, **sampling)
        assert translate(TEXTS, model, tokenizer, seed=1, **sampling) == first
        assert translate(TEXTS, model, tokenizer, seed=2, **sampling) != first
        # Each chunk has its own seed: the sample depends on the position of the text.
        assert first != translate(TEXTS[20:] + TEXTS[:20], model, tokenizer, seed=1, **sampling)

    def test_progress_bar(self, model, tokenizer, capsys):
        translate([*TEXTS, ""], model, tokenizer, **SHORT)
        assert capsys.readouterr().err == ""
        translate([*TEXTS, ""], model, tokenizer, progress=True, **SHORT)
        captured = capsys.readouterr()
        assert "41/41" in captured.err
        assert captured.out == ""


def test_learned_positions_limit_targets(tokenizer):
    """A translation has at most as many tokens as there are positions."""
    model = random_translator(position_embedding="learned", max_position_embeddings=20)
    assert longest_target(15, model.config) == 20
    assert longest_target(15, random_translator(max_position_embeddings=20).config) == 66
    model.lm_head.bias.data[EOS] = -100.0
    for options in ({}, {"max_new_tokens": 99}, {"num_beams": 1}):
        translate(TEXTS[:3], model, tokenizer, max_source_tokens=20, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 0}, "num_beams must be a positive integer, got 0."),
        ({"num_beams": 10**9}, "num_beams must be at most 1000, got 1000000000."),
        ({"mbr": 10**9}, "mbr must be at most 1000, got 1000000000."),
        ({"max_source_tokens": True}, "max_source_tokens must be None or a positive integer, got True."),
        ({"chunk_size": 0}, "chunk_size must be a positive integer, got 0."),
        ({"num_return_sequences": 2}, "num_return_sequences must not be given, got 2."),
        ({"max_length": 9}, "max_length must not be given, got 9."),
        ({"return_scores": True}, "return_scores must not be given, got True."),
        ({"length_penalty": "1"}, "length_penalty must be None or a number from -2 to 10, got '1'."),
        ({"min_confidence": "0.5"}, "min_confidence must be None or a number from 0 to 1, got '0.5'."),
        ({"min_confidence": math.nan}, "min_confidence must be None or a number from 0 to 1, got nan."),
        ({"seed": 1.5}, f"seed must be None or an integer from -{2**62} to {2**62}, got 1.5."),
        ({"seed": 2**63}, f"seed must be None or an integer from -{2**62} to {2**62}, got {2**63}."),
        ({"generation_config": {}}, "generation_config must be a GenerationConfig, got {}."),
        ({"prefixes": "the"}, "prefixes must be an iterable of strings, got one str."),
        ({"prefixes": 3}, "prefixes must be an iterable of strings, got one int."),
    ],
    ids=str,
)
def test_invalid_option_is_an_error_before_the_first_text(model, tokenizer, options, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        translate_stream(TEXTS, model, tokenizer, **options)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("one text", "texts must be an iterable of strings, got one str"),
        (["one", 2], "index 1: texts must be strings, got 2."),
        (["a", "b", "c", "\ud800"], "index 3: texts must be Unicode, got"),
    ],
    ids=["a string", "an integer", "half a character"],
)
def test_invalid_text(model, tokenizer, texts, message):
    with pytest.raises(ValueError, match=message):
        translate(texts, model, tokenizer, chunk_size=3, **SHORT)


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
    def test_short_files(self, tmp_path, output, model, tokenizer, content, lines):
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

    def test_a_part_that_has_changed(self, source, output, model, tokenizer):
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
            ({"max_source_tokens": 7, "seed": 1}, "max_source_tokens was .* seed was None, now 1"),
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
