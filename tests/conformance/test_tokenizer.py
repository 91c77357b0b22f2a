"""transformers' common tests of a tokenizer."""

import tempfile
import unittest

from modeling_random_transformer import RandomTransformerTokenizer

from .transformers_tests.test_tokenization_common import TokenizerTesterMixin
from .transformers_tests.test_tokenizers_backend_mixin import TokenizersBackendTesterMixin

CORPUS = [
    "A small tokenizer for the tests: it has seen a few sentences, and some words of them more than once.",
    "The tests ask for words, for words in pairs, and for long texts that are cut to a small length.",
    "Once more: a tokenizer, the tests, a few sentences, long texts and some words.",
]


class RandomTransformerTokenizerTest(TokenizerTesterMixin, TokenizersBackendTesterMixin, unittest.TestCase):
    tokenizer_class = rust_tokenizer_class = RandomTransformerTokenizer
    # A letter that the corpus lacks stays the two bytes it is made of. Ids count the 4 special tokens, then the 256
    # characters that stand for bytes, of which these are numbers 127 and 231 in Unicode's order.
    integration_test_input_string = integration_expected_decoded_text = "É"
    integration_expected_tokens = ["Ã", "ī"]
    integration_expected_token_ids = [4 + 127, 4 + 231]
    test_tokenizer_from_extractor = False

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        RandomTransformerTokenizer.train(CORPUS, vocab_size=400).save_pretrained(folder.name)
        cls.from_pretrained_id = [folder.name]
        super().setUpClass()

    @unittest.skip("add_prefix_space=True is an error: the pattern splits a text before it is converted to bytes")
    def test_rust_tokenizer_add_prefix_space_0(self):
        """Called with `add_prefix_space=True`."""
