"""The runner of the paper's Table 3."""

import json
from dataclasses import replace
from itertools import chain

import pytest
import table3

from modeling_random_transformer.base.flags import to_flags
from modeling_random_transformer.data import tokenization
from modeling_random_transformer.training import TranslationTrainer
from modeling_random_transformer.training.arguments import parse_overrides
from tests.helpers.training import arguments, run, write_corpus
from tutorials.table3_report import Table3, write_report
from tutorials.table3_rows import ROWS, scaled_overrides
from tutorials.table3_runs import Result

OPTIONS = {
    "width_scale": 1 / 32,
    "depth_scale": 1 / 6,
    "max_steps": 2,
    "num_beams": 1,
    "preset": "tiny",  # of a recipe, replaced
    "config_overrides": "max_position_embeddings=32,norm_order=pre",
}
RESULT = Result("base", seed=1, steps=9, parameters=1000, seconds=5.0, perplexity=8.0, bleu=20.0)


def flags(folder, rows, /, **changes):
    options = {"rows": rows, "seeds": [1, 2], **arguments(folder, "out", **OPTIONS | changes)}
    options["validation_source_file"] = options.pop("test_source_file")
    options["validation_target_file"] = options.pop("test_target_file")
    return [*chain.from_iterable(to_flags(options))]


@pytest.mark.long
def test_rows_train_and_finished_rows_are_not_trained_again(tmp_path, monkeypatch, capsys):
    write_corpus(tmp_path)
    assert table3.main(flags(tmp_path, ["D-0.0", "base"])) == 0
    text = (tmp_path / "out" / "table3.md").read_text()
    for flags_of_all_rows in (
        "`--source_file train.a --target_file train.b ",
        " --vocab_size 280 --config_overrides max_position_embeddings=32,norm_order=pre`",
        "`--seeds 1 2 --max_steps 2 --max_tokens_per_batch 200 ",
        " --learning_rate 0.003 --lr_scheduler_type inverse_sqrt --warmup_steps 4 ",
        "`--num_beams 1`",
    ):
        assert flags_of_all_rows in text
    assert str(tmp_path) not in text
    lines = text.splitlines()
    assert [line.split(" | ")[0] for line in lines[-2:]] == ["| base", "| D-0.0"]
    assert (tmp_path / "out" / "table3.png").read_bytes().startswith(b"\x89PNG")
    config = json.loads((tmp_path / "out" / "D-0.0" / "seed-2" / "config.json").read_text())
    assert (config["d_model"], config["d_k"], config["d_ff"], config["encoder_layers"]) == (16, 2, 64, 1)
    assert (config["dropout"], config["max_position_embeddings"]) == (0.0, 32)

    trained = []
    train = TranslationTrainer.train
    monkeypatch.setattr(TranslationTrainer, "train", lambda self, **kw: trained.append(self.args) or train(self, **kw))
    assert table3.main(flags(tmp_path, ["base", "D-0.0", "D-smoothing-0.2"])) == 0
    assert [(args.seed, args.label_smoothing_factor) for args in trained] == [(1, 0.2), (2, 0.2)]
    assert len((tmp_path / "out" / "table3.md").read_text().splitlines()) == len(lines) + 1
    assert "D-smoothing-0.2, seed 2: perplexity" in capsys.readouterr().out


def test_a_row_is_scored_again_after_a_change_of_the_validation_set_or_the_search(tmp_path, monkeypatch):
    write_corpus(tmp_path)
    path = tmp_path / "out" / "base" / "seed-1" / "table3.json"

    def perplexity(**changes):
        assert table3.main(flags(tmp_path, ["base"], **changes, seeds=[1])) == 0
        return json.loads(path.read_bytes())["perplexity"]

    first = perplexity()
    monkeypatch.setattr(TranslationTrainer, "train", None)  # not called again
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"perplexity": 1.0}))
    assert perplexity() == 1.0  # not scored again without a change
    assert perplexity(num_beams=2) == pytest.approx(first, rel=1e-6)
    for side in "ab":
        (tmp_path / f"test.{side}").write_text("abc\ndef\n")
    assert perplexity(num_beams=2) != pytest.approx(first, rel=1e-6)


def test_the_tokenizer_is_that_of_a_run(tmp_path, monkeypatch):
    write_corpus(tmp_path)
    monkeypatch.setattr(tokenization, "VOCABULARY_PAIRS", 30)  # of 120
    assert table3.main(flags(tmp_path, ["base"], seeds=[1])) == 0
    run(tmp_path, "run", max_steps=1)
    of_run, of_rows = ((tmp_path / name / "tokenizer.json").read_text() for name in ("run", "out/base/seed-1"))
    assert of_rows == of_run


def test_a_changed_vocabulary_or_training_set_is_an_error(tmp_path, capsys):
    write_corpus(tmp_path)
    assert table3.main(flags(tmp_path, ["base"], seeds=[1])) == 0
    assert table3.main(flags(tmp_path, ["A-4"], vocab_size=270, seeds=[1])) == 2
    assert "vocab_size was 280, now 270" in capsys.readouterr().err
    for side in "ab":
        (tmp_path / f"train.{side}").write_text("abc\ndef\n")
    assert table3.main(flags(tmp_path, ["A-4"], seeds=[1])) == 2
    assert "training set was" in capsys.readouterr().err


def test_a_row_that_diverges_does_not_stop_the_others(tmp_path, monkeypatch, capsys):
    write_corpus(tmp_path)
    train = TranslationTrainer.train

    def diverge(self, **options):
        if self.model.config.dropout == 0:
            raise FloatingPointError("the loss is not finite")
        return train(self, **options)

    monkeypatch.setattr(TranslationTrainer, "train", diverge)
    assert table3.main(flags(tmp_path, ["D-0.0", "D-0.2"])) == 0
    assert "D-0.0, seed 1: diverged: the loss is not finite" in capsys.readouterr().out
    diverged, finished = (tmp_path / "out" / "table3.md").read_text().splitlines()[-2:]
    assert diverged.startswith("| D-0.0 | P_drop = 0.0 | – | 0, 2 diverged | diverged | – | 5.77 | +0.85 | diverged |")
    assert finished.startswith("| D-0.2 | P_drop = 0.2 | ")
    assert table3.main(flags(tmp_path, ["D-0.0"])) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": "F"}, "got F."),
        ({"width_scale": 0}, "width_scale must be positive, got 0.0."),
        ({"width_scale": 0.01}, "width_scale must give a positive integer for d_model=512 of row base, got 0.01."),
        ({"depth_scale": 0.25}, "depth_scale must give a positive integer for encoder_layers=6 of row base"),
        ({"config_overrides": "d_ff=8"}, "config_overrides must not set sizes (use width_scale, depth_scale)"),
        ({"config_overrides": "dropout=0.3"}, "(dropout, num_heads, position_embedding), got dropout."),
        ({"config_overrides": "position_embedding=none"}, "got position_embedding."),
        ({"label_smoothing_factor": 0.2}, "label_smoothing_factor must be 0.1, since rows differ in it, got 0.2."),
    ],
)
def test_invalid_arguments(changes, message, tmp_path, capsys):
    write_corpus(tmp_path)
    assert table3.main(flags(tmp_path, ["base"], **changes)) == 2
    assert message in capsys.readouterr().err


def test_scale_multiplies_the_sizes_of_every_row():
    sizes = {name: parse_overrides(scaled_overrides(row, 0.25, 0.5)) for name, row in ROWS.items()}
    assert sizes["A-32"]["d_k"] == sizes["B-16"]["d_k"] == 4
    assert (sizes["B-16"]["d_v"], sizes["C-d1024"]["d_model"], sizes["C-ff4096"]["d_ff"]) == (16, 256, 1024)
    assert (sizes["C-8"]["decoder_layers"], sizes["E"]["encoder_layers"]) == (4, 3)
    assert sizes["E"]["position_embedding"] == "learned"


def test_table_shows_differences_from_the_base_model_and_the_paper():
    results = [
        RESULT,
        replace(RESULT, seed=2, perplexity=10.0, bleu=22.0),
        replace(RESULT, row="A-1", perplexity=10.5, bleu=18.5),
    ]
    base, row = Table3(results).markdown().splitlines()[2:]
    assert base == "| base | – | 1,000 | 2 | 9.00 (8.00 to 10.00) | – | 4.92 | – | 21.0 (20.0 to 22.0) | – | 25.8 | – |"
    assert row.endswith("| 1 | 10.50 | +1.50 | 5.29 | +0.37 | 18.5 | -2.5 | 24.9 | -0.9 |")


def test_without_the_base_model_there_is_no_plot(tmp_path):
    (tmp_path / "table3.png").write_bytes(b"of other rows")
    write_report(Table3([replace(RESULT, row="A-1")]), "settings", tmp_path)
    assert not (tmp_path / "table3.png").exists()
    assert "| A-1 | h = 1, d_k = d_v = 512 | 1,000 | 1 | 8.00 | – |" in (tmp_path / "table3.md").read_text()
    assert Table3([RESULT]).figure() is None
