"""Scores and word alignments of pairs of texts by a model.

score_file(ParallelText("train.en", "train.de"), "scores.txt", model, tokenizer)     # the same call resumes
for links in alignments(model, tokenizer, pairs): ...                                # [(0, 0), (2, 1)]
align_file(ParallelText("train.en", "train.de"), "links.txt", model, tokenizer)      # 0-0 2-1
"""

from .alignments import align_file, alignments
from .scoring_files import score_file

__all__ = ["align_file", "alignments", "score_file"]
