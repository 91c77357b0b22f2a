"""Translating lists, streams and files: the order, the batches, the lines, and what a kill leaves behind."""

import contextlib
import copy
import io
import itertools
import os
import signal
import sys
from pathlib import Path

import pytest
import torch
from accelerate import PartialState
from hypothesis import given
from hypothesis import strategies as st
from transformers import MarianConfig, MarianMTModel, T5Config, T5ForConditionalGeneration
from transformers.utils import logging

from modeling_random_transformer.translation import (
    Translator,
    encode_lines,
    one_line,
    read_lines,
    translate,
    translate_file,
    translate_stream,
)
from modeling_random_transformer.translation import texts as texts_module
from modeling_random_transformer.utils.files import write_atomically
from tests.helpers.models import EOS
from tests.helpers.translation import random_tokenizer, random_translator, some_texts

TEXTS = some_texts(40)
SOME = TEXTS[:16]
SHORT = {"max_new_tokens": 6, "num_beams": 1}
# Characters at which str.splitlines() would split, and a carriage return within a line.
ODD_LINES = ["one\u2028two", "one\x0btwo\x0c", "one\x85two\x1e", "one\rtwo", "", "  \t ", "end"]


@pytest.fixture(scope="module")
def model():
    return random_translator()


@pytest.fixture(scope="module")
def tokenizer():
    return random_tokenizer()


@pytest.fixture
def _state_on_cpu():
    """Accelerate's state of the process, such that a child process can take it over, gone again after the test."""
    PartialState(cpu=True)
    yield
    PartialState._reset_state()


@pytest.fixture
def _short_limits(monkeypatch):
    """As the paper's limits, but sooner reached: the slowest translation decides how long a test takes."""
    monkeypatch.setattr(texts_module, "LONGER_THAN_SOURCE", 2)


def one_by_one(texts, model, tokenizer, num_beams=4, max_new_tokens=None, **options):
    """The library's own generate() for each text alone."""
    options["num_beams"] = num_beams
    if num_beams > 1:
        options.setdefault("length_penalty", 0.6)
    translations = []
    for text in texts:
        inputs = tokenizer(text, return_tensors="pt")
        limit = max_new_tokens or -(-inputs["input_ids"].shape[1] // 16) * 16 + texts_module.LONGER_THAN_SOURCE
        ids = model.generate(**inputs, max_new_tokens=limit, **options)
        translations += tokenizer.batch_decode(ids, skip_special_tokens=True)
    return translations


@pytest.mark.usefixtures("_short_limits")
class TestTexts:
    def test_sources_are_padded_on_the_right(self, model, tokenizer):
        """Where positions count from the left, padding there would move the text."""
        left = copy.deepcopy(tokenizer)
        left.padding_side = "left"
        texts = some_texts(8)
        assert translate(texts, model, left, progress=False) == one_by_one(texts, model, tokenizer)

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"num_beams": 1},
            {"num_beams": 3, "length_penalty": 2.0},
            {"length_penalty": -1.0},
            {"early_stopping": True},
            {"early_stopping": "never"},
            {"no_repeat_ngram_size": 2},
            {"max_new_tokens": 5},
        ],
        ids=str,
    )
    def test_a_translation_is_that_of_its_text_alone(self, model, tokenizer, options):
        expected = one_by_one(SOME, model, tokenizer, **options)
        assert len(set(expected)) > 12, "a test that could not fail"
        for sizes in ({}, {"max_batch_tokens": 200}, {"chunk_size": 7}):
            assert translate(SOME, model, tokenizer, **sizes, **options) == expected

    def test_the_texts_differ_in_when_they_end(self, model, tokenizer):
        """Some at the end-of-sequence token, some at limits of their own; otherwise the test above shows little."""
        translator = Translator(model, tokenizer)
        limits = [translator.longest_target(len(source)) for source in translator.tokenize(SOME)]
        at_limit = []
        for text, limit in zip(SOME, limits, strict=True):
            ids = model.generate(**tokenizer(text, return_tensors="pt"), max_new_tokens=limit, num_beams=4)
            at_limit.append(ids[0, -1] != EOS)
        assert 5 < sum(at_limit) < 13
        assert len(set(limits)) > 1

    def test_blank_texts_stay_blank_without_the_model(self, model, tokenizer, monkeypatch):
        expected = translate(["two", "one"], model, tokenizer, **SHORT)
        texts = ["", "two", " \t\u2003", "one", "\n"]
        assert translate(texts, model, tokenizer, **SHORT) == ["", expected[0], "", expected[1], ""]
        monkeypatch.setattr(model, "generate", None)
        assert translate(["", " "], model, tokenizer) == ["", ""]
        assert translate([], model, tokenizer) == []

    @given(lengths=st.lists(st.integers(0, 50), max_size=40), budget=st.integers(1, 300), num_beams=st.integers(1, 5))
    def test_batches_keep_to_the_budget(self, model, tokenizer, lengths, budget, num_beams):
        translator = Translator(model, tokenizer, max_batch_tokens=budget, num_beams=num_beams)
        batches = list(translator.batches(lengths))
        assert sorted(i for batch in batches for i in batch) == [i for i, length in enumerate(lengths) if length]
        assert all(len({translator.longest_target(lengths[i]) for i in batch}) == 1 for batch in batches)
        longest = [max(lengths[i] for i in batch) for batch in batches]
        assert longest == sorted(longest, reverse=True)
        for batch, length in zip(batches, longest, strict=True):
            assert len(batch) * length * num_beams <= budget or len(batch) == 1

    def test_a_stream_reads_no_further_than_it_must(self, model, tokenizer):
        read = []

        def texts():
            for text in TEXTS:
                read.append(text)
                yield text

        stream = translate_stream(texts(), model, tokenizer, chunk_size=10, **SHORT)
        assert not read
        for done, _ in enumerate(stream):
            assert len(read) == 10 * (done // 10 + 1)
        assert read == TEXTS

    def test_a_stream_can_be_endless(self, model, tokenizer):
        def forever():
            while True:
                yield "the boy"

        stream = translate_stream(forever(), model, tokenizer, chunk_size=1, **SHORT)
        assert next(stream) == next(stream)

    def test_the_model_stays_as_it_was(self, tokenizer):
        model = random_translator(dropout=0.5).train()
        model.model.encoder.eval()
        modes = [module.training for module in model.modules()]
        stream = translate_stream(TEXTS, model, tokenizer, chunk_size=3, **SHORT)
        first = next(stream)
        assert not torch.is_inference_mode_enabled()
        assert torch.is_grad_enabled()
        assert [first, *stream] == translate(TEXTS, model, tokenizer, **SHORT)
        assert [module.training for module in model.modules()] == modes

    def test_samples_follow_their_seed(self, model, tokenizer):
        sampling = {"do_sample": True, "top_k": 0, "chunk_size": 10, **SHORT}
        first = translate(TEXTS, model, tokenizer, seed=1, **sampling)
        assert translate(TEXTS, model, tokenizer, seed=1, **sampling) == first
        assert translate(TEXTS, model, tokenizer, seed=2, **sampling) != first
        # Each chunk has its own: the same text twenty texts later is drawn anew.
        assert first != translate(TEXTS[20:] + TEXTS[:20], model, tokenizer, seed=1, **sampling)

    def test_stopping_criteria_of_the_callers_own(self, model, tokenizer):
        def after_two_tokens(input_ids, _scores, **_options):
            return torch.full((len(input_ids),), input_ids.shape[1] >= 3)

        stopped = translate(TEXTS[:5], model, tokenizer, num_beams=1, stopping_criteria=[after_two_tokens])
        assert stopped == translate(TEXTS[:5], model, tokenizer, num_beams=1, max_new_tokens=2)

    @pytest.mark.parametrize("kind", ["Marian", "T5"])
    def test_other_models_do_too(self, tokenizer, kind):
        sizes = {"vocab_size": len(tokenizer), "d_model": 16, "decoder_start_token_id": 1, "eos_token_id": EOS}
        if kind == "Marian":
            layers = {
                f"{stack}_{name}": 2 for stack in ("encoder", "decoder") for name in ("layers", "attention_heads")
            }
            widths = {"encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 128}
            other = MarianMTModel(MarianConfig(**sizes, **layers, **widths, pad_token_id=0, init_std=1.0))
        else:
            torch.manual_seed(3)
            config = T5Config(**sizes, d_kv=8, d_ff=24, num_layers=2, num_heads=2, initializer_factor=20.0)
            other = T5ForConditionalGeneration(config)
        assert translate(SOME, other, tokenizer) == one_by_one(SOME, other.eval(), tokenizer)

    def test_a_models_own_limit_gives_way_without_a_warning(self, tokenizer, capsys):
        model = random_translator()
        model.generation_config.max_length = 4
        model.generation_config.max_new_tokens = 3
        expected = translate(TEXTS[:5], random_translator(), tokenizer)
        logging.enable_default_handler()
        assert translate(TEXTS[:5], model, tokenizer) == expected
        assert "max_" not in capsys.readouterr().err

    def test_a_bar_is_drawn_when_asked_for(self, model, tokenizer, capsys):
        translate([*TEXTS, ""], model, tokenizer, **SHORT)
        assert capsys.readouterr().err == ""
        translate([*TEXTS, ""], model, tokenizer, progress=True, **SHORT)
        captured = capsys.readouterr()
        assert "41/41" in captured.err
        assert captured.out == ""


class TestWhereLearnedPositionsEnd:
    @pytest.fixture
    def short_sighted(self):
        return random_translator(position_embedding="learned", max_position_embeddings=20)

    def test_longer_texts_are_refused_by_number(self, short_sighted, tokenizer):
        with pytest.raises(ValueError, match=r"at most 20 tokens.*text 3 has 41; max_source_tokens cuts it"):
            translate(["the", "", "the" * 40], short_sighted, tokenizer)

    def test_or_cut(self, short_sighted, tokenizer):
        cut = translate(["the" * 40, "the" * 19], short_sighted, tokenizer, max_source_tokens=20)
        assert cut[0] == cut[1]

    def test_no_translation_is_longer(self, short_sighted, tokenizer):
        """Neither an error nor a shorter limit than need be: as many tokens as there are positions to predict from."""
        assert Translator(short_sighted, tokenizer).longest_target(15) == 20
        short_sighted.lm_head.bias.data[EOS] = -100.0
        for options in ({}, {"max_new_tokens": 99}, {"num_beams": 1}):
            translate(TEXTS[:3], short_sighted, tokenizer, max_source_tokens=20, **options)
        assert Translator(random_translator(max_position_embeddings=20), tokenizer).longest_target(15) == 66


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"num_beams": 0}, "num_beams must be a positive integer, got 0."),
            ({"num_beams": 2.0}, "num_beams must be a positive integer, got 2.0."),
            ({"max_batch_tokens": -1}, "max_batch_tokens must be a positive integer, got -1."),
            ({"max_new_tokens": 0}, "max_new_tokens must be None or a positive integer, got 0."),
            ({"max_source_tokens": True}, "max_source_tokens must be None or a positive integer, got True."),
            ({"chunk_size": 0}, "chunk_size must be a positive integer, got 0."),
            ({"num_return_sequences": 2}, "num_return_sequences must be left to the translator, got 2."),
            ({"max_length": 9}, "max_length must be left to the translator, got 9."),
        ],
        ids=str,
    )
    def test_options(self, model, tokenizer, options, message):
        with pytest.raises(ValueError, match=f"^{message}$"):
            translate_stream(TEXTS, model, tokenizer, **options)  # at once, not with the first text

    @pytest.mark.parametrize(
        ("texts", "message"),
        [
            ("one text", "texts must be an iterable of strings, got one str"),
            (["one", 2], "texts must be strings, but text 2 is a int"),
            (["one", None], "texts must be strings, but text 2 is a NoneType"),
            (["a", "b", "c", "\ud800"], "texts must be Unicode, but text 4 is not"),
        ],
        ids=["a string", "an integer", "None", "half a character"],
    )
    def test_texts(self, model, tokenizer, texts, message):
        with pytest.raises(ValueError, match=message):
            translate(texts, model, tokenizer, chunk_size=3, **SHORT)


class TestLines:
    def test_only_a_line_feed_ends_a_line(self):
        content = "\n".join(ODD_LINES).encode()
        assert list(read_lines(io.BytesIO(content))) == ODD_LINES
        assert list(read_lines(io.BytesIO(content.replace(b"\n", b"\r\n") + b"\n"))) == ODD_LINES

    def test_a_byte_order_mark_is_no_text(self):
        assert list(read_lines(io.BytesIO("\ufeffone\n\ufefftwo".encode()))) == ["one", "\ufefftwo"]

    def test_what_is_not_utf8_is_refused_with_its_line(self):
        lines = read_lines(io.BytesIO(b"one\ntwo\nthr\xffee\n"), "my.txt", first=11)
        assert [next(lines), next(lines)] == ["one", "two"]
        with pytest.raises(ValueError, match=r"^my.txt must be UTF-8 text, but line 13 is not: .*0xff"):
            next(lines)

    @given(st.lists(st.text()))
    def test_as_many_lines_are_read_as_texts_were_written(self, texts):
        written = b"".join(encode_lines(texts))
        assert written.count(b"\n") == len(texts)
        assert list(read_lines(io.BytesIO(written), first=2)) == [one_line(text) for text in texts]
        assert len(list(io.StringIO(written.decode(), newline=None))) == len(texts)  # open()'s universal newlines

    def test_line_breaks_become_spaces(self):
        assert one_line("a\nb\r\nc\rd\te\u2028f") == "a b c d\te\u2028f"

    def test_a_file_is_written_as_a_whole_or_not_at_all(self, tmp_path):
        path = tmp_path / "file"
        write_atomically(path, [b"one\n"])
        link = tmp_path / "link"
        link.symlink_to(path)
        write_atomically(link, [b"one\n", b"two\n"])
        assert link.is_symlink()

        def broken():
            yield b"half"
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            write_atomically(path, broken())
        assert path.read_bytes() == b"one\ntwo\n"
        assert sorted(tmp_path.iterdir()) == [path, link]


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source.txt"
    path.write_text("\n".join([*TEXTS[:10], *ODD_LINES, *TEXTS[10:20]]), encoding="utf-8", newline="")
    return path


@pytest.fixture
def output(tmp_path):
    return tmp_path / "output.txt"


@pytest.fixture
def expected(source, model, tokenizer):
    with open(source, "rb") as file:
        return b"".join(encode_lines(translate_stream(read_lines(file), model, tokenizer, **SHORT)))


@pytest.mark.usefixtures("_state_on_cpu")
class TestFiles:
    @pytest.mark.parametrize("chunk_size", [1, 5, 9, 1000])
    def test_line_n_translates_line_n(self, source, output, expected, model, tokenizer, chunk_size):
        translate_file(source, output, model, tokenizer, chunk_size=chunk_size, **SHORT)
        assert output.read_bytes() == expected
        assert expected.count(b"\n") == 27
        assert sorted(output.parent.iterdir()) == [output, source]

    @pytest.mark.parametrize(("content", "lines"), [(b"", 0), (b"\n", 1), (b"\r\n\n", 2), (b"the", 1), (b"the\n", 1)])
    def test_small_files(self, tmp_path, output, model, tokenizer, content, lines):
        source = tmp_path / "source.txt"
        source.write_bytes(content)
        translate_file(source, output, model, tokenizer, **SHORT)
        assert output.read_bytes().count(b"\n") == lines

    def test_a_translation_of_several_lines_is_one_line(self, source, output, model, tokenizer, monkeypatch):
        monkeypatch.setattr(Translator, "generate", lambda _, sources: ["one\ntwo\r\nthree\rfour\n"] * len(sources))
        translate_file(source, output, model, tokenizer)
        lines = output.read_bytes().split(b"\n")[:-1]
        assert len(lines) == 27
        assert set(lines) == {b"", b"one two three four "}

    def test_an_earlier_output_is_replaced_and_a_link_stays_one(self, source, output, expected, model, tokenizer):
        output.write_text("earlier")
        link = output.with_name("link.txt")
        link.symlink_to(output)
        translate_file(source, link, model, tokenizer, **SHORT)
        assert link.is_symlink()
        assert output.read_bytes() == expected

    def test_samples_are_the_same_after_a_kill(self, source, output, model, tokenizer):
        sampling = {"do_sample": True, "top_k": 0, "seed": 5, "chunk_size": 4, **SHORT}
        with open(source, "rb") as file:
            expected = b"".join(encode_lines(translate_stream(read_lines(file), model, tokenizer, **sampling)))
        killed_after(30, lambda: translate_file(source, output, model, tokenizer, **sampling), output.parent)
        assert not output.exists()
        translate_file(source, output, model, tokenizer, **sampling)
        assert output.read_bytes() == expected


@pytest.mark.slow
@pytest.mark.usefixtures("_state_on_cpu")
class TestKills:
    """A process is killed before each single thing it does to the file system, and another one goes on."""

    def test_the_output_is_the_same_whenever_the_process_is_killed(self, source, output, expected, model, tokenizer):
        def run():
            translate_file(source, output, model, tokenizer, chunk_size=9, **SHORT)

        steps = 0
        while killed_after(steps, run, output.parent):
            assert not output.exists() or output.read_bytes() == expected, f"half an output after {steps} steps"
            run()
            assert output.read_bytes() == expected, f"killed after {steps} steps"
            assert sorted(output.parent.iterdir()) == [output, source], f"killed after {steps} steps"
            output.unlink()
            steps += 1
        assert steps > 25

    def test_a_process_that_is_killed_again_and_again_comes_to_an_end(self, source, output, expected, model, tokenizer):
        def run():
            translate_file(source, output, model, tokenizer, chunk_size=3, **SHORT)

        kills = list(itertools.takewhile(lambda steps: killed_after(steps, run, output.parent), range(10, 99, 5)))
        assert len(kills) > 3
        assert output.read_bytes() == expected

    def test_finished_chunks_are_not_translated_again(self, source, output, model, tokenizer, monkeypatch):
        killed_after(20, lambda: translate_file(source, output, model, tokenizer, chunk_size=3, **SHORT), output.parent)
        finished = {path.name for path in parts_of(output)}
        chunks = []
        translated = Translator.__call__

        def recorded(self, texts, first, count):
            chunks.append(f"{first // 3:08}.txt")
            return translated(self, texts, first, count)

        monkeypatch.setattr(Translator, "__call__", recorded)
        translate_file(source, output, model, tokenizer, chunk_size=3, **SHORT)
        assert finished
        assert finished | set(chunks) == {f"{number:08}.txt" for number in range(9)}
        assert not finished & set(chunks)


@pytest.mark.usefixtures("_state_on_cpu")
class TestGoingOnWithSomethingElse:
    @pytest.fixture
    def begun(self, tmp_path, model, tokenizer):
        """A translation that was killed: `translate_file` with the same, or with something else."""
        source, output = tmp_path / "source.txt", tmp_path / "output.txt"
        source.write_text("\n".join(TEXTS))

        def go_on(model=model, tokenizer=tokenizer, **options):
            translate_file(source, output, model, tokenizer, **{"chunk_size": 8, **SHORT, **options})
            return output.read_bytes()

        assert killed_after(20, go_on, tmp_path)
        return go_on

    @pytest.mark.parametrize(
        ("options", "difference"),
        [
            ({"num_beams": 2}, "length_penalty, num_beams"),
            ({"max_new_tokens": 7}, "max_new_tokens"),
            ({"max_source_tokens": 7}, "max_source_tokens"),
            ({"no_repeat_ngram_size": 2}, "no_repeat_ngram_size"),
            ({"chunk_size": 9}, "chunk_size"),
            ({"seed": 1}, "seed"),
        ],
        ids=str,
    )
    def test_other_options_are_refused(self, begun, options, difference):
        with pytest.raises(ValueError, match=rf"output.txt.parts holds .* differs in {difference}: .*or restart"):
            begun(**options)

    def test_an_other_input_is_refused(self, begun, tmp_path):
        (tmp_path / "source.txt").write_text("\n".join(TEXTS).replace("boy", "man"))
        with pytest.raises(ValueError, match="differs in input:"):
            begun()

    def test_an_other_model_is_refused(self, begun, tokenizer):
        almost = random_translator()
        almost.lm_head.bias.data[7] += 1e-3
        generous = random_translator()
        generous.generation_config.repetition_penalty = 1.5
        for other in (
            almost,
            generous,
            random_translator().to(torch.bfloat16),
            random_translator(scale_embedding=False),
        ):
            with pytest.raises(ValueError, match="differs in model:"):
                begun(model=other)
        with pytest.raises(ValueError, match="differs in model:"):
            begun(tokenizer=type(tokenizer).train(TEXTS, vocab_size=320))

    def test_restart_forgets(self, begun):
        again = begun(num_beams=2, restart=True)
        assert again == begun(num_beams=2)

    def test_the_same_model_from_elsewhere_goes_on_with_other_batches(self, begun, tmp_path, model, tokenizer):
        model.save_pretrained(tmp_path / "elsewhere")
        tokenizer(["a", "longer one"], padding=True, truncation=True, max_length=5)  # leaves its mark on the tokenizer
        moved = type(model).from_pretrained(tmp_path / "elsewhere")
        goes_on = begun(model=moved, max_batch_tokens=50)
        assert goes_on == begun()

    def test_what_no_manifest_can_hold_is_refused(self, begun):
        with pytest.raises(ValueError, match="stopping_criteria must be a plain value for translate_file"):
            begun(stopping_criteria=[len], restart=True)

    def test_cutting_what_would_be_refused_goes_on(self, tmp_path, tokenizer):
        """The one way to go on behind a text too long for the model, which may come up late."""
        model = random_translator(position_embedding="learned", max_position_embeddings=30)
        source, output = tmp_path / "long.txt", tmp_path / "cut.txt"
        source.write_text("the\n" * 5 + "the" * 40)
        with pytest.raises(ValueError, match="text 6 has 41"):
            translate_file(source, output, model, tokenizer, chunk_size=2, **SHORT)
        assert len(parts_of(output)) == 2
        translate_file(source, output, model, tokenizer, chunk_size=2, max_source_tokens=30, **SHORT)
        assert output.read_bytes().count(b"\n") == 6


@pytest.mark.usefixtures("_state_on_cpu")
class TestFilesRefused:
    @pytest.fixture
    def source(self, tmp_path):
        path = tmp_path / "source.txt"
        path.write_text("the boy\n" * 5)
        return path

    def test_input_that_is_not_utf8_before_anything_is_translated(
        self, source, tmp_path, model, tokenizer, monkeypatch
    ):
        source.write_bytes(b"the boy\n" * 5 + b"the \xff boy\n")
        monkeypatch.setattr(model, "generate", None)
        with pytest.raises(ValueError, match=r"source.txt must be UTF-8 text, but line 6 is not"):
            translate_file(source, tmp_path / "output.txt", model, tokenizer, chunk_size=2)
        assert list(tmp_path.iterdir()) == [source]

    @pytest.mark.parametrize("output", [".", "missing/output.txt", os.devnull])
    def test_outputs_that_cannot_be_files(self, source, tmp_path, model, tokenizer, output):
        with pytest.raises(ValueError, match="output_file must be a file, new or not, in a folder that exists, got"):
            translate_file(source, tmp_path / output, model, tokenizer)

    def test_the_input_as_output(self, source, tmp_path, model, tokenizer):
        link = tmp_path / "link.txt"
        link.symlink_to(source)
        with pytest.raises(ValueError, match="output_file must differ from input_file"):
            translate_file(source, link, model, tokenizer)

    def test_a_missing_input(self, tmp_path, model, tokenizer):
        with pytest.raises(FileNotFoundError, match=r"missing\.txt"):
            translate_file(tmp_path / "missing.txt", tmp_path / "output.txt", model, tokenizer)
        assert not list(tmp_path.iterdir())

    def test_a_folder_of_somebody_elses(self, source, tmp_path, model, tokenizer):
        diary = tmp_path / "output.txt.parts" / "diary.txt"
        diary.parent.mkdir()
        diary.write_text("dear diary")
        for restart in (False, True):
            with pytest.raises(ValueError, match=r"output.txt.parts must be free for the parts of output.txt"):
                translate_file(source, tmp_path / "output.txt", model, tokenizer, restart=restart, **SHORT)
        assert diary.read_text() == "dear diary"

    def test_an_input_that_shrinks(self, source, tmp_path, model, tokenizer, monkeypatch):
        def shrink(_, sources):
            source.write_text("the boy\n")
            return ["niño"] * len(sources)

        monkeypatch.setattr(Translator, "generate", shrink)
        with pytest.raises(ValueError, match=r"source.txt must stay as it is while it is translated"):
            translate_file(source, tmp_path / "output.txt", model, tokenizer, chunk_size=2)


def test_importing_the_package_imports_no_accelerate():
    """Nor does translating texts; looked for in the source, as transformers itself may import it."""
    for name in ("__init__", "texts", "lines", "files"):
        text = (Path(sys.modules[Translator.__module__].__file__).parent / f"{name}.py").read_text()
        assert not any(line.startswith(("import accelerate", "from accelerate")) for line in text.splitlines())


def parts_of(output: Path) -> list[Path]:
    return sorted(output.with_name(f"{output.name}.parts").glob("0*.txt"))


def killed_after(steps: int, work, folder: Path) -> bool:
    """Do `work` in a child process that kills itself before it does one thing more than so many to files in `folder`.

    Returns False if the work was done before.
    """
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        done = 0

        def kill_at_the_next(event, arguments):
            nonlocal done
            if event in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.scandir", "os.listdir"):
                if str(folder) not in str(arguments[0]):
                    return
                if done == steps:
                    os.kill(os.getpid(), signal.SIGKILL)
                done += 1

        with contextlib.suppress(BaseException):
            sys.addaudithook(kill_at_the_next)
            work()
            os._exit(0)
        os._exit(1)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the work itself failed"
    return False
