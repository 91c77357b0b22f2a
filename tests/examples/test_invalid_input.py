"""Invalid arguments and files: each script exits with status 2 and one line that names the argument and the value."""

import importlib
import json
import shlex
import shutil

import pytest

from modeling_random_transformer import RandomTransformerForMaskedLM
from tests.helpers.command_line import exit_status
from tests.helpers.models import tiny_config

LINES = "".join(f"{i}\n" for i in range(30))
# The script, its arguments, and the message. `model` is a saved translation model, `file` an empty file.
ARGUMENTS = [
    # what several scripts share
    ("compare_recurrent", "--seed -1", "argument --seed: must be an integer from 0 to 4294967295, got '-1'."),
    ("compare_recurrent", "--output_dir file", "--output_dir must be a folder, got the file file."),
    ("quickstart", "--output_dir file/inside", "--output_dir must be a writable folder, got file/inside"),
    ("quickstart", "--epochs 0", "argument --epochs: must be a positive number, got '0'."),
    ("quickstart", "--max_steps -3", "argument --max_steps: must be a positive integer, got '-3'."),
    ("quickstart", "'I see her.' ' '", "a sentence must not be empty, got ['I see her.', ' ']."),
    ("quickstart", "--translate_only", "--translate_only must be used with at least one sentence, got none."),
    ("parse_sentences", "--parse_only a --output_dir nowhere", "--output_dir must be a folder with a trained model"),
    ("language_model", "--train_file missing.txt", "--train_file: must be a file that exists, got 'missing.txt'"),
    ("language_model", "--test_file file", "--test_file must be used with --train_file, got only file."),
    ("language_model", "--model nowhere", "--model: must contain a saved model, got 'nowh"),
    ("language_model", "--model masked", "all weights except those of a head, got masked without model.decoder"),
    ("language_model", "--model damaged", "--model must be a folder with a translation model and its tokenizer"),
    # each script
    (
        "app",
        "nowhere/at-all",
        "MODEL must be a folder with a saved model or the name of a model on the Hub, got 'no",
    ),
    ("app", "empty", "MODEL must contain a saved model, got"),
    ("classify_text", "--classify 'I see her.'", "--classify must be nonempty texts, 2 for each classification, got "),
    ("compare_recurrent", "--models cnn", "invalid choice: 'cnn'"),
    ("compare_recurrent", "--train_size 3", "--train_size must be at least 4"),
    ("exercises", "0", "argument N: invalid choice: 0"),
    ("exercises", "10 --model nowhere", "--model must contain a saved model, got 'nowhere'"),
    (
        "exercises",
        "10 --model model",
        "--model must be trained by the quickstart on its sample data, got no model",
    ),
    ("notebooks.execute", "77", "a number must be one of 00, 01, 02, 03, 04, 05, 06, 07, got '77'."),
    ("parse_sentences", "--test_file file", "--train_file, --validation_file, --test_file must be given together"),
    ("parse_sentences", "--config_overrides width=3", "config_overrides must be like"),
    ("plot_training", "empty", "run must be a folder with a complete checkpoint, or a trainer_state.json, got empty."),
    ("plot_training", "file", "run must be a folder of a run or a trainer_state.json, got file."),
    ("plot_training", "no_losses", "run must have logged a loss at least once, but no_losses has none"),
    ("prune_heads", "--model model --source_file file", "--source_file and --target_file must be given together"),
    ("quickstart", "--source a.en", "--source and --target must be given together, got a.en and None."),
    ("quickstart", "--source missing.en --target missing.es", "source must be a file, got 'missing.en'."),
    ("quickstart", "--tsv file", "source must be a .tsv, .csv, .jsonl, .parquet, .tmx or .zip file with both sides"),
    ("walkthrough", "--model model", "--model and a sentence must be given together, got model and None."),
    ("walkthrough", "--model model ' '", "the sentence must not be empty"),
    ("walkthrough", "--model model a --layer 7", "layers must be from 0 to 2, got [7]"),
    ("walkthrough", "--model model a --head 2", "heads must be from 0 to 1, got [2]"),
]
# The script, the contents of a file or of two, and the message.
FILES = [
    ("classify_text", ["see the cat\n"], "every line must be a text, a tab and a label, got line 1 of a."),
    ("classify_text", ["cat\tanimal\nred\t\n"], "a label, got line 2"),
    ("classify_text", ["cat\t\tanimal\n"], "a label, got line 1"),
    ("classify_text", ["a\tb\tc\tlabel\n"], "all lines must have one text, or all two, got 3 in line 1"),
    ("classify_text", ["cat\tanimal\ncat\tdog\tanimal\n"], "or all two, got 2 in line 2"),
    ("classify_text", ["cat\tanimal\n" * 30], "at least two labels, got only 'animal'"),
    ("classify_text", [""], "a file must have at least one text with its label, got none in a."),
    ("classify_text", ["cat\tanimal\nred\tcolor\n"], "at least 20 different sentences, got 2"),
    ("classify_text", ["cat\tanimal\nred\tcolor\n", "two\tnumber\n"], "only labels of --train_file, got 'number'"),
    ("classify_text", ["cat\tanimal\nred\tcolor\n", "a\tb\tanimal\n"], "texts per line, got 1 in a and 2 in b."),
    ("language_model", [""], "a file must have at least one line of text, got none in a."),
    ("language_model", ["\udcf1\n"], "must be UTF-8 text, but line 1 is not"),
    ("parse_sentences", ["(S (NN x))\n(S x)\n"], "each line must be a bracketed tree, got '(S x)' in line 2 of a"),
    ("prune_heads", ["one\n", "uno\n"], "--source_file and --target_file must have at least 4 pairs, got 1."),
    ("quickstart", [LINES, LINES[:-3]], "a and b must have the same number of lines"),
    ("quickstart", [LINES, LINES[:-3] + "\n"], "empty source or target (line 30)"),
    ("quickstart", [LINES[:10], LINES[:10]], "at least 20 different sentences, got 5"),
]
FLAGS = {  # of the files
    "classify_text": ("--train_file", "--test_file"),
    "language_model": ("--train_file",),
    "parse_sentences": ("--validation_file a --test_file a --train_file",),
    "prune_heads": ("--model model --source_file", "--target_file"),
    "quickstart": ("--source", "--target"),
}


@pytest.fixture
def error_of(tmp_path, translator_folder, monkeypatch, capsys):
    """Run a script with invalid arguments; returns the line on stderr."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").symlink_to(translator_folder)
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "no_losses").write_text(json.dumps({"log_history": [{"step": 1}]}))

    def error_of(script, arguments):
        capsys.readouterr()  # what the preparation has printed
        assert exit_status(importlib.import_module(script).main, shlex.split(arguments)) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        return error

    return error_of


@pytest.mark.parametrize(("script", "arguments", "message"), ARGUMENTS)
def test_invalid_arguments(script, arguments, message, error_of, tmp_path, translator_folder):
    for name in {"masked", "damaged"} & set(arguments.split()):
        shutil.copytree(translator_folder, tmp_path / name)
        RandomTransformerForMaskedLM(tiny_config()).save_pretrained(tmp_path / name)
        if name == "damaged":
            (tmp_path / name / "model.safetensors").write_bytes(b"nothing")
    assert message in error_of(script, arguments)


@pytest.mark.parametrize(("script", "contents", "message"), FILES)
def test_invalid_files(script, contents, message, error_of, tmp_path):
    arguments = ""
    for name, flag, content in zip("ab", FLAGS[script], contents, strict=False):
        (tmp_path / name).write_text(content, errors="surrogateescape")
        arguments += f" {flag} {name}"
    assert message in error_of(script, arguments)
