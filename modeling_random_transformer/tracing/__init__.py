"""Recording of every intermediate value that a model computes.

with trace(model) as t:
    model(**inputs)                              # or model.generate(**inputs)
t["encoder.layers.0.self_attn.head.1.scores"]    # a tensor, [batch, source_len, source_len]
t.explain("encoder.layers.0.self_attn.head.1.scores")
print(t)                                         # all values: shape, formula, section of the paper
"""

from .hooks import trace
from .record import Trace
from .steps import Step

__all__ = ["Step", "Trace", "trace"]
