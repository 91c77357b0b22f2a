"""The paper's training recipe (section 5) as defaults of `Seq2SeqTrainingArguments`."""

from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from packaging import version
from transformers import Seq2SeqTrainingArguments


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
    "generation_num_beams": "num_beams sets the number of beams",
    "generation_config": "num_beams and length_penalty configure beam search",
}
POSITIVE = ("average_last", "num_beams", "tp_size", "fsdp_size")


@dataclass
class TranslationTrainingArguments(Seq2SeqTrainingArguments):
    """`Seq2SeqTrainingArguments` with the paper's hyperparameters as defaults, and with additional arguments."""

    learning_rate: float | None = field(
        default=None,
        metadata={"help": "Peak learning rate; default: the paper's d_model^-0.5 · warmup_steps^-0.5 (5.3)."},
    )
    lr_scheduler_type: str = field(
        default="inverse_sqrt",
        metadata={"help": "Learning rate schedule; default: linear warm-up, then step^-0.5 (paper 5.3)."},
    )
    warmup_steps: float = field(
        default=4000, metadata={"help": "Warm-up steps (paper 5.3); a value below 1 is a fraction of max_steps."}
    )
    optim: str = field(
        default="adamw_torch_fused", metadata={"help": "Optimizer; with weight_decay=0, AdamW is Adam (paper 5.3)."}
    )
    adam_beta2: float = field(default=0.98, metadata={"help": "Adam's β2 (paper 5.3)."})
    adam_epsilon: float = field(default=1e-9, metadata={"help": "Adam's ε (paper 5.3)."})
    label_smoothing_factor: float = field(default=0.1, metadata={"help": "Label smoothing factor (paper 5.4)."})
    bpe_dropout: float = field(
        default=0.0,
        metadata={
            "help": "BPE-dropout: probability to drop a merge of the tokenizer; training pairs are segmented anew "
            "in every epoch."
        },
    )
    word_dropout: float = field(
        default=0.0,
        metadata={"help": "Probability to replace a token of the source or of the decoder's input by <unk>."},
    )
    r_drop_alpha: float = field(
        default=0.0,
        metadata={
            "help": "R-Drop: weight of the divergence between two dropout passes, such as 5; a step takes about twice "
            "the time and memory."
        },
    )
    max_steps: int = field(
        default=100_000, metadata={"help": "Optimizer steps (paper 5.2); -1 to train for num_train_epochs."}
    )
    max_tokens_per_batch: int = field(
        default=4096,
        metadata={"help": "Token budget of a batch: padded source and target tokens per device and accumulation step."},
    )
    average_last: int = field(
        default=5,
        metadata={
            "help": "Number of last checkpoints to average into the final model (paper 6.1); 1 uses the "
            "last one. With load_best_model_at_end, the final model is the best checkpoint."
        },
    )
    ema_decay: float | None = field(
        default=None,
        metadata={
            "help": "Decay of the exponential moving average of the weights, such as 0.999, which is evaluated and "
            "becomes the final model instead of an average of checkpoints."
        },
    )
    early_stopping_patience: int | None = field(
        default=None,
        metadata={"help": "Stop after this many consecutive evaluations without improvement of metric_for_best_model."},
    )
    num_beams: int = field(default=4, metadata={"help": "Beam size in evaluation (paper 6.1)."})
    length_penalty: float = field(default=0.6, metadata={"help": "Length penalty in evaluation (paper 6.1)."})
    per_device_eval_batch_size: int = field(
        default=32, metadata={"help": "Maximum number of pairs in an evaluation batch."}
    )
    predict_with_generate: bool = field(
        default=True, metadata={"help": "Generate translations in evaluation, to compute BLEU."}
    )
    save_strategy: str = field(
        default="steps", metadata={"help": "When to save a checkpoint: 'no', 'steps', 'epoch' or 'best'."}
    )
    save_steps: float = field(default=1000, metadata={"help": "Steps between checkpoints."})
    save_total_limit: int | None = field(
        default=None,
        metadata={"help": "Number of checkpoints to keep; default: average_last."},
    )
    tp_size: int = field(default=1, metadata={"help": "Tensor-parallel degree; see fsdp_size."})
    fsdp_size: int = field(
        default=1,
        metadata={
            "help": "Number of FSDP2 shards (transformers' implementation). tp_size x fsdp_size must be 1 or the "
            "number of processes."
        },
    )
    ddp_find_unused_parameters: bool | None = field(
        default=False, metadata={"help": "Whether DDP searches for unused parameters; this model has none."}
    )
    logging_nan_inf_filter: bool = field(
        default=False,
        metadata={"help": "Filter non-finite losses from the log; here such a loss stops the run."},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        # The samplers distribute complete batches evenly. Accelerate would also repeat pairs to equalize batch sizes.
        self.accelerator_config.even_batches = False
        # Without an accelerator, pinned memory is useless, and PyTorch warns about it for every loader.
        if not torch.accelerator.is_available():
            self.dataloader_pin_memory = False
        self.accelerator_config.non_blocking = self.dataloader_pin_memory  # other copies wait for the device
        for name, minimum in {"max_tokens_per_batch": 2, **dict.fromkeys(POSITIVE, 1)}.items():
            if getattr(self, name) < minimum:
                raise ValueError(f"{name} must be at least {minimum}, got {getattr(self, name)}.")
        if self.learning_rate is not None and self.learning_rate <= 0:
            raise ValueError(f"learning_rate must be positive or unset, got {self.learning_rate}.")
        self._check_regularization()
        if self.ema_decay is not None:
            self._check_ema(self.ema_decay)
        self._check_length()
        for name, instead in UNSUPPORTED.items():
            if getattr(self, name, _default(name)) != _default(name):
                raise ValueError(f"{name} must be unset, because {instead}, got {getattr(self, name)}.")
        self._check_devices()
        if self.early_stopping_patience is not None:
            self._check_early_stopping(self.early_stopping_patience)
        if self.save_total_limit is None:
            self.save_total_limit = self.average_last
        elif self.save_total_limit < self.average_last and self.save_strategy != "no":
            raise ValueError(
                f"save_total_limit must be at least average_last={self.average_last}, got {self.save_total_limit}."
            )

    @property
    def generation_kwargs(self) -> dict[str, Any]:
        """Keyword arguments of `generate()` for evaluation; one beam has no length penalty."""
        return {"num_beams": self.num_beams} | ({"length_penalty": self.length_penalty} if self.num_beams > 1 else {})

    @property
    def order_seed(self) -> int:
        """The seed of the order of the training pairs and of their random segmentations."""
        return self.seed if self.data_seed is None else self.data_seed

    def peak_rate(self, d_model: int) -> float:
        """The learning rate at the end of warm-up: `learning_rate`, or the paper's if it is unset."""
        if self.learning_rate is not None:
            return self.learning_rate
        # At least one step: the paper's formula is undefined without warm-up.
        return paper_peak_rate(d_model, max(1, self.get_warmup_steps(self.max_steps)))

    def _check_length(self) -> None:
        """Check the arguments that determine the number of steps."""
        if self.max_steps != -1 and (self.max_steps < 1 or self.max_steps != int(self.max_steps)):
            raise ValueError(f"max_steps must be a positive integer, or -1 to count epochs, got {self.max_steps}.")
        if self.max_steps != -1 and self.num_train_epochs != _default("num_train_epochs"):
            raise ValueError(
                f"num_train_epochs must be unset unless max_steps is -1, got {self.num_train_epochs} with "
                f"max_steps={self.max_steps}."
            )
        if self.max_steps == -1 and self.num_train_epochs <= 0:
            raise ValueError(f"num_train_epochs must be positive, got {self.num_train_epochs}.")
        if self.max_steps == -1 and self.learning_rate is None and 0 < self.warmup_steps < 1:
            raise ValueError(
                f"warmup_steps must be 0 or at least 1 if max_steps and learning_rate are unset, got "
                f"{self.warmup_steps}."
            )

    def _check_regularization(self) -> None:
        """Check the arguments of BPE-dropout, word dropout and R-Drop."""
        for name in ("bpe_dropout", "word_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 0 and below 1, got {getattr(self, name)}.")
        if self.r_drop_alpha < 0:
            raise ValueError(f"r_drop_alpha must be at least 0, got {self.r_drop_alpha}.")
        if self.bpe_dropout and self.dataloader_persistent_workers:
            raise ValueError("dataloader_persistent_workers must be False with bpe_dropout, got True.")

    def _check_devices(self) -> None:
        """Check what the hardware and the distribution of the weights support."""
        if self.save_on_each_node:
            raise ValueError("save_on_each_node must be False, since all nodes share output_dir, got True.")
        if self.fp16 and self.device.type == "cpu":
            raise ValueError("fp16 must be False on a CPU, which supports bf16, got True.")
        if self.tp_size * self.fsdp_size > 1:
            if self.tp_size * self.fsdp_size != self.world_size:
                raise ValueError(
                    f"tp_size x fsdp_size must be 1 or the number of processes that torchrun starts, here "
                    f"{self.world_size}, got {self.tp_size} x {self.fsdp_size}."
                )
            if version.parse(transformers.__version__) < version.parse("5.23"):
                raise ValueError(
                    "tp_size and fsdp_size must be 1 with transformers older than 5.23, whose Trainer cannot shard "
                    f"weights, got {self.tp_size} and {self.fsdp_size} with transformers {transformers.__version__}."
                )
            self.save_only_model = True  # required by transformers' Trainer, which cannot resume these runs
        if self.average_last > 1 and getattr(self.deepspeed_plugin, "zero_stage", None) == 3:
            raise ValueError(
                f"average_last must be 1 with DeepSpeed ZeRO-3, which partitions the weights, got {self.average_last}."
            )

    def _check_ema(self, decay: float) -> None:
        """Check the decay; the EMA replaces the average of checkpoints."""
        if not 0 < decay < 1:
            raise ValueError(f"ema_decay must be above 0 and below 1, got {decay}.")
        if self.average_last not in (1, _default("average_last")):
            raise ValueError(f"average_last must be unset with ema_decay, got {self.average_last}.")
        if getattr(self.deepspeed_plugin, "zero_stage", None) == 3:
            raise ValueError(f"ema_decay must be unset with DeepSpeed ZeRO-3, which partitions weights, got {decay}.")
        self.average_last = 1

    def _check_early_stopping(self, patience: int) -> None:
        if patience < 1:
            raise ValueError(f"early_stopping_patience must be at least 1, got {patience}.")
        self.restore_callback_states_from_checkpoint = True  # resumes the count of evaluations without improvement
        if self.eval_strategy == "no" or self.metric_for_best_model is None:
            raise ValueError(
                "early_stopping_patience requires eval_strategy and metric_for_best_model, such as 'bleu' or 'loss', "
                f"got {self.eval_strategy.value!r} and {self.metric_for_best_model!r}."
            )


def _default(name: str) -> Any:
    """The default of an argument; `None` if the installed transformers does not have it."""
    entry = TranslationTrainingArguments.__dataclass_fields__.get(name)
    return None if entry is None else entry.default
