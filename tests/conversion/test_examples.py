"""The three example scripts, from a file or a folder to one that translate.py's Auto classes load."""

import convert_fairseq
import convert_marian
import convert_torch_transformer
import pytest
import torch
from test_fairseq import write_dictionary
from test_marian import marian
from test_torch_transformer import TARGETS, TOKENS, Original
from torch import nn
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from tests.helpers.fairseq import SOURCE_TOKENS, checkpoint

TORCH = ["--num_heads", "2", "--prefix", "transformer.", "--embedding", "source.weight", "target.weight"]
TORCH += ["--output_layer", "output", "--scale_embedding"]


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch):
    """So that no name is broken into two lines."""
    monkeypatch.setenv("COLUMNS", "300")


def test_marian(tmp_path, capsys):
    marian().save_pretrained(tmp_path / "opus")
    assert convert_marian.main([str(tmp_path / "opus"), "--output", str(tmp_path / "out")]) == 0
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
def test_torch_transformer(positions, options, flags, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # a narrower table breaks long names into lines
    original = Original(positions=positions, **options)
    torch.save(original.state_dict(), tmp_path / "model.pt")
    flags = [*flags, "--positions", positions, *([] if positions == "table" else ["--ignore", "table"])]
    command = [str(tmp_path / "model.pt"), "--output", str(tmp_path / "out"), *TORCH, *flags, "--eos_token_id", "3"]
    assert convert_torch_transformer.main(command) == 0
    assert "in_proj_weight" in capsys.readouterr().out
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    assert model.config.eos_token_id == 3
    assert model.config.vocab_size == max(TOKENS, TARGETS)


class Tutorial(nn.Module):
    """The modules of PyTorch's tutorial on translation, by their names there."""

    def __init__(self):
        super().__init__()
        self.transformer = nn.Transformer(d_model=16, nhead=8, num_encoder_layers=3, num_decoder_layers=3)
        self.generator = nn.Linear(16, 23)
        self.src_tok_emb, self.tgt_tok_emb = nn.Module(), nn.Module()
        self.src_tok_emb.embedding, self.tgt_tok_emb.embedding = nn.Embedding(31, 16), nn.Embedding(23, 16)
        self.positional_encoding = nn.Module()
        self.positional_encoding.register_buffer("pos_embedding", torch.randn(50, 1, 16))


@pytest.mark.filterwarnings("ignore:enable_nested_tensor", "ignore:The PyTorch API of nested")
def test_the_command_in_the_description(tmp_path, capsys):
    lines = convert_torch_transformer.__doc__.split("python examples/convert_torch_transformer.py ")[1].split("\n\n")[0]
    command = lines.replace("\\", "").split()
    torch.save(Tutorial().state_dict(), tmp_path / "model.pt")
    command[0], command[command.index("--output") + 1] = str(tmp_path / "model.pt"), str(tmp_path / "out")
    assert convert_torch_transformer.main(command) == 0
    assert "positions" in capsys.readouterr().out
    config = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").config
    assert (config.position_embedding, config.pad_token_id, config.decoder_start_token_id) == ("learned", 1, 2)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor", "ignore:The PyTorch API of nested")
def test_a_difference_is_reported(tmp_path, capsys, monkeypatch):
    """A model that was spoilt on the way is noticed, as the check compares with the checkpoint itself."""
    torch.save(Original(positions="none").state_dict(), tmp_path / "model.pt")
    load = AutoModelForSeq2SeqLM.from_pretrained

    def spoilt(*args, **kwargs):
        model = load(*args, **kwargs)
        torch.nn.init.ones_(model.lm_head.bias)
        return model

    monkeypatch.setattr(convert_torch_transformer.AutoModelForSeq2SeqLM, "from_pretrained", spoilt)
    command = [str(tmp_path / "model.pt"), "--output", str(tmp_path / "out"), *TORCH, "--ignore", "table"]
    assert convert_torch_transformer.main(command) == 1
    assert "Largest difference" in capsys.readouterr().out


def test_fairseq(tmp_path, capsys):
    torch.save(checkpoint(share_all_embeddings=True), tmp_path / "c.pt")
    write_dictionary(tmp_path / "dict.txt", [f"w{i}" for i in range(SOURCE_TOKENS - 4)])
    command = [str(tmp_path / "c.pt"), "--output", str(tmp_path / "out"), "--source_dict", str(tmp_path / "dict.txt")]
    assert convert_fairseq.main(command) == 0
    assert "fairseq's sinusoids" in " ".join(capsys.readouterr().out.split())
    batch = AutoTokenizer.from_pretrained(tmp_path / "out")("w1 w2", return_tensors="pt")
    AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").generate(**batch, max_new_tokens=3)


@pytest.mark.parametrize("script", [convert_marian, convert_torch_transformer, convert_fairseq])
def test_bad_input_is_one_sentence(script, tmp_path, capsys):
    extra = TORCH if script is convert_torch_transformer else []
    assert script.main([str(tmp_path / "missing"), "--output", str(tmp_path / "out"), *extra]) == 2
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1
    assert shown.err.startswith(f"{script.__name__}.py: error: ")
    assert not list(tmp_path.iterdir())
