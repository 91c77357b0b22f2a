# %% [markdown]
# # Attention for long inputs
#
# Self-attention compares each of $n$ tokens with all $n$ others: $n^2$ scores per head. At 8,192 tokens these are 67
# million. This notebook replaces self-attention by functions whose cost grows more slowly, in the same model and with
# the same weights, and shows what is lost.

# %%
import sys

import matplotlib.pyplot as plt
import torch

from modeling_random_transformer import RandomTransformerConfig, RandomTransformerForConditionalGeneration

sys.path.append("..")  # the folder of `tutorials`
from tutorials import long_attention
from tutorials.exercises import long_inputs

torch.set_num_threads(1)
torch.manual_seed(0)
config = RandomTransformerConfig(
    vocab_size=100, d_model=64, num_heads=2, d_ff=128, encoder_layers=1, decoder_layers=1, dropout=0.0
)
model = RandomTransformerForConditionalGeneration(config).eval()
print(f"{model.num_parameters():,} parameters, attention: {model.config._attn_implementation}")

# %% [markdown]
# ## Four ways to compute fewer scores
#
# In *local* attention (Longformer), token $i$ attends to the tokens $j$ with $|i - j| \le w$. In *strided* attention
# (Sparse Transformer), half of the heads do this, and the others attend to every $s$-th token, $(i - j) \bmod s = 0$.
# *Linear* attention (Performer) keeps all pairs and changes the formula: with features $\phi$ whose products
# approximate the exponential function, $e^{q \cdot k / \sqrt{d_k}} \approx \phi(q) \cdot \phi(k)$, the sum over keys
# can be computed once for all queries:
#
# $$\frac{\sum_j \left(\phi(q_i) \cdot \phi(k_j)\right) v_j}{\sum_j \phi(q_i) \cdot \phi(k_j)}
# = \frac{\phi(q_i)^\top \sum_j \phi(k_j)\, v_j^\top}{\phi(q_i)^\top \sum_j \phi(k_j)}$$
#
# *Low-rank* attention (Linformer) replaces the $n$ keys and values by $r$ mixtures of them, $EK$ and $EV$ with a matrix
# $E$ of $r \times n$ numbers. Linformer learns $E$. Here, row $i$ of $E$ computes the mean of segment $i$ of the text,
# the variant of the paper without weights. A mean contains later tokens, so this attention is for encoders.
#
# The pairs with a weight in a causal decoder, for $w = s = 4$:

# %%
distance = torch.arange(24)[:, None] - torch.arange(24)
causal = distance >= 0
patterns = {
    "full": causal,
    "local": causal & (distance <= 4),
    "strided, other half of the heads": causal & (distance % 4 == 0),
}
figure, panels = plt.subplots(1, 3, figsize=(8, 2.8), layout="constrained")
for axes, (name, visible) in zip(panels, patterns.items(), strict=True):
    axes.imshow(visible, cmap="Blues", vmax=1.5)
    axes.set(title=f"{name}: {int(visible.sum())} pairs", xlabel="key", ylabel="query")
    axes.title.set_size(9)

# %% [markdown]
# ## Registering an attention function
#
# transformers looks attention functions up by name. `AttentionInterface.register` adds one, and
# `AttentionMaskInterface.register` the function that prepares its mask, here only the padding, since a mask of $n
# \times n$ would be as large as the scores. `long_attention.register` does both. No line of the model changes.

# %%
long_attention.register("window_of_8", long_attention.local_attention, window=8)
ids = torch.randint(4, 100, (1, 64))
with torch.no_grad():
    full = model.model.encoder(ids).last_hidden_state
    model.set_attn_implementation("window_of_8")
    local = model.model.encoder(ids).last_hidden_state
    changed = ids.clone()
    changed[0, 40] = 4
    difference = (model.model.encoder(changed).last_hidden_state - local).abs().amax(dim=-1)[0]
seen_by = difference.nonzero()[:, 0].tolist()
print(f"A different token 40 changes the states of tokens {seen_by[0]} to {seen_by[-1]}.")
assert seen_by == [*range(32, 49)]

# %% [markdown]
# One layer reaches $w$ tokens in each direction, $N$ layers reach $N \cdot w$, like a stack of convolutions. Where
# all tokens are within the window, local attention is softmax attention:

# %%
with torch.no_grad():
    model.set_attn_implementation("local_attention")  # a window of 64
    torch.testing.assert_close(model.model.encoder(ids).last_hidden_state, full, rtol=1e-4, atol=1e-5)
    print(f"Largest difference with a window of 8: {(local - full).abs().max():.2f}")

# %% [markdown]
# ## How good is the approximation of the softmax?
#
# Performer's features are $\phi(x) = e^{Wx - |x|^2/2} / \sqrt{m}$ with $m$ random directions $W$. The expected value
# of the product is exact. Its variance grows exponentially with the norms of queries and keys, so sharp attention
# needs many features:

# %%
counts, errors = (16, 64, 256, 1024, 4096), {}
for scale in (0.5, 1.0, 1.5):
    query, key, value = torch.randn(3, 1, 1, 200, 16).double()
    mask = torch.ones(1, 200, dtype=torch.bool)
    attention = model.model.encoder.layers[0].self_attn
    expected = torch.nn.functional.scaled_dot_product_attention(scale * query, scale * key, value).transpose(1, 2)
    errors[scale] = []
    for count in counts:
        options = {"scaling": 0.25, "features": count}
        actual, _ = long_attention.linear_attention(attention, scale * query, scale * key, value, mask, **options)
        errors[scale].append(((actual - expected).norm() / expected.norm()).item())

figure, axes = plt.subplots(figsize=(5, 2.8), layout="constrained")
for scale, values in errors.items():
    axes.plot(counts, values, marker="o", label=f"queries and keys from N(0, {scale}²)")
axes.set(xscale="log", yscale="log", xlabel="features", ylabel="relative error")
_ = axes.legend(frameon=False, fontsize=8)
assert errors[0.5][-1] < 0.3 * errors[1.5][-1]

# %% [markdown]
# ## Memory and time
#
# The largest total size of the tensors in an encoder layer. Eager attention stores the scores and is quadratic. SDPA
# computes the same result block by block (the idea of FlashAttention), so its *memory* is linear, but its *time* is
# not.

# %%
lengths = (512, 2048, 8192)
costs = {length: long_inputs.measure_costs(length, seed=0, repeats=1) for length in lengths}
for length, by_name in costs.items():
    print(f"{length:>5} tokens:", ", ".join(f"{name} {cost.megabytes:.0f} MB" for name, cost in by_name.items()))

figure, axes = plt.subplots(figsize=(5, 2.8), layout="constrained")
for name, label in long_inputs.IMPLEMENTATIONS.items():
    points = {length: by_name[name].milliseconds for length, by_name in costs.items() if name in by_name}
    axes.plot(list(points), list(points.values()), marker="o", label=label, color=long_inputs.COLORS[name])
axes.set(xscale="log", yscale="log", xlabel="tokens", ylabel="process time, ms")
axes.set_xticks(lengths, map(str, lengths))
axes.set_xticks([], minor=True)
axes.yaxis.set_major_formatter("{x:g}")
_ = axes.legend(frameon=False, fontsize=8)
growth = {name: costs[2048][name].megabytes / costs[512][name].megabytes for name in costs[2048]}
assert growth["eager"] > 12
assert growth["local_attention"] < 5

# %% [markdown]
# ## What is lost
#
# A small decoder learns to repeat 24 random symbols, so the token that it needs is 24 positions back. Its two layers
# with $w = 8$ reach only 16 positions: local attention guesses one of 16 symbols. A stride of 8 reaches position 24
# in one step.

# %%
for name in ("copy_local", "copy_strided"):
    accuracy = long_inputs.learn_to_copy(name, length=24, seed=0, steps=120)
    print(f"{name}: {accuracy:.1%} of the symbols")
    assert accuracy > 0.9 if name == "copy_strided" else accuracy < 0.15

# %% [markdown]
# Low-rank attention cannot tell the tokens of a segment apart. An encoder learns to name the symbol before each one, in
# sequences of 32 tokens:

# %%
for rank in (32, 8):
    accuracy = long_inputs.learn_to_name(rank, seed=0, steps=250)
    print(f"{rank} segments of {32 // rank} tokens: {accuracy:.1%} of the symbols")
    assert accuracy > 0.85 if rank == 32 else accuracy < 0.5

# %% [markdown]
# Which pairs matter depends on the task. `python examples/exercises.py 16` measures all functions at more lengths,
# and at a distance that is not a multiple of the stride, where strided attention fails as well. The functions are in
# `examples/tutorials/long_attention.py`.
#
# With a KV cache, a decoding step costs $O(n)$ with softmax attention too. Linear attention could replace the cache
# by a prefix sum of constant size, which is not implemented here.
