"""Train MarianMTModel from scratch with Seq2SeqTrainer, in the way of transformers' run_translation.py.

    python examples/migration/sentencepiece_vocabulary.py
    python examples/migration/train_marian.py --output_dir outputs/marian --max_steps 1000

run_translation.py fine-tunes a saved model. To train from scratch, a user writes what precedes its steps: the
tokenizer's files for MarianTokenizer, the configuration and a random model. The rest of this script are its steps:
tokenize, collate, train, generate and score with sacreBLEU.
"""

import json
import shutil
import sys
import time
from pathlib import Path

import sacrebleu
import torch
from datasets import Dataset
from transformers import (
    DataCollatorForSeq2Seq,
    HfArgumentParser,
    MarianConfig,
    MarianMTModel,
    MarianTokenizer,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    set_seed,
)

SENTENCEPIECE, DATA = Path("outputs/sentencepiece"), Path("data/multi30k")
RECOMMENDED = [
    *("--learning_rate", "2e-3", "--lr_scheduler_type", "inverse_sqrt", "--warmup_steps", "400"),
    *("--label_smoothing_factor", "0.1", "--per_device_train_batch_size", "64"),
    *("--train_sampling_strategy", "group_by_length", "--bf16", "--use_cpu", "--save_strategy", "no"),
    *("--report_to", "none", "--logging_steps", "50", "--seed", "1"),
]


def make_tokenizer(folder: Path) -> MarianTokenizer:
    """A MarianTokenizer of the SentencePiece model, which requires two copies and a vocabulary in JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces = (SENTENCEPIECE / "vocabulary.txt").read_text(encoding="utf-8").splitlines()
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}), encoding="utf-8")
    for name in ("source.spm", "target.spm"):
        shutil.copyfile(SENTENCEPIECE / "joint.model", folder / name)
    return MarianTokenizer.from_pretrained(folder)


def make_model(tokenizer: MarianTokenizer) -> MarianMTModel:
    sizes = {f"{stack}_{name}": value for stack in ("encoder", "decoder") for name, value in SIZES.items()}
    config = MarianConfig(
        vocab_size=len(tokenizer),
        d_model=128,
        **sizes,
        activation_function="relu",
        dropout=0.1,
        scale_embedding=True,
        max_position_embeddings=256,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
        forced_eos_token_id=None,
    )
    return MarianMTModel(config)


SIZES = {"layers": 2, "attention_heads": 4, "ffn_dim": 512}


def read(split: str) -> tuple[list[str], list[str]]:
    english, german = ((DATA / f"{split}.{lang}").read_text(encoding="utf-8").splitlines() for lang in ("en", "de"))
    return english, german


def translate(model: MarianMTModel, tokenizer: MarianTokenizer, texts: list[str]) -> list[str]:
    """Translate with five beams, in batches of similar lengths."""
    translations, order = [""] * len(texts), sorted(range(len(texts)), key=lambda i: len(texts[i]))
    for rows in (order[k : k + 32] for k in range(0, len(order), 32)):
        batch = tokenizer([texts[i] for i in rows], padding=True, return_tensors="pt")
        with torch.inference_mode():
            tokens = model.generate(**batch, num_beams=5, max_new_tokens=100)
        for i, text in zip(rows, tokenizer.batch_decode(tokens, skip_special_tokens=True), strict=True):
            translations[i] = text
    return translations


def main() -> None:
    (arguments,) = HfArgumentParser(Seq2SeqTrainingArguments).parse_args_into_dataclasses(RECOMMENDED + sys.argv[1:])
    set_seed(arguments.seed)
    tokenizer = make_tokenizer(Path(arguments.output_dir) / "tokenizer")
    model = make_model(tokenizer)
    sources, targets = read("train")
    data = Dataset.from_dict({"en": sources, "de": targets}).map(
        lambda rows: tokenizer(rows["en"], text_target=rows["de"], max_length=100, truncation=True),
        batched=True,
        remove_columns=["en", "de"],
    )
    tokens = sum(map(len, data["input_ids"])) + sum(map(len, data["labels"]))
    trainer = Seq2SeqTrainer(
        model, arguments, train_dataset=data, data_collator=DataCollatorForSeq2Seq(tokenizer, model=model)
    )
    start, cpu = time.time(), time.process_time()
    trainer.train()
    seconds, cpu = time.time() - start, time.process_time() - cpu
    seen = trainer.state.epoch * tokens
    print(f"training: {seconds:.0f} s, {cpu:.0f} s of CPU time, {seen / cpu:.0f} tokens per second of CPU time")
    trainer.save_model()
    model.eval()
    for split in ("val", "test2016"):
        texts, references = read(split)
        print(split, sacrebleu.corpus_bleu(translate(model, tokenizer, texts), [references]))


if __name__ == "__main__":
    main()
