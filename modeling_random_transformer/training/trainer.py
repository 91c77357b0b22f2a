"""`Seq2SeqTrainer` with the paper's recipe, token-budget batches and atomic checkpoints."""

import copy
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import is_compiled_module, recursively_apply
from datasets import Dataset
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, Sampler
from transformers import DataCollatorForSeq2Seq, EarlyStoppingCallback, PreTrainedModel, Seq2SeqTrainer, set_seed
from transformers.trainer_callback import PrinterCallback, ProgressCallback, TrainerCallback, TrainerControl
from transformers.trainer_utils import EvalLoopOutput, EvalPrediction, RemoveColumnsCollator, denumpify_detensorize
from transformers.utils import is_numpy_array

from ..base.distributed import call_on_main_process
from ..data.batches import EvaluationSampler, TokenBudgetSampler, padding_multiple
from ..data.tokenization import lengths_of
from ..inference.engine import attach_engine, import_engine
from ..inputs_random_transformer import drop_none, longest_target, source_positions, target_positions
from ..pipeline_random_transformer import OUTPUT_OPTIONS, search_options
from ..versions_random_transformer import UNTESTED_ADVICE
from .checkpoints import is_complete, keep_newest, last_resumable, write_checkpoint
from .methods.loss import RDropLoss, SmoothedCrossEntropy
from .methods.muon import muon_optimizer
from .model_init import shard_layers
from .recipe import TranslationTrainingArguments

logger = logging.getLogger(__name__)

ADVICE = "Decrease learning_rate, increase warmup_steps or set max_grad_norm."
ENGINE_DTYPE = "float32"  # so that scores are those of the model
SAMPLES = 3  # translations that are shown after an evaluation
COLUMNS = ("input_ids", "attention_mask", "labels")  # of the rows that a batch is made of


class TranslationTrainer(Seq2SeqTrainer):
    """Trains an encoder-decoder on pairs of token ids.

    Differences from `Seq2SeqTrainer`: batches have a token budget instead of a number of pairs; label smoothing is
    averaged over the tokens of an optimizer step; a non-finite loss stops the run; checkpoints are atomic, and
    `train(resume_from_checkpoint=True)` resumes from the newest complete checkpoint, or starts at step 0.

    Args:
        model: the model; the paper's learning rate depends on `d_model` in its configuration. `None` with `model_init`,
            the function of `Seq2SeqTrainer` that makes the model of every `train()`, as for `hyperparameter_search`.
        args: the training arguments; the trainer uses a copy.
        train_dataset: rows of `input_ids` and `labels`, with their lengths in `source_length` and `target_length`; or a
            `TokenBudgetStream`.
        train_weights: how often each pair is seen per epoch, `[pairs]`; `None` for once. A `TokenBudgetStream` has
            its own.
        processing_class: the tokenizer, used for padding.
        run_id: the identity of the run, written into its checkpoints; those of other runs are errors.
        **kwargs: the other arguments of `Seq2SeqTrainer`.
    """

    compute_metrics: Callable[..., dict[str, Any]] | None
    control: TrainerControl
    model: Any
    optimizer: Any
    samples: Sequence[tuple[str, str]] = ()  # sources and translations of the last evaluation

    def __init__(
        self,
        model: PreTrainedModel | None = None,
        args: TranslationTrainingArguments | None = None,
        train_weights: np.ndarray | None = None,
        run_id: str = "",
        **kwargs: Any,
    ):
        if args is None:
            raise ValueError("args must be TranslationTrainingArguments, got None.")
        if args.engine is not None:
            import_engine(args.engine)  # raises an error if it is not installed
        self.run_id = run_id
        self.train_weights = train_weights
        self.checkpoint_limit = args.save_total_limit
        self.model_init = kwargs.get("model_init")
        first_model = self.call_model_init() if model is None else model
        args = _trainer_arguments(args, first_model)
        loss_function = SmoothedCrossEntropy(args.label_smoothing_factor, overwrite=True)
        if args.r_drop_alpha:
            loss_function = RDropLoss(args.label_smoothing_factor, args.r_drop_alpha)
        self.padding_multiple = padding_multiple(args.device)
        collator_options: Any = {"model": first_model, "pad_to_multiple_of": self.padding_multiple}
        kwargs["data_collator"] = DataCollatorForSeq2Seq(kwargs.get("processing_class"), **collator_options)
        _save_tied_weights_once(first_model)
        super().__init__(model=model, args=args, compute_loss_func=loss_function, **kwargs)
        if rank := self._data_parallel_rank():  # otherwise, all ranks would have the dropout masks of the first one
            set_seed(args.seed + rank)
        self._unchecked: list[tuple[int, Tensor, dict[str, Any]]] = []  # steps, losses and batches
        self.tokens: Tensor | int = 0  # of this process; on the device until they are read
        self._batch_losses: list[Tensor] = []
        self.resumption = ResumptionCallback()
        self.add_callback(self.resumption)
        if args.early_stopping_patience is not None:
            self.add_callback(EarlyStoppingCallback(args.early_stopping_patience))
        # Replaces transformers' progress bar, or the printed log entries that it uses with disable_tqdm.
        self.remove_callback(PrinterCallback if args.disable_tqdm else ProgressCallback)
        if not args.disable_tqdm:
            self.add_callback(ThroughputProgressCallback(self))

    def call_model_init(self, trial: Any = None) -> Any:
        """A new model of `model_init`, for a trial of a hyperparameter search."""
        if self.model_init is None:
            raise ValueError("one of model and model_init must be given, got neither.")
        model = super().call_model_init(trial)
        _save_tied_weights_once(model)
        return model

    # Batches

    def get_train_dataloader(self) -> DataLoader:
        """Batches of at most `max_tokens_per_batch` padded tokens, distributed over the processes."""
        if hasattr(self.train_dataset, "set_share"):
            return self._stream_loader(self.train_dataset)
        dataset: Any = self.train_dataset
        pairs = None
        if self.args.bpe_dropout:  # the pairs are segmented anew in every epoch
            from .methods.bpe_dropout import BPEDropout, BPEDropoutPairs

            bpe_dropout = BPEDropout(self.processing_class, self.args.bpe_dropout, self._positions())
            dataset = pairs = BPEDropoutPairs(self.train_dataset, bpe_dropout, self.args.order_seed)
        self.resumption.sampler = sampler = TokenBudgetSampler(
            lengths_of(self.train_dataset),
            self.args.max_tokens_per_batch,
            num_processes=self._data_parallel_size(),
            seed=self.args.order_seed,
            pad_to_multiple_of=self.padding_multiple,
            weights=self.train_weights,
            gradient_accumulation_steps=self.args.gradient_accumulation_steps,
            bpe_dropout=pairs,
        )
        keeps_workers = self.args.dataloader_persistent_workers and not self.args.bpe_dropout
        return self._loader(dataset, sampler, persistent_workers=keeps_workers)

    def _stream_loader(self, stream: Any) -> DataLoader:
        """The batches of a `TokenBudgetStream`, which itself distributes them over the processes."""
        if self.args.bpe_dropout and stream.bpe_dropout is None:
            raise ValueError(f"bpe_dropout must be given to TokenBudgetStream too, got {self.args.bpe_dropout}.")
        stream.set_max_length(self._positions())
        stream.set_share(self._data_parallel_rank(), self._data_parallel_size(), self.args.gradient_accumulation_steps)
        options = {"collate_fn": self.data_collator, "pin_memory": self.args.dataloader_pin_memory}
        return prepare_data_loader(
            DataLoader(stream, batch_size=None, **options),
            self.args.device,
            num_processes=1,
            process_index=0,
            put_on_device=True,
            dispatch_batches=False,
            non_blocking=self.accelerator.non_blocking,
        )

    def _positions(self) -> int | None:
        """The longest source or target that the model's learned positions allow; `None` for no limit."""
        limits = (source_positions(self.model), target_positions(self.model.config))
        return min(filter(None, limits), default=None)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """Batches of at most `max_tokens_per_batch` and `per_device_eval_batch_size` pairs, sorted by length."""
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        lengths = lengths_of(dataset)
        sampler = EvaluationSampler(
            lengths,
            self.args.max_tokens_per_batch,
            self.args.eval_batch_size,
            num_processes=self._data_parallel_size(),
            pad_to_multiple_of=self.padding_multiple,
            limits=[longest_target(length, self.model.config) for length in lengths[:, 0].tolist()],
        )
        return self._loader(dataset, sampler)

    get_test_dataloader = get_eval_dataloader

    def _data_parallel_size(self) -> int:
        """The number of processes with different batches; a tensor-parallel group shares one batch."""
        return self.accelerator.num_processes // self.get_tp_size()

    def _data_parallel_rank(self) -> int:
        """The rank of this process among them. Tensor parallelism is the last dimension of every device mesh."""
        return self.accelerator.process_index // self.get_tp_size()

    def _loader(self, dataset: Dataset, sampler: Sampler, **options: Any) -> DataLoader:
        """Batches of the sampler, distributed over the processes."""
        loader = DataLoader(
            dataset,
            batch_sampler=sampler,
            collate_fn=RemoveColumnsCollator(self.data_collator, COLUMNS),
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
            **options,
        )
        return self.accelerator.prepare(loader)

    def get_batch_samples(self, epoch_iterator: Iterator, num_batches: int, device: torch.device) -> tuple[list, Any]:
        """The batches of a step and their number of target tokens. Also counts all tokens, for the throughput."""
        batches, num_items = super().get_batch_samples(epoch_iterator, num_batches, device)
        # The sum stays a tensor on the device: reading it would synchronize.
        self.tokens += sum(batch["attention_mask"].sum() + batch["labels"].ne(-100).sum() for batch in batches)
        return batches, num_items

    # Evaluation

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval", **gen_kwargs: Any
    ) -> dict[str, float]:
        """Evaluate a set, or each of several sets.

        Metrics of several sets have their names, such as `eval_en-de_bleu`. Their means are named like the metrics of a
        single set, such as `eval_bleu`, so that `metric_for_best_model` can be a mean.
        """
        sets = self.eval_dataset if eval_dataset is None else eval_dataset
        if not isinstance(sets, dict):
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix, **gen_kwargs)
        metrics: dict[str, float] = {}
        values: dict[str, list[float]] = {}
        for name, dataset in sets.items():
            prefix = f"{metric_key_prefix}_{name}"
            metrics |= (found := self.predict(dataset, ignore_keys, prefix, **gen_kwargs).metrics or {})
            for key, value in found.items():
                if not key.endswith(("time", "_per_second")):  # times and rates have no means
                    values.setdefault(metric_key_prefix + key.removeprefix(prefix), []).append(value)
        metrics |= {key: float(np.mean(row)) for key, row in values.items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def evaluation_loop(
        self, dataloader: DataLoader, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any
    ) -> EvalLoopOutput:
        """Evaluate every pair once. Predictions and labels, also those of metrics, are in the order of the data set.

        The loss is the mean over the target tokens of the data set and does not depend on the batches.
        """
        # Accelerate's sampler selects the batches of this process from the sampler of all batches.
        shard: Any = dataloader.batch_sampler
        sampler: EvaluationSampler = getattr(shard, "batch_sampler", shard)
        self.gather_function = self._gather_rows
        self._batch_losses = []
        self.evaluated_batches = 0
        if self.accelerator.is_fsdp2 and self.optimizer is None:  # Accelerate requires an optimizer, which is unused
            self.create_optimizer()
            self.model, self.optimizer = self.accelerator.prepare(self.model, self.optimizer)
        if self.is_fsdp_enabled:  # generate() does not detect Accelerate's FSDP2
            self._gen_kwargs = {"synced_gpus": True, **getattr(self, "_gen_kwargs", {})}
        compute_metrics, self.compute_metrics = self.compute_metrics, None
        try:
            with self._engine():
                output = super().evaluation_loop(dataloader, *args, metric_key_prefix=metric_key_prefix, **kwargs)
        finally:
            self.compute_metrics = compute_metrics
        if output.num_samples and not self.evaluated_batches:
            raise RuntimeError(f"transformers does not evaluate by prediction_step. {UNTESTED_ADVICE}")
        positions, rows = sampler.positions(), (output.predictions, output.label_ids)
        predictions, labels = recursively_apply(lambda part: part[positions], rows, test_type=is_numpy_array)
        metrics: dict[str, Any] = {}
        self.samples = self._samples(dataloader.dataset, predictions)
        if self._batch_losses:  # batches after the first `num_batches` are repetitions
            by_batch = self._gather_shards(torch.stack(self._batch_losses)).transpose(0, 1).flatten(0, 1)
            loss, tokens = by_batch[: sampler.num_batches].cpu().double().sum(dim=0).tolist()
            metrics["loss"] = loss / tokens if tokens else 0.0
        if compute_metrics is not None and predictions is not None and labels is not None:
            metrics |= denumpify_detensorize(compute_metrics(EvalPrediction(predictions, labels)))
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in metrics.items()})
        return output._replace(predictions=predictions, label_ids=labels)

    @contextmanager
    def _engine(self) -> Iterator[None]:
        """Let `args.engine` translate. It has its own copy of the weights."""
        if self.args.engine is None or not self.args.predict_with_generate:
            yield
            return
        with TemporaryDirectory() as folder:
            # The engine does not compute edited code, which Accelerate's `forward` is, nor a model in training mode.
            model: Any = self._without_output_conversion(self.model).eval()
            attach_engine(model, self.processing_class, folder, self.args.engine, ENGINE_DTYPE)
            try:
                yield
            finally:
                model.engine = None

    def prediction_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Loss, predictions and labels of a batch; also stores the batch's summed loss and token count.

        The output length has the same limit as in translation (paper 6.1).
        """
        self.evaluated_batches += 1
        inputs = drop_none(**inputs)  # without references, the labels are `None`
        options = self._generation_options(inputs)
        model = self._without_output_conversion(model)
        saved = dict(vars(self.model.generation_config))
        loss, predictions, labels = super().prediction_step(model, inputs, *args, **kwargs, **options)
        vars(self.model.generation_config).update(saved)  # `Seq2SeqTrainer` sets unset options to general defaults
        if loss is not None:
            tokens = inputs["labels"].ne(-100).sum()
            self._batch_losses.append(torch.stack((loss.float() * tokens, tokens.float())))
        return loss, predictions, labels

    def _samples(self, rows: Any, predictions: Any) -> list[tuple[str, str]]:
        """The first sources of a set, with their generated translations if there are any."""
        if not self.args.predict_with_generate or self.processing_class is None or predictions is None:
            return []
        decode = partial(self.processing_class.decode, skip_special_tokens=True)
        ids = ([token for token in row if token >= 0] for row in predictions[:SAMPLES].tolist())
        return [(decode(rows[i]["input_ids"]), decode(translation)) for i, translation in enumerate(ids)]

    def _gather_rows(self, tensors: Any) -> Any:
        """The rows of all processes, whose batch sizes may differ."""

        def gather(tensor: Tensor) -> Tensor:
            sizes = self._gather_shards(torch.tensor(len(tensor), device=tensor.device)).tolist()
            shards = self._gather_shards(self.accelerator.pad_across_processes(tensor, dim=0))
            return torch.cat([rows[:size] for rows, size in zip(shards, sizes, strict=True)])

        return recursively_apply(gather, tensors)

    def _gather_shards(self, tensor: Tensor) -> Tensor:
        """Stack a tensor with the same shape on all processes, once per tensor-parallel group."""
        return self.accelerator.gather(tensor[None].contiguous())[:: self.get_tp_size()]

    def _generation_options(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The generation options of `evaluate` and `predict`, with the search and the limit of translation by default.

        Raises:
            ValueError: an option changes the number or the type of outputs; or the labels, `[batch, target_len]`, start
                with different language tags.
        """
        options = dict(getattr(self, "_gen_kwargs", {}))
        for name, value in OUTPUT_OPTIONS.items():
            if options.setdefault(name, value) != value:
                raise ValueError(f"{name} must be {value} in evaluate and predict, got {options[name]}.")
        if options.get("generation_config") is None:
            options = search_options(self.args.num_beams, self.args.length_penalty) | drop_none(**options)
        if options.get("max_length") is None and options.get("max_new_tokens") is None:
            longest_source = int(inputs["attention_mask"].sum(dim=1).max())
            options["max_new_tokens"] = longest_target(longest_source, self.model.config)
        if self.model.generation_config.stop_strings is not None:
            options.setdefault("tokenizer", self.processing_class)
        labels = inputs.get("labels")
        if labels is not None and getattr(self.processing_class, "languages", None):
            tags = labels[:, 0].unique().tolist()  # the language tags that the labels start with
            if len(tags) != 1:
                raise ValueError(f"eval_dataset must have one target language per set, got a batch of {len(tags)}.")
            options["forced_bos_token_id"] = tags[0]
        return options

    # Loss

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The loss of a batch, in training with R-Drop (the model computes every pair twice)."""
        if self.args.r_drop_alpha and model.training:
            inputs = {name: value if name == "labels" else value.repeat(2, 1) for name, value in inputs.items()}
        if is_compiled_module(model):  # otherwise, it would be compiled for the sizes of the first batches too
            for value in inputs.values():
                torch._dynamo.maybe_mark_dynamic(value, (0, 1))
        return super().compute_loss(model, inputs, *args, **kwargs)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Run the forward and backward pass of one batch.

        Raises:
            FloatingPointError: a loss of the previous step is not finite; the message names the step and the batch.
                Reading the loss of the current step would synchronize with the device.
        """
        loss = super().training_step(self._without_output_conversion(model), inputs, num_items_in_batch)
        self._unchecked.append((self.state.global_step, loss, inputs))
        self._check_losses(self.state.global_step)
        return loss

    def _check_losses(self, end: int | None = None) -> None:
        """Raise an error if a loss before this step, counted from 0, is not finite. Synchronizes with the device."""
        checked = [batch for batch in self._unchecked if end is None or batch[0] < end]
        if not checked:
            return
        self._unchecked = self._unchecked[len(checked) :]
        finite = torch.stack([loss for _, loss, _ in checked]).isfinite()
        if not finite.all():
            step, loss, inputs = checked[int(finite.int().argmin())]
            ids = inputs["input_ids"]
            source = self.processing_class.decode(ids[0], skip_special_tokens=True) if self.processing_class else ids[0]
            raise FloatingPointError(
                f"the loss is {loss.item()} at step {step + 1}, in a batch of input_ids {list(ids.shape)} whose first "
                f"source is {source!r}. {ADVICE}"
            )

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> AbstractContextManager:  # noqa: ARG002
        """Autocast for the forward pass and the loss, in place of Accelerate's (`_without_output_conversion`)."""
        return self.accelerator.autocast()

    def _without_output_conversion(self, model: nn.Module) -> nn.Module:
        """Undo Accelerate's replacement of `forward` for mixed precision.

        It converts the logits to float32, which the loss does in smaller parts, and in `generate()` it converts the
        weights at every step.
        """
        module = self.accelerator.unwrap_model(model, keep_torch_compile=False)
        original = vars(module).pop("_original_forward", None)
        if original is not None:
            del module.forward
            if module.forward != original:  # it was replaced before
                module.forward = original
        return model

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """The optimizer; before, the weights are sharded if Accelerate's configuration selects FSDP2."""
        if self.accelerator.is_fsdp2:
            shard_layers(self.model, self.accelerator)
        if self.args.muon and self.optimizer is None:
            other, options = self.get_optimizer_cls_and_kwargs(self.args)
            self.optimizer = muon_optimizer(self.model, self.args, options["lr"], partial(other, **options))
        return super().create_optimizer(*args, **kwargs)

    # Checkpoints

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """Train; `resume_from_checkpoint=True` resumes from the newest complete checkpoint, if there is one."""
        # In one process, because the file systems of other nodes may show another state.
        resumes = resume_from_checkpoint is True
        newest = call_on_main_process(partial(last_resumable, self.args.output_dir, self.run_id, resumes))
        if resumes:
            # Set by transformers if it shards the model.
            if newest is not None and getattr(self, "is_distributed_loading_by_transformers", False):
                raise ValueError(f"output_dir must be new with tp_size or fsdp_size above 1, got {newest}.")
            resume_from_checkpoint = None if newest is None else str(newest)
        self._unchecked.clear()
        try:
            output = super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
        except UnpicklingError as error:
            found = f"{resume_from_checkpoint} with other objects or a damaged file"
            raise ValueError(f"resume_from_checkpoint must have tensors and plain values, got {found}.") from error
        self._check_losses()
        self._check_weights()
        return output

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        self._check_losses()
        self._check_weights()
        if trial is not None:
            raise ValueError(f"save_strategy must be 'no' in a hyperparameter search, got {self.args.save_strategy!r}.")
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        with write_checkpoint(folder, self.run_id, self.args.should_save, self.accelerator.wait_for_everyone):
            super()._save_checkpoint(model, trial)
        if self.args.should_save:
            best = self.state.best_model_checkpoint
            keep_newest(self.args.output_dir, self.checkpoint_limit, {Path(best).resolve()} if best else set())
        self.accelerator.wait_for_everyone()

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        # The best checkpoint is to be loaded, so that an evaluation without a checkpoint does not count.
        counts = self.control.should_save or self.args.save_strategy == "best" or not self.args.load_best_model_at_end
        return counts and super()._determine_best_metric(metrics, trial)

    def _check_weights(self) -> None:
        """Raise an error if weights are not finite, for example after a non-finite gradient."""
        for name, weight in self.model.named_parameters():
            local = weight.to_local() if isinstance(weight, DTensor) else weight
            if weight.requires_grad and not local.isfinite().all():
                raise FloatingPointError(
                    f"the weights are not finite after step {self.state.global_step}, first {name}. {ADVICE}"
                )


def _save_tied_weights_once(model: Any) -> None:
    """Let a checkpoint contain a tied weight once; else transformers warns, and Accelerate's FSDP2 saves copies."""
    model._keys_to_ignore_on_save = list(getattr(model, "all_tied_weights_keys", ()))


def _trainer_arguments(args: TranslationTrainingArguments, model: PreTrainedModel) -> TranslationTrainingArguments:
    """A copy of the arguments with the values that `Seq2SeqTrainer` requires."""
    # Not only assigned: DeepSpeed's configuration copies the learning rate.
    rate = args.peak_rate(model.config.d_model)
    args = copy.copy(args) if args.learning_rate is not None else replace(args, learning_rate=rate)
    # transformers would delete an old checkpoint before the new one is complete: see `_save_checkpoint`.
    args.save_total_limit = None
    available = super(TranslationTrainingArguments, args).n_gpu
    if available > 1:
        logger.warning("Training uses one of %d GPUs. Use `accelerate launch` to train on all of them.", available)
    return args


# Callbacks


class ThroughputProgressCallback(ProgressCallback):
    """transformers' progress bar with loss, learning rate and throughput instead of printed log entries."""

    def __init__(self, trainer: TranslationTrainer):
        super().__init__()
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        self.trainer.tokens, self.since = 0, time.perf_counter()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict | None = None, **kwargs: Any) -> None:
        if logs is not None and "eval_bleu" in logs and self.training_bar is not None:
            self.training_bar.write(describe_evaluation(state.log_history, self.trainer.samples))
            return
        if logs is None or "loss" not in logs or self.training_bar is None:
            super().on_log(args, state, control, logs=logs, **kwargs)
            return
        groups = args.world_size / args.tp_size  # a tensor-parallel group shares a batch
        rate = float(self.trainer.tokens) * groups / max(time.perf_counter() - self.since, 1e-9)
        self.trainer.tokens, self.since = 0, time.perf_counter()
        loss, learning_rate = float(logs["loss"]), float(logs["learning_rate"])
        self.training_bar.set_postfix_str(f"loss {loss:.3f}, lr {learning_rate:.2e}, {rate:,.0f} tokens/s")


def describe_evaluation(history: Sequence[dict[str, Any]], samples: Sequence[tuple[str, str]]) -> str:
    """The scores of the last entry of the log, the best ones so far, and the sample translations."""
    entries = [entry for entry in history if "eval_bleu" in entry]
    last, scores = entries[-1], []
    for key, name in (("eval_bleu", "BLEU"), ("eval_chrf", "chrF++")):
        if key in last:
            best = max((entry for entry in entries if key in entry), key=lambda entry: entry[key])
            scores.append(f"{name} {last[key]:.2f} (best {best[key]:.2f} at step {best['step']:,})")
    lines = [f"step {last['step']:,}: {', '.join(scores)}"]
    return "\n".join([*lines, *(f"  {source}  →  {translation}" for source, translation in samples)])


class ResumptionCallback(TrainerCallback):
    """Uses the intervals of the arguments, not those of a resumed state, sets the epoch, and checks checkpoints."""

    sampler: TokenBudgetSampler | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        state.compute_steps(args, state.max_steps)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if self.sampler is not None:
            self.sampler.set_epoch(int(state.epoch or 0))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if args.should_save and checkpoint.is_dir() and not is_complete(checkpoint):
            raise RuntimeError(f"transformers does not save {checkpoint} by _save_checkpoint. {UNTESTED_ADVICE}")
