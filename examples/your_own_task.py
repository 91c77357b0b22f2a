"""A task that is not translation, with Seq2SeqTrainer: 4217 becomes "four thousand two hundred seventeen".

    python examples/your_own_task.py    # also with the flags of Seq2SeqTrainingArguments
    accelerate launch --cpu --num_processes 2 examples/your_own_task.py --output_dir outputs/numbers-2
    python examples/your_own_task.py --torch_compile true --output_dir outputs/numbers-compiled
    python examples/your_own_task.py --model outputs/numbers --lora --output_dir outputs/numbers-lora

docs/how_to/your_own_task.md explains each part.
"""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    HfArgumentParser,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    set_seed,
)

from modeling_random_transformer import RandomTransformerConfig, RandomTransformerForConditionalGeneration

ONES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
ONES += ["thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
WORDS = ["<pad>", "<s>", "</s>", "<unk>", *"0123456789", *ONES, *TENS, "hundred", "thousand"]
PAIRS, HELD_OUT = 6000, 200
DEFAULTS = {
    "output_dir": "outputs/numbers",
    "num_train_epochs": 8,
    "learning_rate": 2e-3,
    "per_device_train_batch_size": 64,
    "per_device_eval_batch_size": 100,
    "predict_with_generate": True,
    "generation_max_length": 16,
    "logging_steps": 50,
    "dataloader_pin_memory": False,  # for GPUs: PyTorch warns about it without one
}


def in_words(number: int) -> str:
    """An integer from 0 to 9,999 in words."""
    for size, name in ((1000, "thousand"), (100, "hundred")):
        if number >= size:
            rest = f" {in_words(number % size)}" if number % size else ""
            return f"{in_words(number // size)} {name}{rest}"
    if number < len(ONES):
        return ONES[number]
    return TENS[number // 10 - 2] + (f" {ONES[number % 10]}" if number % 10 else "")


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of digits and words, which ends each text with </s>. The model starts its targets with <s> itself."""
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits(individual_digits=True)]
    )
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", WORDS.index("</s>"))])
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def make_model(vocab_size: int) -> RandomTransformerForConditionalGeneration:
    sizes = {"d_model": 64, "d_ff": 128, "encoder_layers": 2, "decoder_layers": 2, "num_heads": 4, "norm_order": "pre"}
    return RandomTransformerForConditionalGeneration(
        RandomTransformerConfig(vocab_size=vocab_size, dropout=0.0, **sizes)
    )


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Train, evaluate, save, and print some translations; returns the metrics."""
    parser = HfArgumentParser(Seq2SeqTrainingArguments)
    parser.add_argument("--model", help="a saved model to train further")
    parser.add_argument("--lora", action="store_true", help="train a LoRA adapter only")
    parser.set_defaults(**DEFAULTS)
    args, options = parser.parse_args_into_dataclasses(argv)
    set_seed(args.seed)

    tokenizer = make_tokenizer()
    numbers = random.Random(0).sample(range(10_000), PAIRS + HELD_OUT)
    texts = Dataset.from_list([{"number": str(number), "words": in_words(number)} for number in numbers])
    rows = texts.map(lambda row: tokenizer(row["number"], text_target=row["words"]), remove_columns=texts.column_names)

    def exact_match(prediction: Any) -> dict[str, float]:
        ids = [np.where(array < 0, tokenizer.pad_token_id, array) for array in prediction]  # -100 is padding
        words, expected = (tokenizer.batch_decode(array, skip_special_tokens=True) for array in ids)
        return {"exact_match": float(np.mean(np.array(words) == np.array(expected)))}

    model = AutoModelForSeq2SeqLM.from_pretrained(options.model) if options.model else make_model(len(tokenizer))
    if options.lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(task_type="SEQ_2_SEQ_LM", target_modules=["q_proj", "v_proj"]))
    trainer = Seq2SeqTrainer(
        model,
        args,
        train_dataset=rows.select(range(PAIRS)),
        eval_dataset=rows.select(range(PAIRS, len(rows))),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
        compute_metrics=exact_match,
    )
    trainer.train()
    metrics = trainer.evaluate(num_beams=4)
    trainer.save_model()  # weights, configuration, tokenizer, and the code of the model
    if args.push_to_hub:
        trainer.push_to_hub()
    if trainer.is_world_process_zero():
        inputs = tokenizer(["4217"], return_tensors="pt").to(model.device)
        best = model.eval().generate(**inputs, num_beams=4, max_new_tokens=16)
        samples = model.generate(**inputs, do_sample=True, temperature=0.7, num_return_sequences=3, max_new_tokens=16)
        print(f"exact match of {HELD_OUT} held-out numbers: {metrics['eval_exact_match']:.1%}")
        print("4 beams:", tokenizer.batch_decode(best, skip_special_tokens=True))
        print("samples:", tokenizer.batch_decode(samples, skip_special_tokens=True))
    return metrics


if __name__ == "__main__":
    main()
