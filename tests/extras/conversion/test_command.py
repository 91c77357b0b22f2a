"""The command line of the conversion. The conversions have tests of their own."""

from functools import wraps

import pytest
import torch
from torch import nn
from transformers import AutoModelForSeq2SeqLM

from modeling_random_transformer import cli
from modeling_random_transformer.commands import convert as command


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_torch_by_the_command_in_the_help(tmp_path, capsys):
    with pytest.raises(SystemExit):
        cli.main(["convert", "torch", "--help"])
    shown = capsys.readouterr().out
    assert shown.startswith("usage: random-transformer convert torch ")
    _, _, _, *flags = shown.split("random-transformer convert torch ")[2].split("\n\n")[0].replace("\\", "").split()
    transformer = nn.Transformer(d_model=16, nhead=8, num_encoder_layers=1, num_decoder_layers=1)
    weights = {f"transformer.{name}": weight for name, weight in transformer.state_dict().items()}
    shapes = {"src_tok_emb.embedding.weight": (31, 16), "tgt_tok_emb.embedding.weight": (23, 16)}
    shapes |= {"generator.weight": (23, 16), "generator.bias": (23,), "positional_encoding.pos_embedding": (50, 1, 16)}
    torch.save(weights | {name: torch.randn(shape) for name, shape in shapes.items()}, tmp_path / "model.pt")
    flags += ["--norm_first", "--activation", "gelu", "--layer_norm_eps", "0.01"]
    assert cli.main(["convert", "torch", str(tmp_path / "model.pt"), "--output", str(tmp_path / "out"), *flags]) == 0
    assert "  source_positions -> model.encoder.embed_positions.weight [50, 16] (copied)\n" in capsys.readouterr().out
    config = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").config
    assert (config.position_embedding, config.pad_token_id, config.decoder_start_token_id) == ("learned", 1, 2)
    assert (config.norm_order, config.activation_function, config.layer_norm_eps) == ("pre", "gelu", 0.01)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("marian opus --output o", {"folder": "opus"}),
        ("marian-npz m.npz --output o --spm a b", {"model": "m.npz", "spm": ["a", "b"]}),
        ("fairseq c.pt --output o --source_dict d", {"checkpoint": "c.pt", "source_dict": "d"}),
        ("A.TAR.GZ o --model m.pt", {"archive": "A.TAR.GZ", "model": "m.pt"}),
    ],
)
def test_arguments(line, expected, monkeypatch):
    """Those that are not given are the defaults of the function."""
    calls = []

    def recorded(function):
        return wraps(function)(lambda **keywords: calls.append(keywords))

    monkeypatch.setattr(command, "FORMATS", {name: recorded(function) for name, function in command.FORMATS.items()})
    monkeypatch.setattr(command.conversion, "convert_archive", recorded(command.conversion.convert_archive))
    assert cli.main(["convert", *line.split()]) == 0
    assert calls == [{**expected, "output": "o"}]


@pytest.mark.parametrize("name", [*command.FORMATS, "a.zip"])
def test_missing_checkpoint_is_one_line_error(name, tmp_path, capsys):
    extra = ["--num_heads", "2", "--embedding", "source.weight"] if name == "torch" else []
    files = [str(tmp_path / "a.zip"), str(tmp_path / "out")]
    arguments = files if name == "a.zip" else [name, files[0], "--output", files[1], *extra]
    assert cli.main(["convert", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1
    assert shown.err.startswith("random-transformer convert: error: ")
    assert not list(tmp_path.iterdir())
