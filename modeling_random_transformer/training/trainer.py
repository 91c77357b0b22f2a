"""`Seq2SeqTrainer` with the paper's recipe, batches by tokens, and checkpoints that survive anything."""

import errno
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import recursively_apply
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import (
    DataCollatorForSeq2Seq,
    EarlyStoppingCallback,
    PreTrainedModel,
    Seq2SeqTrainer,
    TrainerCallback,
)
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from ..translation.texts import Translator
from .batches import TokenBudgetSampler
from .checkpoints import all_checkpoints, is_complete, keep_newest, mark_complete, newest_complete, remove_incomplete
from .corpus import lengths_of
from .loss import SmoothedCrossEntropy
from .progress import TranslationProgress
from .recipe import TranslationTrainingArguments
from .streaming import TokenBudgetStream


class TranslationTrainer(Seq2SeqTrainer):
    """Trains an encoder-decoder on pairs of token ids.

    What it adds to `Seq2SeqTrainer`: batches by a budget of tokens instead of a number of pairs; label smoothing over
    the tokens of a whole step; a loss that is not finite stops the run; a checkpoint counts once it is complete, and
    `train(resume_from_checkpoint=True)` goes on from the newest that is, or starts anew where there is none.

    Args:
        model: the model; its configuration gives `d_model` for the paper's learning rate.
        args: the recipe.
        train_dataset: rows of `input_ids` and `labels`, with their numbers of tokens in `source_length` and
            `target_length`; or a `TokenBudgetStream`.
        processing_class: the tokenizer, which pads.
        **kwargs: the other arguments of `Seq2SeqTrainer`.
    """

    def __init__(self, model: PreTrainedModel, args: TranslationTrainingArguments, **kwargs: Any):
        if args.learning_rate is None:
            args = replace(args, learning_rate=args.peak_rate(model.config.d_model))
        kwargs.setdefault("data_collator", DataCollatorForSeq2Seq(kwargs.get("processing_class"), model=model))
        super().__init__(
            model=model,
            args=args,
            compute_loss_func=SmoothedCrossEntropy(args.label_smoothing_factor, overwrite=True),
            **kwargs,
        )
        if args.early_stopping_patience is not None:
            self.add_callback(EarlyStoppingCallback(args.early_stopping_patience))
        self.tokens_in_step = 0
        self._replace_progress_bar()

    # Batches

    def get_train_dataloader(self) -> DataLoader:
        """Batches of `max_tokens_per_batch`, shared out over the processes."""
        if self.train_dataset is None:
            raise ValueError("train_dataset must be given to train, got None.")
        if isinstance(self.train_dataset, TokenBudgetStream):
            # Each process takes its own share of the stream, so there is nothing left for Accelerate to share out.
            return DataLoader(self.train_dataset, batch_size=None, collate_fn=self.data_collator)
        source_lengths, target_lengths = lengths_of(self.train_dataset).T
        sampler = TokenBudgetSampler(
            source_lengths,
            target_lengths,
            self.args.max_tokens_per_batch,
            num_processes=self.accelerator.num_processes // self.get_tp_size(),  # those of a group share their batches
            seed=self.args.data_seed if self.args.data_seed is not None else self.args.seed,
        )
        self.add_callback(_ChooseEpoch(sampler))
        loader = DataLoader(
            self._remove_unused_columns(self.train_dataset, description="training"),
            batch_sampler=sampler,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
            persistent_workers=self.args.dataloader_persistent_workers,
        )
        return self._prepare_uneven(loader)

    def _prepare_uneven(self, loader: DataLoader) -> DataLoader:
        """Let Accelerate share out batches of any size; it would pad them to one size, pairs read twice, by default."""
        settings = self.accelerator.dataloader_config
        even, settings.even_batches = settings.even_batches, False
        try:
            return self.accelerator.prepare(loader)
        finally:
            settings.even_batches = even

    def get_batch_samples(self, epoch_iterator: Iterator, num_batches: int, device: torch.device) -> tuple[list, Any]:
        """The batches of a step and their target tokens; also counts all tokens, for the rate."""
        batches, num_items = super().get_batch_samples(epoch_iterator, num_batches, device)
        self.tokens_in_step = sum(_count_tokens(batch) for batch in batches)
        return batches, num_items

    # Evaluation

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Score every pair once: the library's own gathering repeats some to fill the last batch of all processes."""
        self.gather_function = self._gather_once
        return super().evaluation_loop(*args, **kwargs)

    def _gather_once(self, tensors: Any) -> Any:
        """What all processes have, of a tensor-parallel group's equal results one."""
        group = self.get_tp_size()
        if group == 1:
            return self.accelerator.gather_for_metrics(tensors)
        state = self.accelerator.gradient_state
        rows = state.remainder if state.end_of_dataloader and state.remainder > 0 else None

        def first_of_each_group(gathered: Tensor) -> Tensor:
            by_group = gathered.unflatten(0, (self.accelerator.num_processes // group, group, -1))
            return by_group[:, 0].flatten(0, 1)[:rows]

        return recursively_apply(first_of_each_group, self.accelerator.gather(tensors))

    def prediction_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Loss, predictions and labels of a batch; the longest output is that of translation (paper 6.1)."""
        return super().prediction_step(model, inputs, *args, **kwargs, **self._generation_options(inputs))

    def _generation_options(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The options of `evaluate` and `predict`, with the limit on the outputs of a batch unless they have one."""
        options = dict(getattr(self, "_gen_kwargs", {}))
        if options.get("max_length") is None and options.get("max_new_tokens") is None:
            longest = int(inputs["attention_mask"].sum(dim=1).max())
            limit = Translator(self.model, self.processing_class).longest_target(longest)
            options |= {"max_length": 1 + limit, "max_new_tokens": None}  # one more for the start token
        return options

    # Loss

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """One batch forward and backward.

        Raises:
            FloatingPointError: the loss is not finite; the message names the step and the batch.
        """
        loss = super().training_step(model, inputs, num_items_in_batch)
        if not torch.isfinite(loss):
            raise FloatingPointError(self._describe(loss, inputs))
        return loss

    def _describe(self, loss: Tensor, inputs: dict[str, Any]) -> str:
        shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in inputs.items())
        first = inputs["input_ids"][0].tolist()
        text = self.processing_class.decode(first, skip_special_tokens=True) if self.processing_class else first
        return (
            f"the loss is {loss.item()} at step {self.state.global_step + 1}, in a batch of {shapes} whose first "
            f"source is {text!r}. Lower learning_rate, lengthen warmup_steps or set max_grad_norm; the newest "
            f"checkpoint is {newest_complete(self.args.output_dir)}."
        )

    # Checkpoints

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """Train. `resume_from_checkpoint=True` goes on from the newest complete checkpoint, if there is one."""
        if resume_from_checkpoint is True:
            self._refuse_to_resume_parts()
            if self.is_world_process_zero():
                remove_incomplete(self.args.output_dir)
            self.accelerator.wait_for_everyone()
            newest = newest_complete(self.args.output_dir)
            resume_from_checkpoint = None if newest is None else str(newest)
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)

    def _refuse_to_resume_parts(self) -> None:
        """Where transformers splits the model itself it cannot save the optimizer, and training would start cold."""
        newest = newest_complete(self.args.output_dir)
        if getattr(self, "is_distributed_loading_by_transformers", False) and newest is not None:
            raise ValueError(
                f"output_dir must be new with tp_size or fsdp_size above 1, which cannot go on after a stop, got one "
                f"with {newest}. Accelerate's FSDP2 can (examples/accelerate/fsdp2.yaml)."
            )

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        limit, self.args.save_total_limit = self.args.save_total_limit, None  # old ones go once the new one counts
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        try:
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                mark_complete(folder)
        except Exception as error:
            raise self._unsaved(folder, error) from error
        finally:
            self.args.save_total_limit = limit
        if self.args.should_save:
            best = self.state.best_model_checkpoint
            keep_newest(self.args.output_dir, limit, also=set() if best is None else {Path(best).resolve()})
        self.accelerator.wait_for_everyone()

    def _unsaved(self, folder: Path, error: Exception) -> OSError:
        """Clear away half a checkpoint and say what is left."""
        shutil.rmtree(folder, ignore_errors=True)
        code = getattr(error, "errno", None) or errno.EIO
        newest = newest_complete(self.args.output_dir)
        left = f"{newest} is complete and can be resumed from" if newest else "there is no earlier one"
        free = shutil.disk_usage(self.args.output_dir).free // 2**20
        return OSError(code, f"checkpoint {folder} could not be saved ({error}; {free} MiB free); {left}")

    def last_checkpoints(self, count: int) -> list[Path]:
        """The newest complete checkpoints, at most `count` of them, oldest first."""
        return [path for path in all_checkpoints(self.args.output_dir) if is_complete(path)][-count:]

    # Progress

    def _replace_progress_bar(self) -> None:
        if self.pop_callback(ProgressCallback) is None:
            self.remove_callback(PrinterCallback)
        if not self.args.disable_tqdm:
            self.add_callback(TranslationProgress(self))


class _ChooseEpoch(TrainerCallback):
    """Tells the sampler its epoch, also when batches are skipped to resume in the middle of one."""

    def __init__(self, sampler: TokenBudgetSampler):
        self.sampler = sampler

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self.sampler.set_epoch(int(state.epoch or 0))


def _count_tokens(batch: dict[str, Tensor]) -> int:
    return int(batch["attention_mask"].sum() + (batch["labels"] != -100).sum())
