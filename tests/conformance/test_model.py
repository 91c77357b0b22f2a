"""transformers' common tests of a model."""

import unittest
from unittest.mock import patch

from modeling_random_transformer import RandomTransformerForConditionalGeneration, RandomTransformerModel
from modeling_random_transformer.modeling_random_transformer import (
    RandomTransformerDecoder,
    RandomTransformerEncoder,
    RandomTransformerPreTrainedModel,
)

from .models import Reciter, SmallModel
from .transformers_tests.generation.test_utils import GenerationTesterMixin
from .transformers_tests.test_memory_cleanup_mixin import MemoryCleanupMixin
from .transformers_tests.test_modeling_common import ModelTesterMixin
from .transformers_tests.test_training_mixin import TrainingTesterMixin


class UnevenModel(SmallModel):
    """One decoder layer and two encoder layers, so that the counts differ."""

    def get_config(self):
        config = super().get_config()
        config.decoder_layers = 1
        return config


class RandomTransformerModelTest(
    MemoryCleanupMixin, TrainingTesterMixin, ModelTesterMixin, GenerationTesterMixin, unittest.TestCase
):
    all_model_classes = (RandomTransformerModel, RandomTransformerForConditionalGeneration)
    is_encoder_decoder = True
    model_tester = SmallModel()
    run_under_no_grad = False  # the tests train
    test_can_init_all_missing_weights_before_2023 = (
        True  # transformers derives the model's year from its file, which has none
    )
    _torch_compile_train_cls = RandomTransformerForConditionalGeneration

    def _get_trainable_model_class(self):
        return Reciter

    @patch.multiple(RandomTransformerPreTrainedModel, _keep_in_fp32_modules_strict={"final_layer_norm"})
    def test_keep_in_fp32_modules(self):
        """The model has no module that stays in float32 by default, so the test sets one."""
        super().test_keep_in_fp32_modules()

    @patch.multiple(RandomTransformerPreTrainedModel, _keep_in_fp32_modules_strict={"final_layer_norm"})
    def test_keep_in_fp32_modules_exist(self):
        super().test_keep_in_fp32_modules_exist()

    def test_can_capture_specific_layers_hidden_states(self):
        """The test expects one `hidden_states`, but the full model has two, so it runs on each stack."""
        stacks = (RandomTransformerEncoder, RandomTransformerDecoder)
        with patch.multiple(type(self), all_model_classes=stacks, model_tester=UnevenModel()):
            super().test_can_capture_specific_layers_hidden_states()
