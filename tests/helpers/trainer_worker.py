"""A trainer on random pairs of token ids; as a script, one of two processes that predict and write the output."""

import json
import random
import sys
from pathlib import Path

import torch
from datasets import Dataset
from transformers import set_seed

from modeling_random_transformer import RandomTransformerForConditionalGeneration, RandomTransformerTokenizer
from modeling_random_transformer.training import TranslationTrainer, TranslationTrainingArguments
from tests.helpers.many_devices_worker import enable_fsdp2
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


def new_trainer(
    folder: Path, kind: type[TranslationTrainer] = TranslationTrainer, n_gpu: int = 0, eval_dataset=None, **options
) -> TranslationTrainer:
    """A trainer of a small model; `seen` is the last input of its metrics."""
    set_seed(0)
    model = RandomTransformerForConditionalGeneration(tiny_config(vocab_size=VOCAB_SIZE))
    model.generation_config.update(max_length=12)
    defaults = {"max_steps": 2, "warmup_steps": 2, "average_last": 1, "max_tokens_per_batch": 90, "save_total_limit": 9}
    defaults |= {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "learning_rate": 1e-3}
    args = TranslationTrainingArguments(str(folder), **defaults | options)
    if n_gpu:
        args._n_gpu = n_gpu
    trainer = kind(
        model,
        args,
        train_dataset=pairs(30),
        eval_dataset=eval_dataset,
        processing_class=RandomTransformerTokenizer.train(["a b c d"], vocab_size=VOCAB_SIZE),
        compute_metrics=lambda prediction: vars(trainer).update(seen=prediction) or {},
    )
    return trainer


def main(folder: Path) -> None:
    found = {}
    for size in (1, 13):  # fewer pairs than processes, and batches of different sizes
        trainer = new_trainer(folder, eval_dataset=pairs(size), per_device_eval_batch_size=4)
        output = trainer.predict(trainer.eval_dataset)
        found[size] = {"loss": output.metrics["test_loss"], "rows": output.predictions.tolist()}
    if trainer.is_world_process_zero():
        (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[2] == "fsdp2":
        enable_fsdp2()
    main(Path(sys.argv[1]))
