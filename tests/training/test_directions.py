"""One model for several languages: tags in the data, scores per direction, generation with the right tag."""

import json

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, Trainer, pipeline

from modeling_random_transformer.commands import train as command
from modeling_random_transformer.data import CorpusMixture, CorpusSpec, ParallelText, TokenBudgetStream
from modeling_random_transformer.inputs_random_transformer import LanguageTags
from modeling_random_transformer.training import DataArguments, TranslationTrainer
from modeling_random_transformer.training.model_init import load_tokenizer
from tests.helpers.training import UNSCORED, flags, run, write_corpus

DIRECTIONS = (("a", "b"), ("a", "c"), ("b", "a"))


def write_directions(folder):
    """The corpus of `write_corpus`, in which `b` is reversed, and `c` a copy of `a`."""
    write_corpus(folder)
    options = {}
    for split, name in (("", "train"), ("validation_", "test"), ("test_", "test")):
        (folder / f"{name}.c").write_text((folder / f"{name}.a").read_text())
        for side, column in (("source", 0), ("target", 1)):
            options[f"{split}{side}_file"] = [str(folder / f"{name}.{pair[column]}") for pair in DIRECTIONS]
    return options | {f"{side}_lang": [pair[i] for pair in DIRECTIONS] for i, side in enumerate(("source", "target"))}


def test_a_run_in_several_directions(tmp_path, monkeypatch, capsys):
    forced = []
    options = TranslationTrainer._generation_options

    def recorded(self, inputs):
        forced.append((options(self, inputs)["forced_bos_token_id"], inputs["labels"][:, 0].unique().tolist()))
        return options(self, inputs)

    monkeypatch.setattr(TranslationTrainer, "_generation_options", recorded)
    data = write_directions(tmp_path) | {"num_beams": 1, "max_steps": 2, "average_last": 1}
    result = run(tmp_path, "out", **data, eval_strategy="steps", eval_steps=2, metric_for_best_model="bleu")
    directions = ("a-b", "a-c", "b-a")
    sets = {f"{split} {name}" for split in ("validation", "test") for name in (*directions, "mean")}
    assert set(result.scores) == sets
    tokenizer = AutoTokenizer.from_pretrained(result.folder)
    assert (tokenizer.languages, tokenizer.src_lang, tokenizer.tgt_lang) == (["a", "b", "c"], None, None)
    assert {tag for tag, _ in forced} == {tokenizer.get_lang_id(code) for code in "abc"}
    assert all([tag] == labels for tag, labels in forced)
    card = (result.folder / "README.md").read_text()
    assert "train.c` | a→c | 120 | 1 |" in card
    assert "translate --model out --source_lang CODE --target_lang CODE" in card
    assert "| test b-a | bleu |" in card
    assert "language:\n- a\n- b\n- c\n" in card
    state = json.loads((result.folder / "checkpoint-2" / "trainer_state.json").read_text())
    entry = next(entry for entry in state["log_history"] if "eval_bleu" in entry)
    for metric in ("bleu", "loss"):
        mean = sum(entry[f"eval_{name}_{metric}"] for name in directions) / 3
        assert entry[f"eval_{metric}"] == pytest.approx(mean)
    assert "eval_runtime" not in entry
    assert state["best_metric"] == entry["eval_bleu"]
    mean = sum(result.scores[f"test {name}"]["chrf"]["score"] for name in directions) / 3
    assert result.scores["test mean"]["chrf"]["score"] == pytest.approx(mean)
    assert AutoModelForSeq2SeqLM.from_pretrained(result.folder).generation_config.forced_bos_token_id is None
    monkeypatch.setattr(Trainer, "train", None)  # not to be called
    assert run(tmp_path, "out", **data).scores == result.scores
    assert command.main(flags(tmp_path, **data)) == 0
    lines = [line.split()[:3] for line in capsys.readouterr().out.splitlines()]
    assert all(["test", name, "bleu"] in lines for name in (*directions, "mean"))
    with pytest.raises(ValueError, match=r"training set was .* a-c"):
        run(tmp_path, "out", **data | {"target_lang": ["b", "b", "a"]})


def test_tags_are_on_both_sides_of_each_row(tmp_path, monkeypatch):
    trainers = []
    monkeypatch.setattr(TranslationTrainer, "train", lambda self, **_: trainers.append(self) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(tmp_path, "out", **write_directions(tmp_path), num_beams=1)
    rows = list(trainers[0].train_dataset)
    with pytest.raises(ValueError, match="eval_dataset must have one target language per set, got a batch of 3"):
        trainers[0].evaluate(trainers[0].train_dataset)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert len(rows) == 360
    for index, row in enumerate(rows):
        first = tokenizer.convert_ids_to_tokens([row["input_ids"][0], row["labels"][0]])
        assert first == [f"__{code}__" for code in DIRECTIONS[index // 120]]
        assert row["input_ids"][-1] == row["labels"][-1] == tokenizer.eos_token_id
    texts = [
        ParallelText(*(tmp_path / f"train.{side}" for side in pair), languages=LanguageTags(*pair))
        for pair in DIRECTIONS
    ]
    mixture = CorpusMixture([CorpusSpec(text) for text in texts], [120] * 3)
    streamed = [row for batch in TokenBudgetStream(mixture, tokenizer, 200).epoch(0) for row in batch]
    assert sorted(map(_ids, streamed)) == sorted(map(_ids, rows))


def _ids(row):
    return row["input_ids"], row["labels"]


def test_a_single_direction_is_the_default_of_the_saved_model(corpus):
    result = run(corpus, "out", source_lang="x", target_lang="y", special_tokens=["<bt>"], max_steps=2)
    assert list(result.scores) == ["test x-y"]
    model, tokenizer = (kind.from_pretrained(result.folder) for kind in (AutoModelForSeq2SeqLM, AutoTokenizer))
    assert (tokenizer.src_lang, tokenizer.tgt_lang) == ("x", "y")
    assert tokenizer.convert_tokens_to_ids("<bt>") == 6
    assert model.generation_config.forced_bos_token_id == tokenizer.get_lang_id("y")
    pipe = pipeline("seq2seq", model=model, tokenizer=tokenizer, device="cpu")
    assert pipe("abc") == pipe("abc", src_lang="x", tgt_lang="y")


def test_special_tokens_are_added_to_a_saved_tokenizer(trained, corpus):
    saved = trained[1].folder
    options = {"tokenizer": str(saved), "vocab_size": None, "special_tokens": ["<bt>"], "max_steps": 2}
    result = run(corpus, "out", **options)
    base, tokenizer = (AutoTokenizer.from_pretrained(folder) for folder in (saved, result.folder))
    assert tokenizer("<bt> abc")["input_ids"] == [len(base), *base("abc")["input_ids"]]
    assert tokenizer.decode([len(base)], skip_special_tokens=True) == ""
    model = AutoModelForSeq2SeqLM.from_pretrained(result.folder)
    assert model.config.vocab_size == len(tokenizer) == len(base) + 1
    assert run(corpus, "out", **options).steps == 2
    assert len(load_tokenizer(str(result.folder), ["<bt>"])) == len(tokenizer)


def test_a_saved_model_is_fine_tuned_in_one_of_its_directions(trained, tmp_path):
    base = run(tmp_path, "base", **write_directions(tmp_path) | UNSCORED, num_beams=1, max_steps=2).folder
    saved = {"model_name_or_path": str(base), "vocab_size": None, "config_overrides": "", "max_steps": 2}
    result = run(tmp_path, "tuned", **saved, source_lang="c", target_lang="b")
    assert list(result.scores) == ["test c-b"]
    tuned = AutoTokenizer.from_pretrained(result.folder)
    assert (tuned.languages, tuned.src_lang, tuned.tgt_lang) == (["a", "b", "c"], "c", "b")
    with pytest.raises(ValueError, match=r"source_lang and target_lang must be languages of .*base \(a, b, c\), got d"):
        run(tmp_path, "other", **saved, source_lang="c", target_lang="d")
    with pytest.raises(ValueError, match=r"source_lang and target_lang must be of a, b, c for .*base, got none"):
        run(tmp_path, "other", **saved)
    plain = trained[1].folder
    with pytest.raises(ValueError, match=r"must be languages of .*out \(none\), got x, y"):
        run(tmp_path, "other", **saved | {"model_name_or_path": str(plain)}, source_lang="x", target_lang="y")


def test_the_languages_of_evaluation_sets(tmp_path):
    data = write_directions(tmp_path)
    assert [corpus.languages.codes for corpus in DataArguments(**data).corpora("test")] == list(DIRECTIONS)
    files = {name: data[name][:2] for name in ("test_source_file", "test_target_file")}
    with pytest.raises(ValueError, match=r"source_lang must be 1 or 2 language codes, one per test corpus"):
        DataArguments(**data | files).corpora("test")
    own = {"test_source_lang": "a", "test_target_lang": ["b", "c"]}
    assert [corpus.direction for corpus in DataArguments(**data | files, **own).corpora("test")] == ["a-b", "a-c"]
    with pytest.raises(ValueError, match=r"must be languages of the training corpora \(a, b, c\), got d\."):
        run(tmp_path, "out", **data | files, test_source_lang="a", test_target_lang="d")
    with pytest.raises(ValueError, match="test_target_lang must be given together, and with source_lang"):
        DataArguments(**data | files | own | {"source_lang": None, "target_lang": None}).corpora("test")
