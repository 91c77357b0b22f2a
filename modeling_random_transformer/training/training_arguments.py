"""The paper's training recipe (section 5) as defaults of `Seq2SeqTrainingArguments`."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import ge, gt, le
from typing import Any

import torch
import transformers
from accelerate.utils import parse_flag_from_env
from packaging import version
from transformers import Seq2SeqTrainingArguments
from transformers.trainer_utils import IntervalStrategy

from ..base import ENGINES
from ..base.flags import MAX_SEED, finite_number
from ..configuration_random_transformer import is_int
from ..inputs_random_transformer import HIGHEST_PENALTY, LOWEST_PENALTY, MAX_HYPOTHESES, check_choice
from .arguments import DataArguments, ModelArguments, check_unset

# Arguments of `Seq2SeqTrainingArguments` that have no effect here, and the reasons.
UNSUPPORTED_ARGUMENTS = {
    "per_device_train_batch_size": "max_tokens_per_batch sets the batch size",
    "auto_find_batch_size": "max_tokens_per_batch sets the batch size",
    "train_sampling_strategy": "batches are always grouped by length",
    "length_column_name": "batches are always grouped by length",
    "sortish_sampler": "batches are always grouped by length",
    "dataloader_drop_last": "an epoch always contains every pair",
    "remove_unused_columns": "batches have the token ids only",
    "batch_eval_metrics": "metrics get all rows in the order of the data set",
    "eval_do_concat_batches": "metrics get all rows in the order of the data set",
    "eval_use_gather_object": "metrics get all rows in the order of the data set",
    "include_for_metrics": "metrics get predictions and labels",
    "generation_num_beams": "num_beams sets the number of beams",
    "generation_config": "num_beams and length_penalty configure beam search",
    "save_on_each_node": "all nodes share output_dir",
    "do_predict": "test sets are always scored",
    "use_liger_kernel": "Liger has no kernels for this model",
    "liger_kernel_config": "Liger has no kernels for this model",
    "neftune_noise_alpha": "embeddings get no noise",
    "resume_from_checkpoint": "the same command resumes, and model_name_or_path starts from another model",
}
# Arguments that change the passes of a step, or wait for the device during one.
UNCAPTURED = (
    "fp16",
    "torch_compile",
    "gradient_checkpointing",
    "activation_checkpointing",  # the newer name
    "torch_empty_cache_steps",
    "deepspeed",
    "fsdp",
)
POSITIVE_ARGUMENTS = (
    "gradient_accumulation_steps",
    "learning_rate",
    "logging_steps",
    "save_steps",
    "eval_steps",
    "num_train_epochs",
)
AT_LEAST = {
    "r_drop_alpha": 0,
    "warmup_steps": 0,
    "weight_decay": 0,
    "max_grad_norm": 0,
    "adam_epsilon": 0,
    "average_last": 1,
    "num_beams": 1,
    "tp_size": 1,
    "fsdp_size": 1,
    "per_device_eval_batch_size": 1,
    "eval_accumulation_steps": 1,
    "early_stopping_patience": 1,
    "max_tokens_per_batch": 2,
    "generation_max_length": 2,  # the start token, and one more
    "dataloader_num_workers": 0,
    "seed": 0,
    "data_seed": 0,
}
# More would fill the memory after the data is prepared, or after the training, or be no seed of NumPy.
AT_MOST = {
    "seed": MAX_SEED,
    "gradient_accumulation_steps": 10_000,
    "num_beams": MAX_HYPOTHESES,
    "generation_max_length": 10_000,
    "dataloader_num_workers": 1000,
}
# What is allowed, by which comparison, and the limit for each argument.
LIMITS: tuple[tuple[str, Callable[[Any, Any], bool], dict[str, int]], ...] = (
    ("positive", gt, dict.fromkeys(POSITIVE_ARGUMENTS, 0)),
    ("at least {}", ge, AT_LEAST),
    ("at most {}", le, AT_MOST),
)
AUTO = "auto"
FRACTIONS = ("bpe_dropout", "label_smoothing_factor", "adam_beta1", "adam_beta2")


def number_or_auto(text: str) -> float | str:
    """Argument type: a finite number, or `auto`."""
    return AUTO if text == AUTO else finite_number(text)


def paper_peak_rate(d_model: int, warmup_steps: int) -> float:
    """The learning rate at the end of warm-up, d_model^-0.5 · warmup_steps^-0.5 (paper 5.3)."""
    return (d_model * warmup_steps) ** -0.5


@dataclass
class TranslationTrainingArguments(Seq2SeqTrainingArguments):
    """`Seq2SeqTrainingArguments` with the paper's hyperparameters as defaults, and with additional arguments.

    Args:
        output_dir: folder of the checkpoints, the record and the model
        learning_rate: peak learning rate (default: the paper's, 5.3)
        lr_scheduler_type: learning rate schedule (paper 5.3)
        warmup_steps: warm-up steps (paper 5.3); below 1, a fraction of `max_steps`
        optim: optimizer; with `weight_decay=0`, AdamW is Adam (paper 5.3)
        muon: use Muon for the matrices of the layers, and `optim` for all other weights
        adam_beta2: Adam's β2 (paper 5.3)
        adam_epsilon: Adam's ε (paper 5.3)
        label_smoothing_factor: label smoothing factor (paper 5.4)
        bpe_dropout: BPE-dropout: probability of dropping a merge of the tokenizer
        augment: change shares of the pairs: capitals, typing errors, numbers, placeholders and others
        r_drop_alpha: R-Drop: weight of the divergence between two forward passes, such as 5
        max_steps: optimizer steps (paper 5.2); -1 to train for `num_train_epochs`
        gradient_accumulation_steps: number of batches per device in an optimizer step
        max_tokens_per_batch: maximum number of source and target tokens in a batch of one device, with padding
        average_last: number of last checkpoints to average into the model (paper 6.1)
        early_stopping_patience: number of evaluations without improvement after which training stops
        num_beams: beam size in evaluation (paper 6.1)
        length_penalty: length penalty of beam search (paper 6.1); auto: select it and the patience on the validation
            sets
        bleu_tokenize: sacreBLEU's tokenizer (default: that of the target language)
        engine: inference engine for evaluation on a CPU: ctranslate2
        per_device_eval_batch_size: maximum number of pairs in an evaluation batch (default: 32 on a CPU, otherwise 256)
        predict_with_generate: generate translations in evaluation, to compute BLEU
        save_strategy: when to save a checkpoint: no, steps, epoch or best
        save_steps: steps between checkpoints
        save_total_limit: number of checkpoints to keep (default: average_last)
        logging_steps: steps between log entries of the loss
        do_train: always true; a finished run is scored without training
        hub_license: license in the model card, such as cc-by-4.0; required for an upload
        cuda_graphs: launch the kernels of a batch at once, on a single GPU; faster for small models
        tp_size: tensor-parallel degree; see `fsdp_size`
        fsdp_size: number of FSDP2 shards; `tp_size` x `fsdp_size` must be 1 or the number of processes
        ddp_find_unused_parameters: whether DDP searches for unused parameters
        logging_nan_inf_filter: filter non-finite losses from the log; they stop a run

    Raises:
        ValueError: an argument is invalid, or has no effect with the others.
    """

    learning_rate: float | None = None
    lr_scheduler_type: str = "inverse_sqrt"
    warmup_steps: float = 4000
    optim: str = "adamw_torch_fused"
    muon: bool = False
    adam_beta2: float = 0.98
    adam_epsilon: float = 1e-9
    label_smoothing_factor: float = 0.1
    bpe_dropout: float = 0.0
    augment: bool = False
    r_drop_alpha: float = 0.0
    max_steps: int = field(default=100_000, metadata={"type": int})  # 0 and -1 are allowed
    max_tokens_per_batch: int = 4096
    average_last: int = 5
    early_stopping_patience: int | None = None
    num_beams: int = 4
    length_penalty: float | str = field(default=0.6, metadata={"type": number_or_auto})
    bleu_tokenize: str | None = None
    engine: str | None = None
    per_device_eval_batch_size: int | None = None
    predict_with_generate: bool = True
    save_strategy: str = "steps"
    save_steps: float = 1000
    save_total_limit: int | None = None
    logging_steps: float = 100
    do_train: bool = True
    hub_license: str | None = None
    cuda_graphs: bool = False
    tp_size: int = 1
    fsdp_size: int = 1
    ddp_find_unused_parameters: bool | None = False
    logging_nan_inf_filter: bool = False

    @property
    def n_gpu(self) -> int:
        """One GPU per process: transformers would use `DataParallel` for several."""
        return min(super().n_gpu, 1)

    def __post_init__(self) -> None:
        self._check_values()  # before transformers divides by some of the values
        super().__post_init__()
        # The samplers distribute complete batches evenly. Accelerate would also repeat pairs to equalize batch sizes.
        self.accelerator_config.even_batches = False
        # Without an accelerator, pinned memory is useless, and PyTorch warns about it for every loader.
        if not torch.accelerator.is_available():
            self.dataloader_pin_memory = False
        self.accelerator_config.non_blocking = self.dataloader_pin_memory  # other copies wait for the device
        if self.per_device_eval_batch_size is None:
            # A GPU translates many pairs in almost the time of a few.
            self.per_device_eval_batch_size = 32 if self.device.type == "cpu" else 256
        for name, reason in UNSUPPORTED_ARGUMENTS.items():
            check_unset(self, name, f"because {reason}")
        self._require("do_train", self.do_train, "True")
        self._check_steps()
        self._check_evaluation()
        self._check_devices()
        if self.early_stopping_patience is not None:
            self.restore_callback_states_from_checkpoint = True  # resumes the count of evaluations without improvement
        if self.num_shards > 1:
            self.save_only_model = True  # required by transformers' Trainer, which cannot resume these runs
        if self.save_total_limit is None:
            self.save_total_limit = self.average_last

    @property
    def device(self) -> torch.device:
        """The device of this process. A CPU has no index: with one, transformers 5.17 does not resume."""
        device = super().device
        return torch.device("cpu") if device.type == "cpu" else device

    @property
    def num_shards(self) -> int:
        """The number of processes that share the weights of a model; 1 if each has all weights."""
        return self.tp_size * self.fsdp_size

    @property
    def search_kwargs(self) -> dict[str, Any]:
        """Keyword arguments of `generate()` for evaluation; one beam has no options of beam search.

        Those of the initial model are replaced, also by `None`. Before they are chosen, after the training, the length
        penalty and the patience are 1.
        """
        search = dict.fromkeys(("length_penalty", "early_stopping", "patience"))
        if self.chooses_length_penalty:  # without early stopping, a large penalty makes translations too long
            search |= {"length_penalty": 1.0, "early_stopping": True, "patience": 1}
        elif self.num_beams > 1:
            search["length_penalty"] = self.length_penalty
        return {"num_beams": self.num_beams, **search}

    @property
    def chooses_length_penalty(self) -> bool:
        """Whether the length penalty is chosen on the validation sets; one beam has none."""
        return self.length_penalty == AUTO and self.num_beams > 1

    @property
    def translation_metric(self) -> str:
        """`"bleu"` if it selects the best checkpoint, otherwise `"chrf"`."""
        return "bleu" if "bleu" in str(self.metric_for_best_model) else "chrf"

    @property
    def order_seed(self) -> int:
        """The seed of the order of the training pairs and of their random changes."""
        return self.seed if self.data_seed is None else self.data_seed

    def without_evaluation(self) -> "TranslationTrainingArguments":
        """A copy for a trainer that does not evaluate during training."""
        args = copy.copy(self)
        args.eval_strategy = IntervalStrategy.NO
        args.eval_steps = None
        args.eval_delay = 0
        args.do_eval = False  # set by transformers with an `eval_strategy`
        args.load_best_model_at_end = False
        args.early_stopping_patience = None
        return args

    def peak_rate(self, d_model: int) -> float:
        """The learning rate at the end of warm-up: `learning_rate`, or the paper's if it is unset."""
        if self.learning_rate is not None:
            return self.learning_rate
        # At least one step: the paper's formula is undefined without warm-up.
        return paper_peak_rate(d_model, max(1, self.get_warmup_steps(self.max_steps)))

    def _require(self, name: str, is_valid: Any, description: str) -> None:
        if not is_valid:
            value = getattr(self, name)
            raise ValueError(f"{name} must be {description}, got {getattr(value, 'value', value)!r}.")

    def _check_values(self) -> None:
        self._require("output_dir", self.output_dir != "", "a folder")
        for name, value in vars(self).items():
            self._require(name, not isinstance(value, float) or math.isfinite(value), "finite")
        for name, kind in TranslationTrainingArguments.__annotations__.items():
            if kind is bool:
                self._require(name, isinstance(getattr(self, name), bool), "True or False")
            if kind is int and name != "max_steps":  # which may be 1e5
                self._require(name, is_int(getattr(self, name)), "an integer")
        for description, is_within, limits in LIMITS:
            for name, limit in limits.items():
                value = getattr(self, name)
                self._require(name, value is None or is_within(value, limit), description.format(limit))
        for name in FRACTIONS:
            self._require(name, 0 <= getattr(self, name) < 1, "at least 0 and below 1")
        if self.optim in ("sgd", "adagrad", "adafactor", "rmsprop"):  # without the hyperparameters of Adam
            check_unset(self, "adam_beta1 adam_beta2 adam_epsilon", f"with optim={self.optim}")

    def _check_steps(self) -> None:
        trains_epochs = self.max_steps == -1
        is_count = self.max_steps >= 1 and self.max_steps == int(self.max_steps)
        self._require("max_steps", trains_epochs or is_count, "a positive integer, or -1 for epochs")
        if not trains_epochs:
            check_unset(self, "num_train_epochs", "unless max_steps is -1")
        elif self.learning_rate is None:
            # The paper's rate depends on the number of warm-up steps, and that of an epoch is not known yet.
            is_fraction = 0 < self.warmup_steps < 1
            self._require("warmup_steps", not is_fraction, "0 or at least 1 if max_steps and learning_rate are unset")
        for event in ("save", "logging", "eval"):
            if getattr(self, f"{event}_strategy") != "steps":
                check_unset(self, f"{event}_steps", f"unless {event}_strategy is steps")
        if self.save_total_limit is not None and self.save_strategy != "no":
            least = self.average_last
            self._require("save_total_limit", self.save_total_limit >= least, f"at least average_last={least}")

    def _check_evaluation(self) -> None:
        if self.eval_strategy == "no":
            check_unset(self, "do_eval eval_delay", "without eval_strategy")
            self._require("eval_strategy", self.early_stopping_patience is None, "set with early_stopping_patience")
        if self.early_stopping_patience is not None:
            self._require("metric_for_best_model", self.metric_for_best_model, "set with early_stopping_patience")
        if self.engine is not None:
            check_choice(ENGINES, engine=self.engine)
        penalty = self.length_penalty
        is_number = not isinstance(penalty, str) and LOWEST_PENALTY <= penalty <= HIGHEST_PENALTY
        numbers = f"a number from {LOWEST_PENALTY} to {HIGHEST_PENALTY}"
        self._require("length_penalty", is_number or penalty == AUTO, f"{numbers}, or {AUTO!r}")
        default = type(self).length_penalty
        has_effect = self.num_beams > 1 or penalty in (default, AUTO)  # nothing to choose for one beam
        self._require("length_penalty", has_effect, f"{default} (the default) or {AUTO!r} with num_beams=1")

    def _check_devices(self) -> None:
        if self.device.type == "cpu":
            self._require("fp16", not self.fp16, "False on a CPU, which supports bf16")
        else:
            check_unset(self, "engine", f"on the device {self.device}")
        if self.cuda_graphs:
            self._check_cuda_graphs()
        if self.num_shards > 1:
            name = "tp_size" if self.tp_size > 1 else "fsdp_size"
            self._require(
                name,
                self.num_shards == self.world_size,
                f"such that tp_size x fsdp_size is 1 or the number of processes, here {self.world_size}",
            )
            is_recent = version.parse(transformers.__version__) >= version.parse("5.23")
            self._require(name, is_recent, "1 with transformers older than 5.23, whose Trainer cannot shard weights")
        if getattr(self.deepspeed_plugin, "zero_stage", None) == 3:
            self._require("average_last", self.average_last == 1, "1 with DeepSpeed ZeRO-3")
        uses_fsdp = self.fsdp or parse_flag_from_env("ACCELERATE_USE_FSDP")
        # DeepSpeed always shards the optimizer's state.
        if self.num_shards > 1 or uses_fsdp or self.deepspeed_plugin is not None:
            self._require("muon", not self.muon, "False with weights or states that are sharded over processes")

    def _check_cuda_graphs(self) -> None:
        is_possible = self.device.type == "cuda" and self.world_size == 1
        self._require("cuda_graphs", is_possible, f"False with {self.world_size} processes on the device {self.device}")
        for name in UNCAPTURED:
            self._require(name, not getattr(self, name, None), "unset with cuda_graphs")
        updates_in_passes = any(name in self.optim for name in ("lomo", "layerwise"))
        self._require(
            "optim", not updates_in_passes, "an optimizer without updates in the backward pass for cuda_graphs"
        )


TRAINING_ARGUMENTS = (DataArguments, ModelArguments, TranslationTrainingArguments)  # the classes of all arguments
