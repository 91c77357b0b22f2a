"""Equality with independent implementations on the same weights: torch.nn.Transformer and MarianMT."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import MarianConfig, MarianMTModel

from modeling_random_transformer import RandomTransformerForConditionalGeneration
from tests.helpers.models import exact_model, padded_batch, random_ids, tiny_model

TOLERANCE = {"rtol": 1e-9, "atol": 1e-9}  # in float64


def copy_attention(ours: nn.Module, theirs: nn.MultiheadAttention) -> None:
    projections = (ours.q_proj, ours.k_proj, ours.v_proj)
    theirs.in_proj_weight.copy_(torch.cat([p.weight for p in projections]))
    theirs.in_proj_bias.copy_(torch.cat([p.bias for p in projections]))
    theirs.out_proj.load_state_dict(ours.out_proj.state_dict())


def copy_block(ours: nn.Module, theirs: nn.Module) -> None:
    copy_attention(ours.self_attn, theirs.self_attn)
    norms = [ours.self_attn_layer_norm, ours.final_layer_norm]
    if hasattr(ours, "encoder_attn"):
        copy_attention(ours.encoder_attn, theirs.multihead_attn)
        norms.insert(1, ours.encoder_attn_layer_norm)
    for number, norm in enumerate(norms, start=1):
        getattr(theirs, f"norm{number}").load_state_dict(norm.state_dict())
    theirs.linear1.load_state_dict(ours.fc1.state_dict())
    theirs.linear2.load_state_dict(ours.fc2.state_dict())


@torch.no_grad()
def torch_transformer(model: RandomTransformerForConditionalGeneration) -> nn.Transformer:
    """torch.nn.Transformer with our weights. Its final norms exist with pre-norm only, like ours."""
    config = model.config
    options = {
        "d_model": config.d_model,
        "nhead": config.num_heads,
        "dim_feedforward": config.d_ff,
        "dropout": 0.0,
        "batch_first": True,
        "norm_first": config.norm_order == "pre",
        "layer_norm_eps": config.layer_norm_eps,
    }
    final_norms = [nn.LayerNorm(config.d_model, config.layer_norm_eps) if config.final_layer_norm else None] * 2
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(**options), config.encoder_layers, final_norms[0], enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**options), config.decoder_layers, final_norms[1])
    reference = nn.Transformer(
        custom_encoder=encoder, custom_decoder=decoder, batch_first=True, d_model=config.d_model, nhead=config.num_heads
    )  # draws new weights, so ours are copied into it afterwards
    for ours, theirs in ((model.model.encoder, encoder), (model.model.decoder, decoder)):
        for block, their_block in zip(ours.layers, theirs.layers, strict=True):
            copy_block(block, their_block)
        if config.final_layer_norm:
            theirs.norm.load_state_dict(ours.layer_norm.state_dict())
    return reference.double().eval()


@given(
    norm_order=st.sampled_from(["post", "pre"]),
    attn=st.sampled_from(["eager", "sdpa"]),
    num_heads=st.sampled_from([1, 2, 4]),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    target_len=st.integers(1, 7),
    seed=st.integers(0, 99),
)
def test_equals_torch_transformer(norm_order, attn, num_heads, lengths, target_len, seed):
    model = exact_model(seed, norm_order=norm_order, num_heads=num_heads, attn_implementation=attn)
    source = padded_batch(lengths, seed)
    target = random_ids(len(lengths), target_len, seed + 1)
    target_mask = torch.ones_like(target)
    target_mask[0, target_len // 2 + 1 :] = 0  # padding at the end of the first target
    reference = torch_transformer(model)
    with torch.no_grad():
        ours = model(**source, decoder_input_ids=target, decoder_attention_mask=target_mask).logits
        states = reference(
            embedded(model.model.encoder, source["input_ids"]),
            embedded(model.model.decoder, target),
            src_key_padding_mask=source["attention_mask"] == 0,
            memory_key_padding_mask=source["attention_mask"] == 0,
            tgt_key_padding_mask=target_mask == 0,
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(target_len) < 0,
        )
        theirs = model.lm_head(states)
    seen = target_mask.bool()
    torch.testing.assert_close(ours[seen], theirs[seen], **TOLERANCE)


def embedded(stack: nn.Module, ids: Tensor) -> Tensor:
    return stack.embed(ids, torch.arange(ids.shape[1]), longest=ids.shape[1])


def marian_model(seed: int, num_heads: int, layers: tuple[int, int], activation: str, scale: bool) -> MarianMTModel:
    torch.manual_seed(seed)
    model = MarianMTModel(
        MarianConfig(
            vocab_size=61,
            d_model=16,
            encoder_layers=layers[0],
            decoder_layers=layers[1],
            encoder_attention_heads=num_heads,
            decoder_attention_heads=num_heads,
            encoder_ffn_dim=24,
            decoder_ffn_dim=24,
            activation_function=activation,
            scale_embedding=scale,
            dropout=0.0,
            init_std=0.3,  # wide, so that logits differ clearly
            max_position_embeddings=64,
            pad_token_id=0,
            eos_token_id=2,
            decoder_start_token_id=0,
            forced_eos_token_id=None,
        )
    ).eval()
    model.final_logits_bias.normal_()
    return model


def from_marian(marian: MarianMTModel) -> RandomTransformerForConditionalGeneration:
    theirs = marian.config
    model = tiny_model(
        encoder_layers=theirs.encoder_layers,
        decoder_layers=theirs.decoder_layers,
        num_heads=theirs.encoder_attention_heads,
        activation_function=theirs.activation_function,
        scale_embedding=theirs.scale_embedding,
        sinusoid_layout="concatenated",
        layer_norm_eps=1e-5,
        lm_head_bias=True,
        decoder_start_token_id=0,
    )
    state = {name: value for name, value in marian.state_dict().items() if "embed_positions" not in name}
    state["lm_head.bias"] = state.pop("final_logits_bias").flatten()
    model.load_state_dict(state)
    return model


@settings(max_examples=10)
@given(
    num_heads=st.sampled_from([1, 2, 4, 8]),
    layers=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    activation=st.sampled_from(["relu", "swish", "gelu"]),
    scale=st.booleans(),
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    seed=st.integers(0, 99),
)
def test_equals_marian(num_heads, layers, activation, scale, lengths, seed):
    marian = marian_model(seed, num_heads, layers, activation, scale).double()
    model = from_marian(marian).double()
    batch = padded_batch(lengths, seed)
    target = random_ids(len(lengths), 6, seed + 1)
    with torch.no_grad():
        ours = model(**batch, decoder_input_ids=target).logits
        theirs = marian(**batch, decoder_input_ids=target).logits
    torch.testing.assert_close(ours, theirs, **TOLERANCE)
    options = {"max_new_tokens": 12, "do_sample": False, "num_beams": 1}
    assert torch.equal(model.generate(**batch, **options), marian.generate(**batch, **options))


def test_compared_models_have_all_weights_in_common():
    """No weight remains random in the comparison: every name of our state dict is in Marian's."""
    names = set(marian_model(0, 2, (1, 1), "relu", True).state_dict())
    ours = set(tiny_model(encoder_layers=1, decoder_layers=1, lm_head_bias=True).state_dict())
    assert ours - names == {"lm_head.bias"}
