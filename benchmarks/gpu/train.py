"""Training.

Speedup of a training step: 32 + 32 tokens per pair, a quarter of them padding, dropout 0.1, label smoothing 0.1,
gradient clipping, fused AdamW.
"""

from functools import partial
from itertools import product

from ..generate import DTYPES
from ..models import TRAINED, ours
from ..train import make_batch, trainer
from .parts import PAIRED_COLUMNS, Rows, compare
from .settings import Settings

COLUMNS = PAIRED_COLUMNS
DROPOUT = 0.1
PEERS = ("Marian", "nn.Transformer")


def rows(settings: Settings) -> Rows:
    batch = make_batch(settings.training_batch)
    for (name, size), dtype in product(settings.sizes.items(), settings.training_dtypes):
        mine = trainer(ours(size, DROPOUT), batch, DTYPES[dtype], own_loss=True)
        for peer in PEERS:
            theirs = trainer(TRAINED[peer](size, DROPOUT), batch, DTYPES[dtype], own_loss=False)
            yield f"{name} {dtype}, over {peer}", partial(compare, mine, theirs, settings.pairs)
