# %% [markdown]
# # Encoder-only and decoder-only models
#
# The original Transformer has two stacks of layers: the encoder processes the source, the decoder generates the target.
# Each stack is also a model of its own:
#
# | model | stack | each token attends to | training objective | family |
# |---|---|---|---|---|
# | encoder-only | encoder | all tokens | predict hidden tokens | BERT |
# | decoder-only | decoder without cross-attention | itself and earlier tokens | predict the next token | GPT |
# | encoder-decoder | both | | predict the next target token | the paper, T5 |
#
# This notebook pretrains an encoder with masked language modeling, fine-tunes it with few labels, and trains a small
# GPT. It runs in less than two minutes on two CPU cores.

# %%
import math
import random
import sys
import tempfile

import matplotlib.pyplot as plt
import torch
from datasets import Dataset
from tokenizers import AddedToken

from modeling_random_transformer import (
    RandomTransformerConfig,
    RandomTransformerForCausalLM,
    RandomTransformerForConditionalGeneration,
    RandomTransformerForMaskedLM,
    RandomTransformerForSequenceClassification,
    RandomTransformerTokenizer,
)

sys.path.append("..")  # the folder of `tutorials`
from tutorials.sample_data import NOUNS, entries
from tutorials.training_helpers import configure_libraries, short_training_arguments

configure_libraries(seed=0)

# %% [markdown]
# ## Sentences and a tokenizer
#
# The texts are from a small grammar, so that the best possible predictions are known. A sentence is either an action
# (*the king eats the red apple*), whose verb fits the kind of the noun, or a description (*the apple is red*), which
# says nothing about the kind. The training data contain neither the grammar nor the kinds. The tokenizer needs one more
# token, `<mask>`, in place of a hidden word.

# %%
LABELS = ["animal", "food", "text", "thing", "place"]
VERBS = {
    "animal": ["feeds", "calls"],
    "food": ["eats", "cooks"],
    "text": ["reads", "writes"],
    "thing": ["uses", "repairs"],
    "place": ["visits", "enters"],
}
ADJECTIVES = ["big", "small", "red", "old", "beautiful"]


def nouns_of(kind):
    return [english for gender in "mf" for english, _ in entries(NOUNS[f"{kind} {gender}"])]


KIND = {noun: kind for kind in LABELS for noun in nouns_of(kind)}
PERSONS = nouns_of("person")


def describe(choice):
    noun = choice(nouns_of(choice(LABELS)))
    return f"The {noun} is {choice(ADJECTIVES)}."


def act(choice):
    kind = choice(LABELS)
    adjective = choice(["", *(f"{word} " for word in ADJECTIVES)])
    return f"The {choice(PERSONS)} {choice(VERBS[kind])} the {adjective}{choice(nouns_of(kind))}."


choice = random.Random(0).choice
sentences = [choice([describe, act, act, act])(choice) for _ in range(4600)]
train_texts, test_texts = sentences[600:], sentences[:600]
tokenizer = RandomTransformerTokenizer.train(train_texts, vocab_size=1000)
tokenizer.add_special_tokens({"mask_token": AddedToken("<mask>", lstrip=True)})
print(f"{len(KIND)} nouns of {len(LABELS)} kinds", *train_texts[:4], sep="\n")
print(tokenizer.tokenize(train_texts[0]))

# %% [markdown]
# ## Three models from the same layers
#
# One configuration describes all of them. The parameters of both stacks have the same names in each model, so every
# checkpoint loads into every head. Only the parameters of a new head are initialized at random.

# %%
config = RandomTransformerConfig(
    vocab_size=len(tokenizer), d_model=64, d_ff=128, num_heads=4, encoder_layers=2, decoder_layers=2, dropout=0.0,
    attn_implementation="eager",  # which returns attention weights
)  # fmt: skip
encoder_only = RandomTransformerForMaskedLM(config)
decoder_only = RandomTransformerForCausalLM(config)
both = RandomTransformerForConditionalGeneration(config)
for model in (encoder_only, decoder_only, both):
    print(f"{type(model).__name__:45} {model.num_parameters():9,} parameters")

names = {name for model in (encoder_only, decoder_only) for name in model.state_dict()}
missing = sorted(both.state_dict().keys() - names)
print(f"In neither single stack, for example: {missing[0]}")
assert names <= both.state_dict().keys()
assert all("encoder_attn" in name for name in missing)

# %% [markdown]
# The other difference is the mask $M$ in
#
# $$\mathrm{Attention}(Q, K, V) = \mathrm{softmax}\left(\frac{QK^\top}{\sqrt{d_k}} + M\right)V$$
#
# $M_{ij} = -\infty$ hides token $j$ from token $i$. Both models hide padding. A single sentence has none, so the
# encoder's $M$ is 0 here. In the decoder, $M_{ij} = -\infty$ also for $j > i$, which hides later tokens. The attention
# weights of the two random models show this, and so does a change of the last word.

# %%
ids = tokenizer("The king eats the red apple.", add_special_tokens=False, return_tensors="pt")["input_ids"]
words = [tokenizer.decode([index]).strip() for index in ids[0].tolist()]
changed = ids.clone()
changed[0, -2] = tokenizer.convert_tokens_to_ids(tokenizer.tokenize("the orange")[-1])

figure, panels = plt.subplots(1, 2, figsize=(8.5, 3.6), layout="constrained")
for axes, model, title in zip(panels, (encoder_only, decoder_only), ("Encoder", "Decoder"), strict=True):
    model.eval()
    with torch.no_grad():
        output = model(ids, output_attentions=True)
        difference = (model(changed).logits - output.logits).abs().amax(dim=(0, 2))
    axes.imshow(output.attentions[0][0].mean(dim=0), cmap="Blues", vmin=0)
    axes.set_xticks(range(len(words)), words, rotation=45)
    axes.set_yticks(range(len(words)), words)
    axes.set_title(f"{title}: attention from row to column")
    unchanged = [word for word, value in zip(words, difference.tolist(), strict=True) if value == 0]
    print(f"{title}, not changed by another last word: {' '.join(unchanged) or 'nothing'}")
    assert len(unchanged) == (0 if model is encoder_only else len(words) - 2)

# %% [markdown]
# ## Encoder-only: masked language modeling
#
# A random part of the tokens, the set $\mathcal{M}$, are hidden (most of them become `<mask>`). The model predicts them
# from all other tokens, on both sides:
#
# $$L = -\frac{1}{|\mathcal{M}|} \sum_{i \in \mathcal{M}} \log p(x_i \mid x_{\setminus \mathcal{M}})$$
#
# This needs texts without labels. transformers' collator hides the tokens, here 30% because the sentences are short;
# its `Trainer` does the rest.

# %%
from transformers import DataCollatorForLanguageModeling, DataCollatorWithPadding, PrinterCallback, Trainer, set_seed


def train(model, collator, examples, epochs, learning_rate=6e-3):
    """Train with transformers' `Trainer`. Returns the steps and the losses of its log."""
    arguments = short_training_arguments(
        "outputs/notebooks",
        epochs,
        seed=0,
        learning_rate=learning_rate,
        per_device_train_batch_size=64,
        disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, collator, Dataset.from_dict(dict(examples)), processing_class=tokenizer)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    model.eval()
    return zip(*((entry["step"], entry["loss"]) for entry in trainer.state.log_history if "loss" in entry), strict=True)


masked_losses = train(
    encoder_only, DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.3), tokenizer(train_texts), epochs=12
)

# %% [markdown]
# The trained model fills gaps, from the words on both sides: a noun from its verb, and a verb from the noun after it.


# %%
@torch.no_grad()
def fill(text, count=5):
    """The most probable words for `<mask>`, with their probabilities."""
    inputs = tokenizer(text, return_tensors="pt")
    gap = inputs["input_ids"][0] == tokenizer.mask_token_id
    top = encoder_only(**inputs).logits[0, gap][0].softmax(dim=-1).topk(count)
    return {
        tokenizer.decode([index]).strip(): value for value, index in zip(*map(torch.Tensor.tolist, top), strict=True)
    }


for text in ("The queen eats the red <mask>.", "The queen visits the <mask>.", "The queen <mask> the newspaper."):
    print(text, {word: round(probability, 2) for word, probability in fill(text).items()})

# %% [markdown]
# ## Fine-tuning with few labels
#
# The task: what is described, an animal, food, a text, a thing or a place? In *The apple is red*, only the
# noun shows it, and a few labeled sentences contain only a few of the nouns.
#
# **Predict**: does the encoder that has read unlabeled sentences need fewer labels than one with random weights?
#
# *Your prediction:*


# %%
def label(description):
    """The class of a description, whose second word is the noun."""
    return LABELS.index(KIND[description.split()[1]])


labeled_train, labeled_test = (
    [(text, label(text)) for text in texts if " is " in text] for texts in (train_texts, test_texts)
)
for text, index in labeled_train[:4]:
    print(f"{LABELS[index]:7} {text}")


# %% [markdown]
# Two classifiers with the same configuration and the same training: one starts from random weights, the other from the
# pretrained encoder. Its head, one linear layer, is random as well.


# %%
def accuracy(classifier):
    texts, labels = zip(*labeled_test, strict=True)
    with torch.no_grad():
        logits = classifier(**tokenizer(list(texts), padding=True, return_tensors="pt")).logits
    return (logits.argmax(dim=-1) == torch.tensor(labels)).float().mean().item()


def fine_tune(classifier, count, steps=60):
    texts, labels = zip(*labeled_train[:count], strict=True)
    examples = {**tokenizer(list(texts)), "labels": list(labels)}
    train(classifier, DataCollatorWithPadding(tokenizer), examples, epochs=steps / -(-count // 64), learning_rate=1e-3)
    return accuracy(classifier)


COUNTS = (10, 30, 100, 300)
results = {"random weights": [], "pretrained": []}
with tempfile.TemporaryDirectory() as folder:
    encoder_only.save_pretrained(folder)
    for count in COUNTS:
        set_seed(0)
        config.num_labels = len(LABELS)
        scratch = RandomTransformerForSequenceClassification(config)
        results["random weights"].append(fine_tune(scratch, count))
        set_seed(0)
        pretrained = RandomTransformerForSequenceClassification.from_pretrained(folder, num_labels=len(LABELS))
        results["pretrained"].append(fine_tune(pretrained, count))
for name, shares in results.items():
    print(f"{name:15}", *(f"{count} labels: {share:.1%} " for count, share in zip(COUNTS, shares, strict=True)))

# %%
figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
for name, shares in results.items():
    axes.plot(COUNTS, [100 * share for share in shares], marker="o", label=name)
axes.set(xscale="log", ylim=(0, 103), xlabel="labeled sentences", ylabel="correct new sentences, %")
axes.set_xticks(COUNTS, COUNTS)
axes.minorticks_off()
_ = axes.legend(frameon=False, loc="lower right")

# %% [markdown]
# Why does it help? To fill gaps, the encoder had to learn which words occur in the same contexts, without any label:
# nouns of the same kind have similar embeddings. A label for one of them therefore says something about the others.

# %%
nouns = list(KIND)
rows = [tokenizer(f" {noun}", add_special_tokens=False)["input_ids"][0] for noun in nouns]
vectors = torch.nn.functional.normalize(encoder_only.get_input_embeddings().weight.detach()[rows], dim=-1)
similarity = vectors @ vectors.T
same = torch.tensor([[KIND[first] == KIND[second] for second in nouns] for first in nouns])
different_nouns = ~torch.eye(len(nouns), dtype=torch.bool)
within, between = similarity[same & different_nouns].mean().item(), similarity[~same].mean().item()
print(f"mean cosine similarity of two nouns: {within:.2f} of the same kind, {between:.2f} of different kinds")

# %% [markdown]
# ## Decoder-only: a small GPT
#
# The decoder without cross-attention predicts each token from the earlier ones:
#
# $$L = -\frac{1}{n} \sum_{t=1}^{n} \log p(x_t \mid x_{<t})$$
#
# Every position of a sentence is a training example, not only those that a mask hides. $e^L$ is the perplexity: the
# number of equally probable tokens among which the model would be as uncertain. Even a perfect model cannot guess
# random words, but we know their probabilities, and with them the lowest possible perplexity.


# %%
def with_start(texts):
    return [tokenizer.bos_token + text for text in texts]


@torch.no_grad()
def log_probability(text):
    """ln p(text), and the number of predicted tokens, with the end token."""
    ids = tokenizer(with_start([text]), return_tensors="pt")["input_ids"]
    predicted = ids.shape[1] - 1
    return -decoder_only(ids, labels=ids).loss.item() * predicted, predicted


def perplexity(texts):
    sums, tokens = map(sum, zip(*map(log_probability, texts), strict=True))
    return math.exp(-sums / tokens)


def true_log_probability(text):
    """ln p(text) in the grammar: one factor for each random choice."""
    words = text.rstrip(".").split()
    kind = KIND[words[1] if "is" in words else words[-1]]
    if "is" in words:
        options = [4, len(LABELS), len(nouns_of(kind)), len(ADJECTIVES)]
    else:
        options = [4 / 3, len(PERSONS), len(LABELS), len(VERBS[kind]), len(ADJECTIVES) + 1, len(nouns_of(kind))]
    return -math.log(math.prod(options))


tokens = sum(log_probability(text)[1] for text in test_texts)
lowest = math.exp(-sum(map(true_log_probability, test_texts)) / tokens)
before = perplexity(test_texts)
causal_losses = train(
    decoder_only, DataCollatorForLanguageModeling(tokenizer, mlm=False), tokenizer(with_start(train_texts)), epochs=16
)
after = perplexity(test_texts)
print(f"perplexity of held-out sentences: {before:.0f} before training, {after:.2f} after, {lowest:.2f} at best")

# %%
figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
axes.plot(*masked_losses, label="encoder: hidden tokens")
axes.plot(*causal_losses, label="decoder: next token")
axes.set(xlabel="step", ylabel="loss, nats per predicted token", ylim=(0, None))
_ = axes.legend(frameon=False)

# %% [markdown]
# The losses are not comparable: the encoder's input has the words on both sides of a gap, the decoder's those before.
#
# A decoder has what an encoder lacks, the probability of a whole text, as the product of the next-token
# probabilities. It can therefore score sentences, and generate them by sampling one token after the other.

# %%
for text in ("The king eats the apple.", "The king eats the table."):
    print(f"{text:25} ln p = {log_probability(text)[0]:.1f}")
margin = log_probability("The king eats the apple.")[0] - log_probability("The king eats the table.")[0]


def write(prompt, **options):
    inputs = tokenizer(with_start([prompt]), add_special_tokens=False, return_tensors="pt")
    set_seed(0)
    outputs = decoder_only.generate(**inputs, max_new_tokens=30, do_sample=True, **options)
    return tokenizer.batch_decode(outputs, skip_special_tokens=True)


for temperature in (0.3, 1.0, 2.0):
    print(
        f"\ntemperature {temperature}", *write("", temperature=temperature, top_k=0, num_return_sequences=4), sep="\n  "
    )

# %% [markdown]
# At temperature 1, most sentences are like those of the grammar: what is eaten is food. Many are new. The model has
# learned the grammar, not a list of sentences.

# %%
written = write("The king eats", num_return_sequences=300, top_k=0)
food = sum(KIND.get(text.rstrip(".").split()[-1]) == "food" for text in written) / len(written)
new = len(set(written) - set(train_texts)) / len(set(written))
print(f"{len(written)} sentences about eating: {food:.1%} name food; of the different ones, {new:.1%} are new")

# %% [markdown]
# ## What must hold

# %%
assert sum(p for word, p in fill("The queen eats the red <mask>.").items() if KIND.get(word) == "food") > 0.5
assert results["pretrained"][1] > results["random weights"][1] + 0.1
assert within > between + 0.1
assert 0.95 * lowest < after < 1.15 * lowest < before  # below the minimum only by the chance of the test set
assert margin > 1
assert food > 0.7
assert new > 0.2
