# %% [markdown]
# # The Random Transformer, number by number
#
# Omar Sanseviero's blog post
# [The Random Transformer](https://osanseviero.github.io/hackerllama/blog/posts/random_transformer/) computes a whole
# Transformer by hand: four dimensions, two heads, ten words, random weights. This notebook computes its steps in two
# ways: with one line of matrix algebra per formula, and with the model of this package (the one that also trains and
# serves translations). An `assert` compares them with each other and with the post, where the post prints a result that
# follows from numbers that it prints. Weights and other inputs are those of the post where it prints them.
#
# Not everything can be reproduced: the post draws most of its weights at random without printing them. Of its 209
# different numbers of six or more digits, 80 are results that follow from printed numbers, 38 are such inputs, and 91
# belong to computations with unprinted weights: the feed-forward networks, the blocks and stacks, the cross-attention
# and the generated words. For those, the weights of our model are other random numbers.
#
# You need matrix multiplication and Python. Nothing is trained here: the subject is the arithmetic of
# "Attention Is All You Need" (Vaswani et al. 2017). Section numbers refer to that paper.

# %%
import sys

import matplotlib.pyplot as plt
import numpy as np
import torch
from IPython.display import SVG

from modeling_random_transformer import RandomTransformerConfig, RandomTransformerForConditionalGeneration
from modeling_random_transformer.extras.inspection import trace
from modeling_random_transformer.modeling_random_transformer import sinusoids

sys.path.append("..")  # the folder of `tutorials`
from tutorials.architecture import draw
from tutorials.blog_model import BLOG, blog_model, blog_tokenizer, tensor
from tutorials.walkthrough_blog import (
    DECODER,
    OPTIONS,
    SMALL_SCALE,
    naive_softmax,
    run_without_norms,
    traced,
    traced_from_e,
    traced_hello_world,
    unnormalized_model,
)


def compare(name, by_hand, model_value=None, post_value=None, tolerance=6e-9):
    """Print an array, and check that the model and the post, where they are given, have the same numbers."""
    agreeing = []
    if model_value is not None:
        torch.testing.assert_close(by_hand, model_value.reshape(by_hand.shape), rtol=1e-9, atol=1e-9)
        agreeing.append("the model")
    if post_value is not None:  # printed with eight decimals
        torch.testing.assert_close(by_hand, tensor(post_value).reshape(by_hand.shape), rtol=5e-9, atol=tolerance)
        agreeing.append("the post")
    numbers = np.array2string(by_hand.detach().numpy(), precision=4, suppress_small=True, prefix=f"{name} = ")
    print(f"{name} = {numbers}" + (f"   same in {' and '.join(agreeing)}" if agreeing else ""))


# %% [markdown]
# ## The model
#
# The post's model is a preset of the configuration. Its architecture is that of the paper's Figure 1. The figure below
# is drawn from the modules of the model. Section 10 compares them with the base preset.

# %%
model = blog_model()
assert model.num_parameters() == 2970
SVG(draw(model))

# %% [markdown]
# ## 1. From words to vectors
#
# Each word of the vocabulary has an id. The embedding matrix has a row of $d_\text{model} = 4$ numbers for each id,
# and a sentence becomes the matrix of its rows (section 3.4). The paper multiplies the rows by
# $\sqrt{d_\text{model}}$; the post does not, and neither does this preset (`scale_embedding=False`).
#
# Every intermediate value of a forward pass has a path, and `trace` records all of them. `traced_hello_world` is such a
# record for "hello world" with the post's embeddings.

# %%
tokenizer = blog_tokenizer()
print("vocabulary:", tokenizer.convert_ids_to_tokens(range(10)))
print("hello world:", tokenizer("hello world").input_ids, "(the last token is EOS)")

recorded = traced_hello_world()
token_embedding = tensor([[1, 2, 3, 4], [2, 3, 4, 5]])
compare("token embedding", token_embedding, recorded["encoder.embedding.token"])

# %% [markdown]
# ## 2. Positions
#
# Attention is a weighted sum, and a sum does not depend on the order of its terms. The model therefore adds a vector to
# each embedding that depends only on the position (section 3.5):
#
# $$PE_{(pos,\,2i)} = \sin\left(\frac{pos}{10000^{2i/d_\text{model}}}\right) \qquad
# PE_{(pos,\,2i+1)} = \cos\left(\frac{pos}{10000^{2i/d_\text{model}}}\right)$$
#
# Dimensions come in pairs: a sine and a cosine of one wavelength. At position 0 all sines are 0 and all cosines are 1.
# At position 1 the first pair is $\sin 1, \cos 1$ and the second $\sin 0.01, \cos 0.01$.

# %%
angles = tensor([[0, 0], [1, 1 / 10000 ** (2 / 4)]])
positions = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
compare("positions", positions)
compare("position of hello", positions[0], post_value=BLOG["position_encoding"]["pos0"])
# The model's table is in float32, which has about seven digits.
torch.testing.assert_close(recorded["encoder.embedding.position"].double(), positions, rtol=0, atol=1e-7)
compare("sum", token_embedding + positions)
compare("sum of hello", (token_embedding + positions)[0], post_value=BLOG["E"][0])

# %% [markdown]
# The second row of the post is different: it inserts the dimension for $i$ where the formula needs half of it. Its
# later numbers depend on this, so from here on the input of our model is the post's matrix $E$, printed below.
#
# Four dimensions have two wavelengths. With $d_\text{model} = 64$ there are 32, and each position has its own pattern.
# The wavelengths grow from left to right, as the digits of a number change more slowly from the last to the first.

# %%
print("the post's positions of the second word:", BLOG["position_encoding"]["pos1_as_printed"])
E = tensor(BLOG["E"])
compare("E", E)

figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
image = axes.pcolormesh(sinusoids(torch.arange(48), d_model=64), cmap="RdBu", vmin=-1, vmax=1)
axes.set(xlabel="dimension", ylabel="position", title="Sinusoids, d_model = 64")
_ = figure.colorbar(image, ax=axes)
# %% [markdown]
# ## 3. Self-attention
#
# Each head projects every word to a query, a key and a value, here of three numbers each (section 3.2.2):
#
# $$Q = E\,W^Q \qquad K = E\,W^K \qquad V = E\,W^V$$
#
# The post prints these weights, and the first encoder layer of our model has them. `nn.Linear` stores the transpose of
# the matrix, with the rows of all heads one after the other.

# %%
weights = {name: tensor(values) for name, values in BLOG["head1"].items()}
attention = model.model.encoder.layers[0].self_attn
assert torch.equal(attention.q_proj.weight[:3].T, weights["WQ"])

_, recorded = traced_from_e()
head = "encoder.layers.0.self_attn.head.0"
Q, K, V = E @ weights["WQ"], E @ weights["WK"], E @ weights["WV"]
compare("Q", Q, recorded[f"{head}.query"], BLOG["Q1"])
compare("K", K, recorded[f"{head}.key"], BLOG["K1"])
compare("V", V, recorded[f"{head}.value"], BLOG["V1"])

# %% [markdown]
# The dot product of a query and a key is the score of a pair of words. Divided by $\sqrt{d_k}$ and normalized by the
# softmax, the scores of a row become weights with sum 1, and each word receives a weighted mean of the values
# (section 3.2.1):
#
# $$\text{Attention}(Q, K, V) = \text{softmax}\left(\frac{Q K^\top}{\sqrt{d_k}}\right) V
# \qquad \text{softmax}(x)_i = \frac{e^{x_i}}{\sum_j e^{x_j}}$$
#
# **Predict**: the scores of *hello* are 68 and 105.21. What will its two weights be, roughly?
#
# *Your prediction:*

# %%
scores = Q @ K.T
compare("scores", scores, recorded[f"{head}.scores"], BLOG["scores1"])
scaled = scores / 3**0.5
compare("scaled", scaled, recorded[f"{head}.scaled_scores"], BLOG["scaled_scores1_sqrt3"])
attention_weights = scaled.softmax(dim=-1)
compare("weights", attention_weights, recorded[f"{head}.weights"], BLOG["weights1_sqrt3"])
compare("output", attention_weights @ V, recorded[f"{head}.output"], BLOG["attention1_sqrt3"])

# %% [markdown]
# Both words have received the same vector: the value of the second word. The scores of a row differ by more than 20, so
# the softmax is saturated: one weight is 1, the other nearly 0. Then its gradient is nearly 0, too, and the head could
# not learn. The factor $1/\sqrt{d_k}$ is meant to prevent this: if the components of queries and keys are independent
# with variance 1, their dot product has variance $d_k$. The integers of the post are much larger than that, so the post
# divides by 30 instead. For our model this is `attention_scale=1/30`.

# %%
_, recorded = traced_from_e(SMALL_SCALE)
outputs = []
for number in (1, 2):
    weights = {name: tensor(values) for name, values in BLOG[f"head{number}"].items()}
    Q, K, V = E @ weights["WQ"], E @ weights["WK"], E @ weights["WV"]
    outputs.append((Q @ K.T / 30).softmax(dim=-1) @ V)
    head = f"encoder.layers.0.self_attn.head.{number - 1}"
    compare(f"head {number}", outputs[-1], recorded[f"{head}.output"], BLOG[f"attention{number}_div30"])

figure, plots = plt.subplots(1, 4, figsize=(9, 2.4), layout="constrained")
for column, (scale, label) in enumerate(((3**-0.5, "1/√3"), (SMALL_SCALE, "1/30"))):
    _, by_scale = traced_from_e(scale)
    for number in (0, 1):
        axes = plots[2 * column + number]
        values = by_scale[f"encoder.layers.0.self_attn.head.{number}.weights"][0]
        axes.imshow(values, cmap="Blues", vmin=0, vmax=1)
        for (row, key), value in np.ndenumerate(values.numpy()):
            axes.text(key, row, f"{value:.2f}", ha="center", va="center", color="white" if value > 0.5 else "black")
        axes.set_title(f"head {number + 1}, scale {label}", fontsize=10)
        axes.set_xticks([0, 1], ["hello", "world"])
        axes.set_yticks([0, 1], ["hello", "world"])

# %% [markdown]
# ## 4. All heads together
#
# The outputs of the heads are concatenated and projected to $d_\text{model}$ dimensions (section 3.2.2), so that each
# word is again a vector of four numbers:
#
# $$Z = [\text{head}_1, \text{head}_2]\; W^O$$

# %%
concatenated = torch.cat(outputs, dim=-1)
compare("concatenated", concatenated, recorded["encoder.layers.0.self_attn.concatenated"])
Z = concatenated @ tensor(BLOG["W_output"])
compare("Z", Z, recorded["encoder.layers.0.self_attn.output"], BLOG["Z_div30"])

# %% [markdown]
# ## 5. Residual connection and layer normalization
#
# The sub-layer's output is added to its input, and the numbers of each word are normalized to mean 0 and variance 1
# (section 3.1). $\gamma$ and $\beta$ are parameters, initially 1 and 0:
#
# $$\text{LayerNorm}(x) = \gamma \cdot \frac{x - \mu}{\sqrt{\sigma^2 + \varepsilon}} + \beta$$
#
# The post's code divides by $\sigma + \varepsilon$ instead, as some early implementations did. The results differ in
# the seventh digit. The post also computes the sum by hand, from other last digits of $Z$: it differs in the eighth
# decimal place.

# %%
residual = E + Z
path = "encoder.layers.0.self_attn"
compare("E + Z", residual, recorded[f"{path}.residual"], BLOG["by_hand"]["E_plus_Z"], tolerance=6e-8)
compare("mean", residual.mean(-1), recorded[f"{path}.mean"], BLOG["mean_E_plus_Z"])
compare("std", residual.std(-1, correction=0), recorded[f"{path}.variance"].sqrt(), BLOG["std_E_plus_Z"])
normalized = (residual - residual.mean(-1, keepdim=True)) / (residual.var(-1, correction=0, keepdim=True) + 1e-6).sqrt()
compare("norm", normalized, recorded[f"{path}.layer_norm"], BLOG["layer_norm_E_plus_Z"], tolerance=3e-7)

# %% [markdown]
# ## 6. Feed-forward network
#
# Two linear layers with a ReLU between them, applied to each word separately (section 3.3). The first widens four
# numbers to eight, the second returns to four. Attention combines words; this network does not.
#
# $$\text{FFN}(x) = \max(0,\; x W_1 + b_1)\, W_2 + b_2$$
#
# The post does not print its random weights, so here only our model and the formula are compared.

# %%
layer = traced_from_e(SMALL_SCALE)[0].model.encoder.layers[0]
inner = normalized @ layer.fc1.weight.T + layer.fc1.bias
compare("inner", inner, recorded["encoder.layers.0.ffn.inner"])
output = inner.relu() @ layer.fc2.weight.T + layer.fc2.bias
compare("FFN", output, recorded["encoder.layers.0.ffn.output"])

changed = normalized.clone()
changed[0] += 1
difference = layer.feed_forward(changed) - layer.feed_forward(normalized)
assert difference[0].all()
assert torch.equal(difference[1], torch.zeros(4).double())

# %% [markdown]
# ## 7. Why the normalization
#
# The post then applies six layers without residual connections and normalization, with weights from $N(0, 1)$, and gets
# NaN. The scores grow from layer to layer, and its softmax computes $e^x$ of a score above 709, which overflows in
# float64. Libraries subtract the largest score first, which does not change the result:
# $e^{x_i - m} / \sum_j e^{x_j - m}$. That helps the softmax but not the growth: in float16, whose largest number is
# 65,504, the values overflow nevertheless. With residual connections and norms, they do not grow.

# %%
random_model = unnormalized_model()
largest_scores, largest_values = run_without_norms(random_model, E[None])
assert np.isnan(naive_softmax(max(largest_scores)))
assert largest_values[-1] > 65504

with_norms = traced(random_model, inputs_embeds=E[None])
normed = [with_norms[f"encoder.layers.{layer}.ffn.layer_norm"].abs().max().item() for layer in range(6)]
assert max(normed) < 2  # no number of four with mean 0 and variance 1 is above √3

figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
axes.semilogy(range(1, 7), largest_values, marker="o", label="without residual connections and norms")
axes.semilogy(range(1, 7), normed, marker="o", label="with both")
axes.axhline(65504, color="gray", linestyle=":", label="largest number of float16")
axes.set(xlabel="encoder layer", ylabel="largest absolute value")
_ = axes.legend(frameon=False)
# %% [markdown]
# ## 8. The decoder
#
# The decoder generates one word at a time, beginning with the start token SOS. Its layers have the same parts as those
# of the encoder, with two differences.
#
# **Masked self-attention** (section 3.2.3). A word must not attend to later words, which do not exist yet during
# generation. Their scores are set to $-\infty$ before the softmax, so their weights are exactly 0. The post omits the
# mask, so these scores are another example:

# %%
scores = tensor([[1.1, 1.2, 1.3], [2.2, 2.3, 2.4], [3.3, 3.4, 3.5]])
visible = torch.ones(3, 3, dtype=torch.bool).tril()
masked_weights = scores.masked_fill(~visible, -torch.inf).softmax(dim=-1)
compare("weights", masked_weights)
assert torch.equal(masked_weights, masked_weights.tril())

# %% [markdown]
# **Cross-attention** (section 3.2.3). The queries come from the decoder, the keys and values from the encoder's output.
# The weights have one row per target word and one column per source word. With the start token alone, there is one row.
#
# The post prints the output of its self-attention for SOS, but not its random weights. That output is the input of the
# norm here. The cross-attention after it has random weights too, so only our model and the formula are compared.

# %%
state = model.model.decoder.layers[0].self_attn_layer_norm(
    tensor([DECODER["SOS_plus_position"]]) + tensor([DECODER["self_attention"]])
)
compare("LayerNorm(E + Z) of SOS", state, post_value=[DECODER["layer_norm"]], tolerance=3e-7)

recorded = traced(model, encoder_outputs=(tensor(DECODER["encoder_output"])[None],))
path = "decoder.layers.0.encoder_attn.head.0"
assert recorded[f"{path}.query"].shape == (1, 1, 3)
assert recorded[f"{path}.key"].shape == (1, 2, 3)
Q, K, V = (recorded[f"{path}.{name}"][0] for name in ("query", "key", "value"))
cross_weights = (Q @ K.T / 3**0.5).softmax(dim=-1)
compare("weights", cross_weights, recorded[f"{path}.weights"])
compare("output", cross_weights @ V, recorded[f"{path}.output"])

# %% [markdown]
# ## 9. From vectors to words
#
# The last linear layer computes a logit for each word of the vocabulary from the last decoder state, and the softmax
# turns the logits into probabilities (section 3.4). The post prints its logits, but not the random weights that they
# come from, so they are the input here. The most probable word is *hola*.

# %%
logits = tensor(BLOG["logits"])
probabilities = logits.softmax(dim=-1)
compare("probabilities", probabilities, post_value=BLOG["probabilities"])
assert tokenizer.decode([int(probabilities.argmax())]) == BLOG["greedy_choice"] == "hola"

figure, axes = plt.subplots(figsize=(6, 2.4), layout="constrained")
axes.bar(BLOG["vocabulary"], probabilities.numpy())
_ = axes.set(ylabel="probability", title="Next word")
# %% [markdown]
# Generation repeats this: append the chosen word, run the decoder again, until it chooses EOS. `generate()` of
# transformers does it, with a cache so that each step computes the newest word only. The model is random, so its
# answer is too.

# %%
speaker = blog_model(seed=1)
inputs = tokenizer("hello world", return_tensors="pt")
with trace(speaker) as recorded:
    ids = speaker.generate(**inputs, max_new_tokens=5)
for step, token in enumerate(ids[0, 1:].tolist()):
    probability = recorded.step(step)["probabilities"][0, -1, token].item()
    print(f"step {step}: {tokenizer.decode([token]):6} with probability {probability:.3f}")
    assert recorded.step(step)["logits"][0, -1].argmax() == token

# %% [markdown]
# ## 10. The same code, larger
#
# The paper's base model has the same modules with other sizes. It also has dropout, multiplies the embeddings by
# $\sqrt{d_\text{model}}$, and its output layer is the embedding matrix, without a bias. The base preset differs from
# the paper in one option: the attention projections have biases, as in most implementations. Without weights (on
# PyTorch's meta device) the model is built in an instant, and its parameters can be counted:

# %%
with torch.device("meta"):
    base = RandomTransformerForConditionalGeneration(RandomTransformerConfig.from_preset("base"))
for name, value in BLOG["original_sizes"].items():
    print(f"{name:20} {getattr(model.config, name):5} {getattr(base.config, name):10,}")
    assert getattr(base.config, name) == value  # printed in the post
for name in OPTIONS:
    print(f"{name:20} {getattr(model.config, name)!s:>5} {getattr(base.config, name)!s:>10}")
print(f"{'parameters':20} {model.num_parameters():5,} {base.num_parameters():10,}")
assert 60e6 < base.num_parameters() < 65e6  # "65 · 10⁶" in the paper's Table 3

# %% [markdown]
# ## What next
#
# - `python examples/walkthrough.py` prints the same steps in the terminal, also for a saved model and in Chinese.
# - `python examples/exercises.py` answers the eight questions at the end of the post by experiments.
# - The next notebook trains such a model until it translates.
