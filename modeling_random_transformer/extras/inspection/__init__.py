"""Recording and replacement of every intermediate value that a model computes.

with trace(model) as t:
    model(**inputs)                              # or model.generate(**inputs)
t["encoder.layers.0.self_attn.head.1.scores"]    # a tensor, [batch, source_len, source_len]
t.explain("encoder.layers.0.self_attn.head.1.scores")
print(t)                                         # all values: shape, formula, section of the paper

with intervene(model, {"encoder.layers.0.self_attn.head.1.output": 0}):
    model(**inputs)                              # without this head

logit_attribution(model, t, tokens)              # what each part of the decoder adds to the logits of some tokens
logit_lens(model, t)                             # the predictions after each sub-layer of the decoder
record_search(model, inputs, num_beams=4)        # all hypotheses of a beam search
"""

from .attribution import logit_attribution, logit_lens
from .beam_search import Hypothesis, record_search
from .intervention import intervene
from .paths import Step
from .record import Trace, trace

__all__ = ["Hypothesis", "Step", "Trace", "intervene", "logit_attribution", "logit_lens", "record_search", "trace"]
