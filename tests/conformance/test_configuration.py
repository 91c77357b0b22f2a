"""transformers' common tests of a configuration."""

import unittest

from modeling_random_transformer import RandomTransformerConfig

from .transformers_tests.test_configuration_common import ConfigTester


class RandomTransformerConfigTest(unittest.TestCase):
    def test_common(self):
        ConfigTester(self, config_class=RandomTransformerConfig, d_model=32, num_heads=2).run_common_tests()
