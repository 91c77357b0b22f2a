"""Marian's models with unsupported options, other weights or damaged files: each raises a one-line error."""

import zipfile

import numpy as np
import pytest

from modeling_random_transformer.extras.conversion import from_marian_npz
from tests.helpers.conversion import check_conversion_error
from tests.helpers.marian_npz import UNTIED, options, random_weights, save_npz, write_npz

OLD_PRE_NORM = {"transformer-preprocess": "n", "transformer-postprocess": "da"}
NORMS = "^transformer-preprocess and transformer-postprocess must be '' and 'dan'"


def check_error(path, message):
    check_conversion_error(message, path.parent, from_marian_npz, path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"type": "s2s"}, "^type must be 'transformer', got 's2s'"),
        ({"transformer-decoder-autoreg": "rnn"}, "^transformer-decoder-autoreg must be 'self-attention', got 'rnn'"),
        ({"transformer-ffn-activation": "tanh"}, "^transformer-ffn-activation must be one of .*, got 'tanh'"),
        ({"transformer-no-projection": True}, "^transformer-no-projection must be False, got True"),
        ({"transformer-decoder-dim-ffn": 8}, "^transformer-decoder-dim-ffn must be transformer-dim-ffn=24, got 8"),
        # A factored vocabulary has tokens of several rows.
        ({"dim-vocabs": [400, 400]}, r"^dim-vocabs must be the rows of the embeddings, \[23, 23\], got \[400, 400\]"),
        ({"dim-vocabs": 23}, r"^dim-vocabs must be the rows of the embeddings, \[23, 23\], got 23"),
        ({"input-types": ["sequence", "class"]}, "^input-types must be 'sequence' for each input"),
        ({"transformer-postprocess-emb": "nd"}, "^transformer-postprocess-emb must be 'd' or '', got 'nd'"),
        ({"transformer-postprocess-top": "an"}, "^transformer-postprocess-top must be '' or 'n', got 'an'"),
        ({"transformer-postprocess": "dar"}, f"{NORMS}.*, got '' and 'dar'"),
        ({"transformer-preprocess": "n"}, f"{NORMS}.*, got 'n' and 'dan'"),
        ({"transformer-preprocess": 3}, "^transformer-preprocess must be a string of operations, got 3"),
        ({"tied-embeddings-all": "yes please"}, "^tied-embeddings-all must be True or False, got 'yes please'"),
        ({"transformer-dropout": 1.5}, "^transformer-dropout must be a rate of at least 0 and below 1, got 1.5"),
        ({"transformer-heads": 3}, "num_heads"),
        ({"transformer-train-position-embeddings": True}, "'Wpos', which is missing"),
        ({**UNTIED, "tied-embeddings-src": True}, "'decoder_ff_logit_out_Wt', which is missing"),
        # Marian did not normalize keys and values of the self-attention before it had this option.
        (
            OLD_PRE_NORM,
            "^transformer-postprocess-top must be stored with transformer-preprocess='n', but it is missing",
        ),
    ],
    ids=str,
)
def test_unsupported_option_is_named(changes, message, tmp_path):
    check_error(write_npz(tmp_path / "model.npz", random_weights(options()), options(**changes)), message)


def removed(name):
    return lambda weights: weights.pop(name)


def added(name, *shape):
    return lambda weights: weights.update({name: np.ones(shape, np.float32)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (removed("encoder_l2_ffn_b1"), r"model\.npz must contain the weight 'encoder_l2_ffn_b1', which is missing"),
        (removed("Wemb"), "'Wemb', which is missing"),
        (added("encoder_l3_self_Wq", 16, 16), "without a counterpart in this model, got encoder_l3_self_Wq"),
        (added("encoder_l1_ffn_W1", 16, 20), r"encoder_l1_ffn_W1 of .* must have the shape of .*, got \[20, 16\]"),
        (added("decoder_ff_logit_out_b", 1, 3), "decoder_ff_logit_out_b of .* must have as many rows"),
        (lambda w: w.update(Wemb=w["Wemb"].astype(np.int8)), "Wemb of .* must be an array of floats, .*, got int8"),
        (lambda w: w.update(Wemb=w["Wemb"].astype(np.longdouble)), "Wemb of .* must be an array of floats"),
    ],
)
def test_weights_that_do_not_match_are_named(change, message, tmp_path):
    weights = random_weights(options())
    change(weights)
    check_error(write_npz(tmp_path / "model.npz", weights, options()), message)


def test_a_path_without_one_model_is_an_error(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"x")
    (tmp_path / "model.npz.optimizer.npz").write_bytes(b"x")
    message = r"must be or contain one .npz file of Marian \(\.bin files, which are packed .*\), got none"
    for path in (tmp_path / "missing.npz", tmp_path / "model.bin", tmp_path):
        check_error(path, message)
    for name in ("a.npz", "b.npz"):
        save_npz(tmp_path / name)
    check_error(tmp_path, r"must be or contain one .npz file of Marian .*, got a\.npz, b\.npz")


def test_options_in_the_file(tmp_path):
    weights, path = random_weights(options()), tmp_path / "model.npz"
    message = r"model\.npz must contain the model's options as special:model\.yml, or model\.npz\.yml must exist"
    check_error(write_npz(path, weights, None), message)
    weights["special:model.yml"] = np.frombuffer(b"[1, 2\0", np.int8)
    check_error(
        write_npz(path, weights, None), r"special:model\.yml of .* must contain options in YAML, got an error: "
    )


def npy_header(shape, descr="<f4"):
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


@pytest.mark.parametrize(
    "array",
    [
        npy_header((2**40, 2**10)) + bytes(8),  # a size that the data does not have
        npy_header((2, 2), "|O") + bytes(32),
        npy_header((2,)) + bytes(7),
        b"\x93NUMPY\x09\x00" + bytes(100),
        b"text",
        b"",
    ],
    ids=["size", "objects", "bytes", "version", "text", "empty"],
)
def test_damaged_array(array, tmp_path):
    path = save_npz(tmp_path / "model.npz")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("extra.npy", array)
    check_error(path, "must be a complete .npz file, but it cannot be read")
