"""Conversion of `nn.Transformer` with its embeddings, compared with the original."""

import copy

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from transformers import AutoModelForSeq2SeqLM

from modeling_random_transformer.extras.conversion import (
    convert_torch_transformer,
    from_torch_transformer,
)
from modeling_random_transformer.modeling_random_transformer import sinusoids
from tests.helpers.conversion import assert_same, check_conversion_error
from tests.helpers.torch_transformer import TARGETS, TOKENS, WIDTH, Original

# Warnings of nn.Transformer about its fast path.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{text}") for text in ("enable_nested_tensor", "The PyTorch API of nes")
]
CASES = {
    "default": {},
    "pre-norm": {"norm_first": True},
    "gelu": {"activation": "gelu", "nhead": 4},
    "without biases": {"bias": False, "norm_first": True},
    "without biases, post-norm": {"bias": False, "layer_norm_eps": 1e-3},
    "large eps": {"layer_norm_eps": 1e-2, "num_encoder_layers": 3, "num_decoder_layers": 1},
}


def check_same(original: Original, model: nn.Module, search: bool = False) -> None:
    sizes = original.source.num_embeddings, original.target.num_embeddings
    assert_same(model, original, sizes, pad=0, search=search)


@pytest.mark.parametrize(
    ("case", "options"),
    [*((case, None) for case in CASES), ("without biases, post-norm", {"num_heads": 2, "layer_norm_eps": 1e-3})],
)
def test_logits_and_search_equal_original(case, options):
    """Of the module, or of its state dict with the given options."""
    original = Original(**CASES[case])
    module = original.transformer
    model, report = from_torch_transformer(
        module if options is None else module.state_dict(),
        (original.source, original.target),
        original.output,
        positions=original.table,
        scale_embedding=True,
        **(options or {}),
    )
    check_same(original, model, search=case == "default")
    assert {m.target for m in report.mapped} | set(report.defaults) == {name for name, _ in model.named_parameters()}
    assert set(module.state_dict()) <= {m.source for m in report.mapped}
    assert bool(report.defaults) == ("bias" in CASES[case])
    assert model.config.dropout == model.config.attention_dropout == 0.1


@pytest.mark.parametrize(
    ("tokens", "output"),
    [
        ((TOKENS,), "tied"),
        ((TOKENS, TOKENS), "bias"),
        ((TARGETS, TOKENS), "plain"),
        ((TARGETS, TOKENS), "tied"),
        ((TOKENS, TARGETS), "tied"),
    ],
)
def test_embeddings_and_output(tokens, output):
    original = Original(tokens, output=output, positions="none", scale=False)
    embedding = original.source if len(tokens) == 1 else (original.source.weight, original.target.weight)
    model, _ = from_torch_transformer(original.transformer, embedding, None if output == "tied" else original.output)
    assert model.config.tie_word_embeddings == (output == "tied")
    assert model.config.share_embeddings == (len(tokens) == 1)
    assert model.config.vocab_size == TOKENS
    check_same(original, model)


@pytest.mark.parametrize("positions", ["none", "sinusoidal", "concatenated", "tables"])
def test_positions(positions):
    """Tables of sinusoids are recognized."""
    is_table = positions == "tables"
    original = Original((TOKENS,), positions="sinusoidal" if is_table else positions)
    tables = tuple(sinusoids(torch.arange(length), WIDTH)[:, None] for length in (30, 40)) if is_table else positions
    arguments = (original.transformer, original.source, original.output)
    model, report = from_torch_transformer(*arguments, positions=tables, scale_embedding=True)
    assert model.config.position_embedding == ("none" if positions == "none" else "sinusoidal")
    assert set(report.unused) == ({"source_positions", "target_positions"} if is_table else set())
    check_same(original, model)


def test_custom_stacks_without_final_norms():
    original = Original((TOKENS,))
    original.transformer.encoder.norm = original.transformer.decoder.norm = None
    arguments = (original.source, original.output)
    options = {"positions": original.table, "scale_embedding": True}
    model, _ = from_torch_transformer(original.transformer, *arguments, **options)
    assert not model.config.final_layer_norm
    check_same(original, model)
    original.transformer.decoder.norm = nn.LayerNorm(WIDTH)
    with pytest.raises(ValueError, match=r"encoder\.norm and decoder\.norm"):
        from_torch_transformer(original.transformer, *arguments, **options)


def test_weights_are_copied():
    """Those of two dtypes become the wider one, so that none is rounded."""
    original = Original((TOKENS,))
    original.source.bfloat16()
    model, report = from_torch_transformer(original.transformer, original.source, original.output)
    assert model.dtype == torch.float32
    assert torch.equal(model.model.encoder.layers[0].fc1.weight, original.transformer.encoder.layers[0].linear1.weight)
    assert any("became torch.float32, without rounding" in note for note in report.notes)
    before = copy.deepcopy(original.state_dict())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert all(torch.equal(before[name], weight) for name, weight in original.state_dict().items())


def change(path: str, **attributes):
    def changed(transformer):
        module = transformer.get_submodule(path)
        for name, value in attributes.items():
            setattr(module, name, value)

    return changed


def custom(module_class: type) -> type:
    """A subclass with a possibly different computation."""
    return type(f"Custom{module_class.__name__}", (module_class,), {})


CustomLinear, CustomEmbedding = custom(nn.Linear), custom(nn.Embedding)


def remove_weights_of_final_norms(transformer):
    """The state dict is then that of a model without final norms."""
    for stack in (transformer.encoder, transformer.decoder):
        stack.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (change("encoder.layers.1", linear2=CustomLinear(24, WIDTH)), r"layers\.1\.linear2 must be .* CustomLinear"),
        (change("decoder.layers.1", norm2=nn.RMSNorm(WIDTH)), "norm2 must be of a class of nn.* RMSNorm"),
        (change("encoder.layers.0.self_attn", out_proj=CustomLinear(WIDTH, WIDTH)), "out_proj .*CustomLinear"),
        (change("encoder.layers.1", activation=torch.tanh), "activation must be relu or gelu"),
        (change("encoder.layers.1", norm_first=True), "norm_first"),
        (change("encoder.layers.0.self_attn", add_zero_attn=True), "add_zero_attn"),
        (change("encoder.norm", eps=0.5), "layer_norm_eps"),
        (remove_weights_of_final_norms, "elementwise_affine"),
        (lambda t: t.encoder.register_forward_hook(print), "encoder must have no forward hooks"),
        (change("encoder.layers.1", _ff_block=torch.relu), r"encoder\.layers\.1 must .* got another _ff_block"),
        (change("decoder.layers.0.multihead_attn", num_heads=4), "num_heads"),
        (lambda t: setattr(t, "encoder", nn.Identity()), "transformer.encoder must be .*Identity"),
        (lambda t: t.register_parameter("gate", nn.Parameter(torch.ones(1))), "got gate"),
        (lambda t: t.encoder.layers.__setitem__(1, nn.TransformerEncoderLayer(WIDTH, 2, 32)), r"layers\.1\.linear1"),
        (lambda t: setattr(t.decoder, "layers", t.decoder.layers[:0]), r"under 'decoder\.layers\.', got none"),
    ],
)
def test_unsupported_module_is_named(changed, message):
    original = Original((TOKENS,))
    changed(original.transformer)
    with pytest.raises(ValueError, match=f"^[^\n]*(?:{message})[^\n]*$"):
        from_torch_transformer(original.transformer, original.source, original.output)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 4}, "num_heads must equal that of the module, 2"),
        ({"positions": "rotary"}, "positions"),
        ({"positions": torch.ones(3, 4, 16)}, "3 dimensions|2 dimensions"),
        ({"embedding": nn.Embedding(TOKENS, 8)}, "embedding of nn.Transformer must have the shape"),
        ({"output": nn.Linear(WIDTH, 5)}, "as many rows"),
        ({"output": CustomLinear(WIDTH, TOKENS)}, "output must be a tensor, .* or an nn.Linear .*CustomLinear"),
        ({"embedding": CustomEmbedding(TOKENS, WIDTH)}, "embedding must be a tensor.* got CustomEmbedding"),
        ({"embedding": nn.Linear(WIDTH, TOKENS)}, r"an nn.Linear \(of an embedding, without a bias\)"),
        ({"embedding": nn.Embedding(TOKENS, WIDTH, max_norm=1.0)}, "max_norm of embedding must be None, got 1.0"),
        ({"pad_token": 1}, "'pad_token'"),
        ({"pad_token_id": 99}, "pad_token_id"),
    ],
)
def test_invalid_argument_is_named(options, message):
    original = Original((TOKENS,))
    arguments = {"embedding": original.source, "output": original.output, **options}
    with pytest.raises(ValueError, match=message):
        from_torch_transformer(original.transformer, **arguments)


def test_state_dict_requires_num_heads():
    original = Original((TOKENS,))
    with pytest.raises(ValueError, match=r"num_heads must be an integer from 1 to .*, got None"):
        from_torch_transformer(original.transformer.state_dict(), original.source)
    with pytest.raises(ValueError, match="of transformer must be a state dict of named tensors"):
        from_torch_transformer({3: torch.ones(2)}, original.source, num_heads=1)
    weights = original.transformer.state_dict() | {"encoder.layers.0.self_attn.in_proj_bias": torch.ones(4)}
    with pytest.raises(ValueError, match=r"in_proj_bias of .* must have a multiple of 3 rows, got \[4\]"):
        from_torch_transformer(weights, original.source, num_heads=2)


NAMES = {"embedding": ["source.weight", "target.weight"], "output_layer": "output", "positions": ["table"]}
NAMES |= {"prefix": "transformer.", "num_heads": 2, "scale_embedding": True}


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_convert_file(suffix, tmp_path):
    original = Original()
    path = tmp_path / f"weights{suffix}"
    weights = {name: weight.contiguous() for name, weight in original.state_dict().items()}
    if suffix == ".pt":
        torch.save({"epoch": 3, "state": {**weights, "extra": torch.ones(2)}}, path)
        report = convert_torch_transformer(path, tmp_path / "out", key="state", ignore=["extra"], **NAMES)
        assert report.unused["extra"] == "ignored on request"
    else:
        save_file(weights, path)
        report = convert_torch_transformer(path, tmp_path / "out", **NAMES)
    check_same(original, AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": "state"}, "'state' of .* must be a state dict"),
        ({"embedding": ["missing.weight"]}, "'missing.weight'"),
        ({"embedding": []}, "must have all other weights under 'transformer.', got source.weight"),
        ({"output_layer": "head"}, r"'head\.weight'"),
        ({"ignore": ["transformer.encoder.layers.1.linear1.weight"]}, r"'encoder\.layers\.1\.linear1\.weight'"),
    ],
)
def test_invalid_description_writes_nothing(change, message, tmp_path):
    path = tmp_path / "weights.pt"
    torch.save(Original().state_dict(), path)
    check_conversion_error(message, tmp_path, convert_torch_transformer, path, tmp_path / "out", **{**NAMES, **change})
