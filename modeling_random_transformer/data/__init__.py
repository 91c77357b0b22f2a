"""Parallel text: sources, validation, cleaning, tokenization, token-budget batches, streaming.

```python
corpus = ParallelText("train.en", "train.es")
pairs, report = load_pairs(corpus, on_invalid="skip")  # validated and memory-mapped
tokens, report = tokenize_pairs(pairs, tokenizer, LengthLimits(source=256))
batches = TokenBudgetSampler(lengths_of(tokens), max_tokens=4096)

report = clean_files(ParallelText("train.en", "train.de"), "clean.en", "clean.de")
pairs = list(clean_pairs([("a dog", "ein Hund"), ("a dog", "a dog")]))  # streams pairs from Python
```
"""

from .batches import EvaluationSampler, TokenBudgetSampler
from .cleaning import CleaningReport, clean_files, clean_pairs
from .filters import CleaningOptions
from .lengths import LengthLimits
from .readers import read_texts
from .sentencepiece import from_sentencepiece
from .sources import Corpus, DatasetText, InvalidLine, ParallelLine, ParallelText
from .streaming import CorpusMixture, TokenBudgetStream
from .tokenization import lengths_of, tokenize_pairs, vocabulary_sample
from .validation import ValidationReport, load_pairs, validate

__all__ = [
    "CleaningOptions",
    "CleaningReport",
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
    "clean_files",
    "clean_pairs",
    "from_sentencepiece",
    "lengths_of",
    "load_pairs",
    "read_texts",
    "tokenize_pairs",
    "validate",
    "vocabulary_sample",
]
