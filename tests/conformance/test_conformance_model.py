"""transformers' common tests of a model."""

import unittest

from tiny import TinyModelTester
from transformers_tests.generation.test_utils import GenerationTesterMixin
from transformers_tests.test_memory_cleanup_mixin import MemoryCleanupMixin
from transformers_tests.test_modeling_common import ModelTesterMixin

from modeling_random_transformer import RandomTransformerForConditionalGeneration, RandomTransformerModel


class RandomTransformerModelTest(MemoryCleanupMixin, ModelTesterMixin, GenerationTesterMixin, unittest.TestCase):
    all_model_classes = (RandomTransformerModel, RandomTransformerForConditionalGeneration)
    is_encoder_decoder = True
    run_under_no_grad = False  # the common tests train

    def setUp(self):
        super().setUp()
        self.model_tester = TinyModelTester(self)
