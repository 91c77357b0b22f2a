"""transformers' common tests of tensor parallelism and FSDP, in local processes."""

import unittest
from unittest.mock import patch

import pytest
import torch

from .models import SelfFed, SelfFedConfig, SmallModel
from .transformers_tests import distributed_testing_utils, test_fsdp_mixin, test_tensor_parallel_mixin

pytestmark = pytest.mark.slow  # starting processes imports torch and transformers


class SmallSelfFedModel(SmallModel):
    config_class = SelfFedConfig
    causal_lm_class = SelfFed


class SmallModelWithoutBiases(SmallSelfFedModel):
    """A bias on all keys does not change attention weights. Its gradient is noise, which Adam scales to full steps."""

    def get_config(self):
        config = super().get_config()
        config.attention_bias = False
        return config


@pytest.fixture(autouse=True)
def every_type_of_model():
    """Remove the restriction to some of transformers' models."""
    with (
        patch.object(test_fsdp_mixin, "FSDP_DISTRIBUTED_TEST_MODEL_TYPES", None),
        patch.object(test_tensor_parallel_mixin, "TP_DISTRIBUTED_TEST_MODEL_TYPES", None),
    ):
        yield


@pytest.fixture(autouse=True)
def quick_starts():
    """Older releases start processes with this function, and each imports torch and transformers again."""
    with patch("torch.multiprocessing.spawn", distributed_testing_utils._start_rank_processes):
        yield


class TensorParallelTest(test_tensor_parallel_mixin.TensorParallelTesterMixin, unittest.TestCase):
    all_model_classes = (SelfFed,)
    model_tester = SmallSelfFedModel()


class FSDPTest(test_fsdp_mixin.FSDPTesterMixin, unittest.TestCase):
    model_tester = SmallModelWithoutBiases()

    def _skip_if_insufficient_devices(self, *args):
        if torch.accelerator.is_available():  # several processes can share a CPU core
            super()._skip_if_insufficient_devices(*args)
