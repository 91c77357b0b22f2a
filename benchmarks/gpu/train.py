"""Training.

Speedup of a training step: 32 + 32 tokens per pair, a quarter of them padding, dropout 0.1, label smoothing 0.1,
gradient clipping, fused AdamW.
"""

from functools import partial
from itertools import product

from ..generate import DTYPES
from ..models import TRAINED
from ..timing import paired
from ..train import make_batch, trainer
from .parts import PAIRED_COLUMNS, Rows, paired_figures
from .settings import Settings

COLUMNS = PAIRED_COLUMNS
PEERS = ("Marian", "nn.Transformer")


def rows(settings: Settings) -> Rows:
    batch = make_batch(settings.training_batch)
    for (name, size), dtype in product(settings.sizes.items(), settings.training_dtypes):
        steps = {
            each: trainer(TRAINED[each](size, 0.1), batch, DTYPES[dtype], each not in PEERS)
            for each in ("random-transformer", *PEERS)
        }
        for peer in PEERS:
            pair = partial(paired, steps["random-transformer"], steps[peer], settings.pairs)
            yield f"{name} {dtype}, over {peer}", lambda pair=pair: paired_figures(pair())
