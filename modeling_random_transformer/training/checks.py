"""Checks that the arguments of a run fit together, and that the model can be trained, before the corpus is read."""

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase, Seq2SeqTrainer, get_scheduler
from transformers.integrations import get_reporting_integration_callbacks
from transformers.utils import is_peft_available

from ..base.distributed import call_on_main_process
from ..base.errors import reraise_as_value_error
from ..configuration_random_transformer import RandomTransformerConfig
from ..data.sources import Corpus, distinct_languages
from ..inference.evaluation import make_scorers
from ..inference.loading import check_path
from ..inputs_random_transformer import check_choice, tokenizer_languages
from ..modeling_random_transformer import RandomTransformerForConditionalGeneration
from ..ops_random_transformer import smoothed_cross_entropy
from ..verification_random_transformer import difference_reason
from .arguments import DROPOUTS, DataArguments, ModelArguments, check_unset, set_names, split_and_label
from .model_init import freeze, load_initial
from .run_record import check_output_dir
from .training_arguments import TranslationTrainingArguments

ADAM = ("adamw_torch", "adamw_torch_fused")  # optimizers that store averages of each gradient and of its square


def check_arguments(
    data_args: DataArguments, model_args: ModelArguments, args: TranslationTrainingArguments
) -> PreTrainedTokenizerBase | None:
    """Check that the arguments fit together, as far as possible before the corpus is read.

    Returns:
        The saved tokenizer, which suits the initial model; `None` to train one.

    Raises:
        ValueError: the arguments exclude each other or do not suit the files in the folders.
    """
    check_evaluation(data_args, args)
    if data_args.streaming and (args.max_steps < 0 or "epoch" in (args.save_strategy, args.eval_strategy)):
        raise ValueError("max_steps, save_strategy and eval_strategy must count steps with streaming, got epochs.")
    check_bleu_tokenize(args)
    if args.metric_for_best_model is not None:
        check_metric(args.metric_for_best_model, data_args, args)
    if args.torch_compile:
        check_compilation(args)
    check_upload(args)
    if model_args.lora_rank is not None:
        check_adapter(model_args.lora_rank, args)
    call_on_main_process(lambda: check_folders(model_args, args))
    config, tokenizer = load_initial(model_args)
    check_initial_model(config, model_args, args)
    return tokenizer


def check_initial_model(
    config: RandomTransformerConfig, model_args: ModelArguments, args: TranslationTrainingArguments
) -> None:
    """Check that the arguments suit a model with this configuration, whose weights take no memory here."""
    with torch.device("meta"):
        model = RandomTransformerForConditionalGeneration(config)
    check_edited_model(model)
    if model_args.lora_target_modules:
        check_adapted_modules(model, model_args.lora_targets)
    if model_args.freeze:
        freeze(model, model_args.freeze)
    call_on_main_process(lambda: check_space(model, model_args, args))
    check_schedule(config, args)
    check_optimizer_package(model, args)
    check_logger_packages(args)
    if args.tp_size > 1:
        check_shards(config, args)
    if args.r_drop_alpha:
        check_dropout(config, model_args, args)
    if args.augment and config.position_embedding == "learned":  # augmented texts may be longer than the corpus's
        raise ValueError("augment must be False for a model with learned positions, got True.")


def check_edited_model(model: Any) -> None:
    """Check that a model of this package, optionally with an adapter, can be trained after an edit of its code.

    Raises:
        ValueError: the model has another loss function, or a position of the target depends on a later one.
    """
    if isinstance(model.config, RandomTransformerConfig):
        check_loss_function(model.loss_function)
        check_causality()


def check_loss_function(loss_function: Any) -> None:
    """Check that the loss of a model is cross-entropy, which training computes with label smoothing.

    Training and evaluation compute the loss from the logits (`training_loss`, or transformers' label smoothing).
    Without label smoothing, evaluation takes the loss of the model. Another `model.loss_function` would then be
    reported, but not decreased. Training cannot use it, since label smoothing, R-Drop and the mean over the tokens of a
    step would have no effect.
    """
    if loss_function is not smoothed_cross_entropy:
        name = getattr(loss_function, "__name__", loss_function)
        raise ValueError(
            f"loss_function of the model must be smoothed_cross_entropy, got {name}: training would ignore it. "
            "Select a loss in make_training_loss of modeling_random_transformer/training/methods/__init__.py."
        )


def check_causality() -> None:
    """Check that a position of the target does not depend on later ones, which an edit of attention may cause.

    SDPA gets no mask for the causal self-attention of a batch without padding, and reads `is_causal` instead. A model
    that ignores it learns to copy the next token. The check builds a small model of the same classes.
    """
    with torch.random.fork_rng(devices=[]):  # the random numbers of the training do not depend on the check
        model = RandomTransformerForConditionalGeneration(RandomTransformerConfig.from_preset("blog"))
    targets = torch.tensor([[6, 0, 1], [6, 0, 2]])
    first, second = model.eval()(targets[:, :1], decoder_input_ids=targets).logits[:, :2]
    if difference_reason(first, second):
        raise ValueError(
            "attention of the decoder must hide later positions, but a position depends on a later one: set "
            "_supports_sdpa = False in RandomTransformerPreTrainedModel, so that attention gets a causal mask."
        )


def check_evaluation(data_args: DataArguments, args: TranslationTrainingArguments) -> None:
    """Check that evaluation has a validation set, and that arguments of evaluation have a set that is translated."""
    has_validation = data_args.has("validation")
    if args.eval_strategy != "no" and not has_validation:
        strategy = args.eval_strategy.value
        raise ValueError(f"eval_strategy must be 'no' without a validation set, got {strategy!r}.")
    can_choose = has_validation and args.predict_with_generate and not args.prediction_loss_only
    if args.chooses_length_penalty and not can_choose:
        raise ValueError("length_penalty must be a number without translations of a validation set, got 'auto'.")
    if not (has_validation or data_args.has("test")):
        check_unset(args, "bleu_tokenize engine generation_max_length", "without a validation or test set")


def check_bleu_tokenize(args: TranslationTrainingArguments) -> None:
    """Check that sacrebleu has the tokenizer."""
    if args.bleu_tokenize is not None:
        make_scorers("bleu", {"tokenize": args.bleu_tokenize})


def check_metric(best: str, data_args: DataArguments, args: TranslationTrainingArguments) -> None:
    """Check that evaluation computes the metric of the best model, for all sets or for one of several sets."""
    metrics = ["loss"]
    if args.predict_with_generate and not args.prediction_loss_only:
        metrics += ["bleu", "chrf", "generated_length"]
    names_of_metrics = [*metrics]
    for name in set_names("validation", data_args.corpora("validation")):
        _, label = split_and_label(name)
        if label:
            names_of_metrics += [f"{label}_{metric}" for metric in metrics]
    check_choice(names_of_metrics, metric_for_best_model=best.removeprefix("eval_"))


def check_schedule(config: RandomTransformerConfig, args: TranslationTrainingArguments) -> None:
    """Check that the learning rate schedule accepts its arguments and the peak learning rate."""
    options = args.lr_scheduler_kwargs
    with reraise_as_value_error(f"lr_scheduler_kwargs must suit lr_scheduler_type, got {options}"):
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], args.peak_rate(config.d_model))
        get_scheduler(args.lr_scheduler_type, optimizer, 1, 2, {**(options or {})})


def check_optimizer_package(model: nn.Module, args: TranslationTrainingArguments) -> None:
    """Check that the package of the optimizer is installed."""
    optimizer = args.optim.value  # type: ignore[attr-defined]  # transformers makes it a member of an enumeration
    with reraise_as_value_error(f"optim must be installed, got {optimizer}"):
        Seq2SeqTrainer.get_optimizer_cls_and_kwargs(args, model)


def check_logger_packages(args: TranslationTrainingArguments) -> None:
    """Check that the packages of the loggers are installed."""
    with reraise_as_value_error(f"report_to must be installed, got {args.report_to}"):
        for create_callback in get_reporting_integration_callbacks(args.report_to):
            create_callback()


def check_compilation(args: TranslationTrainingArguments) -> None:
    """Check that `torch.compile` supports the backend and the mode."""
    backend, mode = args.torch_compile_backend, args.torch_compile_mode
    with reraise_as_value_error(
        f"torch_compile_backend and torch_compile_mode must be those of torch.compile, got {backend!r} and {mode!r}"
    ):
        torch.compile(nn.Identity(), backend=backend, mode=mode)


def check_upload(args: TranslationTrainingArguments) -> None:
    """Check that a model that is uploaded has a license, and that other arguments of an upload have an upload."""
    if not args.push_to_hub:
        check_unset(args, "hub_model_id hub_strategy hub_token hub_private_repo", "without push_to_hub")
    elif args.hub_license is None:
        raise ValueError("hub_license must be given with push_to_hub, got None.")


def check_adapter(rank: int, args: TranslationTrainingArguments) -> None:
    """Check that an adapter can be trained: peft is installed, weights are not sharded, and no search is chosen."""
    if args.num_shards > 1:
        raise ValueError(f"lora_rank must be unset with tp_size or fsdp_size above 1 (not with FSDP2), got {rank}.")
    if args.chooses_length_penalty:
        raise ValueError(
            f"length_penalty must be a number with lora_rank, got {args.length_penalty!r}: an adapter has the "
            "generation config of its base model."
        )
    if not is_peft_available():
        raise ValueError(f"lora_rank={rank} requires peft: pip install 'random-transformer[adapters]'.")


def check_folders(model_args: ModelArguments, args: TranslationTrainingArguments) -> None:
    """Check that saved models exist, and that the output overwrites neither another run nor the initial model."""
    output = Path(args.output_dir)
    initial = model_args.model_name_or_path
    check_path("model_name_or_path", initial)
    check_path("tokenizer", model_args.tokenizer)
    if initial is not None and Path(initial).is_dir() and Path(initial).resolve().is_relative_to(output.resolve()):
        raise ValueError(f"output_dir must differ from model_name_or_path and not contain it, got {output}.")
    check_output_dir(output)


def check_space(model: nn.Module, model_args: ModelArguments, args: TranslationTrainingArguments) -> None:
    """Check that the disk has space for the first checkpoint of a new run, which may be written only after hours."""
    output = Path(args.output_dir)
    if model_args.lora_rank is not None or args.save_strategy == "no" or output.exists():
        return
    has_averages = args.optim in ADAM and not args.muon and not args.save_only_model
    numbers = 0
    for parameter in model.parameters():
        is_averaged = has_averages and parameter.requires_grad
        numbers += parameter.numel() * (3 if is_averaged else 1)
    needed = 4 * numbers  # bytes in float32
    existing = next(path for path in output.absolute().parents if path.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise ValueError(
            f"output_dir must be on a disk with at least {needed / 1e9:.3g} GB for a checkpoint, "
            f"got {str(output)!r} with {free / 1e9:.3g} GB."
        )


def check_adapted_modules(model: nn.Module, targets: Sequence[str]) -> None:
    """Check the names, or ends of names, of the modules that get an adapter.

    Raises:
        ValueError: there is no such module, or its weight is tied. An adapter changes the output of one module, but
            merging it would change all modules with this weight.
    """
    uses = Counter(id(weight) for _, weight in model.named_parameters(remove_duplicate=False))
    for target in targets:
        adapted = [module for name, module in model.named_modules() if f".{name}".endswith(f".{target}")]
        if not adapted:
            raise ValueError(f"lora_target_modules must be modules of the model, got {target!r}.")
        weights = [weight for module in adapted for weight in module.parameters(recurse=False)]
        if any(uses[id(weight)] > 1 for weight in weights):
            raise ValueError(f"lora_target_modules must be modules with their own weights, got {target!r}, a tied one.")


def check_shards(config: RandomTransformerConfig, args: TranslationTrainingArguments) -> None:
    """Check that shards have equal sizes. Otherwise, dropout would differ between the processes."""
    for name in ("num_heads", "d_ff"):
        size = getattr(config, name)
        if size % args.tp_size:
            raise ValueError(f"{name} must be a multiple of tp_size={args.tp_size}, got {size}.")


def check_dropout(
    config: RandomTransformerConfig, model_args: ModelArguments, args: TranslationTrainingArguments
) -> None:
    """Check that a model with R-Drop has dropout, since its two passes would be equal otherwise."""
    has_dropout = model_args.lora_dropout or any(getattr(config, name) for name in DROPOUTS)
    if not has_dropout:
        raise ValueError(f"r_drop_alpha must be 0 for a model without dropout, got {args.r_drop_alpha}.")


def check_languages_of_sets(
    sets: Mapping[str, Sequence[Corpus]], model_args: ModelArguments, tokenizer: PreTrainedTokenizerBase | None
) -> None:
    """Check that the saved tokenizer has the languages of all sets, or that a new one will have them.

    Raises:
        ValueError: the saved tokenizer lacks a language.
    """
    used = distinct_languages(chain.from_iterable(sets.values()))
    available = distinct_languages(sets["train"])
    origin = "the training corpora"
    if tokenizer is not None:
        available = tokenizer_languages(tokenizer)
        origin = f"the tokenizer in {model_args.saved_tokenizer}"
        if available and not used and None in (tokenizer.src_lang, tokenizer.tgt_lang):
            raise ValueError(f"source_lang and target_lang must be of {', '.join(available)} for {origin}, got none.")
    unknown = ", ".join(code for code in used if code not in available)
    if unknown:
        raise ValueError(
            f"source_lang and target_lang must be languages of {origin} ({', '.join(available) or 'none'}), "
            f"got {unknown}."
        )
