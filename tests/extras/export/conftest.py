"""An export to ONNX, which takes half a minute, and one to CTranslate2 beside a saved model."""

import pytest
from filelock import FileLock

from modeling_random_transformer.extras.export import export_model
from modeling_random_transformer.inference import load_translator
from tests.helpers.engines import exportable

CONFIGS = {
    "post-norm": {"norm_order": "post", "d_k": 5, "d_v": 3, "sinusoid_layout": "concatenated", "position_offset": 3},
    "pre-norm": {
        "position_embedding": "learned",
        "position_offset": 2,
        "activation_function": "gelu",
        "share_embeddings": False,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "attention_scale": 0.7,
    },
    "no positions": {"position_embedding": "none", "encoder_layers": 1, "decoder_layers": 1},
}


@pytest.fixture(
    scope="module", params=["post-norm", *(pytest.param(name, marks=pytest.mark.long) for name in [*CONFIGS][1:])]
)
def exported(request, common_folder):
    """A model, its tokenizer, the exported model and its folder, which all workers of pytest-xdist share."""
    from modeling_random_transformer.extras.export.onnx_model import OnnxModel

    options = {"encoder_layers": 1, "decoder_layers": 2, **CONFIGS[request.param]}
    model, tokenizer = exportable(seed=1, **options)
    folder = common_folder / f"onnx_{request.param}"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            export_model(model, tokenizer, folder, engine="onnx")
    return model, tokenizer, OnnxModel.load(folder), folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with a model, which is exported in float32."""
    folder = tmp_path_factory.mktemp("saved")
    for part in exportable():
        part.save_pretrained(folder)
    load_translator(folder, engine="ctranslate2", engine_dtype="float32")
    return folder
