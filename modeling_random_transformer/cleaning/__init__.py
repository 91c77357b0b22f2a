"""Cleaning of parallel text: filters with a report of what they drop and why.

```python
report = clean_files(ParallelText("train.en", "train.de"), "clean.en", "clean.de")
print(report)
pairs = list(clean_pairs([("a dog", "ein Hund"), ("a dog", "a dog")]))  # streams pairs from Python
```
"""

from .files import clean_files
from .filters import CleaningOptions
from .pairs import RejectedLine, clean_pairs
from .report import CleaningReport

__all__ = ["CleaningOptions", "CleaningReport", "RejectedLine", "clean_files", "clean_pairs"]
