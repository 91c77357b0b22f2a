"""transformers' common tests of a tokenizer."""

import tempfile
import unittest

from transformers_tests.test_tokenization_common import TokenizerTesterMixin
from transformers_tests.test_tokenizers_backend_mixin import TokenizersBackendTesterMixin

from modeling_random_transformer import RandomTransformerTokenizer

CORPUS = [
    "A small tokenizer for the tests: it has seen a few sentences, and some words of them more than once.",
    "The tests ask for words, for words in pairs, and for long texts that are cut to a small length.",
    "Once more: a tokenizer, the tests, a few sentences, long texts and some words.",
]


class RandomTransformerTokenizerTest(TokenizerTesterMixin, TokenizersBackendTesterMixin, unittest.TestCase):
    tokenizer_class = rust_tokenizer_class = RandomTransformerTokenizer

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        RandomTransformerTokenizer.train(CORPUS, vocab_size=400).save_pretrained(folder.name)
        cls.from_pretrained_id = [folder.name]
        super().setUpClass()
