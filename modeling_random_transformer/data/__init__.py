"""Parallel text: sources, validation, tokenization, token-budget batches, streaming.

```python
corpus = ParallelText("train.en", "train.es")
pairs, report = load_pairs(corpus, on_invalid="skip")  # validated and memory-mapped
tokens, report = tokenize_pairs(pairs, tokenizer, max_source_length=256)
batches = TokenBudgetSampler(*lengths_of(tokens).T, max_tokens=4096)
```
"""

from .batches import EvaluationSampler, TokenBudgetSampler
from .mixing import CorpusMixture, CorpusSpec
from .sources import DatasetText, InvalidLine, ParallelLine, ParallelText
from .streaming import TokenBudgetStream
from .tokenization import lengths_of, tokenize_pairs, vocabulary_sample
from .validation import ValidationReport, load_pairs, validate

__all__ = [
    "CorpusMixture",
    "CorpusSpec",
    "DatasetText",
    "EvaluationSampler",
    "InvalidLine",
    "ParallelLine",
    "ParallelText",
    "TokenBudgetSampler",
    "TokenBudgetStream",
    "ValidationReport",
    "lengths_of",
    "load_pairs",
    "tokenize_pairs",
    "validate",
    "vocabulary_sample",
]
