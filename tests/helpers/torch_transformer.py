"""A model around `nn.Transformer`, as users of that class write it."""

import math

import torch
from torch import Tensor, nn

from modeling_random_transformer.modeling_random_transformer import sinusoids

WIDTH, TOKENS, TARGETS = 16, 31, 23


class Original(nn.Module):
    """A complete model around `nn.Transformer`: embeddings, positions and an output layer."""

    def __init__(self, tokens=(TOKENS, TARGETS), scale=True, output="bias", positions="table", **options):
        super().__init__()
        torch.manual_seed(1)
        chosen = {"nhead": 2, "num_encoder_layers": 2, "num_decoder_layers": 2, "dim_feedforward": 24, **options}
        self.transformer = nn.Transformer(d_model=WIDTH, batch_first=True, **chosen)
        self.source = nn.Embedding(tokens[0], WIDTH)
        self.target = self.source if len(tokens) == 1 else nn.Embedding(tokens[1], WIDTH)
        self.output = nn.Linear(WIDTH, tokens[-1], bias=output == "bias")
        if output == "tied":
            self.output.weight = self.target.weight
        self.scale = math.sqrt(WIDTH) if scale else 1.0
        self.positions = positions
        self.table = nn.Parameter(torch.randn(50, WIDTH))
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.3)
        self.eval()

    def embed(self, embedding: nn.Embedding, ids: Tensor) -> Tensor:
        states = embedding(ids) * self.scale
        if self.positions == "none":
            return states
        indices = torch.arange(ids.shape[1])
        layouts = {"sinusoidal": "interleaved", "concatenated": "concatenated"}
        if self.positions == "table":
            return states + self.table[indices]
        return states + sinusoids(indices, WIDTH, layouts[self.positions])

    @torch.no_grad()
    def forward(self, ids: Tensor, mask: Tensor, target: Tensor) -> Tensor:
        future = nn.Transformer.generate_square_subsequent_mask(target.shape[1]) < 0
        states = self.transformer(
            self.embed(self.source, ids),
            self.embed(self.target, target),
            tgt_mask=future,
            src_key_padding_mask=mask == 0,
            memory_key_padding_mask=mask == 0,
        )
        return self.output(states)
