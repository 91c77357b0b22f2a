"""A `Seq2SeqTrainer` whose evaluation translates like `translate`. The results do not depend on the batches."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import torch
from accelerate.utils import recursively_apply
from datasets import Dataset
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler
from transformers import Seq2SeqTrainer
from transformers.trainer_utils import (
    EvalLoopOutput,
    EvalPrediction,
    PredictionOutput,
    RemoveColumnsCollator,
    denumpify_detensorize,
)
from transformers.utils import is_numpy_array

from ..data.batches import EvaluationSampler
from ..data.sources import Pair
from ..data.tokenization import lengths_of
from ..inference.engine import attach_engine
from ..inference.translation import search_options
from ..inputs_random_transformer import drop_none, longest_target
from ..ops_random_transformer import IGNORE_INDEX
from ..pipeline_random_transformer import LENGTH_LIMITS, OUTPUT_OPTIONS
from ..versions_random_transformer import UNTESTED_ADVICE

ENGINE_DTYPE = "float32"  # the dtype in which the engine's scores equal those of the model
SAMPLES = 3  # translations that are shown after an evaluation
BATCH_COLUMNS = ("input_ids", "attention_mask", "labels")  # columns of the pairs in a batch
EVALUATION_TOKENS = 16_384  # minimum batch size in tokens on a GPU


class EvaluatingTrainer(Seq2SeqTrainer):
    """Evaluates every pair once, with the search, the limit on lengths and the order of the results of `translate`."""

    args: Any
    control: Any
    model: Any
    optimizer: Any
    compute_metrics: Callable[..., dict[str, Any]] | None
    gen_kwargs: dict[str, Any] = {}
    samples: Sequence[Pair] = ()  # sources and translations of the last evaluation
    evaluated_batches = 0
    padding_multiple = 1  # padded lengths are multiples of it

    # Batches

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """Batches of at most `per_device_eval_batch_size` pairs, sorted by length."""
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        lengths = lengths_of(dataset)
        max_tokens = self.args.max_tokens_per_batch
        if self.args.device.type != "cpu":  # evaluation needs less memory than training
            max_tokens = max(max_tokens, EVALUATION_TOKENS)
        sampler = EvaluationSampler(
            lengths,
            max_tokens,
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
        """The data-parallel rank of this process. Tensor parallelism is the last dimension of every device mesh."""
        return self.accelerator.process_index // self.get_tp_size()

    def _loader(self, dataset: Dataset, sampler: Sampler, **options: Any) -> DataLoader:
        """Batches of the sampler, distributed over the processes."""
        loader = DataLoader(
            dataset,
            batch_sampler=sampler,
            collate_fn=RemoveColumnsCollator(self.data_collator, BATCH_COLUMNS),
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
            **options,
        )
        return self.accelerator.prepare(loader)

    # Evaluation

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval", **gen_kwargs: Any
    ) -> dict[str, float]:
        """Evaluate a set, or each of several sets.

        With several sets, the names of metrics contain the name of the set, such as `eval_en-de_bleu`. The means over
        the sets are named like the metrics of a single set, such as `eval_bleu`, so that `metric_for_best_model` can be
        a mean.
        """
        self.gen_kwargs = gen_kwargs
        sets = self.eval_dataset if eval_dataset is None else eval_dataset
        if not isinstance(sets, dict):
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix, **gen_kwargs)
        metrics: dict[str, float] = {}
        values: dict[str, list[float]] = defaultdict(list)
        for name, dataset in sets.items():
            prefix = f"{metric_key_prefix}_{name}"
            metrics_of_set = self.predict(dataset, ignore_keys, prefix, **gen_kwargs).metrics or {}
            metrics |= metrics_of_set
            for key, value in metrics_of_set.items():
                if not key.endswith(("time", "_per_second")):  # times and rates have no means
                    values[metric_key_prefix + key.removeprefix(prefix)].append(value)
        metrics |= {key: fmean(values_of_sets) for key, values_of_sets in values.items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def predict(
        self, test_dataset: Any, ignore_keys: Any = None, metric_key_prefix: str = "test", **gen_kwargs: Any
    ) -> PredictionOutput:
        """Translate and score a set with these generation options."""
        self.gen_kwargs = gen_kwargs
        return super().predict(test_dataset, ignore_keys, metric_key_prefix, **gen_kwargs)

    def evaluation_loop(
        self, dataloader: DataLoader, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any
    ) -> EvalLoopOutput:
        """Evaluate every pair once. Predictions and labels, also in metrics, are in the order of the data set.

        The loss is the mean over the target tokens of the data set and does not depend on the batches.
        """
        # Accelerate's sampler selects the batches of this process from the sampler of all batches.
        shard: Any = dataloader.batch_sampler
        sampler: EvaluationSampler = getattr(shard, "batch_sampler", shard)
        self._prepare_evaluation()
        compute_metrics = self.compute_metrics
        self.compute_metrics = None
        try:
            with self._engine():
                output = super().evaluation_loop(dataloader, *args, metric_key_prefix=metric_key_prefix, **kwargs)
        finally:
            self.compute_metrics = compute_metrics
        if output.num_samples and not self.evaluated_batches:
            raise RuntimeError(f"transformers does not evaluate by prediction_step. {UNTESTED_ADVICE}")
        indices = sampler.row_indices()
        rows = (output.predictions, output.label_ids)
        predictions, labels = recursively_apply(lambda part: part[indices], rows, test_type=is_numpy_array)
        self.samples = self._samples(dataloader.dataset, predictions)
        metrics = {"loss": self._mean_loss(sampler.num_batches)} if self._batch_losses else {}
        if compute_metrics is not None and predictions is not None and labels is not None:
            metrics |= denumpify_detensorize(compute_metrics(EvalPrediction(predictions, labels)))
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in metrics.items()})
        return output._replace(predictions=predictions, label_ids=labels)

    def _prepare_evaluation(self) -> None:
        self.gather_function = self._gather_rows
        self._batch_losses: list[Tensor] = []  # the summed loss and the number of tokens of each batch
        self.evaluated_batches = 0
        if self.accelerator.is_fsdp2 and self.optimizer is None:  # Accelerate requires an optimizer, which is unused
            self.create_optimizer()
            self.model, self.optimizer = self.accelerator.prepare(self.model, self.optimizer)
        if self.is_fsdp_enabled:  # generate() does not detect Accelerate's FSDP2
            self.gen_kwargs = {"synced_gpus": True, **self.gen_kwargs}

    def _mean_loss(self, num_batches: int) -> float:
        """The mean loss per token over the first batches of all processes. Later batches are repetitions."""
        by_process = self._gather_shards(torch.stack(self._batch_losses))  # [processes, batches, 2]
        by_batch = by_process.transpose(0, 1).flatten(0, 1)
        loss, tokens = by_batch[:num_batches].cpu().double().sum(dim=0).tolist()
        return loss / max(1, tokens)

    @contextmanager
    def _engine(self) -> Iterator[None]:
        """Let `args.engine` translate, with a copy of the current weights."""
        if self.args.engine is None or not self.args.predict_with_generate:
            yield
            return
        with TemporaryDirectory() as folder:
            # The engine computes neither a model in training mode nor edited code, such as Accelerate's `forward`.
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
        inputs = drop_none(**inputs)  # the labels are `None` without references
        options = self._generation_options(inputs)
        model = self._without_output_conversion(model)
        saved = dict(vars(self.model.generation_config))
        loss, predictions, labels = super().prediction_step(model, inputs, *args, **kwargs, **options)
        vars(self.model.generation_config).update(saved)  # `Seq2SeqTrainer` sets unset options to general defaults
        if loss is not None:
            tokens = inputs["labels"].ne(IGNORE_INDEX).sum()
            self._batch_losses.append(torch.stack((loss.float() * tokens, tokens.float())))
        return loss, predictions, labels

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The loss of a batch. In evaluation, it is the mean of this batch, whose tokens `_mean_loss` counts."""
        count = num_items_in_batch if model.training else None
        return super().compute_loss(model, inputs, return_outputs, count)

    def _generation_options(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The generation options of `evaluate` and `predict`, with the search and the limit of translation by default.

        Raises:
            ValueError: an option changes the number or the type of outputs; or the labels, `[batch, target_len]`, start
                with different language tags.
        """
        options = drop_none(**self.gen_kwargs)
        for name, value in OUTPUT_OPTIONS.items():
            if options.setdefault(name, value) != value:
                raise ValueError(f"{name} must be {value} in evaluate and predict, got {options[name]}.")
        if "generation_config" not in options:
            options = search_options(**drop_none(**self.args.search_kwargs)) | options
        if options.keys().isdisjoint(LENGTH_LIMITS):
            options |= drop_none(max_length=self.args.generation_max_length)
        if options.keys().isdisjoint(LENGTH_LIMITS):
            longest_source = int(inputs["attention_mask"].sum(dim=1).max())
            options["max_new_tokens"] = longest_target(longest_source, self.model.config)
        if self.model.generation_config.stop_strings is not None:
            options.setdefault("tokenizer", self.processing_class)
        if "labels" in inputs and getattr(self.processing_class, "languages", None):
            tags = inputs["labels"][:, 0].unique().tolist()  # the language tags that the labels start with
            if len(tags) != 1:
                raise ValueError(f"eval_dataset must have one target language per set, got a batch of {len(tags)}.")
            options["forced_bos_token_id"] = tags[0]
        return options

    def _samples(self, rows: Any, predictions: Any) -> list[Pair]:
        """The first sources of a set, with their generated translations if there are any."""
        if not self.args.predict_with_generate or self.processing_class is None or predictions is None:
            return []
        samples = []
        for index, tokens in enumerate(predictions[:SAMPLES]):
            ids = [rows[index]["input_ids"], tokens[tokens >= 0]]
            source, translation = self.processing_class.batch_decode(ids, skip_special_tokens=True)
            samples.append((source, translation))
        return samples

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

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> AbstractContextManager:  # noqa: ARG002
        """Autocast for the forward pass and the loss. It replaces Accelerate's, see `_without_output_conversion`."""
        return self.accelerator.autocast()

    def _without_output_conversion(self, model: nn.Module) -> nn.Module:
        """Undo Accelerate's replacement of `forward` for mixed precision.

        Accelerate's `forward` converts all logits to float32, which the loss does in smaller parts. In `generate()`, it
        converts the weights at every step.
        """
        module = self.accelerator.unwrap_model(model, keep_torch_compile=False)
        original = vars(module).pop("_original_forward", None)
        if original is not None:
            del module.forward
            if module.forward != original:  # `forward` was an attribute of the instance before
                module.forward = original
        return model
