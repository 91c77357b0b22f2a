# %% [markdown]
# # Training
#
# What happens between a model with random weights and one that translates? This notebook shows the parts of the paper's
# recipe (section 5) one by one, then breaks them on purpose: an untrained eye learns more from six broken runs than
# from one that works. Each run takes a few seconds.
#
# Questions are marked with **Predict**. Write your answer into the cell (double-click on it) before you run the next
# one.

# %%
import sys

import matplotlib.pyplot as plt
import torch
from torch import nn

from modeling_random_transformer import (
    RandomTransformerConfig,
    RandomTransformerForConditionalGeneration,
    RandomTransformerTokenizer,
)
from modeling_random_transformer.extras.inspection.explorer import token_texts

sys.path.append("..")  # the folder of `tutorials`
from tutorials.sample_data import held_out_sample
from tutorials.training_helpers import configure_libraries

configure_libraries(seed=0)
BLUE, ORANGE, GREEN, RED, GRAY = "#1f5a94", "#e3944a", "#4c9a6a", "#a83232", "#777777"
PAD, START, END, IGNORED = 0, 1, 2, -100

# %% [markdown]
# ## A real batch
#
# Three sentence pairs of different lengths. Shorter ones are filled up with padding. Padding of the labels is -100,
# which the loss ignores.
#
# ### Teacher forcing
#
# The decoder predicts each token from the tokens before it. In training these are the *correct* ones, not its own
# predictions: the decoder's input is the target, shifted right by one position after the start token. So a wrong
# prediction does not spoil the following ones, and all positions are trained at once, in one pass. In use there is no
# correct target, and the model continues from its own tokens, one pass per token.

# %%
train, test = held_out_sample(3000)
pairs = [("I see her.", "La veo."), ("The red car is new.", "El coche rojo es nuevo."), ("They read.", "Ellos leen.")]
tokenizer = RandomTransformerTokenizer.train((text for pair in train for text in pair), vocab_size=1000)
batch = tokenizer(
    [source for source, _ in pairs], text_target=[target for _, target in pairs], padding=True, return_tensors="pt"
)
labels = batch["labels"].masked_fill(batch["labels"] == PAD, IGNORED)
translator = RandomTransformerForConditionalGeneration(
    RandomTransformerConfig.from_preset("tiny", vocab_size=len(tokenizer), encoder_layers=1, decoder_layers=1)
)
decoder_input = translator.prepare_decoder_input_ids_from_labels(labels)
assert torch.equal(decoder_input[:, 1:], labels[:, :-1].masked_fill(labels[:, :-1] == IGNORED, PAD))
row = 1
print(f"{'decoder input':15} label (what is predicted)")
for token, label in zip(token_texts(tokenizer, decoder_input[row]), token_texts(tokenizer, labels[row]), strict=True):
    print(f"{token:15} {label}")

# %% [markdown]
# ### Two masks
#
# The **padding mask** hides tokens that do not exist. The **causal mask** hides tokens that come later, which would be
# the answer. Self-attention of the encoder and cross-attention need the first, self-attention of the decoder needs
# both. White: hidden. Each row is a query, each column a key.
#
# **Predict**: in the picture of the decoder for "They read.", how many of the keys does the first query see, and how
# many the last query that is not padding?
#
# *Your prediction:*

# %%
source_exists, target_exists = batch["attention_mask"].bool(), decoder_input != PAD
causal = torch.ones(decoder_input.shape[1], decoder_input.shape[1], dtype=torch.bool).tril()
figure, plots = plt.subplots(3, 3, figsize=(10, 10.5), layout="constrained")
for index, row in enumerate(plots):
    sources, targets = (token_texts(tokenizer, ids[index]) for ids in (batch["input_ids"], decoder_input))
    masks = {
        "encoder: padding": (source_exists[index].expand(len(sources), -1), sources, sources),
        "decoder: padding and causal": (causal & target_exists[index], targets, targets),
        "cross-attention: padding": (source_exists[index].expand(len(targets), -1), targets, sources),
    }
    for axes, (title, (visible, queries, keys)) in zip(row, masks.items(), strict=True):
        axes.imshow(visible, cmap="Blues", vmin=0, vmax=1.6, aspect="auto")
        axes.set_xticks(range(len(keys)), keys, rotation=90)
        axes.set_yticks(range(len(queries)), queries)
        if index == 0:
            axes.set_title(title)
last = target_exists[2].sum()
print(f"They read.: the first query sees {(causal & target_exists[2])[0].sum()} key, query {last} sees {last}")

# %% [markdown]
# The masks are real: a token that is hidden does not change the result. Here, padding is replaced by other tokens, and
# the last target token by another one. The logits that must not depend on them do not.

# %%
translator.eval()
with torch.no_grad():
    inputs = {"attention_mask": batch["attention_mask"], "decoder_input_ids": decoder_input}
    logits = translator(input_ids=batch["input_ids"], **inputs).logits
    noise = batch["input_ids"].masked_fill(~source_exists, 99)
    torch.testing.assert_close(translator(input_ids=noise, **inputs).logits, logits)
    changed = decoder_input.clone()
    changed[:, -1] = 99
    changed_logits = translator(**{**inputs, "decoder_input_ids": changed}, input_ids=batch["input_ids"]).logits
    torch.testing.assert_close(changed_logits[:, :-1], logits[:, :-1])
    assert not torch.allclose(changed_logits[:, -1], logits[:, -1])
print("hidden tokens change nothing")

# %% [markdown]
# ## Dropout
#
# In training, dropout sets each number to 0 with probability $p$, at random, and divides the others by $1 - p$, so that
# the mean stays the same. No part of the network can rely on a single number, so it learns redundant features, and
# memorizes less. In use, nothing is dropped. The paper drops 10% of each sub-layer's output and of the sum of
# embeddings and positions (section 5.4).

# %%
ones = torch.ones(8, 40)
dropped = nn.functional.dropout(ones, p=0.3, training=True)
figure, axes = plt.subplots(figsize=(7, 1.8), layout="constrained")
axes.imshow(dropped, cmap="Blues", vmin=0, vmax=2)
axes.set(xticks=[], yticks=[], title=f"p = 0.3: zeros (white) and {dropped.max():.2f} = 1 / 0.7")
assert torch.equal(nn.functional.dropout(ones, p=0.3, training=False), ones)
mean = nn.functional.dropout(torch.ones(100_000), p=0.3).mean().item()
print(f"mean of 100,000 numbers after dropout: {mean:.3f}")
assert abs(mean - 1) < 0.02

# %% [markdown]
# **A classic error**: a model that is used in training mode. The same sentence gets other logits at each call.
# `.eval()` switches dropout off, `.train()` on.

# %%
with torch.no_grad():
    calls = {}
    for mode in (True, False):
        translator.train(mode)
        first, second = (translator(input_ids=batch["input_ids"], **inputs).logits for _ in range(2))
        calls["training" if mode else "evaluation"] = (first - second).abs().max().item()
print("largest difference of two calls:", {mode: f"{difference:.3g}" for mode, difference in calls.items()})
assert calls["training"] > 0.1
assert calls["evaluation"] == 0

# %% [markdown]
# ## Label smoothing
#
# The loss is the cross-entropy, $-\log p$ of the correct token. It is smallest for $p = 1$, which needs infinite
# logits, so training makes the model more and more certain. Label smoothing with $\varepsilon = 0.1$ asks for less: 90%
# for the correct token, and 10% spread over the whole vocabulary. Then more certainty costs:

# %%
epsilon, size = 0.1, 1000
probability = torch.linspace(0.5, 0.99999, 2000)
rest = (1 - probability) / (size - 1)  # the other tokens share the remainder
plain = -probability.log()
smoothed = -(1 - epsilon + epsilon / size) * probability.log() - epsilon * (size - 1) / size * rest.log()
figure, axes = plt.subplots(figsize=(6, 2.8), layout="constrained")
axes.plot(probability, plain, color=ORANGE, label="without smoothing")
axes.plot(probability, smoothed, color=BLUE, label="ε = 0.1")
best = probability[smoothed.argmin()].item()
axes.axvline(best, color=GRAY, linestyle=":", label=f"minimum at {best:.2f}")
axes.set(xlabel="probability of the correct token", ylabel="loss (nats)", ylim=(0, 3.2))
axes.legend(frameon=False)
assert abs(best - (1 - epsilon + epsilon / size)) < 0.01
logits = torch.randn(5, size)
targets = torch.randint(size, (5,))
by_torch = nn.functional.cross_entropy(logits, targets, label_smoothing=epsilon)
log_probabilities = logits.log_softmax(dim=-1)
nll, uniform = -log_probabilities.gather(1, targets[:, None])[:, 0], -log_probabilities.mean(dim=1)
torch.testing.assert_close(((1 - epsilon) * nll + epsilon * uniform).mean(), by_torch)

# %% [markdown]
# ## Adam
#
# Plain gradient descent multiplies the gradient by one learning rate for all parameters. In a narrow valley, that rate
# is too large across and too small along. Adam divides each parameter's mean gradient $m$ by the root of its mean
# square $v$: every parameter moves by about the learning rate per step, whatever the size of its gradient. Both means
# are running ones, with $\beta_1 = 0.9$ and $\beta_2 = 0.98$ in the paper.

# %%
curvature = torch.tensor([1.0, 100.0])  # the second parameter has a hundred times the gradient


def descend(make_optimizer, steps=60):
    """The path from (-4, 1) on the surface of 1/2 · (x² + 100·y²)."""
    point = nn.Parameter(torch.tensor([-4.0, 1.0]))
    optimizer, path = make_optimizer([point]), [point.detach().clone()]
    for _ in range(steps):
        optimizer.zero_grad()
        (0.5 * (curvature * point.square()).sum()).backward()
        optimizer.step()
        path.append(point.detach().clone())
    return torch.stack(path)


paths = {
    "gradient descent, 0.019": descend(lambda p: torch.optim.SGD(p, lr=0.019)),
    "Adam, 0.2": descend(lambda p: torch.optim.Adam(p, lr=0.2, betas=(0.9, 0.98))),
}
figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
x, y = torch.meshgrid(torch.linspace(-4.5, 1.5, 80), torch.linspace(-1.2, 1.2, 80), indexing="xy")
axes.contour(x, y, 0.5 * (x**2 + 100 * y**2), levels=12, colors="lightgray")
for (name, path), color in zip(paths.items(), (ORANGE, BLUE), strict=True):
    axes.plot(
        *path.T, marker="o", markersize=2.5, color=color, label=f"{name}: ends {path[-1].norm():.2f} from the minimum"
    )
axes.plot(0, 0, "k*")
_ = axes.legend(frameon=False)

# %% [markdown]
# (With a learning rate of 0.02, gradient descent would jump from side to side forever: $100 \cdot 0.02 = 2$.)
#
# ## The schedule
#
# The paper raises the learning rate linearly for 4,000 steps (*warm-up*) and then lowers it with the root of the step:
# $d_\text{model}^{-0.5} \cdot \min(s^{-0.5},\ s \cdot s_\text{warmup}^{-1.5})$ (section 5.3). In the first steps Adam's
# running means consist of few gradients, and each parameter moves by a full learning rate in a direction that is mostly
# noise. Post-norm layers are sensitive to this.

# %%
steps = torch.arange(1, 20_001)
figure, axes = plt.subplots(figsize=(6.5, 2.8), layout="constrained")
for d_model, warmup, color in ((512, 4000, BLUE), (512, 8000, GREEN), (256, 4000, ORANGE)):
    rate = d_model**-0.5 * torch.minimum(steps**-0.5, steps * warmup**-1.5)
    axes.plot(steps, rate, color=color, label=f"d_model {d_model}, warm-up {warmup}: peak {rate.max():.5f}")
    assert rate.argmax() == warmup - 1
axes.set(xlabel="step", ylabel="learning rate", ylim=(0, None))
_ = axes.legend(frameon=False)

# %% [markdown]
# ## A task for many short runs
#
# Reverse a sequence of 3 to 8 different symbols. Its lengths differ, so it needs padding, and its order matters, so it
# needs positions. `run` trains a model on it and measures two things: the loss, with teacher forcing, and how many of
# 200 new sequences `generate()` reverses correctly. All errors below are changes of its arguments.

# %%
SYMBOLS, LONGEST = 26, 8
VOCABULARY = 4 + SYMBOLS


def sample(count):
    """Sources, and labels with -100 for padding: both [count, LONGEST + 1]."""
    lengths = torch.randint(3, LONGEST + 1, (count, 1))
    symbols = 4 + torch.rand(count, SYMBOLS).argsort(dim=1)[:, :LONGEST]
    position = torch.arange(LONGEST + 1)
    after_end = torch.full((count, LONGEST + 1), PAD).masked_fill(position == lengths, END)
    backwards = symbols.gather(1, (lengths - 1 - position).clamp(0, LONGEST - 1))
    source = torch.where(position < lengths, nn.functional.pad(symbols, (0, 1)), after_end)
    labels = torch.where(position < lengths, backwards, after_end)
    return source, labels.masked_fill(labels == PAD, IGNORED)


def usual_inputs(source, labels):
    return {"input_ids": source, "attention_mask": (source != PAD).long(), "labels": labels}


def run(learning_rate=3e-3, warmup=60, steps=300, inputs=usual_inputs, embedding_std=None, **overrides):
    """Train. Returns the losses and the share of 200 new sequences that are correct."""
    torch.manual_seed(0)
    sizes = {"d_model": 64, "d_ff": 128, "num_heads": 4, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    model = RandomTransformerForConditionalGeneration(
        RandomTransformerConfig(vocab_size=VOCABULARY, **{**sizes, **overrides})
    )
    if embedding_std is not None:
        nn.init.normal_(model.get_input_embeddings().weight, std=embedding_std)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), eps=1e-9)
    losses = []
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:  # linear warm-up, then linear decay
            group["lr"] = learning_rate * min(step / max(warmup, 1), 1, 2 * (steps + 1 - step) / steps)
        loss = model(**inputs(*sample(32))).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, correct_share(model.eval())


@torch.no_grad()
def correct_share(model, count=200):
    torch.manual_seed(1)
    source, labels = sample(count)
    mask = (source != PAD).long()
    outputs = model.generate(source, attention_mask=mask, max_new_tokens=LONGEST + 1, do_sample=False)[:, 1:]
    outputs = nn.functional.pad(outputs, (0, labels.shape[1] - outputs.shape[1]))
    return ((outputs == labels) | (labels == IGNORED)).all(dim=1).float().mean().item()


def show(runs, highest=None):
    """Curves of the losses, and a table."""
    _, axes = plt.subplots(figsize=(7, 3), layout="constrained")
    for (name, (losses, share)), color in zip(runs.items(), (BLUE, ORANGE, GREEN, RED, GRAY), strict=False):
        smooth = torch.tensor(losses).unfold(0, 10, 5).mean(dim=1)
        axes.plot(torch.arange(len(smooth)) * 5 + 10, smooth, color=color, label=name)
        print(f"{name:34} loss at the end {sum(losses[-20:]) / 20:6.3f}   correct {share:4.0%}")
    axes.set(xlabel="step", ylabel="loss (nats per token)", ylim=(0, highest))
    axes.legend(frameon=False)


runs = {"correct": run()}
show(runs)
assert runs["correct"][1] > 0.9

# %% [markdown]
# ## With and without warm-up
#
# Three layers on each side, and a learning rate of 0.005.
#
# **Predict**: which of the two runs learns?
#
# *Your prediction:*

# %%
deep = {"learning_rate": 5e-3, "encoder_layers": 3, "decoder_layers": 3}
warm = {"warm-up of 60 steps": run(**deep), "no warm-up": run(**deep, warmup=0)}
show(warm)
assert warm["warm-up of 60 steps"][1] > 0.7
assert warm["no warm-up"][1] < 0.2

# %% [markdown]
# Without warm-up, the first steps are as large as the largest, in directions that are mostly noise. The model gets
# stuck at a plateau from which it does not return: it has learned how often symbols occur, and ignores the source.
#
# **Change it and predict**: in the cell above, use `norm_order="pre"` in `deep`. Does the run without warm-up learn
# now?
#
# <details>
# <summary>Answer</summary>
#
# Yes, 99% of the sequences are correct. In pre-norm order the gradients of the last layers are smaller at the start
# (Xiong et al. 2020), so large first steps do less damage. This is one reason why most models after the paper are
# pre-norm.
#
# </details>

# %% [markdown]
# ## My model does not converge
#
# A checklist, with one broken run per entry. Look at the curve and at the share of correct sequences *together*: half
# of these errors have a beautiful loss.
#
# ### 1. The learning rate
#
# **Predict**: what do the curves look like for a rate that is 100 times too small, and for one that is 30 times too
# large?
#
# *Your prediction:*

# %%
rates = {"correct": runs["correct"], "3e-5: too small": run(3e-5), "1e-1: too large": run(1e-1)}
show(rates)
assert rates["3e-5: too small"][1] < 0.1
assert rates["1e-1: too large"][1] < 0.1

# %% [markdown]
# Too small: the curve falls steadily, but slowly. Too large: it falls at first and then stays at a plateau, near the
# loss of a model that knows how often tokens occur and nothing else. **Check**: try three rates, each ten times the
# last one, for a few hundred steps. Clip gradients. If the loss becomes NaN, the rate is the first suspect.
#
# ### 2. The masks
#
# **Predict**: without the causal mask, does the loss become higher or lower? And how many sequences are correct?
#
# *Your prediction:*


# %%
def without_causal_mask(source, labels):
    everything = torch.ones(len(labels), 1, labels.shape[1], labels.shape[1], dtype=torch.bool)
    return {**usual_inputs(source, labels), "decoder_attention_mask": everything}


def without_padding_masks(source, labels):
    return {"input_ids": source, "labels": labels.masked_fill(labels == IGNORED, PAD)}


masks = {
    "correct": runs["correct"],
    "no causal mask": run(inputs=without_causal_mask),
    "no padding masks": run(inputs=without_padding_masks),
}
show(masks)
assert masks["no causal mask"][1] < 0.3
assert masks["no padding masks"][1] < 0.7

# %% [markdown]
# Without the causal mask, the loss is *lower* than that of the correct run, and nothing is correct. Each position reads
# its answer in the next input token; in use there is no next token. **Check**: change the last token of the target; the
# logits before it must not change (see "Two masks").
#
# Without padding masks, padding is attended to and predicted. The loss looks good, because padding is easy to predict
# and is most of the batch's end. In use, where a sentence comes without padding, most results are wrong. **Check**: a
# sentence alone and in a batch with longer ones must have the same logits, and -100 must be in the labels.

# %% [markdown]
# ### 3. Shifted labels
#
# The decoder's input must be shifted right by one token. Here it is not: its input *is* the label.

# %%


def without_shift(source, labels):
    return {**usual_inputs(source, labels), "decoder_input_ids": labels.masked_fill(labels == IGNORED, PAD)}


def shifted_twice(source, labels):
    twice = nn.functional.pad(labels[:, :-2], (2, 0), value=START).masked_fill(labels == IGNORED, PAD)
    return {**usual_inputs(source, labels), "decoder_input_ids": twice.masked_fill(twice == IGNORED, PAD)}


shifts = {
    "correct": runs["correct"],
    "not shifted": run(inputs=without_shift),
    "shifted twice": run(inputs=shifted_twice),
}
show(shifts)
assert shifts["not shifted"][1] < 0.1
assert shifts["shifted twice"][1] < 0.5

# %% [markdown]
# Not shifted: the model copies its input, and the loss is the lowest of all runs. Shifted twice (which happens if both
# your code and the model shift): in training, the token before the last one is missing, and in use it is there. The
# loss is only a little too high. **Check**: print input and label side by side, as at the top of this notebook.

# %% [markdown]
# ### 4. Embeddings of the wrong size
#
# One matrix is the embedding and the output layer, and the two want different sizes: as output layer, numbers of about
# $1/\sqrt{d_\text{model}}$, so that logits are of size 1; as embedding, numbers of size 1, so that words are as large
# as positions. The paper's answer: initialize with $1/\sqrt{d_\text{model}}$, and multiply by $\sqrt{d_\text{model}}$
# on the way in (section 3.4). Two errors are common: the factor is forgotten, or the matrix is initialized with
# standard deviation 1, as `nn.Embedding` does by itself.
#
# **Predict**: which of the two is worse? What is the first loss of a model with logits of size 8 instead of 1?
#
# *Your prediction:*

# %%
print(f"a position's vector has length {(64 / 2) ** 0.5:.1f}")
for std, factor in ((1 / 8, 8), (1 / 8, 1), (1, 8)):
    print(f"a word's vector with standard deviation {std:.3f}, times {factor}: length {std * factor * 64**0.5:.1f}")
embeddings = {
    "correct": runs["correct"],
    "factor forgotten": run(scale_embedding=False),
    "standard deviation 1": run(embedding_std=1.0),
}
show(embeddings, highest=6)
print("first losses:", {name: round(losses[0], 1) for name, (losses, _) in embeddings.items()})
assert embeddings["standard deviation 1"][1] < 0.1
assert embeddings["standard deviation 1"][0][0] > 10

# %% [markdown]
# With standard deviation 1, the first loss is far above $\ln 30 = 3.4$, the loss of a guess, and words drown the
# positions, so that the order is not learned. **Check**: the first loss must be near $\ln V$. The forgotten factor is
# harmless here: with $d_\text{model} = 64$, positions are 6 times as long as words, and the model learns even a little
# faster.
#
# **Change it and predict**: is it harmless for a wider model, too? `run(d_model=256, learning_rate=1e-3)` with and
# without `scale_embedding=False` takes about a minute.
#
# <details>
# <summary>Answer</summary>
#
# No. After the same 300 steps, 75% of the sequences are correct with the factor, and 0.5% without (loss 0.17 and 1.47).
# The positions are 11 times as long as the words then. An error that costs nothing in a small model can cost much in a
# larger one.
#
# </details>
#
# ## Overfitting on purpose
#
# A model with many parameters and few examples learns them by heart. Always try this first with a new model: if it
# cannot overfit 50 sentences, it has an error. Then look at sentences that it has not seen.

# %%


def encode(pairs):
    batch = tokenizer([s for s, _ in pairs], text_target=[t for _, t in pairs], padding=True, return_tensors="pt")
    batch["labels"] = batch["labels"].masked_fill(batch["labels"] == PAD, IGNORED)
    return batch


def fit(pairs, dropout, steps=200):
    """Losses of training sentences and of new ones, every 20 steps."""
    torch.manual_seed(0)
    sizes = {"d_model": 64, "d_ff": 128, "encoder_layers": 1, "decoder_layers": 1, "dropout": dropout}
    config = RandomTransformerConfig.from_preset("tiny", vocab_size=len(tokenizer), **sizes)
    model = RandomTransformerForConditionalGeneration(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    known, new, curve = encode(pairs[:50]), encode(test[:100]), []
    for step in range(steps + 1):
        if step % 20 == 0:
            model.eval()
            with torch.no_grad():
                curve.append((step, model(**known).loss.item(), model(**new).loss.item()))
            model.train()
        chosen = torch.randint(len(pairs), (32,)).tolist()
        optimizer.zero_grad()
        model(**encode([pairs[index] for index in chosen])).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return torch.tensor(curve)


fits = {
    "50 pairs": fit(train[:50], dropout=0.0),
    "50 pairs, dropout 0.3": fit(train[:50], dropout=0.3),
    "2,700 pairs": fit(train, dropout=0.0),
}
figure, plots = plt.subplots(1, 3, figsize=(9.5, 2.8), layout="constrained", sharey=True)
for axes, (name, curve) in zip(plots, fits.items(), strict=True):
    axes.plot(curve[:, 0], curve[:, 1], color=ORANGE, label="50 training sentences")
    axes.plot(curve[:, 0], curve[:, 2], color=BLUE, label="100 new sentences")
    best = curve[:, 2].argmin()
    axes.plot(curve[best, 0], curve[best, 2], "o", color=BLUE, label="early stopping")
    axes.set(title=name, xlabel="step", ylim=(0, 8))
    lowest = f"lowest {curve[best, 2]:.2f} at step {curve[best, 0]:.0f}"
    print(f"{name:22} training {curve[-1, 1]:.2f}, new {curve[-1, 2]:.2f}, {lowest}")
plots[0].set_ylabel("loss (nats per token)")
plots[0].legend(frameon=False)
assert fits["50 pairs"][-1, 1] < 0.3
assert fits["50 pairs"][-1, 2] > fits["2,700 pairs"][-1, 2] + 1

# %% [markdown]
# - **50 pairs**: the loss of the training sentences is nearly 0, and that of new sentences rises after a few steps.
#   This is overfitting. The point marks where *early stopping* would end the training.
# - **With dropout**: memorizing takes longer, but 50 sentences do not contain what the others need.
# - **2,700 pairs**: both losses fall together, after the same number of steps. Nothing helps as much as data.
#
# If both losses stay high, the model underfits: too small, too few steps, or an error from the list above.
#
# `fit` also clips the gradient: if its length is above 1, it is shortened to 1, so that one unusual batch does not
# destroy the weights. And if a batch does not fit in memory, the gradients of its parts can be added before a step
# (*accumulation*), which gives the same step:

# %%
model = RandomTransformerForConditionalGeneration(
    RandomTransformerConfig.from_preset(
        "tiny", vocab_size=len(tokenizer), encoder_layers=1, decoder_layers=1, dropout=0.0
    )
).double()
whole = encode(train[:8])
tokens = (whole["labels"] != IGNORED).sum()
model(**whole).loss.backward()
expected = model.lm_head.weight.grad.clone()
model.zero_grad()
for part in (slice(0, 4), slice(4, 8)):
    inputs = {name: values[part] for name, values in whole.items()}
    (model(**inputs).loss * (inputs["labels"] != IGNORED).sum() / tokens).backward()  # backward adds to the gradient
torch.testing.assert_close(model.lm_head.weight.grad, expected)
length = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
clipped = sum(parameter.grad.square().sum() for parameter in model.parameters()) ** 0.5
print(f"two halves give the gradient of the whole batch; its length {length:.2f} is clipped to {clipped:.2f}")
assert clipped < 1.001

# %% [markdown]
# ## The checklist
#
# | symptom | first suspects |
# |---|---|
# | the first loss is far above $\ln V$ | initialization, size of the embeddings |
# | the loss falls very slowly | learning rate too small |
# | the loss stays at a plateau, or becomes NaN | learning rate too large, no warm-up, no clipping |
# | the loss is nearly 0, the output is nonsense | causal mask missing, labels not shifted |
# | alone it works, in a batch it does not | padding masks, padding in the labels |
# | the loss is a little too high, generation fails | labels shifted twice, dropout on during generation |
# | good on training sentences, bad on others | overfitting: more data, dropout, early stopping |
# | bad on training sentences too | underfitting: larger model, more steps; can it overfit 50 pairs? |
#
# ## What next
#
# - The notebook `02_train_a_translator.ipynb` trains a translator with `Seq2SeqTrainer`.
# - `docs/how_to/train.md` trains on real corpora, with this recipe as default.
