# %% [markdown]
# # The Transformer in plain PyTorch
#
# This notebook builds the model of Figure 1 of "Attention Is All You Need" (Vaswani et al. 2017), box by box, in less
# than 200 lines. Only `nn.Linear` and the arithmetic of tensors are taken from PyTorch. After each box, an assertion
# compares its output with the same box of this package, which trains and serves translations. At the end, your model
# learns a task.
#
# **You write two of the boxes**: attention and the decoder layer. Until then, the checks after them fail, and so does
# everything below. The stored outputs are those of the solution. Each solution is under its cell; click on *Solution*
# to see it.
#
# You need Python, matrix multiplication, and what a linear layer does (exercise 18). Section numbers refer to the
# paper.
#
# ## The reference
#
# A small model with random weights, and what it computes for a batch of two sentences. `trace` records the output of
# every box. The second source has two tokens less and is padded with the id 0.

# %%
import math
import sys

import torch
from IPython.display import SVG
from torch import nn

from modeling_random_transformer import RandomTransformerConfig, RandomTransformerForConditionalGeneration
from modeling_random_transformer.extras.inspection import trace

sys.path.append("..")  # the folder of `tutorials`
from tutorials.architecture import draw

torch.set_num_threads(1)  # more threads do not speed up a model this small
torch.manual_seed(0)
VOCABULARY, D_MODEL, HEADS, D_FF, LAYERS = 30, 32, 4, 64, 2
PAD, START, END = 0, 1, 2
config = RandomTransformerConfig(
    vocab_size=VOCABULARY,
    d_model=D_MODEL,
    num_heads=HEADS,
    d_ff=D_FF,
    encoder_layers=LAYERS,
    decoder_layers=LAYERS,
    dropout=0.0,
)
real = RandomTransformerForConditionalGeneration(config).eval()
with torch.no_grad():
    for parameter in real.parameters():  # otherwise all biases would be 0
        parameter += 0.2 * torch.randn_like(parameter)

source = torch.tensor([[5, 9, 7, 12, 2], [8, 6, 2, 0, 0]])  # [batch, source_len]
target = torch.tensor([[1, 14, 11, 20], [1, 16, 13, 22]])  # [batch, target_len]
with torch.no_grad(), trace(real) as recorded:
    real(input_ids=source, attention_mask=(source != PAD).long(), decoder_input_ids=target)


def check(box, ours, path):
    """Compare the output of a box with that of the package's model."""
    torch.testing.assert_close(ours, recorded[path].reshape(ours.shape), rtol=1e-4, atol=1e-5)
    print(f"{box}: equal to {path}, {list(ours.shape)}")


# %% [markdown]
# This is Figure 1 with the sizes of this model. The sections of this notebook build its boxes from the bottom to the
# top: first those of both stacks, then the encoder on the left, the decoder on the right, and the output layer above.

# %%
SVG(draw(real))

# %% [markdown]
# ## Input embedding
#
# A matrix with one row per token of the vocabulary. A token id selects its row, and the row is multiplied by
# $\sqrt{d_\text{model}}$ (section 3.4).


# %%
class Embedding(nn.Module):
    def __init__(self, vocabulary, d_model):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(vocabulary, d_model) / math.sqrt(d_model))

    def forward(self, ids):
        return self.weight[ids] * math.sqrt(self.weight.shape[1])  # [batch, length] → [batch, length, d_model]


embedding = Embedding(VOCABULARY, D_MODEL)
embedding.load_state_dict(real.model.shared.state_dict())
embedded = embedding(source)
check("embedding", embedded, "encoder.embedding.scaled")

# %% [markdown]
# ## Positional encoding
#
# Attention does not know the order of its inputs, so a vector that depends only on the position is added (section 3.5):
# a sine and a cosine for each of $d_\text{model} / 2$ wavelengths.


# %%
def positional_encoding(length, d_model):
    position = torch.arange(length)[:, None]  # [length, 1]
    angle = position / 10000 ** (torch.arange(0, d_model, 2) / d_model)  # [length, d_model / 2]
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)  # [length, d_model]: sin, cos, sin, cos …


x = embedded + positional_encoding(source.shape[1], D_MODEL)  # [batch, source_len, d_model]
check("embedding + position", x, "encoder.embedding.sum")

# %% [markdown]
# ## Attention: your turn
#
# Each token has a query, a key and a value. The score of a query and a key is their dot product, divided by
# $\sqrt{d_k}$. The softmax over the keys turns the scores of a query into weights, and the output is the weighted mean
# of the values (section 3.2.1):
#
# $$\text{Attention}(Q, K, V) = \text{softmax}\left(\frac{Q K^\top}{\sqrt{d_k}}\right) V$$
#
# `visible` says which keys a query may attend to. The score of a key that it must not see becomes $-\infty$, so that
# its weight is 0.
#
# *Before you start:* which of the four dimensions of the scores must the softmax sum over?


# %%
def attention(query, key, value, visible):
    """
    query: [batch, heads, query_len, d_k]
    key: [batch, heads, key_len, d_k]
    value: [batch, heads, key_len, d_v]
    visible: boolean, [batch, 1, query_len or 1, key_len], True where the query may attend to the key
    returns: [batch, heads, query_len, d_v]
    """
    raise NotImplementedError("Your turn: scores, hidden scores, weights, weighted mean of the values.")


# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def attention(query, key, value, visible):
#     scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])  # [batch, heads, query_len, key_len]
#     scores = scores.masked_fill(~visible, -torch.inf)
#     weights = scores.softmax(dim=-1)  # over the keys: each row has the sum 1
#     return weights @ value  # [batch, heads, query_len, d_v]
# ```
#
# The softmax sums over the last dimension, the keys: each query distributes a weight of 1 over what it may see.
#
# </details>
#
# The check uses the queries, keys and values of the first encoder layer. Padding must not be seen.

# %%
padding_mask = (source != PAD)[:, None, None, :]  # [batch, 1, 1, source_len]


def recorded_heads(name):
    """[batch, heads, length, width] of the first encoder layer."""
    return torch.stack([recorded[f"encoder.layers.0.self_attn.head.{head}.{name}"] for head in range(HEADS)], dim=1)


heads = attention(recorded_heads("query"), recorded_heads("key"), recorded_heads("value"), padding_mask)
for head in range(HEADS):
    check(f"attention, head {head}", heads[:, head], f"encoder.layers.0.self_attn.head.{head}.output")

# %% [markdown]
# ## Multi-head attention
#
# Linear layers compute the queries, keys and values of all heads at once. Each head attends on its own, with
# $d_k = d_\text{model} / h$ numbers per token. Their outputs are concatenated and projected (section 3.2.2).
#
# Queries come from `x`. Keys and values come from `memory`: from `x` itself in self-attention, from the encoder's
# output in the decoder's second attention.


# %%
class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.v_proj, self.out_proj = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # → [batch, heads, length, d_model / heads]

    def forward(self, x, memory, visible):
        query, key, value = self.split(self.q_proj(x)), self.split(self.k_proj(memory)), self.split(self.v_proj(memory))
        heads = attention(query, key, value, visible)  # [batch, heads, query_len, d_v]
        return self.out_proj(heads.transpose(1, 2).flatten(2))  # [batch, query_len, d_model]


self_attention = MultiHeadAttention(D_MODEL, HEADS)
self_attention.load_state_dict(real.model.encoder.layers[0].self_attn.state_dict())
attended = self_attention(x, memory=x, visible=padding_mask)
check("multi-head attention", attended, "encoder.layers.0.self_attn.output")

# %% [markdown]
# ## Add & Norm
#
# The input of a sub-layer is added to its output (the residual connection), and the numbers of each token are shifted
# and scaled to mean 0 and variance 1, then multiplied by $\gamma$ and shifted by $\beta$, which are learned
# (section 3.1).


# %%
class LayerNorm(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(d_model)), nn.Parameter(torch.zeros(d_model))  # γ and β

    def forward(self, x):
        centered = x - x.mean(dim=-1, keepdim=True)  # over the numbers of one token, not over tokens or sentences
        variance = centered.square().mean(dim=-1, keepdim=True)
        return self.weight * centered / (variance + 1e-6).sqrt() + self.bias


norm = LayerNorm(D_MODEL)
norm.load_state_dict(real.model.encoder.layers[0].self_attn_layer_norm.state_dict())
normed = norm(x + attended)
check("add & norm", normed, "encoder.layers.0.self_attn.layer_norm")

# %% [markdown]
# ## Feed-forward network and encoder layer
#
# Two linear layers with a ReLU between them, for each token separately (section 3.3). With an Add & Norm after each
# sub-layer, this is the left block of Figure 1.


# %%
class EncoderLayer(nn.Module):
    def __init__(self, d_model, heads, d_ff):
        super().__init__()
        self.self_attn, self.self_attn_layer_norm = MultiHeadAttention(d_model, heads), LayerNorm(d_model)
        self.fc1, self.fc2, self.final_layer_norm = (
            nn.Linear(d_model, d_ff),
            nn.Linear(d_ff, d_model),
            LayerNorm(d_model),
        )

    def feed_forward(self, x):
        return self.fc2(self.fc1(x).relu())  # [batch, length, d_model] → d_ff → d_model

    def forward(self, x, visible):
        x = self.self_attn_layer_norm(x + self.self_attn(x, memory=x, visible=visible))
        return self.final_layer_norm(x + self.feed_forward(x))


encoder_layer = EncoderLayer(D_MODEL, HEADS, D_FF)
encoder_layer.load_state_dict(real.model.encoder.layers[0].state_dict())
check("feed-forward network", encoder_layer.feed_forward(normed), "encoder.layers.0.ffn.output")
check("encoder layer", encoder_layer(x, padding_mask), "encoder.layers.0.ffn.layer_norm")

# %% [markdown]
# ## Masked multi-head attention
#
# The decoder predicts token $t$ from the tokens before it. In training it gets the whole target at once, so a token
# must not see later ones (section 3.2.3). The mask is a lower triangle: row $t$ may attend to columns $1 \ldots t$.

# %%
causal_mask = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).tril()  # [target_len, target_len]
print(causal_mask.int())
y = embedding(target) + positional_encoding(target.shape[1], D_MODEL)  # [batch, target_len, d_model]
masked_attention = MultiHeadAttention(D_MODEL, HEADS)
masked_attention.load_state_dict(real.model.decoder.layers[0].self_attn.state_dict())
masked = masked_attention(y, memory=y, visible=causal_mask[None, None])
check("masked attention", masked, "decoder.layers.0.self_attn.output")

# %% [markdown]
# ## Decoder layer: your turn
#
# The right block of Figure 1 has three sub-layers, each followed by Add & Norm: masked self-attention, attention to the
# encoder's output (*cross-attention*), and the feed-forward network. `EncoderLayer` provides the first and the third;
# `encoder_attn` and `encoder_attn_layer_norm` are new.
#
# *Before you start:* from which of `y` and `memory` do the queries of the cross-attention come, and why not from the
# other?


# %%
class DecoderLayer(EncoderLayer):
    def __init__(self, d_model, heads, d_ff):
        super().__init__(d_model, heads, d_ff)
        self.encoder_attn, self.encoder_attn_layer_norm = MultiHeadAttention(d_model, heads), LayerNorm(d_model)

    def forward(self, y, memory, causal_mask, padding_mask):
        """
        y: states of the target, [batch, target_len, d_model]
        memory: output of the encoder, [batch, source_len, d_model]
        causal_mask: which target tokens see which, [batch or 1, 1, target_len, target_len]
        padding_mask: which source tokens exist, [batch, 1, 1, source_len]
        returns: [batch, target_len, d_model]
        """
        raise NotImplementedError("Your turn: three sub-layers, each with Add & Norm.")


# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# class DecoderLayer(EncoderLayer):
#     def __init__(self, d_model, heads, d_ff):
#         super().__init__(d_model, heads, d_ff)
#         self.encoder_attn, self.encoder_attn_layer_norm = MultiHeadAttention(d_model, heads), LayerNorm(d_model)
#
#     def forward(self, y, memory, causal_mask, padding_mask):
#         y = self.self_attn_layer_norm(y + self.self_attn(y, memory=y, visible=causal_mask))
#         y = self.encoder_attn_layer_norm(y + self.encoder_attn(y, memory=memory, visible=padding_mask))
#         return self.final_layer_norm(y + self.feed_forward(y))
# ```
#
# The queries come from `y`: each target token asks, and gets one answer. Queries from `memory` would give one output
# per *source* token, which could not be added to `y`.
#
# </details>
#
# The check feeds the encoder's output of the reference to your layer.

# %%
decoder_layer = DecoderLayer(D_MODEL, HEADS, D_FF)
decoder_layer.load_state_dict(real.model.decoder.layers[0].state_dict())
decoded = decoder_layer(y, recorded["encoder.output"], causal_mask[None, None], padding_mask)
check("decoder layer", decoded, "decoder.layers.0.ffn.layer_norm")

# %% [markdown]
# ## Linear, softmax, and the complete model
#
# $N$ layers on each side. The output layer computes a score for each token of the vocabulary, the *logit*: the dot
# product of the last state and the token's row of the embedding matrix, which is used a second time (section 3.4). The
# softmax turns logits into probabilities.


# %%
class Transformer(nn.Module):
    def __init__(self, vocabulary, d_model, heads, d_ff, layers):
        super().__init__()
        self.embedding = Embedding(vocabulary, d_model)
        self.encoder = nn.ModuleList([EncoderLayer(d_model, heads, d_ff) for _ in range(layers)])
        self.decoder = nn.ModuleList([DecoderLayer(d_model, heads, d_ff) for _ in range(layers)])

    def embed(self, ids):
        return self.embedding(ids) + positional_encoding(ids.shape[1], self.embedding.weight.shape[1])

    def encode(self, source):
        padding_mask = (source != PAD)[:, None, None, :]
        x = self.embed(source)
        for layer in self.encoder:
            x = layer(x, padding_mask)
        return x, padding_mask

    def decode(self, target, memory, padding_mask):
        causal_mask = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).tril()[None, None]
        y = self.embed(target)
        for layer in self.decoder:
            y = layer(y, memory, causal_mask, padding_mask)
        return y @ self.embedding.weight.T  # logits, [batch, target_len, vocabulary]

    def forward(self, source, target):
        return self.decode(target, *self.encode(source))


model = Transformer(VOCABULARY, D_MODEL, HEADS, D_FF, LAYERS)
model.embedding.load_state_dict(real.model.shared.state_dict())
model.encoder.load_state_dict(real.model.encoder.layers.state_dict())
model.decoder.load_state_dict(real.model.decoder.layers.state_dict())
logits = model(source, target)
check("logits", logits, "logits")
check("probabilities", logits.softmax(dim=-1), "probabilities")

# %% [markdown]
# ## Generation
#
# In use there is no target. The decoder starts with one token, the most probable next token is appended, and so on.
# Your model and `generate()` of the real one write the same tokens.


# %%
@torch.no_grad()
def generate(model, source, steps):
    memory, padding_mask = model.encode(source)  # once
    target = torch.full((len(source), 1), START)
    for _ in range(steps):
        logits = model.decode(target, memory, padding_mask)[:, -1]  # of the last position, [batch, vocabulary]
        target = torch.cat([target, logits.argmax(dim=-1, keepdim=True)], dim=1)
    return target


real.generation_config.eos_token_id = None  # random weights have no reason to end
expected = real.generate(source, attention_mask=(source != PAD).long(), max_new_tokens=6, do_sample=False)
assert torch.equal(generate(model, source, steps=6), expected)
print(expected)

# %% [markdown]
# ## Training
#
# The last box is not in Figure 1: learning. The task is to reverse six symbols. The decoder's input is the answer,
# shifted right by one token after the start token, and the loss is the cross-entropy of the correct next tokens. This
# takes about ten seconds.
#
# *Before you run it:* a model that knows nothing has a loss of $\ln 30 = 3.4$. What is the loss of one that knows which
# tokens are symbols, but not their order?

# %%
from tutorials.exercises.tasks import Reversal

task = Reversal(symbols=26, length=6)
torch.manual_seed(0)
model = Transformer(VOCABULARY, 64, 4, 128, layers=1)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
for step in range(1, 401):
    source, labels = task.sample(64)  # [batch, 7]: six symbols and the end token
    target = torch.cat([torch.full((64, 1), START), labels[:, :-1]], dim=1)  # shifted right
    loss = nn.functional.cross_entropy(model(source, target).flatten(0, 1), labels.flatten())
    optimizer.zero_grad()
    loss.backward()
    for group in optimizer.param_groups:
        group["lr"] = 3e-3 * min(step / 80, 1, (401 - step) / 200)  # warm-up, then decay
    optimizer.step()
    if step % 80 == 0:
        print(f"step {step}: loss {loss.item():.3f}")

source, labels = task.sample(500)
correct = (generate(model, source, steps=7)[:, 1:] == labels).all(dim=1).float().mean().item()
print(f"{source[0].tolist()} → {generate(model, source[:1], steps=7)[0, 1:].tolist()}")
print(f"{correct:.1%} of 500 new sequences are reversed correctly")
assert correct > 0.9

# %% [markdown]
# <details>
# <summary>Answer</summary>
#
# The six symbols are known from the source, and the end token from its position. Six symbols have $6!$ orders, so the
# loss is $\ln 6! / 7 = 0.94$ per token. The model must get below that to have learned positions.
#
# </details>
#
# ## Change it and predict
#
# Write down what you expect before you run each change. Undo it afterwards.
#
# 1. In `attention`, leave out `/ math.sqrt(query.shape[-1])`. Which check fails first? Does the training still work?
# 2. In `Transformer.embed`, leave out the positional encoding.
# 3. In `Transformer.decode`, replace `.tril()` by nothing, so that every token sees all others. What is the loss, and
#    how many sequences are correct?
#
# <details>
# <summary>Answers</summary>
#
# 1. The first check of attention fails. The training still works here: $d_k$ is 16, so the scores are only four times
#    as large. With $d_k = 256$ it fails in most runs (exercise 3).
# 2. The loss stays above 0.94 (1.33 after these steps), and no sequence is correct: the decoder learns which symbols
#    there are, not their order.
# 3. The loss falls to 0.005 as before, since each position sees its answer in the next input token and copies it.
#    Nothing can be copied during generation, so no sequence is correct. A loss that is too good is a symptom of a
#    missing mask.
#
# </details>
#
# ## What next
#
# - The notebook "Why attention?" (`06_why_attention.ipynb`) shows why each of these boxes is there.
# - The next notebook computes the same boxes with the numbers of "The Random Transformer".
# - `modeling_random_transformer/modeling_random_transformer.py` is the model that you compared yours with.
