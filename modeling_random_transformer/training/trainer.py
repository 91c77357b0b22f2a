"""A `Seq2SeqTrainer` with the paper's recipe, token-budget batches and atomic checkpoints."""

import copy
import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from accelerate.data_loader import prepare_data_loader
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import DataCollatorForSeq2Seq, EarlyStoppingCallback, PreTrainedModel, set_seed
from transformers.trainer_callback import ExportableState, PrinterCallback, ProgressCallback

from ..base import load_extra
from ..base.distributed import call_on_main_process
from ..data.batches import TokenBudgetSampler, padding_multiple
from ..data.retokenization import RetokenizedPairs, Retokenizer
from ..data.streaming import TokenBudgetStream
from ..data.tokenization import lengths_of
from ..inference.engine import import_engine
from ..inputs_random_transformer import max_source_positions, max_target_positions
from ..ops_random_transformer import IGNORE_INDEX
from .callbacks import ThroughputProgressCallback, TrainingStateCallback
from .checkpoints import (
    check_checkpoints,
    checkpoint_folder,
    keep_newest,
    resumable_checkpoint,
    write_checkpoint,
)
from .checks import check_edited_model
from .evaluation_loop import EvaluatingTrainer
from .loss_check import LossCheck, check_weights
from .methods import make_training_loss, retokenizer_of
from .methods.muon import muon_optimizer
from .training_arguments import TranslationTrainingArguments

logger = logging.getLogger(__name__)


class TranslationTrainer(EvaluatingTrainer):
    """Trains an encoder-decoder on pairs of token ids.

    It differs from `Seq2SeqTrainer` in these points. Batches have a token budget instead of a number of pairs. Label
    smoothing is averaged over the tokens of an optimizer step. A non-finite loss stops the run. Checkpoints are atomic,
    and `train(resume_from_checkpoint=True)` resumes from the newest complete checkpoint, or starts at step 0.

    Args:
        model: the model. The paper's learning rate depends on `d_model` in its configuration. `None` with `model_init`,
            a function that creates the model of every `train()`, for example for `hyperparameter_search`.
        args: the training arguments; the trainer uses a copy.
        train_dataset: rows of `input_ids` and `labels`, with their lengths in `source_length` and `target_length`; or a
            `TokenBudgetStream`.
        train_weights: how often each pair occurs per epoch, `[pairs]`; `None` for once. Not for a `TokenBudgetStream`,
            whose corpora have weights.
        processing_class: the tokenizer, used for padding.
        run_id: the identity of the run, which its checkpoints contain. Checkpoints of other runs are an error.
        **kwargs: the other arguments of `Seq2SeqTrainer`, except `compute_loss_func`.

    Raises:
        ValueError: an argument is missing, or has no effect.
    """

    args: TranslationTrainingArguments

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
        if args.muon and any(kwargs.get("optimizers", ())):
            raise ValueError("muon must be False with optimizers, got True.")
        if (loss := kwargs.pop("compute_loss_func", None)) is not None:
            raise ValueError(f"compute_loss_func must be None because args selects the loss, got {loss!r}.")
        needs_tokenizer = kwargs.get("train_dataset") is not None and kwargs.get("data_collator") is None
        if needs_tokenizer and kwargs.get("processing_class") is None:
            raise ValueError("processing_class must be a tokenizer without data_collator, got None.")
        if args.engine is not None:
            import_engine(args.engine)  # raises an error if it is not installed
        self.run_id = run_id
        self.train_weights = train_weights
        self.checkpoint_limit = args.save_total_limit
        self.model_init = kwargs.get("model_init")
        self.padding_multiple = padding_multiple(args.device)
        self.training_loss = make_training_loss(args)
        first_model = self.call_model_init() if model is None else model
        save_tied_weights_once(first_model)
        kwargs["data_collator"] = kwargs.get("data_collator") or DataCollatorForSeq2Seq(
            kwargs.get("processing_class"), model=first_model, pad_to_multiple_of=self.padding_multiple
        )
        args = trainer_arguments(args, first_model)
        super().__init__(model=model, args=args, compute_loss_func=self.training_loss, **kwargs)
        if args.torch_compile:  # otherwise, the model would be compiled for the sizes of the first batches too
            self.accelerator.state.dynamo_plugin.dynamic = True
        if rank := self._data_parallel_rank():  # otherwise, all ranks would have the dropout masks of the first one
            set_seed(args.seed + rank)
        self.loss_check = LossCheck(self.processing_class)
        self.captured_passes: Any = None  # the `CapturedPasses` during `train()` with `cuda_graphs`
        self.token_count: Tensor | int = 0  # a tensor on the device until it is logged
        self.state_callback = TrainingStateCallback()
        self.add_callback(self.state_callback)
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
        save_tied_weights_once(model)
        return model

    # Batches

    def get_train_dataloader(self) -> DataLoader:
        """Batches of at most `max_tokens_per_batch` padded tokens, distributed over the processes."""
        dataset = self.train_dataset
        retokenizer = retokenizer_of(self.args, self.processing_class, self._max_length())
        if isinstance(dataset, TokenBudgetStream):
            return self._stream_loader(dataset, retokenizer)
        retokenized = None
        if retokenizer is not None:
            retokenized = RetokenizedPairs(dataset, retokenizer, self.args.order_seed)
        sampler = TokenBudgetSampler(
            lengths_of(dataset),
            self.args.max_tokens_per_batch,
            num_processes=self._data_parallel_size(),
            seed=self.args.order_seed,
            pad_to_multiple_of=self.padding_multiple,
            weights=self.train_weights,
            gradient_accumulation_steps=self.args.gradient_accumulation_steps,
            retokenized=retokenized,
        )
        self.state_callback.sampler = sampler
        keeps_workers = self.args.dataloader_persistent_workers and retokenized is None
        return self._loader(retokenized or dataset, sampler, persistent_workers=keeps_workers)

    def _stream_loader(self, stream: TokenBudgetStream, retokenizer: Retokenizer | None) -> DataLoader:
        """The batches of a `TokenBudgetStream`, which distributes them over the processes.

        The retokenizer of the training arguments, if they select one, replaces that of the stream.
        """
        if retokenizer is not None:
            stream.retokenizer = retokenizer
        stream.limit_length(self._max_length())
        stream.set_share(self._data_parallel_rank(), self._data_parallel_size(), self.args.gradient_accumulation_steps)
        loader = DataLoader(
            stream, batch_size=None, collate_fn=self.data_collator, pin_memory=self.args.dataloader_pin_memory
        )
        return prepare_data_loader(
            loader,
            self.args.device,
            num_processes=1,
            process_index=0,
            put_on_device=True,
            dispatch_batches=False,
            non_blocking=self.accelerator.non_blocking,
        )

    def _max_length(self) -> int | None:
        """The longest source or target that the model's learned positions allow; `None` for no limit."""
        limits = max_source_positions(self.model), max_target_positions(self.model.config)
        return min(filter(None, limits), default=None)

    def get_batch_samples(self, epoch_iterator: Iterator, num_batches: int, device: torch.device) -> tuple[list, Any]:
        """The batches of a step and their number of target tokens. Also counts all tokens, for the throughput."""
        batches, num_items = super().get_batch_samples(epoch_iterator, num_batches, device)
        for batch in batches:  # the sum stays a tensor on the device: reading it would synchronize
            self.token_count += batch["attention_mask"].sum()
            self.token_count += batch["labels"].ne(IGNORE_INDEX).sum()
        return batches, num_items

    # Loss

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Run the forward and backward pass of one batch, whose inputs a regularization may change.

        transformers' `compute_loss` calls the model, and then `compute_loss_func`, which is `self.training_loss`.

        Raises:
            FloatingPointError: a loss of the previous step is not finite; the message names the step and the batch.
                Reading the loss of the current step would wait for the device.
        """
        # PyTorch does not count the changes of a fused optimizer. This also frees the CUDA graphs of an evaluation.
        self.model.snapshot = None
        passes = partial(super().training_step, self._without_output_conversion(model))
        changed_inputs = self.training_loss.training_inputs(inputs)
        if self.args.cuda_graphs:
            self.optimizer.train()  # for schedule-free optimizers; a replay does not run `training_step`
            if self.captured_passes is None:
                self.captured_passes = load_extra("cuda_graphs").CapturedPasses(model)
            loss = self.captured_passes(passes, changed_inputs, num_items_in_batch)
        else:
            loss = passes(changed_inputs, num_items_in_batch)
        self.loss_check.add(self.state.global_step, loss, inputs)
        self.loss_check.check(end=self.state.global_step)
        return loss

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """The optimizer. Before it is created, the weights are sharded if Accelerate's configuration selects FSDP2."""
        if self.accelerator.is_fsdp2:
            load_extra("sharding").shard_layers(self.model, self.accelerator)
        if self.args.muon and self.optimizer is None:
            other, options = self.get_optimizer_cls_and_kwargs(self.args)
            self.optimizer = muon_optimizer(self.model, self.args, options["lr"], partial(other, **options))
        return super().create_optimizer(*args, **kwargs)

    # Checkpoints

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """Train; `resume_from_checkpoint=True` resumes from the newest complete checkpoint, if there is one.

        Raises:
            ValueError: the model cannot be trained, see `check_edited_model`; or a checkpoint is damaged.
        """
        check_edited_model(self.accelerator.unwrap_model(self.model))
        # One process decides, because the file systems of other nodes may show another state.
        folder = self.args.output_dir
        call_on_main_process(lambda: check_checkpoints(folder, self.run_id))
        if resume_from_checkpoint is True:
            newest = call_on_main_process(lambda: resumable_checkpoint(folder))
            # transformers sets this attribute if it shards the model.
            if newest is not None and getattr(self, "is_distributed_loading_by_transformers", False):
                raise ValueError(f"output_dir must be new with tp_size or fsdp_size above 1, got {newest}.")
            resume_from_checkpoint = None if newest is None else str(newest)
        self.loss_check = LossCheck(self.processing_class)
        try:
            output = super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
        except UnpicklingError as error:
            raise ValueError(
                "resume_from_checkpoint must have tensors and plain values, "
                f"got {resume_from_checkpoint} with other objects or a damaged file."
            ) from error
        finally:
            self.captured_passes = None
        self._check_finite()
        return output

    def _check_finite(self) -> None:
        self.loss_check.check()
        check_weights(self.model, self.state.global_step)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        self._check_finite()
        if trial is not None:
            raise ValueError(f"save_strategy must be 'no' in a hyperparameter search, got {self.args.save_strategy!r}.")
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, ExportableState):  # not in a checkpoint of a training without this callback
                self.state.stateful_callbacks.setdefault(type(callback).__name__, {})
        folder = checkpoint_folder(self.args.output_dir, self.state.global_step)
        with write_checkpoint(folder, self.run_id, self.args.should_save, self.accelerator.wait_for_everyone):
            super()._save_checkpoint(model, trial)
        if self.args.should_save:
            keep_newest(self.args.output_dir, self.checkpoint_limit, self.state.best_model_checkpoint)
        self.accelerator.wait_for_everyone()

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write the model card of transformers. A run of `train_translation` writes another card instead."""
        if not self.run_id:
            super().create_model_card(*args, **kwargs)

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        # The best checkpoint is to be loaded, so that an evaluation without a checkpoint does not count.
        saves = self.control.should_save or self.args.save_strategy == "best"
        if self.args.load_best_model_at_end and not saves:
            return False
        return super()._determine_best_metric(metrics, trial)


def save_tied_weights_once(model: Any) -> None:
    """Save a tied weight once. Otherwise, transformers warns, and Accelerate's FSDP2 saves copies."""
    model._keys_to_ignore_on_save = [*getattr(model, "all_tied_weights_keys", ())]


def trainer_arguments(args: TranslationTrainingArguments, model: PreTrainedModel) -> TranslationTrainingArguments:
    """A copy of the arguments with the values that `Seq2SeqTrainer` requires."""
    # `replace` also updates DeepSpeed's configuration, which copies the learning rate.
    rate = args.peak_rate(model.config.d_model)
    args = copy.copy(args) if args.learning_rate is not None else replace(args, learning_rate=rate)
    # transformers would delete an old checkpoint before the new one is complete: see `_save_checkpoint`.
    args.save_total_limit = None
    available = super(TranslationTrainingArguments, args).n_gpu
    if available > 1:
        logger.warning("Training uses one of %d GPUs. Use `accelerate launch` to train on all of them.", available)
    return args
