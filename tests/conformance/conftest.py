"""Sets the stage for transformers' own common tests: its marks, and the names by which it knows a model's heads."""

from contextlib import ExitStack
from unittest.mock import patch

import pytest
from transformers.models.auto import modeling_auto

# Modules of helpers that are named like transformers' test files, for transformers' test files to import.
collect_ignore = ["transformers_tests"]

LIBRARY_MARKS = [
    "accelerate_tests",
    "flash_attn_test",
    "flash_attn_3_test",
    "flash_attn_4_test",
    "is_fsdp_test",
    "is_tensor_parallel_test",
    "is_training_test",
    "torch_compile_test",
]

# The common tests tell by these lists which class takes labels, and of what shape. A model inside transformers is
# named there; one outside can only register its classes.
HEADS = {
    "MODEL_MAPPING_NAMES": "RandomTransformerModel",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES": "RandomTransformerForConditionalGeneration",
}


def pytest_configure(config):
    for mark in LIBRARY_MARKS:
        config.addinivalue_line("markers", f"{mark}: set by transformers' common tests")


@pytest.fixture(autouse=True)
def heads_known_by_name():
    with ExitStack() as stack:
        for mapping, head in HEADS.items():
            stack.enter_context(patch.dict(getattr(modeling_auto, mapping), {"random_transformer": head}))
        yield
