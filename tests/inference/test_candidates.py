"""N-best lists and forced prefixes, in Python, in files and on the command line."""

import gzip
import json
import os
import re

import pytest

from modeling_random_transformer import Seq2SeqPipeline, cli
from modeling_random_transformer.inference import (
    Candidate,
    translate,
    translate_file,
    translate_n_best,
    translate_stream,
)
from modeling_random_transformer.inference import translation_files as files
from modeling_random_transformer.inference.translation import Translator
from modeling_random_transformer.inference.translation_files import candidate_lines
from tests.helpers.interruption import interrupt_at
from tests.helpers.translation import random_translator, some_texts

TEXTS = some_texts(9)
SHORT = {"max_new_tokens": 8, "progress": False}
LONG_PREFIX = "las niñas no ven la casa vieja " * 5
PREFIXES = ["el", "", "las casa", "el libro en", "", "a", "two red", "", "we"]


class TestNBest:
    def test_equals_the_sequences_of_generate(self, model, tokenizer):
        n_best_lists = list(translate_n_best(TEXTS, model, tokenizer, n_best=3, chunk_size=5, **SHORT))
        for text, candidates in zip(TEXTS, n_best_lists, strict=True):
            outputs = model.generate(
                **tokenizer(text, return_tensors="pt"),
                num_beams=4,
                num_return_sequences=3,
                length_penalty=0.6,
                max_new_tokens=8,
                return_dict_in_generate=True,
                output_scores=True,
            )
            expected = tokenizer.batch_decode(outputs.sequences, skip_special_tokens=True)
            assert [candidate.translation for candidate in candidates] == expected
            scores = [candidate.score for candidate in candidates]
            assert scores == pytest.approx(outputs.sequences_scores.tolist(), rel=1e-4)
            assert scores == sorted(scores, reverse=True)

    def test_tokens_end_with_one_end_token(self, model, tokenizer):
        bias = [[[tokenizer.eos_token_id], 4.0]]  # so that hypotheses of different lengths end
        n_best_lists = list(translate_n_best(TEXTS, model, tokenizer, n_best=4, sequence_bias=bias, **SHORT))
        tokens = [[candidate.tokens for candidate in candidates] for candidates in n_best_lists]
        assert any(len({*map(len, rows)}) > 1 and rows[0][-1:] == ["</s>"] for rows in tokens)
        assert all(row.count("</s>") <= 1 for rows in tokens for row in rows)

    def test_blank_texts_have_candidates_and_excluded_hypotheses_are_none(self, model, tokenizer):
        blank, candidates = translate_n_best([" ", "two"], model, tokenizer, n_best=2, **SHORT)
        assert blank == [Candidate("", 0.0)] * 2
        assert len(candidates) == 2
        only = tokenizer.convert_tokens_to_ids("a")
        options = {"n_best": 3, "prefix_allowed_tokens_fn": lambda *_: [only], **SHORT}
        [candidates] = translate_n_best(["the boy"], model, tokenizer, **options)
        assert [candidate.translation for candidate in candidates] == ["a" * 8]
        assert candidates[0].score > -1e3

    def test_samples_need_no_beams(self, model, tokenizer):
        options = {"do_sample": True, "num_beams": 1, "seed": 1, **SHORT}
        n_best_lists = list(translate_n_best(TEXTS, model, tokenizer, n_best=6, **options))
        assert all(len(candidates) == 6 for candidates in n_best_lists)
        assert len({candidate.translation for candidate in n_best_lists[0]}) > 1
        scores = [[candidate.score for candidate in candidates] for candidates in n_best_lists]
        assert scores == [sorted(values, reverse=True) for values in scores]
        pipe = Translator(model, tokenizer, max_batch_tokens=60, num_beams=1, n_best=6, do_sample=True).pipe
        assert max(map(len, pipe.batch_indices([5] * 8, [0] * 8, pipe.call_options()))) == 2

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"n_best": 3, "num_beams": 2, "do_sample": True}, "n_best must be at most num_beams=2, got 3"),
            ({"n_best": 0}, "n_best must be None or a positive integer, got 0"),
        ],
    )
    def test_invalid(self, model, tokenizer, options, message):
        with pytest.raises(ValueError, match=message):
            translate_n_best(TEXTS, model, tokenizer, **options)
        with pytest.raises(ValueError, match=r"n_best must be unset \(translate_n_best returns .*\), got 2"):
            translate_stream(TEXTS, model, tokenizer, n_best=2)


class TestPrefixes:
    @pytest.mark.parametrize("num_beams", [1, 4])
    def test_equals_constrained_decoding(self, model, tokenizer, num_beams):
        """The reference is `prefix_allowed_tokens_fn`, for each text separately."""
        translations = translate(TEXTS, model, tokenizer, prefixes=PREFIXES, num_beams=num_beams, **SHORT)
        every_token = list(range(len(tokenizer)))
        for text, prefix, translation in zip(TEXTS, PREFIXES, translations, strict=True):
            forced = tokenizer(prefix)["input_ids"][:-1]

            def next_tokens(_, ids, forced=forced):
                return forced[len(ids) - 1 : len(ids)] or every_token

            options = {"num_beams": num_beams, "max_new_tokens": 8, "prefix_allowed_tokens_fn": next_tokens}
            options |= {"length_penalty": 0.6} if num_beams > 1 else {}
            ids = model.generate(**tokenizer(text, return_tensors="pt"), **options)
            assert translation == tokenizer.decode(ids[0], skip_special_tokens=True)
            assert translation.startswith(prefix)

    def test_other_processors_one_text_and_a_stream(self, model, tokenizer):
        options = {"no_repeat_ngram_size": 1, "num_beams": 2, **SHORT}
        [translation] = translate(["the boy"], model, tokenizer, prefixes=["a a a"], **options)
        assert translation.startswith("a a a")
        pipe = Seq2SeqPipeline(model, tokenizer, device="cpu", max_new_tokens=6, target_prefix="el")
        one = pipe("the boy")
        assert one["generated_text"].startswith("el")
        assert list(pipe(text for text in ["the boy"])) == [one]
        assert pipe("the boy", target_prefix="las")["generated_text"].startswith("las")

    @pytest.mark.parametrize("num_beams", [1, 4])
    def test_a_prefix_follows_the_forced_first_token(self, model, tokenizer, num_beams):
        first = tokenizer.convert_tokens_to_ids("<unk>")
        options = {"forced_bos_token_id": first, "max_new_tokens": 8, "num_beams": num_beams}
        pipe = Seq2SeqPipeline(model, tokenizer, device="cpu", return_tokens=True, **options)
        texts, prefixes = ["the boy", "one", "two"], ["el libro", "", "las"]
        for answer, prefix in zip(pipe(texts, target_prefix=prefixes), prefixes, strict=True):
            forced = [first, *tokenizer(prefix)["input_ids"][:-1]]
            assert answer["tokens"][1 : len(forced) + 1] == tokenizer.convert_ids_to_tokens(forced)

    def test_the_computed_limit_counts_the_tokens_after_the_prefix(self, model, tokenizer):
        long = " ".join(["las niñas no ven la casa vieja"] * 8)
        options = {"min_length": 60, "progress": False}
        prefixes = [long, "", "el", ""]  # texts of one length have different limits, so they are in different batches
        translations = translate(["the boy"] * 4, model, tokenizer, prefixes=prefixes, **options)
        assert translations[0].startswith(long)
        assert translations == [
            translate(["the boy"], model, tokenizer, prefixes=[prefix], **options)[0] for prefix in prefixes
        ]
        options = {"n_best": 4, "prefixes": [long, "el"], "progress": False}
        for candidates in translate_n_best(["the boy"] * 2, model, tokenizer, **options):
            assert len(candidates) == len(set(candidates)) == 4
            assert candidates[-1].score > -1e3

    @pytest.mark.parametrize(
        ("positions", "options", "limit"),
        [
            ("sinusoidal", {"max_new_tokens": 5}, 5),
            ("sinusoidal", {"max_length": 6}, 5),
            ("learned", {"max_batch_tokens": 100}, 30),
        ],
    )
    def test_a_prefix_above_the_limit(self, tokenizer, positions, options, limit):
        model = random_translator(position_embedding=positions, max_position_embeddings=30)
        pipe = Seq2SeqPipeline(model, tokenizer, device="cpu", num_beams=2, **options)
        length = len(tokenizer(LONG_PREFIX)["input_ids"]) - 1
        message = f"target_prefix must have fewer tokens than the limit on new tokens, {limit}, "
        with pytest.raises(ValueError, match=re.escape(f"{message}got {length}.")):
            pipe("one", target_prefix=LONG_PREFIX)
        with pytest.raises(ValueError, match=re.escape(f"index 1: {message}got {length}.")):
            pipe(["one", "two"], target_prefix=["", LONG_PREFIX])

    @pytest.mark.parametrize(
        ("inputs", "target_prefix", "message"),
        [
            (["a", "b"], ["c"], "target_prefix must be a string or one string per text, 2, got \\['c'\\]"),
            (["a"], [3], "target_prefix must be a string or one string per text, 1, got \\[3\\]"),
            (["a"], 3, "target_prefix must be a string or a list of strings, got 3"),
            (iter(["a"]), ["c"], "target_prefix must be a string unless inputs is a list"),
        ],
    )
    def test_invalid(self, model, tokenizer, inputs, target_prefix, message):
        pipe = Seq2SeqPipeline(model, tokenizer, device="cpu", max_new_tokens=6)
        with pytest.raises(ValueError, match=message):
            list(pipe(inputs, target_prefix=target_prefix))

    @pytest.mark.parametrize(("count", "comparison"), [(2, "fewer"), (10, "more")])
    def test_as_many_prefixes_as_texts(self, model, tokenizer, tmp_path, count, comparison):
        with pytest.raises(ValueError, match=f"prefixes must be one per text, got {comparison}"):
            translate(TEXTS, model, tokenizer, prefixes=["a"] * count, **SHORT)
        source, prefixes = tmp_path / "in.txt", tmp_path / "prefixes.txt"
        source.write_text("\n".join(TEXTS))
        prefixes.write_text("a\n" * count)
        with pytest.raises(ValueError, match=f"prefix_file must be one per text, got {comparison}"):
            translate_file(source, tmp_path / "out", model, tokenizer, prefix_file=prefixes)


class TestFiles:
    def test_n_best_lists_resume_in_order(self, model, tokenizer, tmp_path, monkeypatch):
        source, prefixes, output = (tmp_path / name for name in ("in.txt", "prefixes.txt", "out.txt"))
        source.write_text("\n".join(TEXTS))
        prefixes.write_text("\n".join(PREFIXES))
        candidates = translate_n_best(TEXTS, model, tokenizer, n_best=2, prefixes=PREFIXES, chunk_size=4, **SHORT)
        expected = list(candidate_lines(candidates, "jsonl", 2))

        options = {"n_best": 2, "prefix_file": prefixes, "output_format": "jsonl", "chunk_size": 4, **SHORT}
        calls = interrupt_at(2, files, "candidate_lines", monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            translate_file(source, output, model, tokenizer, **options)
        with pytest.raises(ValueError, match="num_return_sequences was 2, now 3"):
            translate_file(source, output, model, tokenizer, **{**options, "n_best": 3})
        with pytest.raises(ValueError, match=r"input was \w+, now"):
            translate_file(source, output, model, tokenizer, **{**options, "prefix_file": None})
        translate_file(source, output, model, tokenizer, **options)
        assert len(calls) == 4
        assert output.read_text().splitlines() == expected

    def test_candidates_are_written_as_text_moses_lines_or_json(self):
        candidates = [Candidate("año", -0.5, ["<s>", "año", "</s>"]), Candidate("b", -1.25)]
        assert list(candidate_lines([candidates[:1]], "text", None)) == ["año"]
        moses = ["7 ||| año ||| -0.500000", "7 ||| b ||| -1.250000"]
        assert list(candidate_lines([candidates], "text", 2, 7)) == moses
        assert list(candidate_lines([candidates[:1]], "jsonl", None)) == [
            '{"index": 0, "translation": "año", "tokens": ["<s>", "año", "</s>"]}'
        ]
        assert json.loads(list(candidate_lines([candidates], "jsonl", 2, 7))[1]) == {
            "index": 7,
            "translation": "b",
            "score": -1.25,
            "tokens": [],
        }
        with pytest.raises(ValueError, match="output_format must be one of text, jsonl, got 'xml'"):
            translate_file("in", "out", None, None, output_format="xml")


@pytest.mark.usefixtures("_reset_accelerate")
def test_the_command_writes_n_best_lists_with_prefixes(translator_folder, tmp_path, capsysbinary):
    (tmp_path / "in.txt").write_text("the boy\n\ntwo apples\n")
    (tmp_path / "prefixes.txt").write_text("el\n\n\n")
    (tmp_path / "prefixes.gz").write_bytes(gzip.compress(b"el\n\n\n"))
    arguments = ["--model", translator_folder, "--device", "cpu", "--n_best", "2", "--input", tmp_path / "in.txt"]
    outputs, out = [], tmp_path / "out.txt"
    read, write = os.pipe()  # which cannot be read twice
    os.write(write, b"el\n\n\n")
    os.close(write)
    pipe = f"/dev/fd/{read}"
    for prefixes, output in (("prefixes.txt", "-"), ("prefixes.txt", out), ("prefixes.gz", "-"), (pipe, out)):
        options = [*arguments, "--prefix_file", tmp_path / prefixes, "--output", output, "--overwrite"]
        assert cli.main(["translate", *map(str, options)]) == 0
        outputs.append(capsysbinary.readouterr().out if output == "-" else output.read_bytes())
    lines = outputs[0].decode().splitlines()
    assert [line.split(" ||| ")[0] for line in lines] == list("001122")
    assert all(line.startswith("0 ||| el") for line in lines[:2])
    assert all(re.fullmatch(r"\d \|\|\| .*? \|\|\| -?\d+\.\d{6}", line) for line in lines)
    assert outputs == outputs[:1] * 4
    os.close(read)
