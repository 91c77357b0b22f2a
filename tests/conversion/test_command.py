"""The command line of the conversion."""

import pytest
import torch
from torch import nn
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_random_transformer.commands import convert as command
from tests.helpers.fairseq import folder_with_two_dictionaries
from tests.helpers.marian import tiny_marian
from tests.helpers.marian_npz import opus_folder as opus_npz_folder

TORCH = ["--num_heads", "2", "--embedding", "source.weight"]


def convert(*arguments) -> int:
    return command.main(list(map(str, arguments)))


class Tutorial(nn.Module):
    """A model with the module names of PyTorch's translation tutorial."""

    def __init__(self):
        super().__init__()
        self.transformer = nn.Transformer(d_model=16, nhead=8, num_encoder_layers=1, num_decoder_layers=1)
        self.generator = nn.Linear(16, 23)
        self.src_tok_emb, self.tgt_tok_emb = nn.Module(), nn.Module()
        self.src_tok_emb.embedding, self.tgt_tok_emb.embedding = nn.Embedding(31, 16), nn.Embedding(23, 16)
        self.positional_encoding = nn.Module()
        self.positional_encoding.register_buffer("pos_embedding", torch.randn(50, 1, 16))


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_torch_by_the_command_in_the_help(tmp_path, capsys):
    lines = command.TORCH_HELP.split("random-transformer convert torch ")[1].split("\n\n")[0]
    _, _, _, *flags = lines.replace("\\", "").split()
    torch.save(Tutorial().state_dict(), tmp_path / "model.pt")
    options = ["--norm_first", "--activation", "gelu", "--layer_norm_eps", 0.01]
    assert convert("torch", tmp_path / "model.pt", "--output", tmp_path / "out", *flags, *options) == 0
    assert "  positions -> model.encoder.embed_positions.weight [50, 16] (copied)\n" in capsys.readouterr().out
    config = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").config
    assert (config.position_embedding, config.pad_token_id, config.decoder_start_token_id) == ("learned", 1, 2)
    assert (config.norm_order, config.activation_function, config.layer_norm_eps) == ("pre", "gelu", 0.01)


def test_marian(tmp_path, capsys):
    tiny_marian().save_pretrained(tmp_path / "opus")
    assert convert("marian", tmp_path / "opus", "--output", tmp_path / "out") == 0
    assert "final_logits_bias -> lm_head.bias [61] (copied)" in capsys.readouterr().out
    AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")


def test_fairseq(tmp_path, capsys):
    files = folder_with_two_dictionaries(tmp_path)
    flags = [part for name in ("source_dict", "target_dict") for part in (f"--{name}", files[name])]
    assert convert("fairseq", files["checkpoint"], "--output", tmp_path / "out", *flags, "--num_heads", 2) == 0
    assert "note: fairseq's sinusoids differ" in capsys.readouterr().out
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("s1")["input_ids"] == [5, 2]


def test_marian_npz(tmp_path, capsys):
    folder = tmp_path / "opus"
    opus_npz_folder(folder, separate_vocabs=True)
    (folder / "decoder.yml").unlink()
    vocabs = [folder / f"opus.spm32k-spm32k.{name}.vocab.yml" for name in ("src", "trg")]
    spm = [folder / f"{name}.spm" for name in ("source", "target")]
    assert convert("marian-npz", folder, "--output", tmp_path / "out", "--vocabs", *vocabs, "--spm", *spm) == 0
    assert "encoder_l1_self_Wo_ln_scale -> " in capsys.readouterr().out
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("the")["input_ids"][-1] == 0


@pytest.mark.parametrize("name", command.FORMATS)
def test_missing_checkpoint_is_one_line_error(name, tmp_path, capsys):
    extra = TORCH if name == "torch" else []
    assert convert(name, tmp_path / "missing", "--output", tmp_path / "out", *extra) == 2
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1
    assert shown.err.startswith(f"random-transformer convert {name}: error: ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "status", "out", "err"),
    [
        (["fairseq", "--help"], 0, "usage: random-transformer convert fairseq ", ""),
        (["t5", "x"], 2, "", "random-transformer convert: error: argument FORMAT: invalid choice: 't5'"),
    ],
)
def test_usage(arguments, status, out, err, capsys):
    with pytest.raises(SystemExit) as end:
        command.main(arguments)
    shown = capsys.readouterr()
    assert (end.value.code, shown.out[: len(out)], shown.err[: len(err)]) == (status, out, err)
