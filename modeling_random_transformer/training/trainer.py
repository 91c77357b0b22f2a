"""`Seq2SeqTrainer` with the paper's recipe, token-budget batches and atomic checkpoints."""

import copy
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import is_compiled_module, recursively_apply
from datasets import Dataset
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler
from transformers import (
    DataCollatorForSeq2Seq,
    EarlyStoppingCallback,
    PreTrainedModel,
    Seq2SeqTrainer,
    TrainerCallback,
    TrainerControl,
    set_seed,
)
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.trainer_utils import EvalLoopOutput, EvalPrediction

from ..data.batches import EvaluationSampler, TokenBudgetSampler, padding_multiple
from ..data.tokenization import lengths_of
from ..inputs_random_transformer import longest_target, source_positions, target_positions
from ..utils.distributed import call_on_main_process
from .checkpoints import (
    all_checkpoints,
    begin_checkpoint,
    check_checkpoints,
    is_complete,
    keep_newest,
    mark_complete,
    newest_complete,
    remove_checkpoint,
    remove_unfinished,
    save_error,
    to_local,
)
from .loss import LossMonitor, SmoothedCrossEntropy
from .model_init import is_sharded, prepare_for_evaluation, shard_layers
from .recipe import TranslationTrainingArguments

if TYPE_CHECKING:
    from .ema import EMACallback

logger = logging.getLogger(__name__)

COLUMNS = ("input_ids", "attention_mask", "labels")  # of the rows that a batch is made of


class TranslationTrainer(Seq2SeqTrainer):
    """Trains an encoder-decoder on pairs of token ids.

    Differences from `Seq2SeqTrainer`: batches have a token budget instead of a number of pairs; label smoothing is
    averaged over the tokens of an optimizer step; a non-finite loss stops the run; checkpoints are atomic, and
    `train(resume_from_checkpoint=True)` resumes from the newest complete checkpoint, or starts at step 0.

    Args:
        model: the model; the paper's learning rate depends on `d_model` in its configuration.
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
    ema: "EMACallback | None" = None
    word_dropout: Callable[[Tensor], Tensor] | None = None

    def __init__(
        self,
        model: PreTrainedModel,
        args: TranslationTrainingArguments,
        train_weights: np.ndarray | None = None,
        run_id: str = "",
        **kwargs: Any,
    ):
        self.run_id = run_id
        self.train_weights = train_weights
        self.checkpoint_limit = args.save_total_limit
        args = _trainer_arguments(args, model)
        loss_function = SmoothedCrossEntropy(args.label_smoothing_factor, overwrite=True)
        if args.r_drop_alpha:
            from .r_drop import RDropLoss

            loss_function = RDropLoss(args.label_smoothing_factor, args.r_drop_alpha)
        self.padding_multiple = padding_multiple(args.device)
        kwargs.setdefault(
            "data_collator",
            DataCollatorForSeq2Seq(
                kwargs.get("processing_class"), model=model, pad_to_multiple_of=self.padding_multiple
            ),
        )
        if kwargs.get("compute_metrics") is not None:
            kwargs["compute_metrics"] = self._in_dataset_order(kwargs["compute_metrics"])
        # A checkpoint contains a tied weight once. Otherwise transformers warns, and FSDP2 of Accelerate saves copies.
        model._keys_to_ignore_on_save = list(getattr(model, "all_tied_weights_keys", ()))
        super().__init__(model=model, args=args, compute_loss_func=loss_function, **kwargs)
        if rank := self._data_parallel_rank():  # otherwise, all ranks would have the dropout masks of the first one
            set_seed(args.seed + rank)
        self.loss_monitor = LossMonitor(self.processing_class, self._advice)
        self.tokens: Tensor | int = 0  # of this process; on the device until they are read
        self._batch_losses: list[Tensor] = []
        self._row_order: np.ndarray | None = None  # see `evaluation_loop`
        self.resumption = ResumptionCallback()
        self.add_callback(self.resumption)
        if args.early_stopping_patience is not None:
            self.add_callback(EarlyStoppingCallback(args.early_stopping_patience))
        if args.ema_decay is not None:
            from .ema import EMACallback

            self.ema = EMACallback(args.ema_decay)
            self.add_callback(self.ema)
        if args.word_dropout:
            from .word_dropout import WordDropout

            self.word_dropout = WordDropout(self.processing_class, args.word_dropout, args.device)
        # Replace transformers' progress bar, or the printed log entries that it uses with disable_tqdm.
        if self.pop_callback(ProgressCallback) is None:
            self.remove_callback(PrinterCallback)
        if not args.disable_tqdm:
            self.add_callback(ThroughputProgressCallback(self))

    # Batches

    def get_train_dataloader(self) -> DataLoader:
        """Batches of at most `max_tokens_per_batch` padded tokens, distributed over the processes."""
        if self.train_dataset is None:
            raise ValueError("train_dataset must be given for training, got None.")
        if hasattr(self.train_dataset, "set_share"):
            return self._stream_loader(self.train_dataset)
        dataset: Any = self.train_dataset
        kind: Callable[..., TokenBudgetSampler] = TokenBudgetSampler
        if self.args.bpe_dropout:  # the pairs are segmented anew in every epoch
            from ..data.bpe_dropout import BPEDropout, BPEDropoutPairs, BPEDropoutSampler

            bpe_dropout = BPEDropout(self.processing_class, self.args.bpe_dropout, self._positions())
            dataset = BPEDropoutPairs(self.train_dataset, bpe_dropout, self.args.order_seed)
            kind = partial(BPEDropoutSampler, dataset)
        self.resumption.sampler = sampler = kind(
            *lengths_of(self.train_dataset).T,
            self.args.max_tokens_per_batch,
            num_processes=self._data_parallel_size(),
            seed=self.args.order_seed,
            pad_to_multiple_of=self.padding_multiple,
            weights=self.train_weights,
            gradient_accumulation_steps=self.args.gradient_accumulation_steps,
        )
        return self._loader(dataset, sampler, persistent_workers=self.args.dataloader_persistent_workers)

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

    def get_eval_dataloader(self, eval_dataset: str | Dataset | None = None) -> DataLoader:
        """Batches of at most `max_tokens_per_batch` and `per_device_eval_batch_size` pairs, sorted by length."""
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if dataset is None:
            raise ValueError("eval_dataset must be given for evaluation, got None.")
        return self._sorted_loader(self.eval_dataset[dataset] if isinstance(dataset, str) else dataset)

    def get_test_dataloader(self, test_dataset: Dataset) -> DataLoader:
        """The same batches as those of `get_eval_dataloader`."""
        return self._sorted_loader(test_dataset)

    def _sorted_loader(self, dataset: Dataset) -> DataLoader:
        source_lengths, target_lengths = lengths_of(dataset).T
        sampler = EvaluationSampler(
            source_lengths,
            target_lengths,
            self.args.max_tokens_per_batch,
            self.args.eval_batch_size,
            num_processes=self._data_parallel_size(),
            pad_to_multiple_of=self.padding_multiple,
            limits=[longest_target(length, self.model.config) for length in source_lengths.tolist()],
        )
        return self._loader(dataset, sampler)

    def _data_parallel_size(self) -> int:
        """The number of processes with different batches; a tensor-parallel group shares one batch."""
        return self.accelerator.num_processes // self.get_tp_size()

    def _data_parallel_rank(self) -> int:
        """The rank of this process among them. Tensor parallelism is the last dimension of every device mesh."""
        return self.accelerator.process_index // self.get_tp_size()

    def _loader(self, dataset: Dataset, sampler: Sampler, **options: Any) -> DataLoader:
        """Batches of the sampler, distributed over the processes."""
        if isinstance(dataset, Dataset):  # does not read the other columns
            dataset = dataset.select_columns([name for name in COLUMNS if name in dataset.column_names])
        loader = DataLoader(
            dataset,
            batch_sampler=sampler,
            collate_fn=partial(_collate, self.data_collator),
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
        self,
        eval_dataset: Dataset | dict[str, Dataset] | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **gen_kwargs: Any,
    ) -> dict[str, float]:
        """Evaluate a set, or each of several sets.

        Metrics of several sets have their names, such as `eval_en-de_bleu`. Their means are named like the metrics of a
        single set, such as `eval_bleu`, so that `metric_for_best_model` can be a mean.
        """
        sets = self.eval_dataset if eval_dataset is None else eval_dataset
        if not isinstance(sets, dict):
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix, **gen_kwargs)
        by_set = {}
        for name, dataset in sets.items():
            prefix = f"{metric_key_prefix}_{name}"
            by_set[prefix] = self.predict(dataset, ignore_keys, prefix, **gen_kwargs).metrics or {}
        metrics = with_mean_metrics(by_set, metric_key_prefix)
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Evaluate every pair once. Predictions and labels are in the order of the data set.

        During training with `ema_decay`, the averages are evaluated.
        The loss is the mean over the target tokens of the data set and does not depend on the batches. Batches that are
        not concatenated (`eval_do_concat_batches=False`, `batch_eval_metrics=True`) stay in the order of evaluation.
        """
        # Accelerate's sampler selects the batches of this process from the sampler of all batches.
        shard: Any = dataloader.batch_sampler
        sampler: EvaluationSampler = getattr(shard, "batch_sampler", shard)
        self.gather_function = self._gather_rows
        self._batch_losses = []
        concatenated = self.args.eval_do_concat_batches
        self._row_order = sampler.positions() if concatenated and not self.args.batch_eval_metrics else None
        if self.accelerator.is_fsdp2 and not is_sharded(self.model):
            prepare_for_evaluation(self)
        if self.is_fsdp_enabled:  # generate() does not detect Accelerate's FSDP2
            self._gen_kwargs = {"synced_gpus": True, **getattr(self, "_gen_kwargs", {})}
        with self.ema.applied(self.model) if self.ema is not None else nullcontext():
            output = super().evaluation_loop(
                dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
            )
        if self._batch_losses:
            output.metrics[f"{metric_key_prefix}_loss"] = self._mean_loss(sampler.num_batches)
        if not concatenated:
            return output
        predictions, labels = (
            select_rows(rows, sampler.positions()) for rows in (output.predictions, output.label_ids)
        )
        return output._replace(predictions=predictions, label_ids=labels)

    def _in_dataset_order(self, compute_metrics: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        """The metrics of rows in the order of the data set, `_row_order`, instead of that of the batches."""

        @wraps(compute_metrics)  # transformers reads its parameters
        def ordered(prediction: EvalPrediction, **options: Any) -> dict[str, Any]:
            if self._row_order is not None:
                rows = (prediction.predictions, prediction.label_ids, prediction.inputs)
                prediction = EvalPrediction(*(select_rows(part, self._row_order) for part in rows), prediction.losses)
            return compute_metrics(prediction, **options)

        return ordered

    def prediction_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Loss, predictions and labels of a batch; also stores the batch's summed loss and token count.

        The output length has the same limit as in translation (paper 6.1).
        """
        options = self._generation_options(inputs)
        model = self._without_output_conversion(model)
        loss, predictions, labels = super().prediction_step(model, inputs, *args, **kwargs, **options)
        if loss is not None:
            tokens = inputs["labels"].ne(-100).sum()
            self._batch_losses.append(torch.stack((loss.float() * tokens, tokens.float())))
        return loss, predictions, labels

    def _gather_rows(self, tensors: Any) -> Any:
        """The rows of all processes, whose batch sizes may differ."""

        def gather(tensor: Tensor) -> Tensor:
            sizes = self._gather_shards(torch.tensor(len(tensor), device=tensor.device)).tolist()
            padded = self.accelerator.pad_across_processes(tensor, dim=0)
            shards = self._gather_shards(padded)
            return torch.cat([rows[:size] for rows, size in zip(shards, sizes, strict=True)])

        return recursively_apply(gather, tensors)

    def _gather_shards(self, tensor: Tensor) -> Tensor:
        """Stack a tensor with the same shape on all processes, once per tensor-parallel group."""
        return self.accelerator.gather(tensor[None].contiguous())[:: self.get_tp_size()]

    def _mean_loss(self, num_batches: int) -> float:
        """The loss per target token over the first `num_batches` batches; later ones are repetitions."""
        by_batch = self._gather_shards(torch.stack(self._batch_losses)).transpose(0, 1).flatten(0, 1)[:num_batches]
        loss, tokens = by_batch.cpu().double().sum(dim=0).tolist()
        return loss / tokens if tokens else 0.0

    def _generation_options(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The generation options of `evaluate` and `predict`, with a default limit on the output length."""
        options = dict(getattr(self, "_gen_kwargs", {}))
        if options.get("max_length") is None and options.get("max_new_tokens") is None:
            longest = int(inputs["attention_mask"].sum(dim=1).max())
            limit = longest_target(longest, self.model.config)
            options |= {"max_length": 1 + limit, "max_new_tokens": None}  # 1 for the start token
        labels = inputs.get("labels")
        if labels is not None and getattr(self.processing_class, "languages", None):
            options["forced_bos_token_id"] = common_tag(labels)
        return options

    # Loss

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The loss of a batch, in training with R-Drop (the model computes every pair twice) and word dropout."""
        if self.args.r_drop_alpha and model.training:
            inputs = {name: value if name == "labels" else value.repeat(2, 1) for name, value in inputs.items()}
        if self.word_dropout is not None and model.training:
            inputs = inputs | {name: self.word_dropout(inputs[name]) for name in ("input_ids", "decoder_input_ids")}
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
        step = self.state.global_step + 1
        self.loss_monitor.add(step, loss, inputs)
        self.loss_monitor.check(before=step)
        return loss

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
            module.forward = original
        return model

    def _advice(self) -> str:
        return (
            "Decrease learning_rate, increase warmup_steps or set max_grad_norm; the newest checkpoint is "
            f"{newest_complete(self.args.output_dir)}."
        )

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """The optimizer; before, the weights are sharded if Accelerate's configuration selects FSDP2."""
        if self.accelerator.is_fsdp2:
            shard_layers(self.model, self.accelerator)
        return super().create_optimizer(*args, **kwargs)

    # Checkpoints

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """Train; `resume_from_checkpoint=True` resumes from the newest complete checkpoint, if there is one.

        With `ema_decay`, the model has the averages as its weights afterwards.
        """
        # In one process, because the file systems of other nodes may show another state.
        newest = call_on_main_process(partial(self._newest_checkpoint, resume_from_checkpoint is True))
        if resume_from_checkpoint is True:
            # Set by transformers if it shards the model.
            if newest is not None and getattr(self, "is_distributed_loading_by_transformers", False):
                raise ValueError(
                    f"output_dir must be new with tp_size or fsdp_size above 1, which cannot be resumed, got one with "
                    f"{newest}. Accelerate's FSDP2 can be resumed (examples/accelerate/fsdp2.yaml)."
                )
            resume_from_checkpoint = None if newest is None else str(newest)
        self.loss_monitor.unchecked.clear()
        if self.ema is not None:
            self.ema.resumed_from = Path(resume_from_checkpoint) if resume_from_checkpoint else None
        output = super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
        self.loss_monitor.check(before=self.state.global_step + 1)
        self._check_weights()
        if self.ema is not None:
            self.ema.finish(self.model)
        return output

    def _newest_checkpoint(self, resumes: bool) -> Path | None:
        """The newest complete checkpoint. If training resumes, those of killed processes are removed."""
        check_checkpoints(self.args.output_dir, self.run_id)
        for folder in remove_unfinished(self.args.output_dir) if resumes else ():
            logger.warning("%s was incomplete and has been removed.", folder)
        return newest_complete(self.args.output_dir)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        self.loss_monitor.check(before=self.state.global_step + 1)
        self._check_weights()
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        if self.args.should_save:
            begin_checkpoint(folder, self.run_id)
        self.accelerator.wait_for_everyone()  # no process writes a file before the marker
        try:
            super()._save_checkpoint(model, trial)
            if self.ema is not None:
                self.ema.save(self.model, folder, is_writer=self.args.should_save)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                mark_complete(folder)
        except Exception as error:
            if self.args.should_save:  # another process must not remove what this one still writes
                with suppress(OSError):
                    remove_checkpoint(folder)
            newest = newest_complete(self.args.output_dir)
            resumable = f"{newest} is complete" if newest else "there is no earlier one"
            message = f"checkpoint {folder} could not be saved, {resumable}"
            raise save_error(message, self.args.output_dir, error) from error
        if self.args.should_save:
            best = self.state.best_model_checkpoint
            keep_newest(
                self.args.output_dir, self.checkpoint_limit, protected=set() if best is None else {Path(best).resolve()}
            )
        self.accelerator.wait_for_everyone()

    def _load_best_model(self) -> None:
        super()._load_best_model()
        if self.ema is not None:
            self.ema.load(self.model, Path(self.state.best_model_checkpoint))

    def _check_weights(self) -> None:
        """Raise an error if weights are not finite, for example after a non-finite gradient."""
        trainable = [(name, weight) for name, weight in self.model.named_parameters() if weight.requires_grad]
        invalid = [name for name, weight in trainable if not to_local(weight).isfinite().all()]
        if invalid:
            raise FloatingPointError(
                f"the weights are not finite after step {self.state.global_step}, first {invalid[0]}. {self._advice()}"
            )

    def last_checkpoints(self, count: int) -> list[Path]:
        """The last `count` complete checkpoints, or fewer, oldest first. Every process must call this."""
        return call_on_main_process(
            lambda: [path for path in all_checkpoints(self.args.output_dir) if is_complete(path)][-count:]
        )


def _trainer_arguments(args: TranslationTrainingArguments, model: PreTrainedModel) -> TranslationTrainingArguments:
    """A copy of the arguments with the values that `Seq2SeqTrainer` requires."""
    if args.learning_rate is None:  # not only assigned: DeepSpeed's configuration copies the value
        args = replace(args, learning_rate=args.peak_rate(model.config.d_model))
    else:
        args = copy.copy(args)
    # transformers would delete an old checkpoint before the new one is complete: see `_save_checkpoint`.
    args.save_total_limit = None
    if args.n_gpu > 1:
        logger.warning("Training uses one of %d GPUs. Use `accelerate launch` to train on all of them.", args.n_gpu)
        args._n_gpu = 1  # prevents DataParallel, as transformers itself does
    return args


def _collate(collator: Callable[[list], Any], rows: list[dict[str, Any]]) -> Any:
    return collator([{name: row[name] for name in COLUMNS if name in row} for row in rows])


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
        if logs is None or "loss" not in logs or self.training_bar is None:
            super().on_log(args, state, control, logs=logs, **kwargs)
            return
        groups = args.world_size / args.tp_size  # a tensor-parallel group shares a batch
        rate = float(self.trainer.tokens) * groups / max(time.perf_counter() - self.since, 1e-9)
        self.trainer.tokens, self.since = 0, time.perf_counter()
        loss, learning_rate = float(logs["loss"]), float(logs["learning_rate"])
        self.training_bar.set_postfix_str(f"loss {loss:.3f}, lr {learning_rate:.2e}, {rate:,.0f} tokens/s")


class ResumptionCallback(TrainerCallback):
    """Uses the intervals of the arguments, not those of a resumed state, and sets the epoch of the sampler."""

    sampler: TokenBudgetSampler | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        state.compute_steps(args, state.max_steps)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if self.sampler is not None:
            self.sampler.set_epoch(int(state.epoch or 0))


# Rows and metrics of evaluation


def common_tag(labels: Tensor) -> int:
    """The language tag that all labels, `[batch, target_len]`, start with.

    Raises:
        ValueError: labels start with different tags.
    """
    tags = labels[:, 0].unique().tolist()
    if len(tags) != 1:
        raise ValueError(f"eval_dataset must have one target language per set, got a batch of {len(tags)}.")
    return tags[0]


def select_rows(rows: Any, positions: np.ndarray) -> Any:
    """The rows at these positions, of an array or of each array in a tuple."""
    if isinstance(rows, (tuple, list)):
        return type(rows)(select_rows(part, positions) for part in rows)
    return None if rows is None else rows[positions]


def with_mean_metrics(by_set: Mapping[str, dict[str, float]], prefix: str) -> dict[str, float]:
    """The metrics of several sets, and their means, named like the metrics of a single set.

    Args:
        by_set: the metrics of each set, whose names begin with the key of the set, such as `"eval_en-de"`.
        prefix: what the names of the means begin with, such as `"eval"`. Times and rates have no means.
    """
    first = next(iter(by_set))
    names = [key.removeprefix(first) for key in by_set[first] if not key.endswith(("time", "_per_second"))]
    means = {
        f"{prefix}{name}": float(np.mean([metrics[f"{key}{name}"] for key, metrics in by_set.items()]))
        for name in names
    }
    return means | {name: value for metrics in by_set.values() for name, value in metrics.items()}
