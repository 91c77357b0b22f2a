# %% [markdown]
# # Train a translator in five minutes
#
# This notebook trains an English-Spanish model from scratch: data, tokenizer, model, training, evaluation, saved
# folder. On one CPU core the training takes about half a minute, because the language is small: generated sentences
# with about 60 nouns. Its grammar is not trivial, however. Spanish adjectives follow their noun and agree with it,
# verbs are conjugated, "the king's dog" becomes *el perro del rey*, and "I like it" exchanges subject and object.
#
# The same code trains on any sentence pairs. For real corpora there is the command `random-transformer train`, which
# reads files, resumes, averages checkpoints and runs on several devices.

# %%
import math
import sys
from itertools import chain
from pathlib import Path

import matplotlib.pyplot as plt
import torch

from modeling_random_transformer import (
    RandomTransformerConfig,
    RandomTransformerForConditionalGeneration,
    RandomTransformerTokenizer,
)
from modeling_random_transformer.extras.inspection.explorer import cross_attention_labels, token_texts

sys.path.append("..")  # the folder of `tutorials`
from tutorials.report import minimum_loss
from tutorials.sample_data import greetings, held_out_sample
from tutorials.training_helpers import (
    configure_libraries,
    encode_pairs,
    short_training_arguments,
    translate,
)

FOLDER = Path("outputs/translator")
configure_libraries(seed=17)

# %% [markdown]
# ## Data
#
# About 6,000 pairs for training, 300 for evaluation. No English sentence is in both parts, so the evaluation measures
# what the model has learned about the language, not what it has memorized.

# %%
train, test = held_out_sample(6000)
train += greetings()
assert not {source for source, _ in train} & {source for source, _ in test}
for source, target in train[:5]:
    print(f"{source}  →  {target}")

# %% [markdown]
# ## Tokenizer
#
# A model reads ids, not text. The tokenizer learns its vocabulary from the training data by byte-pair encoding: it
# starts with the 256 bytes, and repeatedly merges the most frequent pair of neighboring tokens. Frequent words become
# one token, rare ones several, and no text is unknown. Source and target share one vocabulary (section 5.1 of
# "Attention Is All You Need"), and decoding returns exactly the text that was encoded.

# %%
tokenizer = RandomTransformerTokenizer.train(chain(*train), vocab_size=4000, model_max_length=128)
print(len(tokenizer), "tokens")
for text in ("The king's dog is old.", "El perro del rey es viejo.", "This word is not in the data: eggcup."):
    ids = tokenizer(text).input_ids
    print(" | ".join(token_texts(tokenizer, torch.tensor(ids))))
    assert tokenizer.decode(ids, skip_special_tokens=True) == text

# %% [markdown]
# ## Model
#
# Two encoder and two decoder layers of width 128 with four heads. The base model of the paper is the same class with
# `RandomTransformerConfig.from_preset("base")`: six layers of width 512.
#
# The data have no noise to overfit, so there is no dropout. With real text, keep the preset's.

# %%
config = RandomTransformerConfig.from_preset(
    "tiny", vocab_size=len(tokenizer), encoder_layers=2, decoder_layers=2, dropout=0.0
)
model = RandomTransformerForConditionalGeneration(config)
model.generation_config.max_new_tokens = 64
print(f"{model.num_parameters():,} parameters")
print(translate(model.eval(), tokenizer, ["I see the dog."], max_new_tokens=8), "before training")

# %% [markdown]
# ## What the model learns from a pair
#
# The target is shifted by one token: from `<s>` and the first $t - 1$ tokens, the decoder predicts token $t$. During
# training its input is the correct prefix, not its own predictions (*teacher forcing*), and the causal mask hides the
# tokens that follow. So all positions of a sentence are trained at once, in parallel.

# %%
batch = tokenizer(["I see the dog."], text_target=["Veo el perro."], return_tensors="pt")
(decoder_input,) = model.prepare_decoder_input_ids_from_labels(batch["labels"])
for step, label in enumerate(token_texts(tokenizer, batch["labels"][0]), start=1):
    print(f"{tokenizer.decode(decoder_input[:step]):20} → {label}")

# %% [markdown]
# The loss is the cross-entropy, the mean negative log-probability of the correct tokens:
#
# $$\mathcal{L} = -\frac{1}{T} \sum_{t=1}^{T} \log p(y_t \mid y_{<t}, x)$$
#
# If a model assigns the same probability $1/V$ to each of the $V$ tokens, its loss is $\log V$. That of an untrained
# model should be close to this. If it is far above, something is wrong with the initialization.

# %%
with torch.no_grad():
    loss = model(**batch).loss.item()
print(f"loss {loss:.2f}, log V {math.log(len(tokenizer)):.2f}")
assert 0.8 < loss / math.log(len(tokenizer)) < 1.6

# %% [markdown]
# ## Training
#
# The model is a transformers model, so `Seq2SeqTrainer` trains it. The recipe follows section 5 of the paper:
#
# - Adam with $\beta_1 = 0.9$, $\beta_2 = 0.98$, $\varepsilon = 10^{-9}$;
# - a learning rate that rises first (*warm-up*) and then falls. The paper's schedule is
#   $d_\text{model}^{-0.5} \cdot \min(s^{-0.5},\, s \cdot s_\text{warmup}^{-1.5})$ for step $s$. A short run profits
#   from one that ends at zero, such as the cosine used here;
# - label smoothing with $\epsilon = 0.1$: the target distribution has $1 - \epsilon$ on the correct token, and the rest
#   spread over the vocabulary. The loss then cannot fall below the entropy of that distribution;
# - batches of sentences with similar lengths, which need little padding.

# %%
from transformers import DataCollatorForSeq2Seq, PrinterCallback, Seq2SeqTrainer

SMOOTHING = 0.1
arguments = short_training_arguments(
    FOLDER,
    epochs=5,
    seed=17,
    learning_rate=2e-3,
    adam_epsilon=1e-9,
    label_smoothing_factor=SMOOTHING,
    disable_tqdm=True,
)
trainer = Seq2SeqTrainer(
    model,
    arguments,
    train_dataset=encode_pairs(train, tokenizer),
    data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
    processing_class=tokenizer,
)
trainer.remove_callback(PrinterCallback)  # prints each entry of the log
result = trainer.train()

history = [entry for entry in trainer.state.log_history if "loss" in entry]
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
left.plot([entry["step"] for entry in history], [entry["loss"] for entry in history], marker="o", markersize=3)
floor = minimum_loss(len(tokenizer), SMOOTHING)
left.axhline(floor, color="gray", linestyle=":", label="minimum with label smoothing")
left.set(xlabel="step", ylabel="training loss (nats per token)", ylim=(0, None))
left.legend(frameon=False)
right.plot([entry["step"] for entry in history], [entry["learning_rate"] for entry in history], color="C1")
right.set(xlabel="step", ylabel="learning rate", ylim=(0, None))
assert history[-1]["loss"] < 1.4 * floor

# %% [markdown]
# ## Evaluation
#
# Two measures on sentences that are not in the training data. *Exact match* is the share of translations that equal the
# reference. BLEU, from 0 to 100, is the geometric mean of the precisions of 1 to 4 consecutive words, times a penalty
# for translations that are too short. Real text has many correct translations, so there only BLEU is useful.
#
# **Predict**: how many of the 300 sentences are translated exactly, after half a minute of training: 10%, 50% or 90%?
#
# *Your prediction:*

# %%
import sacrebleu

sources, references = (list(side) for side in zip(*test, strict=True))
model.eval()
translations = translate(model, tokenizer, sources)
exact = sum(map(str.__eq__, translations, references)) / len(test)
bleu = sacrebleu.corpus_bleu(translations, [references]).score
print(f"exact match {exact:.1%}, BLEU {bleu:.1f}")
for source, translation, reference in list(zip(sources, translations, references, strict=True))[:6]:
    print(f"{'✓' if translation == reference else '✗'} {source}  →  {translation}")
assert exact > 0.7
assert bleu > 85

# %% [markdown]
# The errors that remain show what is difficult. Compare the translations with the references:

# %%
for source, translation, reference in zip(sources, translations, references, strict=True):
    if translation != reference:
        print(f"{source}\n    model:     {translation}\n    reference: {reference}")
        break

# %% [markdown]
# ## Search
#
# `generate()` selects the most probable token at each step (*greedy search*). *Beam search* keeps several prefixes and
# finds translations with a higher total probability $\sum_t \log p(y_t \mid y_{<t}, x)$. The best hypothesis of four
# beams and the three after it, with their scores (log-probabilities divided by the length):

# %%
sentence = "The old king visits the white houses."
outputs = model.generate(
    **tokenizer(sentence, return_tensors="pt"),
    num_beams=4,
    num_return_sequences=4,
    return_dict_in_generate=True,
    output_scores=True,
)
hypotheses = tokenizer.batch_decode(outputs.sequences, skip_special_tokens=True)
scores = outputs.sequences_scores.tolist()
for score, hypothesis in zip(scores, hypotheses, strict=True):
    print(f"{score:7.3f}  {hypothesis}")
assert scores == sorted(scores, reverse=True)

# %% [markdown]
# ## Save and load
#
# A saved folder works like any transformers checkpoint. Importing this package registers the Auto classes and
# `pipeline("seq2seq")`, which batches and decodes texts of any number.

# %%
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

trainer.save_model(str(FOLDER))
print(sorted(path.name for path in FOLDER.iterdir() if path.suffix in (".json", ".safetensors")))

translator = pipeline(
    "seq2seq",
    model=AutoModelForSeq2SeqLM.from_pretrained(FOLDER),
    tokenizer=AutoTokenizer.from_pretrained(FOLDER),
)
answers = translator(["hello world", "Does she like our eagle?"])
for answer in answers:
    print(answer["generated_text"])
assert translate(translator.model, tokenizer, sources[:50]) == translations[:50]

# %% [markdown]
# ## Cross-attention
#
# The cross-attention weights show which source tokens the model uses to predict each target token. Adjective and noun
# are exchanged in Spanish, and the weights are exchanged too: the model has learned an alignment of words from pairs of
# sentences. The row of a token is the one in which it is predicted, where the decoder's input is the previous token.
# The next notebook examines these weights and changes them.

# %%
model.set_attn_implementation("eager")  # the implementation that returns weights
inputs = tokenizer(sentence, return_tensors="pt")
ids = model.generate(**inputs)
with torch.no_grad():
    layers = model(**inputs, decoder_input_ids=ids[:, :-1], output_attentions=True).cross_attentions
weights = layers[-1][0].mean(dim=0)  # mean over the heads of the last layer, [target_len, source_len]
assert torch.allclose(weights.sum(dim=-1), torch.ones(len(weights)), atol=1e-5)

figure, axes = plt.subplots(figsize=(5.5, 4), layout="constrained")
axes.imshow(weights, cmap="Blues", vmin=0, vmax=1)
rows, columns = cross_attention_labels(tokenizer, inputs["input_ids"][0], ids[0])
axes.set_xticks(range(len(columns)), columns, rotation=45, ha="right")
axes.set_yticks(range(len(rows)), rows)
_ = axes.set(xlabel="source", ylabel="predicted token")

# %% [markdown]
# ## Your own sentence pairs
#
# Upload two text files to the folder of this notebook, whose lines belong together, enter their names, and run the next
# cell. It cleans and splits the corpus, trains in three phases, and writes the model to a zip file. Stopped, the same
# cell continues. What to expect is in `docs/how_to/ten_thousand_pairs.md`.

# %%
from shutil import make_archive, rmtree

from modeling_random_transformer import cli

SOURCE_FILE, TARGET_FILE = "", ""  # such as "corpus.en" and "corpus.sw"
if SOURCE_FILE:
    files = ["--source_file", SOURCE_FILE, "--target_file", TARGET_FILE]
    recipe = "../recipes/low_resource.yaml"
    if cli.main(["train", recipe, *files, "--output_dir", "outputs/own"]) == 0:
        rmtree("outputs/own/stages")
        make_archive("translator", "zip", "outputs/own")

# %% [markdown]
# ## What next
#
# - `python examples/quickstart.py` is this training with more epochs (97% exact match), also for your own sentence
#   pairs: `--source my.en --target my.es`.
# - The how-to guide "Train a translation model" in `docs/how_to/train.md` is about real corpora.
# - The next notebook examines the model that was saved here.
