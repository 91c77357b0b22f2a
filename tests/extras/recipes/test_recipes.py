"""Recipes with stages: what each stage gets, the result, interruptions in every stage, invalid recipes."""

import shutil
from pathlib import Path

import pytest
import yaml
from accelerate import PartialState
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_random_transformer import cli
from modeling_random_transformer.base.jobs import Job
from modeling_random_transformer.data import ParallelText
from modeling_random_transformer.extras.cleaning import clean_pairs
from modeling_random_transformer.extras.estimation import measurement
from modeling_random_transformer.extras.recipes import read_recipe, recipe_data, recipes
from modeling_random_transformer.extras.recipes.recipe_plan import RecipePlan
from modeling_random_transformer.extras.recipes.recipes import RecipeRun, run_recipe
from modeling_random_transformer.inference import translate
from tests.helpers.command_line import exit_status
from tests.helpers.corpora import read_pairs
from tests.helpers.interruption import StoppedError, killed_after, stop
from tests.helpers.training import (
    LETTERS,
    SIZES,
    UNSCORED,
    arguments,
    assert_equal_weights,
    flags,
    run,
    validation,
    write_corpus,
)

EXAMPLES = Path(__file__).parents[3] / "examples" / "recipes"
STAGES = [
    {"name": "reverse", "when": "monolingual_target", "reverse": True},
    {"name": "synthetic", "when": "monolingual_target", "kind": "back_translate", "uses": "reverse", "num_beams": 1},
    {"name": "first", "synthetic": ["synthetic"], "authentic_weight": 2, "bpe_dropout": 0.1},
    {"name": "second", "starts_from": "first", "kind": "distill", "uses": "first", "interpolate": True},
    {"name": "small", "when": "student", "kind": "distill", "uses": "second", "config_overrides": "d_model=8"},
]
NAMES = [stage["name"] for stage in STAGES]
OPTIONS = {**UNSCORED, "max_steps": 4, "num_beams": 1, "special_tokens": ["<bt>"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a corpus, of monolingual text and of a recipe."""
    folder = tmp_path_factory.mktemp("recipe")
    write_corpus(folder)
    (folder / "mono").write_text("".join(f"{one}{two}\n" for one in LETTERS for two in "ab"))
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"stages": STAGES}))
    return folder


def run_command(folder, output="out", **options):
    """Run the recipe by the command line."""
    command_options = {"monolingual_target": str(folder / "mono"), "student": True, **OPTIONS, **options}
    PartialState._reset_state()
    status = cli.main(["train", str(folder / "recipe.yaml"), *flags(folder, output, **command_options)])
    PartialState._reset_state()
    return status


@pytest.fixture(scope="module")
def finished(folder):
    """The folder of a finished run, which no test may modify."""
    assert run_command(folder) == 0
    return folder / "out"


def remaining_pairs(*files):
    """The number of pairs that cleaning keeps."""
    return sum(1 for _ in clean_pairs(ParallelText(*files)))


def pairs_of_stage(output, name):
    return read_pairs(*(output / "stages" / name / f"data.{side}" for side in ("source", "target")))


def test_the_corpus_is_split_and_every_stage_gets_its_pairs(finished):
    data, synthetic = pairs_of_stage(finished, "data"), pairs_of_stage(finished, "synthetic")
    sets = [finished / "stages" / "data" / f"data.{name}.source" for name in ("validation", "test")]
    size = remaining_pairs(finished.parent / "train.a", finished.parent / "train.b") // 20
    assert [path.read_text().count("\n") for path in sets] == [size, size]
    assert all(source == target[::-1] for source, target in data)
    assert all(source.startswith("<bt> ") for source, _ in synthetic)
    facts = {name: stage.facts for name, stage in Job(finished / "recipe.json").stages.items()}
    assert [*facts] == ["data", *NAMES, "result"]
    assert facts["reverse"]["pairs"] == len(data)
    assert facts["first"]["pairs"] == len(data) + len(synthetic)
    assert facts["second"]["pairs"] > len(data)  # original and synthetic ones
    record = Job(finished / "stages" / "first" / "training_manifest.json").stages["train"]
    assert [corpus["weight"] for corpus in record.facts["corpora"]] == [2, 1]
    reverse = (finished / "stages" / "reverse" / "README.md").read_text()
    assert "data.target" in reverse


def test_the_result_is_the_small_model(finished):
    assert_equal_weights(finished, finished / "stages" / "small")
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(finished), AutoTokenizer.from_pretrained(finished)
    assert len(translate(["abc"], model, tokenizer, progress=False)) == 1
    assert AutoModelForSeq2SeqLM.from_pretrained(finished / "int8").is_quantized
    assert tokenizer.get_vocab() == AutoTokenizer.from_pretrained(finished / "stages" / "first").get_vocab()
    card = (finished / "README.md").read_text()
    assert "The validation and test sets were taken from the corpus." in card
    assert "\n# out\n" in card
    assert "translate --model out " in card
    command = card.partition("## Training\n\n```sh\n")[2].partition("\n```")[0]
    first, second, *option_lines = command.replace(" \\", "").splitlines()
    assert (first, second) == ("random-transformer train", "    recipe.yaml")
    assert {"    --source_file train.a", "    --monolingual_target mono", "    --output_dir out"} <= {*option_lines}
    assert str(finished.parent) not in card
    assert all(f"| {name} |" in card for name in NAMES)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [({"first": 20, "second": 30}, "second"), ({"first": 30, "second": 20}, "first"), ({}, "second")],
)
def test_training_a_model_further_does_not_make_the_result_worse(scores, expected, folder, tmp_path):
    record = Job(tmp_path / "recipe.json")
    for name in ("reverse", "first", "second"):  # reverse has the best score, but is another model
        chrf = scores.get(name, 90 if name == "reverse" else 0)
        record.begin(name, {}).finish(scores={"validation": {"chrf": chrf}})
    call_arguments = {"monolingual_target": str(folder / "mono"), **arguments(folder, tmp_path), **OPTIONS}
    path = folder / "recipe.yaml"
    assert RecipeRun(RecipePlan(path, read_recipe(path), **call_arguments)).best("second") == expected


@pytest.mark.usefixtures("finished")
def test_a_finished_recipe_is_not_repeated_and_other_arguments_are_an_error(folder, monkeypatch, capsys):
    for name in ("train_translation", "back_translate", "distill", "write_sets"):
        monkeypatch.setattr(recipes, name, None)
    assert run_command(folder) == 0
    call_arguments = {
        "monolingual_target": str(folder / "mono"),
        "student": True,
        **arguments(folder, "out", **OPTIONS),
    }
    rows = run_recipe(folder / "recipe.yaml", **call_arguments)
    assert [row["name"] for row in rows] == NAMES
    assert {"bleu", "chrf"} <= rows[-1]["scores"]["validation"].keys()
    with pytest.raises(ValueError, match=r"max_stepps\. Did you mean max_steps\?"):
        run_recipe(folder / "recipe.yaml", **call_arguments, max_stepps=5)
    assert run_command(folder, max_steps=5) == 2
    assert "(max_steps was 4, now 5): use another output_dir." in capsys.readouterr().err
    (folder / "mono2").write_text("ab\n")
    assert run_command(folder, monolingual_target=str(folder / "mono2")) == 2
    assert "monolingual_target was" in capsys.readouterr().err
    assert run_command(folder, student=None) == 2  # other stages
    assert "(stages was ['reverse', 'synthetic', 'first', 'second', 'small'], now" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_that_is_killed_in_every_stage_has_the_same_weights(finished, folder):
    killed = folder / "killed"
    places = {"data": 3, "reverse": 40, "synthetic": 12, "first": 60, "second": 90, "small": 150}
    for name, operations in places.items():
        assert killed_after(operations, lambda: run_command(folder, "killed"), killed / "stages" / name), name
    assert run_command(folder, "killed") == 0
    for name in ("stages/reverse", "stages/first", "stages/second", "stages/small", "int8", "."):
        assert_equal_weights(killed / name, finished / name)
    assert pairs_of_stage(killed, "synthetic") == pairs_of_stage(finished, "synthetic")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"ab\n\xff\n", r"mono4 must be UTF-8 text, but line 2 is not"),
        (b" \n\n", r"monolingual_\w+ must have a line that is not blank, got '.*mono4' without one"),
    ],
)
@pytest.mark.parametrize("name", ["monolingual_target", "monolingual_source"])
def test_a_monolingual_text_is_read_before_a_training(name, content, message, folder, tmp_path):
    text = tmp_path / "mono4"
    text.write_bytes(content)
    call_arguments = {"monolingual_target": str(folder / "mono"), **arguments(folder, tmp_path / "out", **OPTIONS)}
    with pytest.raises(ValueError, match=message):
        run_recipe(folder / "recipe.yaml", **{**call_arguments, name: str(text)})
    assert not [*tmp_path.glob("out/stages/*/config.json")]


def test_a_column_of_a_text_without_columns_is_an_error_before_a_training(folder, tmp_path):
    stages = [STAGES[0], {**STAGES[1], "text_key": "es"}, *STAGES[2:]]
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({"stages": stages}))
    call_arguments = {"monolingual_target": str(folder / "mono"), **arguments(folder, tmp_path / "out", **OPTIONS)}
    with pytest.raises(ValueError, match="text_key must be unset without a file with columns, got 'es'"):
        run_recipe(tmp_path / "recipe.yaml", **call_arguments)
    assert not [*tmp_path.glob("out/stages/*/config.json")]


def test_an_error_in_the_monolingual_text_can_be_corrected(folder, monkeypatch, capsys):
    text = folder / "mono3"
    text.write_text("ab" * 2000)
    options = {"monolingual_target": str(text), "student": None}
    assert run_command(folder, "corrected", **options) == 2
    assert "input_file must have a line that can be translated, got input_file: 1 of 1" in capsys.readouterr().err
    text.write_text("ab\nba\n")

    monkeypatch.setattr(recipes, "train_translation", stop)  # the finished model is not trained again
    with pytest.raises(StoppedError):
        run_command(folder, "corrected", **options)
    stages = Job(folder / "corrected" / "recipe.json").stages
    assert {name: stage.is_finished for name, stage in stages.items()} == {
        "data": True,
        "reverse": True,
        "synthetic": True,
        "first": False,
    }


def test_a_dictionary_is_part_of_the_training_set(folder, monkeypatch, capsys):
    words = folder / "words.tsv"
    words.write_text("ab\tba\nba\tab\n")
    options = {**validation(folder), "monolingual_target": None, "student": None, "dictionary": str(words)}
    monkeypatch.setattr(recipes, "train_translation", stop)
    with pytest.raises(StoppedError):
        run_command(folder, "with-words", **options)
    data = Job(folder / "with-words" / "recipe.json").stages["data"]
    assert data.facts["dictionary"] == 2
    assert pairs_of_stage(folder / "with-words", "data")[-2:] == [("ab", "ba"), ("ba", "ab")]
    words.write_text("ab\tba\n")
    assert run_command(folder, "with-words", **options) == 2
    assert "dictionary was" in capsys.readouterr().err


def test_given_sets_with_an_invalid_line_and_without_monolingual_text(folder, capsys):
    options = {**validation(folder), "monolingual_target": None, "student": None}
    options["max_tokens_per_batch"] = 400  # the teacher's translations are long
    for side in "ab":
        added = "x\n" if side == "a" else "\n"
        (folder / f"invalid.{side}").write_text((folder / f"train.{side}").read_text() + added)
    options |= {"source_file": str(folder / "invalid.a"), "target_file": str(folder / "invalid.b")}
    assert run_command(folder, "short", **options) == 2
    assert "1 with an empty source or target (line 121)" in capsys.readouterr().err
    options["on_invalid"] = "skip"
    assert run_command(folder, "short", **options) == 0
    output = folder / "short"
    assert sorted(Job(output / "recipe.json").stages) == ["data", "first", "result", "second"]
    shutil.rmtree(output / "stages")
    assert run_command(folder, "short", **options) == 0  # nothing is done
    assert not (output / "stages").exists()
    assert load_file(output / "model.safetensors")
    card = (output / "README.md").read_text()
    assert "Pairs: train 120, validation 12." in card
    assert "1 of 121 lines" in card
    assert "| test" not in card
    assert "The result is the model of stage `" in card


def test_a_distillation_needs_the_languages_of_the_training_set(folder, tmp_path):
    languages = {
        "source_lang": ["a"],
        "target_lang": ["b"],
        "validation_source_lang": ["b"],
        "validation_target_lang": ["a"],
    }
    call_arguments = {**arguments(folder, tmp_path / "out", **OPTIONS), **validation(folder), **languages}
    path = folder / "recipe.yaml"
    with pytest.raises(
        ValueError, match=r"must be those of the test set for the stage second, got \['a'\] and \['b'\]"
    ):
        RecipePlan(path, read_recipe(path), **call_arguments)


def test_back_translation_needs_monolingual_text(folder, tmp_path, capsys):
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({"stages": [stage | {"when": None} for stage in STAGES]}))
    call_arguments = arguments(folder, tmp_path / "out") | OPTIONS
    assert cli.main(["train", str(tmp_path / "recipe.yaml"), *flags(folder, tmp_path / "out", **call_arguments)]) == 2
    assert "monolingual_target must be given for the stage synthetic, got None." in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("prefix", ["", "test_"])
def test_several_languages_are_an_error(prefix, folder, capsys):
    files = {
        f"{prefix}{side}_file": [str(folder / f"train.{name}")] * 2 for side, name in (("source", "a"), ("target", "b"))
    }
    languages = {"source_lang": "en", "target_lang": "es"}
    languages |= {f"{prefix}source_lang": "en", f"{prefix}target_lang": ["es", "fr"]}
    assert run_command(folder, "several", **files, **languages) == 2
    message = f"{prefix}target_lang must be one language for a recipe with stages, got es, fr."
    assert message in capsys.readouterr().err
    assert not (folder / "several" / "stages").exists()


def test_monolingual_text_is_a_file(folder, capsys):
    assert run_command(folder, "pipe", monolingual_target="-") == 2
    assert "monolingual_target must be a file, got '-'." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "kind"), [("monolingual_source", "distill"), ("monolingual_target", "back_translate")]
)
def test_monolingual_text_needs_a_stage(name, kind, folder, tmp_path, capsys):
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({"stages": [{"name": "only"}]}))
    call_arguments = arguments(folder, tmp_path / "out") | OPTIONS | {name: str(folder / "mono")}
    assert cli.main(["train", str(tmp_path / "recipe.yaml"), *flags(folder, tmp_path / "out", **call_arguments)]) == 2
    assert f"{name} must be unset without a stage of kind {kind}, got" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_languages(folder):
    options = {"source_lang": "en", "target_lang": "es", "student": None}
    output = folder / "languages"
    assert run_command(folder, "languages", **options) == 0
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(output), AutoTokenizer.from_pretrained(output)
    assert (tokenizer.src_lang, tokenizer.tgt_lang) == ("en", "es")
    assert len(translate(["abc"], model, tokenizer, progress=False)) == 1


def pair_files(output):
    return {path.name: path.read_text() for path in (output / "stages" / "data").iterdir()}


def test_pairs_that_are_missing_are_made_again_and_changed_ones_are_an_error(folder, monkeypatch, capsys):
    monkeypatch.setattr(recipes, "train_translation", stop)
    output = folder / "deleted"
    with pytest.raises(StoppedError):
        run_command(folder, "deleted")
    pairs = pair_files(output)
    for path in (output / "stages" / "data" / "data.test.source", output / "stages" / "data"):
        path.unlink() if path.is_file() else shutil.rmtree(path)
        with pytest.raises(StoppedError):
            run_command(folder, "deleted")
        assert pair_files(output) == pairs
    shortened = output / "stages" / "data" / "data.target"
    shortened.write_text(shortened.read_text()[:-4])
    assert run_command(folder, "deleted") == 2
    assert f"{shortened} must be unchanged since the stage data has finished:" in capsys.readouterr().err


def test_files_of_an_abandoned_attempt_are_not_read(folder, monkeypatch):
    options = validation(folder) | {"monolingual_target": None, "student": None}
    abandoned = folder / "abandoned" / "stages" / "data" / "data.test.source"

    def interrupted(*_, **__):
        abandoned.write_text("a\n")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(recipe_data, "clean_files", interrupted)  # which divides the corpus
        assert run_command(folder, "abandoned", **options | dict.fromkeys(validation(folder))) == 130
    assert abandoned.exists()
    monkeypatch.setattr(recipes, "train_translation", stop)
    with pytest.raises(StoppedError):
        run_command(folder, "abandoned", **options)
    assert not abandoned.exists()


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json", "int8/model.safetensors"])
def test_a_missing_file_of_the_result_is_made_again(name, finished, folder):
    output = shutil.copytree(finished, folder / f"incomplete-{Path(name).parent}-{Path(name).stem}")
    content = (output / name).read_bytes()
    (output / name).unlink()
    assert run_command(folder, output.name) == 0
    assert (output / name).read_bytes() == content


@pytest.mark.parametrize(
    ("name", "status"), [("first/model.safetensors", 0), ("second/config.json", 2), ("synthetic/data.source", 0)]
)
def test_files_of_stages_are_checked_when_they_are_used(name, status, finished, folder, capsys):
    output = shutil.copytree(finished, folder / f"shortened-{Path(name).parent}")
    path = output / "stages" / name
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    assert run_command(folder, output.name) == 0  # the result is complete
    (output / "model.safetensors").unlink()
    assert run_command(folder, output.name) == 2
    assert f"{path} must be unchanged since the stage {path.parent.name} has finished" in capsys.readouterr().err
    path.unlink()
    assert run_command(folder, output.name) == status
    if status == 0:
        assert path.read_bytes() == content
        assert_equal_weights(output, finished)


def test_an_argument_of_one_run_is_an_error(folder, capsys):
    assert run_command(folder, "of_run", push_to_hub=True) == 2
    assert "push_to_hub must be unset for a recipe with stages, got True." in capsys.readouterr().err
    assert not (folder / "of_run").exists()


@pytest.mark.parametrize(("copies", "message"), [(200, ""), (0, ""), (-1, "validation_source_file must be given if")])
def test_held_out_sets_are_a_share_of_what_remains(copies, message, folder, tmp_path, monkeypatch, capsys):
    sources, targets = ((folder / f"train.{side}").read_text().splitlines() for side in "ab")
    if copies < 0:  # every other pair shares a text with the one that is held out
        sources, targets = ["ab"] * 50, [f"c{one}{two}" for one in LETTERS for two in LETTERS][:50]
    files = {}
    for side, lines in (("source", sources), ("target", targets)):
        files[f"{side}_file"] = str(tmp_path / side)
        (tmp_path / side).write_text("".join(f"{line}\n" for line in lines + lines[:1] * max(copies, 0)))
    monkeypatch.setattr(recipes, "train_translation", lambda *_: stop())
    output = tmp_path / "out"
    if message:
        assert run_command(folder, output, **files) == 2
        assert message in capsys.readouterr().err
        return
    with pytest.raises(StoppedError):
        run_command(folder, output, **files)
    facts = Job(output / "recipe.json").stages["data"].facts
    size = remaining_pairs(folder / "train.a", folder / "train.b") // 20
    assert (facts["validation"], facts["test"]) == (size, size)


def test_new_models_start_from_a_parent(folder, capsys):
    run(folder, "parent", **UNSCORED, max_steps=2, config_overrides=SIZES.replace("d_ff=32", "d_ff=24"))
    options = {"monolingual_target": None, "parent": str(folder / "parent"), "max_tokens_per_batch": 400}
    assert run_command(folder, "child", **options) == 0
    stages = [folder / "child" / "stages" / name for name in ("first", "second", "small")]
    assert [AutoConfig.from_pretrained(path).d_ff for path in stages] == [24, 24, 32]
    assert run_command(folder, "child", **options | {"parent": str(stages[1])}) == 2
    assert "(parent was" in capsys.readouterr().err
    assert run_command(folder, "other", **options | {"parent": str(folder / "none")}) == 2
    assert f"parent must be a saved model, got '{folder / 'none'}'" in capsys.readouterr().err
    assert not (folder / "other").exists()


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"preset": "base"}, "preset"),
        ({"config_overrides": "d_model=8,dropout=0.2"}, "d_model"),
        ({"config_overrides": "dropout=0.2"}, None),
    ],
)
def test_sizes_in_a_call_with_a_parent(options, sizes, folder, translator_folder, tmp_path):
    """The recipe's own sizes are those of a call without a parent."""
    call_arguments = {**arguments(folder, tmp_path / "out"), "max_steps": 4}
    del call_arguments["config_overrides"]
    call_arguments |= {"parent": str(translator_folder), **options}
    recipe = {"preset": "tiny", "config_overrides": "d_model=16", "stages": [{"name": "first"}]}
    if sizes is None:
        RecipePlan("recipe.yaml", recipe, **call_arguments)
        return
    with pytest.raises(ValueError, match=f"preset must be unset, with parent, .*, got {sizes}"):
        RecipePlan("recipe.yaml", recipe, **call_arguments)


@pytest.mark.parametrize("num_beams", [1, 2])
def test_a_dry_run_estimates_every_training_and_writes_nothing(num_beams, folder, monkeypatch, capsys):
    monkeypatch.setattr(measurement, "MEASURED_STEPS", 1)
    options = {"eval_strategy": "steps", "eval_steps": 2, "num_beams": num_beams, "length_penalty": "auto"}
    options |= {"bleu_tokenize": "char", "generation_max_length": 9}  # of sets that a dry run does not have
    assert run_command(folder, "dry", dry_run=True, **options) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][2:]
    assert [row[0].strip("| ") for row in rows] == ["reverse", "first", "second", "small"]
    assert all(float(row[1]) > 0 for row in rows)
    assert not (folder / "dry").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "stages must be mappings with a name, got {}."),
        ({"name": "a", "kind": "translate"}, "kind must be one of"),
        ({"name": "a", "when": "monday"}, "when must be one of"),
        ({"name": "a", "uses": "first"}, "uses must be given for back_translate and distill only"),
        ({"name": "a", "kind": "back_translate", "uses": "first"}, "uses must be one of back, got 'first'."),
        ({"name": "a", "kind": "distill", "uses": "back"}, "uses must be one of first, got 'back'."),
        ({"name": "a", "starts_from": "back"}, "starts_from must be one of first, got 'back'."),
        ({"name": "a", "starts_from": "first", "preset": "base"}, "preset must be unset with model_name_or_path"),
        ({"name": "a", "bleu_tokenize": "nope"}, "tokenize must be one of none, "),
        ({"name": "a", "metric_for_best_model": "bleuu"}, "metric_for_best_model must be one of loss, bleu, chrf"),
        ({"name": "a", "lr_scheduler_type": "warmup_stable_decay"}, "lr_scheduler_kwargs must suit"),
        ({"name": "a", "kind": "distill"}, "uses must be given for"),
        (
            {"name": "a", "kind": "distill", "uses": "first", "reverse": True},
            "reverse and authentic_weight must be unset for kind distill, got",
        ),
        ({"name": "a", "starts_from": "b"}, "starts_from must be one of"),
        ({"name": "a", "synthetic": ["first"]}, "synthetic must be one of"),
        ({"name": "../a"}, "name must be that of a new folder, got '../a'."),
        ({"name": "first"}, "name must be that of a new folder, got 'first'."),
        ({"name": ""}, "name must be that of a new folder, got ''."),
        ({"name": ".."}, "name must be that of a new folder, got '..'."),
        ({"name": "a", "starts_from": "texts"}, "starts_from must be one of first, got 'texts'."),
        ({"name": "a", "kind": "distill", "uses": "texts"}, "uses must be one of first, got 'texts'."),
        ({"name": "a", "synthetic": "texts"}, "synthetic must be a list of stages, got 'texts'."),
        ({"name": "a", "reverse": "false"}, "reverse must be true or false, got 'false'."),
        ({"name": "a", "synthetic": ["later"]}, "synthetic must be one of texts, got 'later'."),
        ({"name": "a", "authentic_weight": 2}, "authentic_weight must be unset without synthetic, got 2."),
        ({"name": "a", "authentic_weight": 0}, "authentic_weight must be a positive integer, got 0."),
        ({"name": "a", "authentic_weight": "2"}, "authentic_weight must be a positive integer, got '2'."),
        ({"name": "a", "source_file": ["x"]}, "a must not have arguments that the recipe sets, got source_file."),
        ({"name": "a", "output_dir": "x"}, "a must not have arguments that the recipe sets, got output_dir."),
        (
            {"name": "a", "kind": "distill", "uses": "first", "teacher": ["x"]},
            "a must not have arguments that the recipe sets, got teacher.",
        ),
        ({"name": "a", "reverse": True}, "stages must end with one that trains a model from source to target."),
        ({"name": "a", "max_steps": "many"}, "invalid int value: 'many'"),
        (
            {"name": "a", "max_stepps": 2},
            "arguments must be among those of --help, got --max_stepps. Did you mean --max_steps?",
        ),
        ({"name": "a", "kind": "back_translate", "uses": "back", "method": "magic"}, "method must be one of"),
        ({"name": "a", "kind": "back_translate", "uses": "back", "dtype": "int9"}, "dtype must be one of"),
        ({"name": "a", "kind": "back_translate", "uses": "back", "tag": False}, "tag must be None or text without"),
        (
            {"name": "a", "kind": "back_translate", "uses": "back", "method": "sampling", "temperature": "7e-1"},
            "temperature must be positive and given with method 'sampling', got '7e-1'",
        ),
        (
            {"name": "a", "kind": "back_translate", "uses": "back", "n_best": 1},
            "n_best must be unset in a back-translation, got 1.",
        ),
        (
            {"name": "a", "kind": "back_translate", "uses": "back", "beams": 4},
            "a must have options of back_translate, got beams.",
        ),
        *(
            ({"name": "a", "kind": "back_translate", "uses": "back", name: value}, f"got an error: {message}")
            for name, value, message in (
                ("repetition_penalty", -1.0, "generate() raised ValueError: `penalty` has to be a strictly positive"),
                ("no_repeat_ngram_size", "2", "generate() raised TypeError: '>' not supported between"),
                ("suppress_tokens", 1, "options must be valid for generate(): TypeError: 'int' object is not"),
                ("glossary", "words.tsv", "glossary must be a Glossary, got 'words.tsv'."),
            )
        ),
        ({"name": "a", "on_invalid": "ignore"}, "on_invalid must be one of error, skip, got 'ignore'."),
        ({"name": "a", "source_lang": "a"}, "a must not have arguments that the recipe sets, got source_lang."),
        ({"name": "a", "train_weights": 2}, "a must not have arguments that the recipe sets, got train_weights."),
        (
            {"name": "a", "kind": "distill", "uses": "first", "teacher_num_beams": 0},
            "teacher_num_beams: must be a positive",
        ),
    ],
    ids=str,
)
def test_an_invalid_stage_is_reported_in_one_line(change, message, folder, tmp_path, capsys):
    texts = {"kind": "back_translate", "uses": "back"}
    after = [] if "reverse" in change else [{"name": "later", **texts}, {"name": "last"}]
    before = [{"name": "back", "reverse": True}, {"name": "first"}, {"name": "texts", **texts}]
    stages = [*before, change, *after]
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({"stages": stages}))
    call_arguments = {**arguments(folder, tmp_path / "out"), **OPTIONS, "max_steps": None}
    call_arguments |= {"monolingual_target": str(folder / "mono")}
    command = ["train", tmp_path / "recipe.yaml", *flags(folder, tmp_path / "out", **call_arguments)]
    assert exit_status(cli.main, command) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert message in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"config_overrides": "d_model=15"}, "d_model must be a multiple of num_heads=4"),
        ({"starts_from": "first", "config_overrides": "d_model=8"}, "config_overrides must be of .*, got d_model"),
        ({"tokenizer": "./missing"}, "tokenizer must be a path that exists, or a name on the Hub, got './missing'"),
    ],
)
def test_the_model_of_every_stage_is_checked_before_the_first_one(options, message, folder, tmp_path):
    call_arguments = {**arguments(folder, tmp_path / "out"), "max_steps": 4}
    del call_arguments["vocab_size"], call_arguments["config_overrides"]
    recipe = {"stages": [{"name": "first"}, {"name": "second", **options}]}
    with pytest.raises(ValueError, match=message):
        RecipePlan("recipe.yaml", recipe, **call_arguments)


@pytest.mark.parametrize(
    ("recipe", "names"),
    [("low_resource", ["reverse", "synthetic", "forward", "student"]),
     ("multi30k_record", ["teacher", "student"])],
)  # fmt: skip
def test_the_recipes_of_the_repository(recipe, names, folder, tmp_path):
    (tmp_path / "mono").write_text("ab\n")
    call_arguments = {"source_file": str(folder / "train.a"), "target_file": str(folder / "train.b"), "use_cpu": True}
    call_arguments |= {"validation_source_file": None, "validation_target_file": None} | UNSCORED
    call_arguments |= {"monolingual_target": str(tmp_path / "mono")} if "synthetic" in names else {}
    path = EXAMPLES / f"{recipe}.yaml"
    plan = RecipePlan(path, read_recipe(path), **call_arguments, student=True, bf16=False)
    assert [stage.name for stage in plan.stages] == names
    _, model, args = plan.arguments_of(plan.stages[-1])
    assert args.warmup_steps == (600 if recipe == "multi30k_record" else 0.1)
    assert model.model_name_or_path is None or model.model_name_or_path.endswith(names[-2])
