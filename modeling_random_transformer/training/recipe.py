"""The paper's training recipe (section 5) as defaults of `Seq2SeqTrainingArguments`."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import transformers
from accelerate.utils import parse_flag_from_env
from packaging import version
from transformers import Seq2SeqTrainingArguments
from transformers.hf_argparser import HfArg
from transformers.trainer_utils import IntervalStrategy

from ..base import ENGINES


def paper_peak_rate(d_model: int, warmup_steps: int) -> float:
    """The learning rate at the end of warm-up, d_model^-0.5 · warmup_steps^-0.5 (paper 5.3)."""
    return (d_model * warmup_steps) ** -0.5


# Arguments of `Seq2SeqTrainingArguments` that have no effect here, and the reasons.
UNSUPPORTED = {
    "per_device_train_batch_size": "max_tokens_per_batch sets the batch size",
    "auto_find_batch_size": "max_tokens_per_batch sets the batch size",
    "train_sampling_strategy": "batches are always grouped by length",
    "sortish_sampler": "batches are always grouped by length",
    "dataloader_drop_last": "an epoch always contains every pair",
    "batch_eval_metrics": "metrics get all rows in the order of the data set",
    "eval_do_concat_batches": "metrics get all rows in the order of the data set",
    "generation_num_beams": "num_beams sets the number of beams",
    "generation_config": "num_beams and length_penalty configure beam search",
    "save_on_each_node": "all nodes share output_dir",
    "do_predict": "test sets are always scored",
    "use_liger_kernel": "Liger has no kernels for this model",
    "neftune_noise_alpha": "embeddings get no noise",
}


@dataclass
class TranslationTrainingArguments(Seq2SeqTrainingArguments):
    """`Seq2SeqTrainingArguments` with the paper's hyperparameters as defaults, and with additional arguments."""

    learning_rate: float | None = HfArg(default=None, help="Peak learning rate; default: the paper's (5.3).")
    lr_scheduler_type: str = HfArg(default="inverse_sqrt", help="Learning rate schedule (paper 5.3).")
    warmup_steps: float = HfArg(default=4000, help="Warm-up steps (paper 5.3); below 1, a fraction of max_steps.")
    optim: str = HfArg(default="adamw_torch_fused", help="Optimizer; with weight_decay=0, AdamW is Adam (paper 5.3).")
    muon: bool = HfArg(default=False, help="Use Muon for the layers' matrices, `optim` for all other weights.")
    adam_beta2: float = HfArg(default=0.98, help="Adam's β2 (paper 5.3).")
    adam_epsilon: float = HfArg(default=1e-9, help="Adam's ε (paper 5.3).")
    label_smoothing_factor: float = HfArg(default=0.1, help="Label smoothing factor (paper 5.4).")
    bpe_dropout: float = HfArg(default=0.0, help="BPE-dropout: probability to drop a merge of the tokenizer.")
    r_drop_alpha: float = HfArg(default=0.0, help="R-Drop: weight of the divergence of two passes, such as 5.")
    max_steps: int = HfArg(default=100_000, help="Optimizer steps (paper 5.2); -1 to train for num_train_epochs.")
    max_tokens_per_batch: int = HfArg(default=4096, help="Padded source and target tokens of a batch of one device.")
    average_last: int = HfArg(default=5, help="Number of last checkpoints to average into the model (paper 6.1).")
    early_stopping_patience: int | None = HfArg(default=None, help="Evaluations without improvement before stopping.")
    num_beams: int = HfArg(default=4, help="Beam size in evaluation (paper 6.1).")
    length_penalty: float = HfArg(default=0.6, help="Length penalty in evaluation (paper 6.1).")
    bleu_tokenize: str | None = HfArg(default=None, help="sacreBLEU's tokenizer; default: of the target language.")
    engine: str | None = HfArg(default=None, help="Engine that translates in evaluation, on a CPU: ctranslate2.")
    per_device_eval_batch_size: int = HfArg(default=32, help="Maximum number of pairs in an evaluation batch.")
    predict_with_generate: bool = HfArg(default=True, help="Generate translations in evaluation, to compute BLEU.")
    save_strategy: str = HfArg(default="steps", help="When to save a checkpoint: 'no', 'steps', 'epoch' or 'best'.")
    save_steps: float = HfArg(default=1000, help="Steps between checkpoints.")
    save_total_limit: int | None = HfArg(default=None, help="Number of checkpoints to keep; default: average_last.")
    do_train: bool = HfArg(default=True, help="A finished run is scored without training.")
    tp_size: int = HfArg(default=1, help="Tensor-parallel degree; see fsdp_size.")
    fsdp_size: int = HfArg(default=1, help="FSDP2 shards; tp_size x fsdp_size must be 1 or the number of processes.")
    ddp_find_unused_parameters: bool | None = HfArg(default=False, help="Whether DDP searches for unused parameters.")
    logging_nan_inf_filter: bool = HfArg(default=False, help="Filter non-finite losses from the log; they stop a run.")

    @property
    def n_gpu(self) -> int:
        """One GPU per process: transformers would use `DataParallel` for several."""
        return min(super().n_gpu, 1)

    def __post_init__(self) -> None:
        for name in ("gradient_accumulation_steps", "logging_steps", "save_steps"):  # transformers divides by them
            if getattr(self, name) == 0:
                raise ValueError(f"{name} must be positive, got 0.")
        super().__post_init__()
        # The samplers distribute complete batches evenly. Accelerate would also repeat pairs to equalize batch sizes.
        self.accelerator_config.even_batches = False
        # Without an accelerator, pinned memory is useless, and PyTorch warns about it for every loader.
        if not torch.accelerator.is_available():
            self.dataloader_pin_memory = False
        self.accelerator_config.non_blocking = self.dataloader_pin_memory  # other copies wait for the device
        for name, valid, allowed in self._checks():
            if not valid:
                value = getattr(self, name)
                raise ValueError(f"{name} must be {allowed}, got {getattr(value, 'value', value)!r}.")
        if self.early_stopping_patience is not None:
            self.restore_callback_states_from_checkpoint = True  # resumes the count of evaluations without improvement
        if self.tp_size * self.fsdp_size > 1:
            self.save_only_model = True  # required by transformers' Trainer, which cannot resume these runs
        if self.save_total_limit is None:
            self.save_total_limit = self.average_last

    @property
    def generation_kwargs(self) -> dict[str, Any]:
        """Keyword arguments of `generate()` for evaluation; one beam has no options of beam search."""
        greedy = {"num_beams": 1, "length_penalty": None, "early_stopping": None}
        return greedy if self.num_beams == 1 else {"num_beams": self.num_beams, "length_penalty": self.length_penalty}

    @property
    def order_seed(self) -> int:
        """The seed of the order of the training pairs and of their random segmentations."""
        return self.seed if self.data_seed is None else self.data_seed

    def without_evaluation(self) -> "TranslationTrainingArguments":
        """A copy for a trainer that does not evaluate during training."""
        args = copy.copy(self)
        args.eval_strategy, args.load_best_model_at_end, args.early_stopping_patience = IntervalStrategy.NO, False, None
        return args

    def peak_rate(self, d_model: int) -> float:
        """The learning rate at the end of warm-up: `learning_rate`, or the paper's if it is unset."""
        if self.learning_rate is not None:
            return self.learning_rate
        # At least one step: the paper's formula is undefined without warm-up.
        return paper_peak_rate(d_model, max(1, self.get_warmup_steps(self.max_steps)))

    def _checks(self) -> Iterable[tuple[str, Any, str]]:
        """The checked arguments, whether they are valid, and what is allowed."""
        default = partial(getattr, type(self))  # the default of an argument
        least = {"max_tokens_per_batch": 2}
        least |= dict.fromkeys(("r_drop_alpha", "weight_decay", "max_grad_norm", "adam_epsilon"), 0)
        least |= dict.fromkeys(("average_last", "num_beams", "tp_size", "fsdp_size", "gradient_accumulation_steps"), 1)
        least |= dict.fromkeys(("per_device_eval_batch_size", "eval_accumulation_steps", "early_stopping_patience"), 1)
        for name, value in least.items():
            argument = getattr(self, name)
            yield name, argument is None or argument >= value, f"at least {value}"
        for name in ("save", "logging", "eval"):
            steps = getattr(self, f"{name}_steps")
            in_steps = getattr(self, f"{name}_strategy") == "steps"
            yield f"{name}_steps", not in_steps or steps is None or steps > 0, "positive"
        yield "do_train", self.do_train, "True"
        yield "do_eval", not self.do_eval or self.eval_strategy != "no", "unset without eval_strategy"
        for name in ("bpe_dropout", "label_smoothing_factor", "adam_beta1", "adam_beta2"):
            yield name, 0 <= getattr(self, name) < 1, "at least 0 and below 1"
        yield "learning_rate", self.learning_rate is None or self.learning_rate > 0, "positive or unset"
        steps, epochs = self.max_steps, self.num_train_epochs
        yield "max_steps", steps == -1 or (steps >= 1 and steps == int(steps)), "a positive integer, or -1 for epochs"
        for name, instead in UNSUPPORTED.items():
            unset = default(name, None)  # none if the installed transformers does not have the argument
            yield name, getattr(self, name, unset) == unset, f"unset, because {instead}"
        yield "num_train_epochs", steps == -1 or epochs == default("num_train_epochs"), "unset unless max_steps is -1"
        yield "num_train_epochs", steps != -1 or epochs > 0, "positive"
        fraction = steps == -1 and self.learning_rate is None and 0 < self.warmup_steps < 1
        yield "warmup_steps", not fraction, "0 or at least 1 if max_steps and learning_rate are unset"
        limit = None if self.save_strategy == "no" else self.save_total_limit
        yield (
            "save_total_limit",
            limit is None or limit >= self.average_last,
            f"at least average_last={self.average_last}",
        )
        stops = self.early_stopping_patience is not None
        yield "eval_strategy", not stops or self.eval_strategy != "no", "set with early_stopping_patience"
        yield "metric_for_best_model", not stops or self.metric_for_best_model, "set with early_stopping_patience"
        yield "engine", self.engine in (None, *ENGINES), f"one of {', '.join(ENGINES)}"
        yield "engine", self.engine is None or self.device.type == "cpu", f"unset on the device {self.device}"
        yield "fp16", not (self.fp16 and self.device.type == "cpu"), "False on a CPU, which supports bf16"
        yield from self._checks_of_shards()

    def _checks_of_shards(self) -> Iterable[tuple[str, Any, str]]:
        sharded = self.tp_size * self.fsdp_size > 1
        for name in ("tp_size", "fsdp_size"):
            valid = not sharded or self.tp_size * self.fsdp_size == self.world_size
            yield name, valid, f"such that tp_size x fsdp_size is 1 or the number of processes, here {self.world_size}"
            recent = version.parse(transformers.__version__) >= version.parse("5.23")
            yield name, not sharded or recent, "1 with transformers older than 5.23, whose Trainer cannot shard weights"
        partitioned = getattr(self.deepspeed_plugin, "zero_stage", None) == 3
        yield "average_last", not partitioned or self.average_last == 1, "1 with DeepSpeed ZeRO-3"
        sharded |= partitioned or self.fsdp or parse_flag_from_env("ACCELERATE_USE_FSDP")
        sharded |= self.deepspeed_plugin is not None  # always shards the state of the optimizer
        yield "muon", not sharded or not self.muon, "False with weights or states that are sharded over processes"
