"""Commands with damaged weights, long lines and signals: exit status, one-line errors, no partial files."""

import os
import re
import signal
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_random_transformer import cli
from modeling_random_transformer.commands import explore
from modeling_random_transformer.commands.command_line import raise_on_sigterm
from modeling_random_transformer.extras.conversion.weights import StateDictMapper
from modeling_random_transformer.pipeline_random_transformer import Seq2SeqPipeline
from tests.helpers.fairseq import checkpoint
from tests.helpers.models import save_translator
from tutorials.report import draw_heat_map

pytestmark = pytest.mark.usefixtures("_reset_accelerate")


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "model"
    save_translator(path, lm_head_bias=True)
    return path


def run(verb: str, folder: Path, *arguments) -> int:
    """Run a command with its usual arguments and these."""
    first = {
        "translate": ["--model", folder, "--device", "cpu"],
        "explore": [folder, "the cat", "--max_new_tokens", 4],
        "export": [folder, "--engine", "ctranslate2"],
        "convert": ["fairseq", folder],
    }[verb]
    return cli.main(list(map(str, [verb, *first, *arguments])))


@pytest.mark.parametrize("verb", ["translate", "explore", "export"])
@pytest.mark.parametrize(
    ("name", "value"), [("model.encoder.layers.0.fc1.bias", torch.nan), ("model.shared.weight", torch.inf)]
)
def test_weights_that_are_not_finite(folder, tmp_path, capsys, verb, name, value):
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    model.get_parameter(name).data.view(-1)[3] = value
    model.save_pretrained(folder)
    capsys.readouterr()
    text = ["the cat"] if verb == "translate" else []
    assert run(verb, folder, "--output", tmp_path / "out", *text) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    message = f": error: the model's weights must be finite, but {name} contains NaN or infinity.\n"
    assert shown.err.endswith(message)
    assert not (tmp_path / "out").exists()


def test_minus_infinity_in_a_bias_excludes_a_token(folder, capsys):
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    model.lm_head.bias.data[7] = -torch.inf
    model.save_pretrained(folder)
    assert run("translate", folder, "the cat") == 0
    assert capsys.readouterr().out.count("\n") == 1


def test_a_line_above_the_limit_is_named(folder, tmp_path, capsys):
    """The limit is that of the model, if the tokenizer has none. The error names the line."""
    (tmp_path / "in.txt").write_text("the cat\n" + "a dog sees " * 20_000 + "\n")
    arguments = ["--num_beams", 1, "--input", tmp_path / "in.txt"]
    assert run("translate", folder, *arguments) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    place = f"random-transformer translate: error: {tmp_path / 'in.txt'}, line 2: "
    assert error.startswith(f"{place}texts must have at most 64 tokens (tokenizer.model_max_length")
    assert run("translate", folder, *arguments, "--max_source_tokens", 10) == 0
    assert capsys.readouterr().out.count("\n") == 2


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("case", ["text", "file", "convert", "explore", "export"])
def test_a_signal_leaves_only_the_parts_of_a_translation(case, number, status, folder, tmp_path, monkeypatch):
    """A child process sends itself the signal during its work. Only the parts of a translation are left."""
    (tmp_path / "in.txt").write_text("the cat\n" * 3)
    torch.save(checkpoint(), tmp_path / "c.pt")
    tokenizer = type(AutoTokenizer.from_pretrained(folder))
    verb, first, more, output, owner, name, calls = {
        "text": ("translate", folder, ["the cat"], "out", Seq2SeqPipeline, "_forward", 1),
        "file": (
            *("translate", folder, ["--input", tmp_path / "in.txt", "--chunk_size", 1]),
            *("out.txt", Seq2SeqPipeline, "_forward", 3),
        ),
        "convert": ("convert", tmp_path / "c.pt", [], "out", StateDictMapper, "finish", 1),
        "explore": ("explore", folder, [], "page/out.html", explore, "render", 1),
        "export": ("export", folder, [], "out", tokenizer, "save_pretrained", 1),
    }[case]
    original, left = getattr(owner, name), calls

    def stop(*args, **kwargs):
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), number)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, stop)
    before = set(tmp_path.rglob("*"))
    assert status_of_child(lambda: run(verb, first, *more, "--output", tmp_path / output)) == status
    written = {path.relative_to(tmp_path).as_posix() for path in set(tmp_path.rglob("*")) - before}
    parts = {f"out.txt.parts/{name}" for name in ("job.json", "job.lock", "00000000.txt", "00000001.txt")}
    written = {re.sub(r"(?<=\d{8})\.[0-9a-f]{8}\.txt", ".txt", name) for name in written}  # no digest of the job
    assert written == ({"out.txt.parts"} | parts if case == "file" else set())


def status_of_child(main) -> int:
    """The exit status of `main` in a child process."""
    child = os.fork()
    if child == 0:
        status = 99
        try:
            # A shell starts background processes with SIGINT ignored.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            raise_on_sigterm()
            status = main()
        except SystemExit as end:
            status = end.code
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_heat_map_labels_may_contain_dollar_signs(tmp_path):
    for tokens in (["$$", "a"], ["$\\frac$", "$x"], ["$", "$"]):
        draw_heat_map(
            torch.rand(2, 2),
            rows=tokens,
            columns=tokens,
            title="weights",
            labels=("$", "target"),
            path=tmp_path / "a.png",
        )
