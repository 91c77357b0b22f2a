"""The initial model of a run: new, saved, or saved and frozen with a LoRA adapter; and its shards."""

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from torch import Tensor, nn
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase, get_scheduler, set_seed
from transformers.distributed import DistributedConfig
from transformers.trainer_utils import IntervalStrategy
from transformers.utils import is_peft_available

from ..base.distributed import call_on_main_process
from ..base.errors import reraise_as_value_error
from ..base.jobs import changes
from ..base.vocabulary import check_tokenizer
from ..configuration_random_transformer import RandomTransformerConfig
from ..data.sentencepiece import from_sentencepiece
from ..inputs_random_transformer import LanguageTags, tokenizer_languages
from ..modeling_random_transformer import RandomTransformerForConditionalGeneration
from ..tokenization_random_transformer import added_tokens
from .arguments import DROPOUTS, VOCAB_SIZE, DataArguments, ModelArguments, parse_overrides
from .checkpoints import MARKER, STATE, has_optimizer, is_complete
from .manifest import check_folder
from .recipe import TranslationTrainingArguments

# The ends of the names of weights with a row for each token.
OF_TOKENS = ("shared.weight", "embed_tokens.weight", "lm_head.weight", "lm_head.bias")
ROLES = ("pad_token_id", "bos_token_id", "eos_token_id", "unk_token_id")


def check_arguments(data: DataArguments, model_args: ModelArguments, args: TranslationTrainingArguments) -> None:
    """Check the arguments together, as far as possible before the corpus is read.

    Raises:
        ValueError: the arguments exclude each other, an evaluation during training has no validation set or not the
            metric for the best model, peft is not installed, an adapted module does not exist or is tied, tensor
            parallelism cannot divide the model, or the folder has no model, a model of another architecture or a
            tokenizer that does not match the model or the regularization.
    """
    if args.eval_strategy != "no" and not data.has("validation"):
        strategy = IntervalStrategy(args.eval_strategy).value
        raise ValueError(f"eval_strategy must be 'no' without a validation set, got {strategy!r}.")
    if data.streaming and "epoch" in (args.save_strategy, args.eval_strategy):
        raise ValueError("save_strategy and eval_strategy must be 'steps' with streaming, got 'epoch'.")
    translates = args.predict_with_generate and not args.prediction_loss_only
    metrics = ("loss", "bleu", "chrf", "generated_length") if translates else ("loss",)
    if (best := args.metric_for_best_model) is not None and not best.endswith(metrics):  # also of one of several sets
        raise ValueError(f"metric_for_best_model must be one of {', '.join(metrics)}, got {best!r}.")
    if args.lr_scheduler_kwargs:
        with reraise_as_value_error(f"lr_scheduler_kwargs must suit lr_scheduler_type, got {args.lr_scheduler_kwargs}"):
            optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))])
            get_scheduler(args.lr_scheduler_type, optimizer, 1, 2, dict(args.lr_scheduler_kwargs))
    if (rank := model_args.lora_rank) is not None:
        if args.tp_size * args.fsdp_size > 1:
            raise ValueError(f"lora_rank must be unset with tp_size or fsdp_size above 1 (not with FSDP2), got {rank}.")
        if not is_peft_available():
            raise ValueError(f"lora_rank={rank} requires peft: pip install 'random-transformer[adapters]'.")
    call_on_main_process(lambda: _check_folders(model_args, Path(args.output_dir), args.resume_from_checkpoint))
    config = None if model_args.model_name_or_path is None else _saved_config(model_args)
    if config is not None:
        check_adapted_modules(config, model_args.lora_targets)
    tokenizer, saved = None, model_args.saved_tokenizer
    if saved is not None:
        with reraise_as_value_error(f"tokenizer must be a saved tokenizer, got {saved!r}"):
            tokenizer = load_tokenizer(saved, model_args.special_tokens or ())
    if config is None:
        config = model_args.config((model_args.vocab_size or VOCAB_SIZE) if tokenizer is None else len(tokenizer))
    elif model_args.has_new_vocabulary:
        load_parent_tokenizer("model_name_or_path", str(model_args.model_name_or_path))
    elif tokenizer is not None:
        check_tokenizer(tokenizer, config)
    for name in ("num_heads", "d_ff"):  # with shards of different sizes, dropout would differ between the processes
        if (size := getattr(config, name)) % args.tp_size:
            raise ValueError(f"{name} must be a multiple of tp_size={args.tp_size}, got {size}.")
    has_dropout = rank is not None or any(getattr(config, name) for name in DROPOUTS)
    if args.r_drop_alpha and not has_dropout:
        raise ValueError(f"r_drop_alpha must be 0 for a model without dropout, got {args.r_drop_alpha}.")


def check_adapted_modules(config: RandomTransformerConfig, targets: Sequence[str]) -> None:
    """Check the names, or ends of names, of the modules that get an adapter.

    Raises:
        ValueError: there is no such module, or its weight is tied: an adapter changes the output of one module, and
            merging it would change all modules with this weight.
    """
    with torch.device("meta"):
        model = RandomTransformerForConditionalGeneration(config)
    uses = Counter(id(weight) for _, weight in model.named_parameters(remove_duplicate=False))
    for target in targets:
        adapted = [module for name, module in model.named_modules() if f".{name}".endswith(f".{target}")]
        if not adapted:
            raise ValueError(f"lora_target_modules must be modules of the model, got {target!r}.")
        if any(uses[id(weight)] > 1 for module in adapted for weight in module.parameters(recurse=False)):
            raise ValueError(f"lora_target_modules must be modules with their own weights, got {target!r}, a tied one.")


def load_tokenizer(name: str, special_tokens: Sequence[str] = ()) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a folder or of the Hub, or import a SentencePiece model.

    Args:
        name: the folder, the name on the Hub or the SentencePiece model.
        special_tokens: special tokens to add if the tokenizer does not have them.

    Raises:
        ValueError: the SentencePiece model cannot be imported, or a special token is invalid.
    """
    if Path(name).suffix in (".model", ".spm"):
        tokenizer = from_sentencepiece(name)
    else:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    new = [token for token in added_tokens((), special_tokens) if str(token) not in tokenizer.all_special_tokens]
    if new:
        tokenizer.add_special_tokens({"extra_special_tokens": new}, replace_extra_special_tokens=False)
    return tokenizer


def load_parent_tokenizer(argument: str, parent: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model that starts another vocabulary; a `ValueError` names the argument if there is none."""
    with reraise_as_value_error(f"{argument} must be a saved model with its tokenizer, got {parent!r}"):
        return load_tokenizer(parent)


def _check_folders(model_args: ModelArguments, output: Path, start: str | bool | None) -> None:
    """Check that the output does not overwrite the initial model, and a checkpoint to start from."""
    initial = model_args.model_name_or_path
    if initial is not None and Path(initial).resolve().is_relative_to(output.resolve()):
        raise ValueError(f"output_dir must differ from model_name_or_path and not contain it, got {output}.")
    check_folder(output)
    if isinstance(start, str):
        checkpoint, files = Path(start), {path.name for path in Path(start).glob("*")}
        is_partial = STATE not in files or (MARKER in files and not is_complete(checkpoint))
        if is_partial or not has_optimizer(checkpoint) or checkpoint.resolve().parent == output.resolve():
            raise ValueError(f"resume_from_checkpoint must be a complete checkpoint of another run, got {start!r}.")


def _saved_config(model_args: ModelArguments) -> RandomTransformerConfig:
    """The configuration of a model to fine-tune, with the overrides."""
    folder = str(model_args.model_name_or_path)
    with reraise_as_value_error(f"model_name_or_path must contain a full model without an adapter, got {folder!r}"):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    if not isinstance(config, RandomTransformerConfig):
        allowed, found = f"a model of type {RandomTransformerConfig.model_type!r}", config.model_type
        raise ValueError(f"model_name_or_path must contain {allowed}, got {folder!r} of type {found!r}.")
    if getattr(config, "quantization_config", None) is not None:
        raise ValueError(f"model_name_or_path must contain unquantized weights, got quantized ones in {folder!r}.")
    return RandomTransformerConfig.from_dict({**config.to_dict(), **parse_overrides(model_args.config_overrides)})


def check_checkpoint(checkpoint: Path, model: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that training can continue from a checkpoint: its optimizer, its tokenizer and its architecture.

    Raises:
        ValueError: it has no optimizer, another tokenizer or another architecture; the message lists the differences.
    """
    if not has_optimizer(checkpoint):
        advice = f"use another output_dir with model_name_or_path={checkpoint} to train its model further"
        found = f"{checkpoint} without the state of the optimizer (save_only_model)"
        raise ValueError(f"output_dir must contain complete checkpoints to continue from, got {found}: {advice}.")
    if (checkpoint / "tokenizer_config.json").is_file():
        saved_vocabulary, vocabulary = load_tokenizer(str(checkpoint)).get_vocab(), tokenizer.get_vocab()
        other = [token for token, index in vocabulary.items() if saved_vocabulary.get(token) != index]
        if other or len(saved_vocabulary) != len(vocabulary):
            found = f"{checkpoint} with {len(saved_vocabulary)} tokens, where {len(other)} of the run's differ"
            raise ValueError(f"resume_from_checkpoint must be of the same tokenizer, got {found}.")
    if not (checkpoint / "config.json").is_file():
        return  # an adapter, or weights that are partitioned over processes
    saved = AutoConfig.from_pretrained(checkpoint, trust_remote_code=False)
    fields = vars(RandomTransformerConfig)["__annotations__"]
    different = changes(*({name: getattr(config, name, None) for name in fields} for config in (saved, model.config)))
    if different:
        listed = "; ".join(f"{name}: was {was}, now {now}" for name, (was, now) in different.items())
        raise ValueError(f"resume_from_checkpoint must be of the same architecture, got {checkpoint} with {listed}.")


def build_model(
    model_args: ModelArguments, args: TranslationTrainingArguments, tokenizer: PreTrainedTokenizerBase
) -> Any:
    """The model to train, with the generation settings of evaluation.

    Raises:
        ValueError: the configuration is invalid, or saved weights are incomplete.
    """
    set_seed(args.seed)  # random weights depend on the seed only, not on earlier random numbers
    if model_args.model_name_or_path is None:
        config = model_args.config(len(tokenizer), **special_ids(tokenizer))
        model = RandomTransformerForConditionalGeneration(config)
    else:
        model = _saved_model(model_args)
        if model_args.has_new_vocabulary:
            model = with_vocabulary(model, load_tokenizer(model_args.model_name_or_path), tokenizer)
    model.generation_config.update(max_length=model.config.max_position_embeddings, **args.generation_kwargs)
    if args.tp_size * args.fsdp_size > 1:
        model = _sharded(model, args)
    return model if model_args.lora_rank is None else _with_adapter(model, model_args)


def _saved_model(model_args: ModelArguments) -> RandomTransformerForConditionalGeneration:
    """The saved model in float32: half precision would round small updates to zero."""
    folder = model_args.model_name_or_path
    options = {**parse_overrides(model_args.config_overrides), "dtype": torch.float32, "output_loading_info": True}
    with reraise_as_value_error(f"model_name_or_path must contain complete weights, got {folder!r}"):
        model, info = RandomTransformerForConditionalGeneration.from_pretrained(folder, **options)
    if info["missing_keys"]:
        missing = ", ".join(sorted(info["missing_keys"]))
        raise ValueError(f"model_name_or_path must contain all weights, got {folder!r} without {missing}.")
    model.generation_config.max_new_tokens = None  # max_length is the limit
    return model


def _with_adapter(model: RandomTransformerForConditionalGeneration, model_args: ModelArguments) -> Any:
    """The frozen model with a trainable adapter (LoRA, Hu et al. 2021)."""
    from peft import LoraConfig, TaskType, get_peft_model

    rank: Any = model_args.lora_rank
    config = LoraConfig(
        task_type=TaskType.SEQ_2_SEQ_LM,
        r=rank,
        lora_alpha=model_args.lora_alpha or 2 * rank,
        lora_dropout=model_args.lora_dropout,
        target_modules=model_args.lora_targets or None,
    )
    if Path(model.name_or_path).is_dir():  # the saved adapter refers to its base model from any working directory
        model.name_or_path = str(Path(model.name_or_path).resolve())
    return get_peft_model(model, config)


# Shards: tensor parallelism and FSDP2 of transformers, and Accelerate's FSDP2


def _remove_tied(model: Any, state: dict[str, torch.Tensor], *_: Any) -> None:
    """transformers gathers the shards of a tied weight under each of its names, and would save all of the copies."""
    for name in model.all_tied_weights_keys:
        state.pop(name, None)


def _sharded(
    model: RandomTransformerForConditionalGeneration, args: TranslationTrainingArguments
) -> RandomTransformerForConditionalGeneration:
    """The same weights, one shard per process. transformers shards a model only when it loads one."""
    folder = Path(args.output_dir) / ".initial"
    if args.process_index == 0:
        model.save_pretrained(folder)
    PartialState().wait_for_everyone()
    sizes = DistributedConfig(tp_size=args.tp_size, fsdp_size=args.fsdp_size)
    sharded = RandomTransformerForConditionalGeneration.from_pretrained(folder, distributed_config=sizes)
    sharded.register_state_dict_post_hook(_remove_tied)
    PartialState().wait_for_everyone()
    if args.process_index == 0:
        shutil.rmtree(folder)
    return sharded


def shard_layers(model: nn.Module, accelerator: Accelerator) -> None:
    """Shard each layer as one unit, and the remaining weights as the root unit, with Accelerate's options.

    Accelerate leaves a sharded model as it is. Its own units separate the shared embedding from those of the stacks,
    which torch rejects because they have the same weight.

    Raises:
        ValueError: an option is not supported.
    """
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    if isinstance(model, FSDPModule):
        return
    plugin: Any = accelerator.state.fsdp_plugin
    for name in ("cpu_ram_efficient_loading", "activation_checkpointing"):
        if getattr(plugin, name):
            raise ValueError(f"fsdp_{name} must be false, got true.")
    mesh, dimensions = accelerator.torch_device_mesh, accelerator.parallelism_config
    options = {
        "mesh": None if mesh is None or dimensions is None else mesh[tuple(dimensions.fsdp_dim_names)],
        "mp_policy": plugin.mixed_precision_policy or MixedPrecisionPolicy(),
        "offload_policy": plugin.cpu_offload,
    }
    layers: Any = model._no_split_modules
    for module in model.modules():
        if type(module).__name__ in layers:
            fully_shard(module, reshard_after_forward=plugin.reshard_after_forward, **options)
    fully_shard(model, **options)
    plugin.auto_wrap_policy = None  # Accelerate would look for the classes of the layers, which are replaced


# A model that starts from a parent with another vocabulary (Zoph et al. 2016, https://aclanthology.org/D16-1163). All
# weights but those of the vocabulary are the parent's. A token starts with the mean of the parent's weights for its
# pieces, the tokens that the parent's tokenizer splits it into. A token of both vocabularies has one piece, itself.


def special_ids(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """The ids of special tokens in the configuration of a new model."""
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    # A target starts with the padding token if the tokenizer has no start token, as in Marian and T5.
    start = ids["pad_token_id"] if ids["bos_token_id"] is None else ids["bos_token_id"]
    return {**ids, "decoder_start_token_id": start}


def with_vocabulary(
    parent: RandomTransformerForConditionalGeneration,
    parent_tokenizer: PreTrainedTokenizerBase,
    tokenizer: PreTrainedTokenizerBase,
) -> RandomTransformerForConditionalGeneration:
    """A new model with the weights of a parent, for another tokenizer."""
    # A trained parent has `use_cache=False`, which would become the default of the child's generation config.
    config = parent.config.copy_with(vocab_size=len(tokenizer), use_cache=True, **special_ids(tokenizer))
    pieces = pieces_of_tokens(parent_tokenizer, tokenizer)
    start: Any = config.decoder_start_token_id
    pieces[start] = [int(parent.config.decoder_start_token_id)]  # type: ignore[arg-type]
    weights = parent.state_dict()
    for name in (name for name in weights if name.endswith(OF_TOKENS)):
        weights[name] = mean_rows(weights[name], pieces)
    child = RandomTransformerForConditionalGeneration(config)
    child.load_state_dict(weights)
    return child


def pieces_of_tokens(
    parent_tokenizer: PreTrainedTokenizerBase, tokenizer: PreTrainedTokenizerBase
) -> list[Sequence[int]]:
    """For each token, the parent's ids of its pieces, or none if the parent's tokenizer has no known piece of it.

    A token of both vocabularies is its only piece, even if the parent's tokenizer would split its text. It has the same
    text, or, if it is not text, the same name. Special tokens correspond by their role, such as the end of a text, or
    by their name, such as language tags.
    """
    known = {token: index for index, token in enumerate(texts_of_tokens(parent_tokenizer))}
    tokens = texts_of_tokens(tokenizer)
    texts = [text for text, _ in tokens]
    special = {parent_tokenizer.unk_token_id, *parent_tokenizer.all_special_ids}
    with LanguageTags(next(iter(tokenizer_languages(parent_tokenizer)), None)).set(parent_tokenizer):
        split = parent_tokenizer(texts, add_special_tokens=False)["input_ids"]
    pieces: list[Sequence[int]] = []
    for token, ids in zip(tokens, split, strict=True):
        if token in known:
            pieces.append([known[token]])
        else:
            pieces.append([piece for piece in ids if piece not in special])
    for role in ROLES:
        if None not in (own := getattr(tokenizer, role), getattr(parent_tokenizer, role)):
            pieces[own] = [getattr(parent_tokenizer, role)]
    return pieces


def texts_of_tokens(tokenizer: PreTrainedTokenizerBase) -> list[tuple[str, str]]:
    """For each token its text, see `text_of_token`, and its name if it is not text."""
    named = enumerate(tokenizer.convert_ids_to_tokens(range(len(tokenizer))))
    texts = [(text_of_token(tokenizer, index, name), name) for index, name in named]
    return [(text, "" if text else name) for text, name in texts]


def text_of_token(tokenizer: PreTrainedTokenizerBase, index: int, token: str) -> str:
    """The text of a token, with the space before a word; `""` if it is not text, such as a part of a character."""
    if index in tokenizer.added_tokens_decoder:
        return ""
    text = tokenizer.decode([index])
    if token.startswith("▁") and not text.startswith(" "):  # decoders of SentencePiece remove the first space
        text = f" {text}"
    return "" if "\ufffd" in text else text


def mean_rows(weight: Tensor, pieces: Sequence[Sequence[int]]) -> Tensor:
    """The rows of new tokens, `[tokens, …]`, as means of the rows of their pieces in `[parent's tokens, …]`.

    A mean of vectors gets the mean length of the vectors. A token without pieces has the mean of all finite rows.
    """
    rows = weight.new_empty((len(pieces), *weight.shape[1:]))
    finite = weight[weight.isfinite().view(len(weight), -1).all(dim=1)]
    for index, ids in enumerate(pieces):
        chosen = weight[list(ids)] if ids else finite
        rows[index] = chosen.mean(dim=0)
        if weight.dim() > 1 and len(ids) > 1:
            rows[index] *= chosen.norm(dim=1).mean() / rows[index].norm().clamp_min(torch.finfo(weight.dtype).tiny)
    return rows
