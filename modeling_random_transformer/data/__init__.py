"""Parallel text: sources, validation, tokenization, token-budget batches, streaming.

```python
corpus = ParallelText("train.en", "train.es")
pairs, report = load_pairs(corpus, on_invalid="skip")  # validated and memory-mapped
tokens, report = tokenize_pairs(pairs, tokenizer, LengthLimits(source=256))
sampler = TokenBudgetSampler(lengths_of(tokens), max_tokens=4096)
```
"""

from .batches import EvaluationSampler, TokenBudgetSampler
from .lengths import LengthLimits
from .readers import read_texts
from .sources import Corpus, DatasetText, InvalidLine, ParallelLine, ParallelText
from .streaming import CorpusMixture, TokenBudgetStream
from .tokenization import lengths_of, tokenize_pairs, vocabulary_sample
from .validation import ValidationReport, load_pairs, validate

__all__ = [
    "Corpus",
    "CorpusMixture",
    "DatasetText",
    "EvaluationSampler",
    "InvalidLine",
    "LengthLimits",
    "ParallelLine",
    "ParallelText",
    "TokenBudgetSampler",
    "TokenBudgetStream",
    "ValidationReport",
    "lengths_of",
    "load_pairs",
    "read_texts",
    "tokenize_pairs",
    "validate",
    "vocabulary_sample",
]
