"""The command line of the conversion and the three example scripts."""

import pytest
import torch
from torch import nn
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_random_transformer.commands import convert as command
from tests.helpers.fairseq import SOURCE_TOKENS, checkpoint, write_dictionary
from tests.helpers.marian import tiny_marian
from tests.helpers.marian_npz import opus_folder
from tests.helpers.torch_transformer import TARGETS, TOKENS, Original

TORCH = ["--num_heads", "2", "--prefix", "transformer.", "--embedding", "source.weight", "target.weight"]
TORCH += ["--output_layer", "output", "--scale_embedding"]


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch):
    """Prevent rich from wrapping names."""
    monkeypatch.setenv("COLUMNS", "300")


def test_convert_marian(tmp_path, capsys):
    tiny_marian().save_pretrained(tmp_path / "opus")
    arguments = [str(tmp_path / "opus"), "--output", str(tmp_path / "out")]
    assert command.main(["marian", *arguments]) == 0
    shown = capsys.readouterr().out
    assert "final_logits_bias" in shown
    assert "Largest difference" in shown
    AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")


@pytest.mark.parametrize(
    ("positions", "options", "flags"),
    [
        ("table", {}, []),
        ("sinusoidal", {"norm_first": True}, ["--norm_first"]),
        ("concatenated", {"activation": "gelu", "bias": False}, ["--activation", "gelu"]),
        ("none", {"layer_norm_eps": 1e-2}, ["--layer_norm_eps", "0.01"]),
    ],
)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor", "ignore:The PyTorch API of nested")
def test_convert_torch_transformer(positions, options, flags, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # a narrower table breaks long names into lines
    original = Original(positions=positions, **options)
    torch.save(original.state_dict(), tmp_path / "model.pt")
    flags = [*flags, "--positions", positions, *([] if positions == "table" else ["--ignore", "table"])]
    arguments = [str(tmp_path / "model.pt"), "--output", str(tmp_path / "out"), *TORCH, *flags, "--eos_token_id", "3"]
    assert command.main(["torch", *arguments]) == 0
    assert "in_proj_weight" in capsys.readouterr().out
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    assert model.config.eos_token_id == 3
    assert model.config.vocab_size == max(TOKENS, TARGETS)


class Tutorial(nn.Module):
    """A model with the module names of PyTorch's translation tutorial."""

    def __init__(self):
        super().__init__()
        self.transformer = nn.Transformer(d_model=16, nhead=8, num_encoder_layers=3, num_decoder_layers=3)
        self.generator = nn.Linear(16, 23)
        self.src_tok_emb, self.tgt_tok_emb = nn.Module(), nn.Module()
        self.src_tok_emb.embedding, self.tgt_tok_emb.embedding = nn.Embedding(31, 16), nn.Embedding(23, 16)
        self.positional_encoding = nn.Module()
        self.positional_encoding.register_buffer("pos_embedding", torch.randn(50, 1, 16))


@pytest.mark.filterwarnings("ignore:enable_nested_tensor", "ignore:The PyTorch API of nested")
def test_command_in_the_help_converts_tutorial_model(tmp_path, capsys):
    lines = command.TORCH_HELP.split("random-transformer convert torch ")[1].split("\n\n")[0]
    arguments = lines.replace("\\", "").split()
    torch.save(Tutorial().state_dict(), tmp_path / "model.pt")
    arguments[0], arguments[arguments.index("--output") + 1] = str(tmp_path / "model.pt"), str(tmp_path / "out")
    assert command.main(["torch", *arguments]) == 0
    assert "positions" in capsys.readouterr().out
    config = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").config
    assert (config.position_embedding, config.pad_token_id, config.decoder_start_token_id) == ("learned", 1, 2)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor", "ignore:The PyTorch API of nested")
def test_different_logits_exit_with_1(tmp_path, capsys, monkeypatch):
    """The converted folder is compared with the checkpoint itself."""
    torch.save(Original(positions="none").state_dict(), tmp_path / "model.pt")
    load = AutoModelForSeq2SeqLM.from_pretrained

    def load_changed(*args, **kwargs):
        model = load(*args, **kwargs)
        torch.nn.init.ones_(model.lm_head.bias)
        return model

    monkeypatch.setattr(command.AutoModelForSeq2SeqLM, "from_pretrained", load_changed)
    arguments = [str(tmp_path / "model.pt"), "--output", str(tmp_path / "out"), *TORCH, "--ignore", "table"]
    assert command.main(["torch", *arguments]) == 1
    assert "Largest difference" in capsys.readouterr().out


def test_convert_fairseq(tmp_path, capsys):
    torch.save(checkpoint(share_all_embeddings=True), tmp_path / "c.pt")
    write_dictionary(tmp_path / "dict.txt", [f"w{i}" for i in range(SOURCE_TOKENS - 4)])
    arguments = [str(tmp_path / "c.pt"), "--output", str(tmp_path / "out"), "--source_dict", str(tmp_path / "dict.txt")]
    assert command.main(["fairseq", *arguments]) == 0
    assert "fairseq's sinusoids" in " ".join(capsys.readouterr().out.split())
    batch = AutoTokenizer.from_pretrained(tmp_path / "out")("w1 w2", return_tensors="pt")
    AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").generate(**batch, max_new_tokens=3)


def test_convert_marian_npz(tmp_path, capsys):
    folder = tmp_path / "opus"
    opus_folder(folder, separate_vocabs=True)
    (folder / "decoder.yml").unlink()
    vocabs = [str(folder / f"opus.spm32k-spm32k.{name}.vocab.yml") for name in ("src", "trg")]
    spm = [str(folder / f"{name}.spm") for name in ("source", "target")]
    arguments = [str(folder), "--output", str(tmp_path / "out"), "--vocabs", *vocabs, "--spm", *spm]
    assert command.main(["marian-npz", *arguments]) == 0
    shown = capsys.readouterr().out
    assert "encoder_l1–2_self_Wo_ln_scale" in shown
    assert "Marian's sinusoids" in shown
    batch = AutoTokenizer.from_pretrained(tmp_path / "out")("the", return_tensors="pt")
    AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").generate(**batch, max_new_tokens=3)


@pytest.mark.parametrize("name", ["marian", "marian-npz", "torch", "fairseq"])
def test_missing_checkpoint_is_one_line_error(name, tmp_path, capsys):
    extra = TORCH if name == "torch" else []
    assert command.main([name, str(tmp_path / "missing"), "--output", str(tmp_path / "out"), *extra]) == 2
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1
    assert shown.err.startswith(f"random-transformer convert {name}: error: ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", command.FORMATS)
def test_help_of_each_format(name, capsys):
    with pytest.raises(SystemExit) as end:
        command.main([name, "--help"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: random-transformer convert {name} ")


def test_unknown_format_is_one_line_error(capsys):
    with pytest.raises(SystemExit) as end:
        command.main(["t5", "folder"])
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith(
        "random-transformer convert: error: argument FORMAT: invalid choice: 't5'"
    )
