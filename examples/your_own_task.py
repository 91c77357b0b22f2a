"""A task that is not translation, with Seq2SeqTrainer: "17 March 1984" and "17.03.84" become "1984-03-17".

docs/how_to/your_own_task.md explains each part. Each argument of Seq2SeqTrainingArguments is a flag of this script.
"""

import random
from collections.abc import Sequence
from datetime import date

import numpy as np
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    DataCollatorForSeq2Seq,
    EvalPrediction,
    HfArgumentParser,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    set_seed,
)

from modeling_random_transformer import RandomTransformerConfig, RandomTransformerForConditionalGeneration

FORMATS = ("%d %B %Y", "%B %d, %Y", "%a %d %b %Y", "%d/%m/%Y", "%d.%m.%y")
FIRST_DAY, LAST_DAY = date(1969, 1, 1), date(2068, 12, 31)  # the dates that Python reads from a year of two digits


def make_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE that ends each text with </s>. The model starts its targets with <s> itself."""
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=400, special_tokens=list(special.values())))
    bpe.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 2)])
    return PreTrainedTokenizerFast(tokenizer_object=bpe, **special)


def main(argv: Sequence[str] | None = None) -> None:
    parser = HfArgumentParser(Seq2SeqTrainingArguments)
    parser.set_defaults(output_dir="outputs/dates", num_train_epochs=6, per_device_train_batch_size=64)
    parser.set_defaults(learning_rate=2e-3, logging_steps=50, predict_with_generate=True, generation_max_length=16)
    parser.set_defaults(dataloader_pin_memory=False)  # pinned memory is for GPUs: PyTorch warns without one
    (args,) = parser.parse_args_into_dataclasses(argv)
    set_seed(args.seed)

    days = random.Random(0).sample(range(FIRST_DAY.toordinal(), LAST_DAY.toordinal() + 1), 6200)
    targets = [str(date.fromordinal(day)) for day in days]
    sources = [date.fromordinal(day).strftime(FORMATS[day % len(FORMATS)]) for day in days]
    tokenizer = make_tokenizer(sources + targets)
    rows = Dataset.from_dict(tokenizer(sources, text_target=targets))

    def exact_match(prediction: EvalPrediction) -> dict[str, float]:
        ids = [np.where(array < 0, tokenizer.pad_token_id, array) for array in prediction]  # -100 is padding
        outputs, expected = (tokenizer.batch_decode(array, skip_special_tokens=True) for array in ids)
        return {"exact_match": float(np.mean(np.array(outputs) == np.array(expected)))}

    sizes = {"d_model": 64, "d_ff": 128, "encoder_layers": 2, "decoder_layers": 2, "num_heads": 4}
    config = RandomTransformerConfig(vocab_size=len(tokenizer), norm_order="pre", dropout=0.0, **sizes)
    model = RandomTransformerForConditionalGeneration(config)
    trainer = Seq2SeqTrainer(
        model,
        args,
        train_dataset=rows.select(range(6000)),
        eval_dataset=rows.select(range(6000, 6200)),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
        compute_metrics=exact_match,
    )
    trainer.train()
    trainer.save_model()  # weights, configuration, tokenizer, and the code of the model
    trainer.log_metrics("eval", trainer.evaluate(num_beams=4))


if __name__ == "__main__":
    main()
