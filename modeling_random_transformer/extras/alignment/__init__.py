"""Alignment of the words of translations by the cross-attention of the model.

for links in alignments(model, tokenizer, pairs): ...                                # [(0, 0), (2, 1)]
align_file(ParallelText("train.en", "train.de"), "links.txt", model, tokenizer)      # 0-0 2-1
"""

from .alignments import align_file, alignments

__all__ = ["align_file", "alignments"]
