"""transformers' common tests of tensor parallelism and FSDP, on processes of this machine."""

import unittest
from unittest.mock import patch

import pytest
import torch
from self_fed import SelfFed, SelfFedConfig
from tiny import TinyModelTester
from transformers_tests import test_fsdp_mixin, test_tensor_parallel_mixin


class SelfFedTester(TinyModelTester):
    config_class = SelfFedConfig
    causal_lm_class = SelfFed


@pytest.fixture(autouse=True)
def every_model_type_is_tested():
    """transformers limits these tests to a few representative models of its own."""
    with (
        patch.object(test_fsdp_mixin, "FSDP_DISTRIBUTED_TEST_MODEL_TYPES", None),
        patch.object(test_tensor_parallel_mixin, "TP_DISTRIBUTED_TEST_MODEL_TYPES", None),
    ):
        yield


class TensorParallelTest(test_tensor_parallel_mixin.TensorParallelTesterMixin, unittest.TestCase):
    all_model_classes = (SelfFed,)
    model_tester = SelfFedTester(None)


class KeysWithoutBiasTester(SelfFedTester):
    """Adding a bias to all keys changes no attention weight, so its gradient is rounding. Adam makes steps of that."""

    def get_config(self):
        config = super().get_config()
        config.attention_bias = False
        return config


class FSDPTest(test_fsdp_mixin.FSDPTesterMixin, unittest.TestCase):
    model_tester = KeysWithoutBiasTester(None)

    def _skip_if_insufficient_devices(self, *args):
        if torch.accelerator.is_available():  # on the CPU, four ranks share two cores well
            super()._skip_if_insufficient_devices(*args)
