"""The trainer's batches, losses and precision: order and loss of evaluation, non-finite losses, mixed precision."""

import itertools
from types import NoneType

import pytest
import torch
from datasets import Dataset

from modeling_random_transformer.data import DatasetText, TokenBudgetStream
from modeling_random_transformer.training import TranslationTrainer, TranslationTrainingArguments
from modeling_random_transformer.training.methods import Augmentation, BPEDropout
from tests.helpers.models import tiny_model
from tests.helpers.trainer import VOCAB_SIZE, new_trainer, pairs


def test_the_loss_gets_logits_in_half_precision(tmp_path):
    trainer = new_trainer(tmp_path, bf16=True, max_steps=1)
    seen = []
    trainer.model.register_forward_hook(lambda _model, _inputs, outputs: seen.append(outputs["logits"].dtype))
    trainer.train()
    assert seen == [torch.bfloat16]
    assert {parameter.dtype for parameter in trainer.model.parameters()} == {torch.float32}


@pytest.mark.parametrize(("bad", "step", "save_strategy"), [(1, 1, "steps"), (4, 2, "steps"), (8, 4, "no")])
def test_a_non_finite_loss_raises_before_the_checkpoint_is_saved(bad, step, save_strategy, tmp_path):
    options = {"max_steps": 4, "gradient_accumulation_steps": 2, "save_strategy": save_strategy}
    if save_strategy == "steps":
        options["save_steps"] = 1
    trainer = new_trainer(tmp_path, **options)
    loss, factors = trainer.compute_loss_func, (float("nan") if batch == bad else 1.0 for batch in itertools.count(1))
    trainer.compute_loss_func = lambda *args, **kwargs: loss(*args, **kwargs) * next(factors)
    with pytest.raises(
        FloatingPointError, match=rf"the loss is nan at step {step}, in a batch of input_ids \[.*source is '"
    ):
        trainer.train()
    saved = sorted(int(path.name.removeprefix("checkpoint-")) for path in tmp_path.glob("checkpoint-*"))
    assert saved == (list(range(1, step)) if save_strategy == "steps" else [])


def test_non_finite_weights_are_not_saved(tmp_path):
    """A gradient or a loss on another process can be non-finite while the loss of this process is finite."""
    trainer = new_trainer(tmp_path, max_steps=2, save_steps=1)
    trainer.model.lm_head.weight.register_hook(lambda gradient: gradient * float("inf"))
    with pytest.raises(
        FloatingPointError, match=r"the weights are not finite after step 1, first .* Decrease learning_rate"
    ):
        trainer.train()
    assert not list(tmp_path.glob("checkpoint-*"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compute_loss_func": max}, "compute_loss_func must be None because args selects the loss, got <built-in"),
        ({"processing_class": None}, "processing_class must be a tokenizer without data_collator, got None"),
    ],
)
def test_unsuitable_arguments_raise(options, message, tmp_path):
    trainer = new_trainer(tmp_path)
    arguments = {"processing_class": trainer.processing_class, "train_dataset": trainer.train_dataset, **options}
    with pytest.raises(ValueError, match=message):
        TranslationTrainer(trainer.model, trainer.args, **arguments)


def test_rows_that_are_not_tokenized_raise(tmp_path):
    trainer = new_trainer(tmp_path)
    trainer.train_dataset = Dataset.from_dict({"source": ["a"], "target": ["b"]})
    with pytest.raises(ValueError, match="rows of the dataset must have input_ids and labels, got source, target"):
        trainer.train()


def test_one_gpu_is_used_without_a_launcher(tmp_path, caplog):
    trainer = new_trainer(tmp_path)
    trainer.args._n_gpu = 2
    trainer = TranslationTrainer(trainer.model, trainer.args, processing_class=trainer.processing_class)
    assert trainer.args.n_gpu == 1
    assert trainer._wrap_model(trainer.model) is trainer.model
    assert "Training uses one of 2 GPUs. Use `accelerate launch`" in caplog.text


@pytest.mark.parametrize(("multiple", "lengths"), [(1, [3, 9]), (8, [8, 16])])
def test_padded_lengths_are_multiples_of_8_on_a_gpu(multiple, lengths, tmp_path, monkeypatch):
    monkeypatch.setattr("modeling_random_transformer.training.trainer.padding_multiple", lambda _: multiple)
    trainer = new_trainer(tmp_path, max_tokens_per_batch=64)
    batch = trainer.data_collator([{"input_ids": [5] * 3, "labels": [5] * 9}])
    assert [batch[name].shape[1] for name in ("input_ids", "labels")] == lengths
    for batch in trainer.get_train_dataloader():
        assert len(batch["labels"]) * (batch["input_ids"].shape[1] + batch["labels"].shape[1]) <= 64


def test_another_collator_is_used(tmp_path):
    trainer = new_trainer(tmp_path)
    sizes = []

    def collator(rows):
        sizes.append(len(rows))
        return trainer.data_collator(rows)

    shared = {"train_dataset": pairs(8), "processing_class": trainer.processing_class}
    TranslationTrainer(trainer.model, trainer.args, **shared, data_collator=collator).train()
    assert sum(sizes) >= 8


def test_muon_beside_another_optimizer_raises(tmp_path):
    trainer = new_trainer(tmp_path, muon=True)
    optimizer = torch.optim.SGD(trainer.model.parameters())
    with pytest.raises(ValueError, match="muon must be False with optimizers, got True"):
        TranslationTrainer(trainer.model, trainer.args, optimizers=(optimizer, None))


@pytest.mark.parametrize("method", [{"bpe_dropout": 0.1}, {"augment": True}])
def test_a_method_with_data_that_was_prepared_without_it_raises(method, tmp_path):
    trainer = new_trainer(tmp_path, **method)
    with pytest.raises(ValueError, match="must be a Dataset with the columns input_ids, labels, source_words"):
        trainer.train()


@pytest.mark.parametrize(
    ("method", "kind"), [({"bpe_dropout": 0.1}, BPEDropout), ({"augment": True}, Augmentation), ({}, NoneType)]
)
def test_a_stream_gets_the_retokenizer_of_the_arguments(method, kind, tmp_path):
    trainer = new_trainer(tmp_path, **method)
    corpus = DatasetText(Dataset.from_list([{"source": "a", "target": "b"}]))
    stream = trainer.train_dataset = TokenBudgetStream(corpus, trainer.processing_class, max_tokens=90)
    trainer.get_train_dataloader()
    assert type(stream.retokenizer) is kind


def test_a_tensor_parallel_group_shares_the_batches_of_a_stream(tmp_path, monkeypatch):
    trainer = new_trainer(tmp_path)
    corpus = DatasetText(Dataset.from_list([{"source": "a", "target": "b"}]))
    stream = trainer.train_dataset = TokenBudgetStream(corpus, trainer.processing_class, max_tokens=90)
    shares = []
    monkeypatch.setattr(stream, "set_share", lambda rank, size, _: shares.append((rank, size)))
    monkeypatch.setattr(trainer, "get_tp_size", lambda: 2)
    monkeypatch.setattr(type(trainer.accelerator), "num_processes", 4)
    for process in range(4):
        monkeypatch.setattr(type(trainer.accelerator), "process_index", process)
        trainer.get_train_dataloader()
    assert shares == [(0, 2), (0, 2), (1, 2), (1, 2)]


def test_model_init_makes_the_model_of_every_training(tmp_path):
    made = []

    def model_init():
        made.append(tiny_model(vocab_size=VOCAB_SIZE))
        return made[-1]

    options = {"max_steps": 2, "save_steps": 2, "warmup_steps": 1, "report_to": "none", "use_cpu": True}
    args = TranslationTrainingArguments(str(tmp_path), disable_tqdm=True, **options)
    shared = {"args": args, "train_dataset": pairs(8), "processing_class": new_trainer(tmp_path).processing_class}
    trainer = TranslationTrainer(model_init=model_init, **shared)
    for count in (3, 4):  # one for the learning rate, one for the trainer
        trainer.train()
        assert len(made) == count
        assert trainer.model is made[-1]
    with pytest.raises(ValueError, match="one of model and model_init must be given, got neither"):
        TranslationTrainer(**shared)
