"""Scripts with damaged weights, long lines and signals: exit status, one-line errors, no partial files."""

import os
import signal
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_random_transformer.commands import convert, explore, export
from modeling_random_transformer.commands import translate as translate_command
from modeling_random_transformer.commands.command_line import run_script
from modeling_random_transformer.conversion.weights import StateDictMapper
from modeling_random_transformer.pipeline_random_transformer import Seq2SeqPipeline
from tests.helpers.fairseq import checkpoint
from tests.helpers.marian import opus_folder
from tests.helpers.models import save_translator
from tutorials.report import draw_heat_map

pytestmark = pytest.mark.usefixtures("_reset_accelerate")


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "model"
    save_translator(path, lm_head_bias=True)
    return path


def commands(folder: Path, output: Path) -> dict:
    """Each script that loads a model, with its arguments."""
    engine = ["--engine", "ctranslate2", "--output", output]
    return {
        "translate": (translate_command, ["--model", folder, "--device", "cpu", "the cat"]),
        "explore": (explore, [folder, "the cat", "--output", output, "--max_new_tokens", 4]),
        "export": (export, [folder, *engine]),
    }


def run(script, arguments) -> int:
    return script.main(list(map(str, arguments)))


class TestNonFiniteWeights:
    @pytest.mark.parametrize("script", ["translate", "explore", "export"])
    @pytest.mark.parametrize(
        ("name", "value"), [("model.encoder.layers.0.fc1.bias", torch.nan), ("model.shared.weight", torch.inf)]
    )
    def test_nan_and_infinity_are_an_error(self, folder, tmp_path, capsys, script, name, value):
        model = AutoModelForSeq2SeqLM.from_pretrained(folder)
        model.get_parameter(name).data.view(-1)[3] = value
        model.save_pretrained(folder)
        module, arguments = commands(folder, tmp_path / "out")[script]
        capsys.readouterr()
        assert run(module, arguments) == 1
        shown = capsys.readouterr()
        assert shown.out == ""
        message = f": error: the model's weights must be finite, but {name} contains NaN or infinity.\n"
        assert shown.err.endswith(message)
        assert not (tmp_path / "out").exists()

    def test_minus_infinity_excludes_a_token(self, folder, capsys):
        model = AutoModelForSeq2SeqLM.from_pretrained(folder)
        model.lm_head.bias.data[7] = -torch.inf
        model.save_pretrained(folder)
        module, arguments = commands(folder, folder)["translate"]
        assert run(module, arguments) == 0
        assert capsys.readouterr().out.count("\n") == 1


class TestLongLines:
    def test_default_limit(self, folder, tmp_path, capsys):
        """The limit of the model, if the tokenizer has none. The error names the line."""
        (tmp_path / "in.txt").write_text("the cat\n" + "a dog sees " * 20_000 + "\n")
        arguments = ["--model", folder, "--device", "cpu", "--num_beams", 1, "--input", tmp_path / "in.txt"]
        assert run(translate_command, arguments) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        place = f"random-transformer translate: error: {tmp_path / 'in.txt'}, line 2: "
        assert error.startswith(f"{place}texts must have at most 64 tokens (tokenizer.model_max_length")
        assert run(translate_command, [*arguments, "--max_source_tokens", 10]) == 0
        assert capsys.readouterr().out.count("\n") == 2

    def test_limit_of_the_tokenizer_has_priority(self, folder, capsys):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.model_max_length = 5
        tokenizer.save_pretrained(folder)
        assert run(translate_command, ["--model", folder, "--device", "cpu", "a dog " * 9]) == 2
        assert "at most 5 tokens" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["[1]", "{", '{"lines": "many"}'])
def test_damaged_manifest_is_a_one_line_error(folder, tmp_path, capsys, content):
    (tmp_path / "in.txt").write_text("the cat\n")
    (tmp_path / "out.txt.parts").mkdir()
    (tmp_path / "out.txt.parts" / "manifest.json").write_text(content)
    files = ["--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt"]
    capsys.readouterr()
    assert run(translate_command, ["--model", folder, "--device", "cpu", *files]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1
    assert "manifest.json" in errors[0]


class TestSignals:
    """A child process sends itself the signal during its work."""

    @pytest.fixture(params=[(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"])
    def stopped(self, request, tmp_path, monkeypatch):
        """Run a script until the `calls`-th call of `owner.name`; returns the additional files."""
        number, status = request.param

        def stopped(script, arguments, owner, name, calls=1):
            original, left = getattr(owner, name), calls

            def stop(*args, **kwargs):
                nonlocal left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), number)
                return original(*args, **kwargs)

            monkeypatch.setattr(owner, name, stop)
            before = set(tmp_path.rglob("*"))
            assert status_of_child(lambda: run(script, arguments)) == status
            return {path.relative_to(tmp_path).as_posix() for path in set(tmp_path.rglob("*")) - before}

        return stopped

    def test_translate_in_a_single_pass(self, stopped, folder, tmp_path):
        arguments = ["--model", folder, "--device", "cpu", "--output", tmp_path / "out.txt", "the cat"]
        assert not stopped(translate_command, arguments, Seq2SeqPipeline, "_forward")

    def test_translate_in_parts(self, stopped, folder, tmp_path):
        (tmp_path / "in.txt").write_text("the cat\n" * 3)
        files = ["--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt"]
        arguments = ["--model", folder, "--device", "cpu", *files, "--chunk_size", 1]
        left = stopped(translate_command, arguments, Seq2SeqPipeline, "_forward", calls=3)
        parts = {f"out.txt.parts/{name}" for name in ("job.json", "job.lock", "00000000.txt", "00000001.txt")}
        assert left == {"out.txt.parts"} | parts

    def test_convert_fairseq(self, stopped, tmp_path):
        torch.save(checkpoint(), tmp_path / "c.pt")
        assert not stopped(
            convert, ["fairseq", tmp_path / "c.pt", "--output", tmp_path / "out"], StateDictMapper, "finish"
        )

    def test_convert_marian(self, stopped, tmp_path):
        opus_folder(tmp_path / "opus")
        assert not stopped(
            convert, ["marian", tmp_path / "opus", "--output", tmp_path / "out"], StateDictMapper, "finish"
        )

    @pytest.mark.filterwarnings("ignore:enable_nested_tensor")
    def test_convert_torch_transformer(self, stopped, tmp_path):
        transformer = nn.Transformer(16, 2, 1, 1, 24)
        embedding = nn.Embedding(9, 16)
        modules = nn.ModuleDict({"transformer": transformer, "embedding": embedding})
        torch.save(modules.state_dict(), tmp_path / "c.pt")
        arguments = [
            "torch",
            tmp_path / "c.pt",
            "--output",
            tmp_path / "out",
            "--num_heads",
            2,
            "--prefix",
            "transformer.",
        ]
        arguments += ["--embedding", "embedding.weight"]
        assert not stopped(convert, arguments, StateDictMapper, "finish")

    def test_explorer(self, stopped, folder, tmp_path):
        assert not stopped(*commands(folder, tmp_path / "page" / "out.html")["explore"], explore, "render")

    def test_export(self, stopped, folder, tmp_path):
        """The signal arrives before the tokenizer is written."""
        tokenizer = type(AutoTokenizer.from_pretrained(folder))
        script, arguments = commands(folder, tmp_path / "out")["export"]
        assert not stopped(script, arguments, tokenizer, "save_pretrained")


def status_of_child(main) -> int:
    """The exit status of `run_script(main)` in a child process."""
    child = os.fork()
    if child == 0:
        status = 99
        try:
            # A shell starts background processes with SIGINT ignored.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            run_script(main)
        except SystemExit as end:
            status = end.code
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_heat_map_labels_may_contain_dollar_signs(tmp_path):
    for tokens in (["$$", "a"], ["$\\frac$", "$x"], ["$", "$"]):
        draw_heat_map(torch.rand(2, 2), rows=tokens, columns=tokens, title="weights", path=tmp_path / "a.png")
