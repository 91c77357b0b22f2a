"""One model for several languages: tags in the data, scores per direction, generation with the right tag."""

import json

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, Trainer, pipeline

from modeling_random_transformer import cli
from modeling_random_transformer.base.jobs import Job
from modeling_random_transformer.data import CorpusMixture, TokenBudgetStream
from modeling_random_transformer.training import DataArguments, TranslationTrainer
from modeling_random_transformer.training.preparation import prepare_data
from modeling_random_transformer.training.run_record import TRAINING_RECORD
from modeling_random_transformer.training.run_state import Run
from tests.helpers.training import flags, parsed, run, write_corpus

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


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """The folder of a corpus in several directions, the arguments of a run, and its result."""
    folder = tmp_path_factory.mktemp("directions")
    options = write_directions(folder) | {"num_beams": 1, "max_steps": 2, "average_last": 1}
    options |= {"eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "bleu"}
    return folder, options, run(folder, "out", **options)


def test_a_run_in_several_directions(several, monkeypatch, capsys):
    folder, options, result = several
    directions = ("a-b", "a-c", "b-a")
    sets = {f"{split} {name}" for split in ("validation", "test") for name in (*directions, "mean")}
    assert set(result.scores) == sets
    tokenizer = AutoTokenizer.from_pretrained(result.folder)
    assert (tokenizer.languages, tokenizer.src_lang, tokenizer.tgt_lang) == (["a", "b", "c"], None, None)
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
    assert run(folder, "out", **options).scores == result.scores
    assert cli.main(["train", *flags(folder, **options)]) == 0
    lines = [line.split()[:3] for line in capsys.readouterr().out.splitlines()]
    assert all(["test", name, "bleu"] in lines for name in (*directions, "mean"))
    with pytest.raises(ValueError, match=r"training set was .* a-c"):
        run(folder, "out", **options | {"target_lang": ["b", "b", "a"]})


def test_tags_are_on_both_sides_of_each_row_and_begin_its_translation(several):
    folder, options, result = several
    data, model_args, args = parsed(folder, "out", **options)
    names = ["train", *(f"test {source}-{target}" for source, target in DIRECTIONS)]
    run = Run(data, model_args, args, data.sets(), Job(result.folder / TRAINING_RECORD), tokenizer=None)
    prepared = prepare_data(run, names)
    rows, tokenizer = list(prepared.tokens["train"]), prepared.tokenizer
    assert len(rows) == 360
    for index, row in enumerate(rows):
        first = tokenizer.convert_ids_to_tokens([row["input_ids"][0], row["labels"][0]])
        assert first == [f"__{code}__" for code in DIRECTIONS[index // 120]]
        assert row["input_ids"][-1] == row["labels"][-1] == tokenizer.eos_token_id
    mixture = CorpusMixture(prepared.corpora, [120] * 3)
    streamed = [row for batch in TokenBudgetStream(mixture, tokenizer, 200).epoch(0) for row in batch]
    ids, expected_ids = (sorted((row["input_ids"], row["labels"]) for row in part) for part in (streamed, rows))
    assert ids == expected_ids
    model = AutoModelForSeq2SeqLM.from_pretrained(result.folder)
    trainer = TranslationTrainer(model, args, processing_class=tokenizer, eval_dataset=prepared.tokens["train"])
    for name, (_, target) in zip(names[1:], DIRECTIONS, strict=True):
        predicted = trainer.predict(prepared.tokens[name]).predictions
        assert set(predicted[:, 1]) == {tokenizer.get_lang_id(target)}
    with pytest.raises(ValueError, match="eval_dataset must have one target language per set, got a batch of 3"):
        trainer.evaluate()


def test_a_single_direction_is_the_default_of_the_saved_model(corpus):
    result = run(corpus, "out", source_lang="x", target_lang="y", special_tokens=["<bt>"], max_steps=2)
    assert list(result.scores) == ["test x-y"]
    model, tokenizer = (kind.from_pretrained(result.folder) for kind in (AutoModelForSeq2SeqLM, AutoTokenizer))
    assert (tokenizer.src_lang, tokenizer.tgt_lang) == ("x", "y")
    assert tokenizer.convert_tokens_to_ids("<bt>") == 6
    assert model.generation_config.forced_bos_token_id == tokenizer.get_lang_id("y")
    pipe = pipeline("seq2seq", model=model, tokenizer=tokenizer, device="cpu")
    assert pipe("abc") == pipe("abc", src_lang="x", tgt_lang="y")


def test_a_saved_model_is_fine_tuned_in_one_of_its_directions(trained, several, tmp_path):
    base = several[2].folder
    write_directions(tmp_path)
    saved = {"model_name_or_path": str(base), "vocab_size": None, "config_overrides": "", "max_steps": 2}
    result = run(tmp_path, "tuned", **saved, source_lang="c", target_lang="b")
    assert list(result.scores) == ["test c-b"]
    tuned = AutoTokenizer.from_pretrained(result.folder)
    assert (tuned.languages, tuned.src_lang, tuned.tgt_lang) == (["a", "b", "c"], "c", "b")
    with pytest.raises(ValueError, match=r"source_lang and target_lang must be languages of .*out \(a, b, c\), got d"):
        run(tmp_path, "other", **saved, source_lang="c", target_lang="d")
    with pytest.raises(ValueError, match=r"source_lang and target_lang must be of a, b, c for .*out, got none"):
        run(tmp_path, "other", **saved)
    plain = trained[1].folder
    with pytest.raises(ValueError, match=r"must be languages of .*out \(none\), got x, y"):
        run(tmp_path, "other", **saved | {"model_name_or_path": str(plain)}, source_lang="x", target_lang="y")


def test_the_languages_of_evaluation_sets(tmp_path):
    data = write_directions(tmp_path)
    assert [corpus.languages.codes for corpus in DataArguments(**data).corpora("test")] == list(DIRECTIONS)
    files = {name: data[name][:2] for name in ("test_source_file", "test_target_file")}
    with pytest.raises(ValueError, match=r"^test_source_lang must be 1 or 2 language codes, one per test corpus"):
        DataArguments(**data | files).corpora("test")
    codes = {"test_source_lang": "a", "test_target_lang": ["b", "c"]}
    assert [corpus.direction for corpus in DataArguments(**data | files, **codes).corpora("test")] == ["a-b", "a-c"]
    with pytest.raises(ValueError, match=r"must be languages of the training corpora \(a, b, c\), got d\."):
        run(tmp_path, "out", **data | files, test_source_lang="a", test_target_lang="d")
    with pytest.raises(ValueError, match="test_target_lang must be given together, and with source_lang"):
        DataArguments(**data | files | codes | {"source_lang": None, "target_lang": None}).corpora("test")
