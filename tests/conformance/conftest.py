"""Configuration of transformers' common tests."""

import os
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

# transformers reads this when its testing tools are imported. Its slow tests are fast on small models.
os.environ.setdefault("RUN_SLOW", "1")

import pytest
from transformers.models.auto import modeling_auto

# Helpers of transformers that are named like test files.
collect_ignore = ["transformers_tests"]

LIBRARY_MARKS = [
    "accelerate_tests",
    "flash_attn_test",
    "flash_attn_3_test",
    "flash_attn_4_test",
    "is_training_test",
    "torch_compile_test",
]

# The tests use these lists to decide, for example, which labels a class expects. Models outside transformers must
# register their classes.
HEADS = {
    "MODEL_MAPPING_NAMES": ("RandomTransformerModel", "RandomTransformerEncoderModel"),
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES": "RandomTransformerForConditionalGeneration",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES": "RandomTransformerForSequenceClassification",
    "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES": "RandomTransformerForTokenClassification",
    "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES": "RandomTransformerForQuestionAnswering",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES": "RandomTransformerForMaskedLM",
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": "RandomTransformerForCausalLM",
}


def pytest_configure(config):
    for mark in LIBRARY_MARKS:
        config.addinivalue_line("markers", f"{mark}: set by transformers' common tests")


# They take a minute: tests of what transformers does, not the model, and of the attention that all heads share.
LONG = ("test_bc_torch_dtype", "test_training_overfit")
LONG_OF_HEADS = "test_eager_matches_sdpa_inference"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        of_heads = item.path.name == "test_heads.py" and item.name.startswith(LONG_OF_HEADS)
        if item.path.parent == Path(__file__).parent and (item.name in LONG or of_heads):
            item.add_marker("long")


@pytest.fixture(autouse=True)
def heads_known_by_name():
    with ExitStack() as stack:
        for mapping, head in HEADS.items():
            stack.enter_context(patch.dict(getattr(modeling_auto, mapping), {"random_transformer": head}))
        yield
