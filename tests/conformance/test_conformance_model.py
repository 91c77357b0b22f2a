"""transformers' common tests of a model."""

import unittest
from unittest.mock import patch

from tiny import TinyModelTester
from transformers_tests.generation.test_utils import GenerationTesterMixin
from transformers_tests.test_memory_cleanup_mixin import MemoryCleanupMixin
from transformers_tests.test_modeling_common import ModelTesterMixin
from transformers_tests.test_training_mixin import TrainingTesterMixin

from modeling_random_transformer import RandomTransformerForConditionalGeneration, RandomTransformerModel
from modeling_random_transformer.modeling_random_transformer import RandomTransformerDecoder, RandomTransformerEncoder


class RandomTransformerModelTest(
    MemoryCleanupMixin, TrainingTesterMixin, ModelTesterMixin, GenerationTesterMixin, unittest.TestCase
):
    all_model_classes = (RandomTransformerModel, RandomTransformerForConditionalGeneration)
    is_encoder_decoder = True
    model_tester = TinyModelTester(None)
    run_under_no_grad = False  # the tests train
    test_can_init_all_missing_weights_before_2023 = True  # it is off where a file names no year

    def test_can_capture_specific_layers_hidden_states(self):
        with patch.object(type(self), "all_model_classes", (RandomTransformerEncoder, RandomTransformerDecoder)):
            super().test_can_capture_specific_layers_hidden_states()
