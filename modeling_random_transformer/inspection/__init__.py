"""Recording and replacement of every intermediate value that a model computes.

with trace(model) as t:
    model(**inputs)                              # or model.generate(**inputs)
t["encoder.layers.0.self_attn.head.1.scores"]    # a tensor, [batch, source_len, source_len]
t.explain("encoder.layers.0.self_attn.head.1.scores")
print(t)                                         # all values: shape, formula, section of the paper

with intervene(model, {"encoder.layers.0.self_attn.head.1.output": 0}):
    model(**inputs)                              # without this head
"""

from .intervention import intervene
from .paths import Step
from .record import Trace, trace

__all__ = ["Step", "Trace", "intervene", "trace"]
