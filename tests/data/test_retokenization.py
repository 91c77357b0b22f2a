"""Training pairs with new tokens in every epoch; see also the tests of BPE-dropout and augmentation."""

import pytest
from datasets import Dataset

from modeling_random_transformer.data.retokenization import RetokenizedPairs


def test_pairs_without_texts_raise_value_error():
    pairs = Dataset.from_list([{"input_ids": [4, 2], "labels": [5, 2]}])
    with pytest.raises(ValueError, match="source_words, target_words, source, target for bpe_dropout and augment"):
        RetokenizedPairs(pairs, None, 1)
