"""Cleaning of parallel text: filters, normalization, validation and test sets, and a report.

```python
report = clean_files(ParallelText("train.en", "train.de"), "clean.en", "clean.de")
pairs = list(clean_pairs([("a dog", "ein Hund"), ("a dog", "a dog")]))  # streams pairs from Python
```
"""

from .cleaning import CleaningReport, clean_files, clean_pairs
from .filters import CleaningOptions

__all__ = ["CleaningOptions", "CleaningReport", "clean_files", "clean_pairs"]
