"""transformers' common tests of the task heads."""

import unittest
from unittest.mock import patch

from modeling_random_transformer import (
    RandomTransformerEncoderModel,
    RandomTransformerForCausalLM,
    RandomTransformerForMaskedLM,
    RandomTransformerForQuestionAnswering,
    RandomTransformerForSequenceClassification,
    RandomTransformerForTokenClassification,
)

from .models import SmallModel
from .transformers_tests.generation.test_utils import GenerationTesterMixin
from .transformers_tests.test_memory_cleanup_mixin import MemoryCleanupMixin
from .transformers_tests.test_modeling_common import ModelTesterMixin


class SmallStack(SmallModel):
    """One stack, without decoder inputs."""

    def get_config(self):
        config = super().get_config()
        config.is_encoder_decoder = False
        return config

    def prepare_config_and_inputs_for_common(self):
        config, inputs = super().prepare_config_and_inputs_for_common()
        return config, {name: value for name, value in inputs.items() if not name.startswith("decoder")}


class EncoderHeadsTest(MemoryCleanupMixin, ModelTesterMixin, unittest.TestCase):
    all_model_classes = (
        RandomTransformerEncoderModel,
        RandomTransformerForSequenceClassification,
        RandomTransformerForTokenClassification,
        RandomTransformerForQuestionAnswering,
        RandomTransformerForMaskedLM,
    )
    is_encoder_decoder = False
    model_tester = SmallStack()
    run_under_no_grad = False
    test_can_init_all_missing_weights_before_2023 = (
        True  # transformers derives the model's year from its file, which has none
    )

    def test_load_with_mismatched_shapes(self):
        """`AutoModel` loads a head's folder as the full model, whose decoder needs inputs."""
        with patch.object(self, "is_encoder_decoder", True):
            super().test_load_with_mismatched_shapes()


class CausalLMTest(MemoryCleanupMixin, ModelTesterMixin, GenerationTesterMixin, unittest.TestCase):
    all_model_classes = (RandomTransformerForCausalLM,)
    is_encoder_decoder = False
    model_tester = SmallStack()
    run_under_no_grad = False
    test_can_init_all_missing_weights_before_2023 = True
