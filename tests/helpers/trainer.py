"""A trainer on random pairs of token ids."""

import random
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import set_seed

from modeling_random_transformer import RandomTransformerForConditionalGeneration, RandomTransformerTokenizer
from modeling_random_transformer.training import TranslationTrainer, TranslationTrainingArguments
from tests.helpers.models import tiny_config

VOCAB_SIZE = 270


def pairs(count: int) -> Dataset:
    """Rows of token ids of different lengths, each ending with the end token."""
    numbers = random.Random(0)

    def ids() -> list[int]:
        return [*numbers.choices(range(4, VOCAB_SIZE), k=numbers.randint(1, 9)), 2]

    sides = [(ids(), ids()) for _ in range(count)]
    return Dataset.from_list([
        {"input_ids": source, "labels": target, "source_length": len(source), "target_length": len(target)}
        for source, target in sides
    ])  # fmt: skip


def new_trainer(folder: Path, eval_dataset: Any = None, **options: Any) -> TranslationTrainer:
    """A trainer of a small model; `seen` is the last input of its metrics."""
    set_seed(0)
    model = RandomTransformerForConditionalGeneration(tiny_config(vocab_size=VOCAB_SIZE))
    model.generation_config.update(max_length=12)
    defaults = {"max_steps": 2, "warmup_steps": 2, "average_last": 1, "max_tokens_per_batch": 90, "save_total_limit": 9}
    defaults |= {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "learning_rate": 1e-3}
    trainer = TranslationTrainer(
        model,
        TranslationTrainingArguments(str(folder), **defaults | options),
        train_dataset=pairs(30),
        eval_dataset=eval_dataset,
        processing_class=RandomTransformerTokenizer.train(["a b c d"], vocab_size=VOCAB_SIZE),
        compute_metrics=lambda prediction: vars(trainer).update(seen=prediction) or {},
    )
    return trainer


def predictions(folder: Path) -> list[dict[str, Any]]:
    """The losses and the tokens of fewer pairs than processes, and of batches of different sizes."""
    predicted = []
    for size in (1, 13):
        trainer = new_trainer(folder, eval_dataset=pairs(size), per_device_eval_batch_size=4)
        output = trainer.predict(trainer.eval_dataset)
        rows = [[token for token in row if token > 0] for row in output.predictions.tolist()]
        loss = output.metrics["test_loss"]
        trainer.args.predict_with_generate = False
        loss_without_generation = trainer.evaluate()["eval_loss"]
        predicted.append({"loss": loss, "loss_without_generation": loss_without_generation, "rows": rows})
    return predicted
