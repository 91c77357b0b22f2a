"""Training on the simulated GPU: results equal those of the CPU, steps do not wait for the device."""

import weakref

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from peft import LoraConfig, get_peft_model
from transformers import TrainerCallback, training_args

from modeling_random_transformer.data.streaming import TokenBudgetStream
from modeling_random_transformer.decoding_random_transformer import step_pool
from modeling_random_transformer.extras.cuda_graphs.captured_passes import CapturedPasses, PassGraph
from modeling_random_transformer.extras.estimation import measurement
from modeling_random_transformer.training import TranslationTrainingArguments
from tests.device.simulated_device import synchronizations
from tests.helpers.corpora import write_pairs
from tests.helpers.models import padded_batch, random_ids, tiny_model
from tests.helpers.trainer import new_trainer, pairs
from tests.helpers.training import flags, parse_command, run, write_corpus

RUNS = {
    "float32": {},
    "bf16": {"bf16": True},
    "fp16": {"fp16": True},
    "R-Drop": {"r_drop_alpha": 5.0},
    "Muon": {"muon": True},
    "gradient checkpointing": {"gradient_checkpointing": True},
    "clipping": {"max_grad_norm": 1.0},
    "CUDA graphs": {"cuda_graphs": True},
    "stream": {},
}
STEPS = 6


class StepEnds(TrainerCallback):
    """The number of synchronizations until the end of each step."""

    def __init__(self, counter):
        self.counter, self.counts = counter, []

    def on_step_end(self, *_, **__):
        self.counts.append(self.counter.copy())


def gpu_trainer(folder, name="float32", **options):
    defaults = {"use_cpu": False, "max_steps": STEPS, "save_strategy": "no", "logging_steps": 100}
    trainer = new_trainer(folder, **defaults | RUNS[name] | options)
    if name == "stream":
        corpus = write_pairs(folder, "tsv", [("a b c" * (i % 5 + 1), "b a" * (i % 4 + 1)) for i in range(60)])
        trainer.train_dataset = TokenBudgetStream(corpus, trainer.processing_class, max_tokens=90)
    return trainer


@pytest.mark.parametrize("name", RUNS)
def test_a_step_synchronizes_once(name, tmp_path):
    """It reads the losses of the previous step, also with several batches per step."""
    trainer = gpu_trainer(tmp_path, name, gradient_accumulation_steps=2, max_tokens_per_batch=60)
    with synchronizations() as counter:
        ends = StepEnds(counter)
        trainer.add_callback(ends)
        trainer.train()
    assert trainer.model.device.type == "cuda"
    for before, after in zip(ends.counts, ends.counts[1:], strict=False):
        assert (after - before).total() <= 1, after - before


@pytest.mark.parametrize("name", ["float32", "CUDA graphs"])
def test_a_non_finite_loss_is_reported_one_step_later(name, tmp_path):
    trainer = gpu_trainer(tmp_path, name, max_steps=8, logging_steps=1)

    class Break(TrainerCallback):
        def on_step_begin(self, *_, **__):
            if trainer.state.global_step == 5:
                trainer.model.lm_head.weight.data.fill_(float("nan"))

    trainer.add_callback(Break())
    with pytest.raises(FloatingPointError, match=r"the loss is nan at step 6, in a batch of input_ids \[.*source is '"):
        trainer.train()
    assert trainer.state.global_step == 6  # the optimizer ran, and the next batch was launched


def test_evaluation_batches_are_larger_on_a_gpu(tmp_path):
    limits = []
    for use_cpu in (True, False):
        trainer = gpu_trainer(tmp_path, use_cpu=use_cpu, max_tokens_per_batch=100, eval_dataset=pairs(300))
        limits.append(max(len(batch["labels"]) for batch in trainer.get_eval_dataloader()))
    assert limits[0] <= 32 < limits[1] <= 256


@pytest.mark.parametrize("name", ["float32", "R-Drop", "stream"])
def test_training_equals_that_on_a_cpu(name, tmp_path):
    losses = []
    for use_cpu in (True, False):
        trainer = gpu_trainer(tmp_path, name, use_cpu=use_cpu, logging_steps=1)
        trainer.padding_multiple = trainer.data_collator.pad_to_multiple_of = 8  # as on a GPU
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


def test_a_step_frees_the_graphs_of_an_evaluation(tmp_path):
    """The model has changed, although PyTorch does not count the changes of a fused optimizer."""
    options = {"eval_strategy": "steps", "eval_steps": 2, "max_steps": 3, "num_beams": 1, "generation_max_length": 10}
    trainer = gpu_trainer(tmp_path, eval_dataset=pairs(8), per_device_eval_batch_size=2, **options)
    graphs = []

    class Graphs(TrainerCallback):
        def on_evaluate(self, *_, **__):
            graphs.extend(map(weakref.ref, step_pool(trainer.model).steps.values()))

        def on_step_end(self, *_, **__):
            assert not any(graph() for graph in graphs)

    trainer.add_callback(Graphs())
    trainer.train()
    assert graphs


@pytest.fixture
def replays(monkeypatch):
    """The shapes of the batches that graphs computed."""
    shapes, replay = [], PassGraph.replay
    monkeypatch.setattr(
        PassGraph, "replay", lambda self, batch: shapes.append(batch["labels"].shape) or replay(self, batch)
    )
    return shapes


def with_frozen_encoder(trainer):
    trainer.model.model.encoder.requires_grad_(False)


def with_adapter(trainer):
    get_peft_model(trainer.model, LoraConfig(target_modules=["fc1"], lora_dropout=0.1))


def without_change(trainer): ...


def test_an_estimate_measures_replays(tmp_path, replays, monkeypatch):
    monkeypatch.setattr(measurement, "MEASURED_STEPS", 4)
    write_corpus(tmp_path)
    options = flags(tmp_path, use_cpu=False, cuda_graphs=True, max_tokens_per_batch=200)
    measured = []
    passes = CapturedPasses.__call__

    def count_replays(self, *args):
        before = len(replays)
        loss = passes(self, *args)
        measured.append(len(replays) > before)
        return loss

    monkeypatch.setattr(CapturedPasses, "__call__", count_replays)
    measurement.dry_run(*parse_command(options)[:3])
    assert not measured[0]
    assert measured[-4:] == [True] * 4


@pytest.mark.parametrize(
    ("options", "change"),
    [
        ({}, without_change),
        ({"bf16": True}, without_change),
        ({"muon": True, "label_smoothing_factor": 0.0}, without_change),
        ({"r_drop_alpha": 5.0}, without_change),
        ({"gradient_accumulation_steps": 3}, without_change),
        ({"max_grad_norm": 1.0}, with_frozen_encoder),
        ({}, with_adapter),
    ],
)
def test_training_with_cuda_graphs_equals_the_usual_one(options, change, tmp_path, replays):
    """To the last bit, with dropout: the random numbers are the same, too."""
    results = []
    for cuda_graphs in (False, True):
        trainer = gpu_trainer(tmp_path, cuda_graphs=cuda_graphs, max_steps=10, logging_steps=1, **options)
        trainer.model.config.dropout = 0.1
        change(trainer)
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        results.append((losses, trainer.model.state_dict()))
        assert bool(replays) == cuda_graphs
    (usual_losses, usual_weights), (losses, weights) = results
    assert losses == usual_losses
    torch.testing.assert_close(weights, usual_weights, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fp16", True),
        ("torch_compile", True),
        ("gradient_checkpointing", True),
        ("torch_empty_cache_steps", 5),
        ("optim", "adalomo"),
        ("optim", "galore_adamw_layerwise"),
    ],
)
def test_arguments_that_cuda_graphs_exclude(name, value, tmp_path, monkeypatch):
    monkeypatch.setattr(training_args, "enable_tf32", lambda _: None)  # by torch_compile, for the whole process
    with pytest.raises(ValueError, match=r"must be (unset with|an optimizer without .* for) cuda_graphs, got"):
        TranslationTrainingArguments(str(tmp_path), cuda_graphs=True, **{name: value})


class SwitchedOptimizer(torch.optim.SGD):
    """An optimizer with other weights in evaluation, as schedule-free optimizers have."""

    offset = 0.0

    def train(self):
        self.switch(0.0)

    def eval(self):
        self.switch(1.0)

    @torch.no_grad()
    def switch(self, offset):
        for weight in self.param_groups[0]["params"]:
            if offset != self.offset:
                weight.add_(offset - self.offset)
        self.offset = offset

    def step(self, closure=None):
        assert not self.offset
        return super().step(closure)


def test_graphs_do_not_switch_the_weights_of_an_optimizer(tmp_path, replays):
    weights = []
    options = {"max_steps": 12, "eval_strategy": "steps", "eval_steps": 1, "predict_with_generate": False}
    for cuda_graphs in (False, True):
        trainer = gpu_trainer(tmp_path, eval_dataset=pairs(2), cuda_graphs=cuda_graphs, **options)
        trainer.optimizer = SwitchedOptimizer(trainer.model.to("cuda").parameters(), lr=0.1)
        trainer.train()
        weights.append(trainer.model.state_dict())
    assert replays
    torch.testing.assert_close(weights[1], weights[0], rtol=0, atol=0)


def test_a_resumed_run_equals_one_that_was_not_interrupted(tmp_path):
    """With dropout, so that the state of the device's generator matters."""
    weights = []
    for name, resumed in (("whole", False), ("resumed", True)):
        for steps in (STEPS // 2, STEPS) if resumed else (STEPS,):
            trainer = gpu_trainer(
                tmp_path / name,
                "fp16",
                max_steps=steps,
                save_strategy="steps",
                save_steps=3,
                lr_scheduler_type="constant",
            )
            trainer.model.config.dropout = 0.1
            trainer.train(resume_from_checkpoint=True)
        weights.append(trainer.model.state_dict())
    torch.testing.assert_close(weights[1], weights[0], rtol=0, atol=0)


def test_a_checkpoint_of_a_gpu_resumes_on_a_cpu(tmp_path):
    options = {"save_strategy": "steps", "save_steps": 3}
    gpu_trainer(tmp_path, max_steps=3, **options).train()
    trainer = gpu_trainer(tmp_path, use_cpu=True, **options)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == STEPS


@pytest.mark.parametrize("generate", [True, False])
def test_the_evaluation_loss_equals_that_on_a_cpu(generate, tmp_path):
    trainer = gpu_trainer(tmp_path, eval_dataset=pairs(9), predict_with_generate=generate)
    metrics = trainer.evaluate()
    reference = gpu_trainer(tmp_path, eval_dataset=pairs(9), predict_with_generate=generate, use_cpu=True)
    assert metrics["eval_loss"] == pytest.approx(reference.evaluate()["eval_loss"], rel=1e-4)


def test_the_command_trains_on_one_of_two_gpus(tmp_path):
    """Also the model card, which names the GPUs that were used, and LoRA."""
    write_corpus(tmp_path)
    run(tmp_path, "run", use_cpu=False, max_steps=4, bf16=True, num_beams=2, cuda_graphs=True)
    assert "1 x Simulated CUDA" in (tmp_path / "run" / "README.md").read_text()
    base = {"model_name_or_path": str(tmp_path / "run"), "vocab_size": None, "config_overrides": ""}
    run(tmp_path, "tuned", use_cpu=False, max_steps=2, lora_rank=2, **base)
    assert list((tmp_path / "tuned").glob("adapter_model.safetensors"))


@pytest.fixture
def _new_state():
    """Other tests have created Accelerate's state."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.usefixtures("_new_state")
@pytest.mark.parametrize("precision", ["no", "fp16", "bf16"])
def test_a_loop_with_accelerate(precision):
    accelerator = Accelerator(mixed_precision=precision, gradient_accumulation_steps=2)
    model = tiny_model().train()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    batch = padded_batch([7, 4]) | {"labels": random_ids(2, 6, seed=1)}
    batch = {name: value.to(accelerator.device) for name, value in batch.items()}
    losses = []
    for _ in range(8):
        with accelerator.accumulate(model):
            losses.append(model(**batch).loss)
            accelerator.backward(losses[-1])
            optimizer.step()
            optimizer.zero_grad()
    assert accelerator.device.type == "cuda"
    assert losses[-1].item() < losses[0].item()
