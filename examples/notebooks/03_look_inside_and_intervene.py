# %% [markdown]
# # Looking inside, and intervening
#
# Even a small model computes more than 100,000 numbers for a sentence and its translation. This notebook reads them
# with `trace` and changes them with `intervene`, which use the same names. Reading shows what is *correlated* with a
# translation; changing shows what *causes* it.
#
# The model is the English-Spanish translator that the previous notebook has trained and saved. If it has not been run,
# the first cell trains the model, in a minute or two.

# %%
import os
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

from modeling_random_transformer.extras.inspection import intervene, trace
from modeling_random_transformer.extras.inspection.explorer import token_texts
from modeling_random_transformer.inference.loading import load_translator

sys.path.append("..")  # the folder of `tutorials`
from tutorials.sample_data import held_out_sample
from tutorials.training_helpers import configure_libraries, translate

FOLDER = Path("outputs/translator")
if not FOLDER.is_dir():
    without_window = {**os.environ, "MPLBACKEND": "Agg"}
    command = [sys.executable, "02_train_a_translator.py"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=without_window)
configure_libraries(seed=0)
model, tokenizer = load_translator(FOLDER)
layers, heads = model.config.decoder_layers, model.config.num_heads

sentence = "The old king visits the white houses."
(translation,) = translate(model, tokenizer, [sentence])
print(f"{sentence}  →  {translation}")

# %% [markdown]
# ## Every value has a name
#
# `trace` records all values of a forward pass by their path, together with the formula and the section of the paper.
# Indices of layers and heads start at 0.

# %%
pair = tokenizer([sentence], text_target=[translation], return_tensors="pt")
with torch.no_grad(), trace(model) as recorded:
    model(**pair)
print(f"{len(recorded)} values with {sum(value.numel() for value in recorded.values()):,} numbers, for example")
for path in ("encoder.layers.0.self_attn.head.1.scores", "decoder.layers.1.ffn.activation", "probabilities"):
    step = recorded.explain(path)
    print(f"  {path}: {list(step.shape)} = {step.formula} (section {step.section})")

# %% [markdown]
# A formula can be checked with the values that precede it. Here is
# $\text{softmax}(QK^\top / \sqrt{d_k})\,V$ of one head of the cross-attention, from the recorded queries, keys and
# values:

# %%
head = "decoder.layers.1.encoder_attn.head.0"
Q, K, V = (recorded[f"{head}.{name}"] for name in ("query", "key", "value"))
weights = (Q @ K.transpose(-1, -2) / model.config.d_k**0.5).softmax(dim=-1)
torch.testing.assert_close(weights, recorded[f"{head}.weights"])
torch.testing.assert_close(weights @ V, recorded[f"{head}.output"])

# %% [markdown]
# ## Attention maps
#
# The weights of all heads of the cross-attention: rows are target tokens (the one that is predicted), columns are
# source tokens. Some heads align words, others attend to the end of the sentence or spread their weight.

# %%
source_tokens = token_texts(tokenizer, pair["input_ids"][0])
target_tokens = token_texts(tokenizer, pair["labels"][0])
figure, plots = plt.subplots(
    layers, heads, figsize=(2.3 * heads, 2.5 * layers), sharex=True, sharey=True, layout="constrained"
)
for layer in range(layers):
    for head in range(heads):
        weights = recorded[f"decoder.layers.{layer}.encoder_attn.head.{head}.weights"][0]
        axes = plots[layer, head]
        axes.imshow(weights, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes.set_title(f"layer {layer}, head {head}", fontsize=9)
        axes.set_xticks(range(len(source_tokens)), source_tokens, rotation=90, fontsize=8)
        axes.set_yticks(range(len(target_tokens)), target_tokens, fontsize=8)

# %% [markdown]
# ## From layer to layer
#
# The output layer can be applied to the states of any layer, not only to the last (the *logit lens*). It shows from
# which layer on the next token is decided. The mean log-probability of the correct token, over all tokens:

# %%
correct = pair["labels"][0]
lens = {"embedding": recorded["decoder.embedding.sum"]}
lens |= {f"layer {layer}": recorded[f"decoder.layers.{layer}.ffn.layer_norm"] for layer in range(layers)}
means = {}
with torch.no_grad():
    for name, states in lens.items():
        log_probabilities = model.lm_head(states)[0].log_softmax(dim=-1)
        means[name] = log_probabilities.gather(1, correct[:, None]).mean().item()
        print(f"{name:10} {means[name]:8.3f}   {' '.join(token_texts(tokenizer, log_probabilities.argmax(dim=-1)))}")
assert means[f"layer {layers - 1}"] == max(means.values())
assert means[f"layer {layers - 1}"] > -1.5

# %% [markdown]
# ## Interventions: which heads matter?
#
# `intervene` replaces recorded values during forward passes and `generate()`: by a number, a tensor or a function of
# the value. Setting the output of a head to 0 removes the head. The effect is the increase of the loss, the mean
# cross-entropy in nats per token, on sentences that the model has not been trained on.
#
# **Predict**: there are 24 heads. Without how many of them, one at a time, does the loss increase by less than 0.1?
#
# *Your prediction:*

# %%
_, test = held_out_sample(6000)
sources, references = (list(side) for side in zip(*test[:100], strict=True))
batch = tokenizer(sources, text_target=references, padding=True, return_tensors="pt")
batch["labels"] = batch["labels"].masked_fill(batch["labels"] == tokenizer.pad_token_id, -100)


def label_cells(axes, values):
    """Write each value into its cell of a heat map."""
    for (row, column), value in np.ndenumerate(values.numpy()):
        color = "white" if abs(value) > 0.6 * values.abs().max() else "black"
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=color)


def loss_with(replacements):
    """The loss on the test sentences while values are replaced."""
    with torch.no_grad(), intervene(model, replacements):
        return model(**batch).loss.item()


intact = loss_with({})
rows = [
    f"{stack}.layers.{layer}.{attention}"
    for stack, attention in (("encoder", "self_attn"), ("decoder", "self_attn"), ("decoder", "encoder_attn"))
    for layer in range(layers)
]
increase = torch.tensor(
    [[loss_with({f"{row}.head.{head}.output": 0}) - intact for head in range(heads)] for row in rows]
)

figure, axes = plt.subplots(figsize=(6.5, 3.2), layout="constrained")
image = axes.imshow(increase, cmap="Oranges", vmin=0, aspect="auto")
label_cells(axes, increase)
axes.set_xticks(range(heads))
axes.set_yticks(range(len(rows)), rows)
axes.set(xlabel="head", title=f"Increase of the loss without a head (intact: {intact:.2f})")
_ = figure.colorbar(image, ax=axes)

# %% [markdown]
# Most heads can be removed one at a time with little effect: others compute similar outputs. A whole sub-layer cannot.
# A path may contain wildcards, so one line removes the cross-attention of all layers. The output then does not depend
# on the source:

# %%
ablations = {
    "intact": {},
    "no cross-attention": {"decoder.layers.*.encoder_attn.output": 0},
    "no feed-forward networks": {"*.layers.*.ffn.output": 0},
    "no source positions": {"encoder.embedding.position": 0},
    "uniform cross-attention": {"decoder.layers.*.encoder_attn.head.*.scores": 0},
}
losses = {name: loss_with(replacements) for name, replacements in ablations.items()}
for name, replacements in ablations.items():
    with intervene(model, replacements):
        (changed,) = translate(model, tokenizer, [sentence], max_new_tokens=16)
    print(f"{name:25} loss {losses[name]:5.2f}   {changed}")
assert losses["no cross-attention"] - intact > max(1.0, increase.max().item())
assert losses["no source positions"] > intact + 0.1
assert loss_with({}) == intact  # nothing remains after the block

# %% [markdown]
# Without the cross-attention, the output still resembles Spanish, but has nothing to do with the source: the decoder
# alone is a language model. Without source positions, most words are there, but the model has to guess which adjective
# belongs to which noun, and who does what to whom.
#
# ## Activation patching: where is the gender?
#
# *The house is old* becomes *La casa es vieja*, and *The book is old* becomes *El libro es viejo*. English articles
# have no gender, so the first Spanish word depends on the noun, which is the second English word. Where in the encoder
# is this information?
#
# *Activation patching* answers such questions. Run the model on *house*, but replace the state of one token in one
# layer by the one from the run on *book*. If the model then writes *El*, that state contains the information.

# %%
clean, book_sentence = "The house is old.", "The book is old."
clean_inputs, other_inputs = (tokenizer(text, return_tensors="pt") for text in (clean, book_sentence))
tokens = token_texts(tokenizer, clean_inputs["input_ids"][0])
assert clean_inputs["input_ids"].shape == other_inputs["input_ids"].shape
(different,) = (clean_inputs["input_ids"] != other_inputs["input_ids"])[0].nonzero()
start = torch.tensor([[model.config.decoder_start_token_id]])
feminine, masculine = (tokenizer(word).input_ids[0] for word in ("La", "El"))


def preference(inputs, replacements=()):
    """The logit of `El` minus that of `La` as the first word."""
    with torch.no_grad(), intervene(model, dict(replacements)):
        logits = model(**inputs, decoder_input_ids=start).logits[0, -1]
    return (logits[masculine] - logits[feminine]).item()


with torch.no_grad(), trace(model) as from_other:
    model(**other_inputs, decoder_input_ids=start)


def patch(path, position):
    """A replacement of the state of one token by that of the other sentence."""

    def replace(value):
        patched = value.clone()
        patched[:, position] = from_other[path][:, position]
        return patched

    return {path: replace}


states = ["encoder.embedding.sum", *(f"encoder.layers.{n}.ffn.layer_norm" for n in range(model.config.encoder_layers))]
lowest, highest = preference(clean_inputs), preference(other_inputs)
print(f"El minus La: {lowest:.2f} for {clean!r}, {highest:.2f} for {book_sentence!r}")
assert lowest < 0 < highest

shift = torch.tensor(
    [
        [
            (preference(clean_inputs, patch(path, position)) - lowest) / (highest - lowest)
            for position in range(len(tokens))
        ]
        for path in states
    ]
)

# %% [markdown]
# 0 is the preference of the unchanged run, 1 that of the other sentence:

# %%
figure, axes = plt.subplots(figsize=(6.5, 2.6), layout="constrained")
image = axes.imshow(shift, cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto")
label_cells(axes, shift)
axes.set_xticks(range(len(tokens)), tokens)
axes.set_yticks(range(len(states)), ["embedding", *(f"layer {n}" for n in range(len(states) - 1))])
axes.set(title="Share of the change by patching one token")
_ = figure.colorbar(image, ax=axes)

shared_positions = [position for position in range(len(tokens)) if position != different]
assert abs(shift[0, different].item() - 1) < 1e-3  # only the noun differs in the input
assert shift[0, shared_positions].abs().max() < 1e-3
assert shift[-1, different] < 0.95  # attention has moved a part to other tokens

# %% [markdown]
# In the embeddings, only the noun differs, so patching it changes everything and patching another token nothing. In the
# last layer, the noun contains only a part of the information. Self-attention has copied it to other tokens, first of
# all to the article.
#
# The same replacement works in `generate()`, also with beams. Patching the embedding gives the other translation.
# Patching the final state of the noun changes the noun, but not necessarily the words that agree with it:

# %%
for text in (clean, book_sentence):
    print(f"{text:40} {translate(model, tokenizer, [text], num_beams=4)[0]}")
patched = []
for path in (states[0], states[-1]):
    with intervene(model, patch(path, int(different))) as counts:
        patched += translate(model, tokenizer, [clean], num_beams=4)
    print(f"book in {path:32} {patched[-1]}")
    assert counts == {path: 1}  # the encoder runs once, for all steps and beams
assert patched[0] == translate(model, tokenizer, [book_sentence], num_beams=4)[0]
assert "libro" in patched[1]

# %% [markdown]
# ## What next
#
# - `docs/how_to/inspect.md` lists all paths of `trace` and `intervene`.
# - `random-transformer explore outputs/translator "a sentence"` is an interactive page of the maps above.
# - `python examples/prune_heads.py` removes the heads one after the other, the least important first.
