"""What a run starts from: random weights, a saved translator, or one whose weights stay and that gets an adapter."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

import torch
from accelerate import PartialState
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase, set_seed
from transformers.distributed import DistributedConfig
from transformers.utils import is_peft_available

from ..configuration_random_transformer import RandomTransformerConfig
from ..modeling_random_transformer import RandomTransformerForConditionalGeneration
from ..utils.checks import check_tokenizer
from ..utils.errors import reraise_as_value_error
from .arguments import VOCAB_SIZE, ModelArguments, parse_overrides
from .checkpoints import MARKER, all_checkpoints, is_complete, newest_complete
from .recipe import TranslationTrainingArguments

if TYPE_CHECKING:
    from peft import PeftModel

Network = Union[RandomTransformerForConditionalGeneration, "PeftModel"]


def check_start(model: ModelArguments, args: TranslationTrainingArguments) -> None:
    """Refuse a start that cannot be made, which takes no time, before a corpus is read, which may take long.

    Raises:
        ValueError: arguments exclude each other, peft is missing, or the folder holds no translator, another
            architecture or a tokenizer that is not the model's.
    """
    if model.lora_rank is not None:
        if args.tp_size * args.fsdp_size > 1:
            sizes = f"tp_size={args.tp_size} and fsdp_size={args.fsdp_size}"
            raise ValueError(
                f"lora_rank must be unset where weights are shared out, got {model.lora_rank} with {sizes}."
            )
        if not is_peft_available():
            raise ValueError(f"lora_rank={model.lora_rank} needs peft: pip install 'random-transformer[adapters]'.")
    _check_output(model, Path(args.output_dir))
    _check_resumed(args.resume_from_checkpoint, Path(args.output_dir))
    if model.model_name_or_path is not None:
        _check_saved(model.model_name_or_path, parse_overrides(model.config_overrides))
    elif model.tokenizer is not None:
        with reraise_as_value_error(f"tokenizer must be a folder with a saved tokenizer, got {model.tokenizer!r}"):
            model.config(len(AutoTokenizer.from_pretrained(model.tokenizer)))
    else:
        model.config(VOCAB_SIZE if model.vocab_size is None else model.vocab_size)


def _check_output(model: ModelArguments, output: Path) -> None:
    """Refuse to write over the start, or beside results of another kind, which would be loaded together with ours."""
    start = model.model_name_or_path
    if start is not None and Path(start).resolve().is_relative_to(output.resolve()):
        raise ValueError(
            f"output_dir must differ from model_name_or_path and not hold it, as it stays as it is, got {output} and "
            f"{start}."
        )
    for folder in (output, *filter(is_complete, all_checkpoints(output))):
        adapter = folder / "adapter_config.json"
        rank = json.loads(adapter.read_bytes()).get("r") if adapter.is_file() else None
        if rank != model.lora_rank and (adapter.is_file() or any(folder.glob("*.safetensors"))):
            found = "all weights of a model" if rank is None else f"an adapter of rank {rank}"
            raise ValueError(
                f"output_dir must be new, or that of an earlier try of this run, got {folder} with {found}."
            )


def _check_resumed(start: str | bool | None, output: Path) -> None:
    """Check the checkpoint that is named to resume from."""
    if not isinstance(start, str):
        return
    checkpoint = Path(start)
    needed = ("trainer_state.json", "optimizer.pt", "scheduler.pt")
    missing = [name for name in needed if not (checkpoint / name).exists()]
    if missing or ((checkpoint / MARKER).exists() and not is_complete(checkpoint)):
        found = f"without {', '.join(missing)}" if missing else "with incomplete files"
        raise ValueError(f"resume_from_checkpoint must be the folder of a complete checkpoint, got {start!r} {found}.")
    newest = newest_complete(output)
    if checkpoint.resolve().parent == output.resolve() and newest is not None and newest.name != checkpoint.name:
        raise ValueError(
            f"resume_from_checkpoint must be the newest checkpoint of output_dir, {newest.name}, or one of another "
            f"run, got {start!r}."
        )


def check_checkpoint(checkpoint: Path, network: Network) -> None:
    """Check that a checkpoint is of this architecture.

    Raises:
        ValueError: it is of another; the message lists the differences.
    """
    if not (checkpoint / "config.json").is_file():
        return  # of an adapter, or of weights that are divided over processes
    with reraise_as_value_error(f"resume_from_checkpoint must hold a model, got {checkpoint}"):
        saved = AutoConfig.from_pretrained(checkpoint)
    fields = vars(RandomTransformerConfig)["__annotations__"]
    values = {name: (getattr(saved, name, None), getattr(network.config, name, None)) for name in fields}
    different = [f"{name}: was {was}, now {now}" for name, (was, now) in values.items() if was != now]
    if different:
        raise ValueError(
            f"resume_from_checkpoint must be of the same architecture, got {checkpoint} of another "
            f"({'; '.join(different)})."
        )


def _check_saved(folder: str, overrides: dict[str, Any]) -> None:
    if Path(folder, "adapter_config.json").is_file() and not Path(folder, "config.json").is_file():
        raise ValueError(
            f"model_name_or_path must hold a whole model, got {folder!r} with an adapter: merge it first "
            "(docs/small_models.md)."
        )
    with reraise_as_value_error(f"model_name_or_path must hold a saved translator, got {folder!r}"):
        config = AutoConfig.from_pretrained(folder)
    if not isinstance(config, RandomTransformerConfig):
        raise ValueError(
            f"model_name_or_path must hold a model of type {RandomTransformerConfig.model_type!r}, "
            f"got {folder!r} of type {config.model_type!r}."
        )
    RandomTransformerConfig.from_dict({**config.to_dict(), **overrides})  # refuses what no model can have
    if getattr(config, "quantization_config", None) is not None:
        raise ValueError(f"model_name_or_path must hold plain weights to be trained, got quantised ones in {folder!r}.")
    with reraise_as_value_error(f"model_name_or_path must hold the translator's tokenizer, got {folder!r}"):
        tokenizer = AutoTokenizer.from_pretrained(folder)
    check_tokenizer(tokenizer, config)


def starting_network(
    model: ModelArguments, args: TranslationTrainingArguments, tokenizer: PreTrainedTokenizerBase
) -> Network:
    """The network to train, with the settings of its search.

    Raises:
        ValueError: the configuration refuses an argument, or the saved weights are not whole.
    """
    set_seed(args.seed)  # the weights depend on the seed alone, not on what was drawn before
    network = _random(model, tokenizer) if model.model_name_or_path is None else _saved(model)
    network.generation_config.update(max_length=network.config.max_position_embeddings, **args.search)
    if args.tp_size * args.fsdp_size > 1:
        network = _share_out(network, args)
    return network if model.lora_rank is None else _with_adapter(network, model.lora_rank, model)


def _random(model: ModelArguments, tokenizer: PreTrainedTokenizerBase) -> RandomTransformerForConditionalGeneration:
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos")}
    config = model.config(len(tokenizer), decoder_start_token_id=tokenizer.bos_token_id, **ids)
    return RandomTransformerForConditionalGeneration(config)


def _saved(model: ModelArguments) -> RandomTransformerForConditionalGeneration:
    """The translator in the folder, in float32 whatever it was saved in: updates of half precision get lost."""
    folder = model.model_name_or_path
    options = {**parse_overrides(model.config_overrides), "dtype": torch.float32, "output_loading_info": True}
    with reraise_as_value_error(f"model_name_or_path must hold whole weights, got {folder!r}"):
        network, info = RandomTransformerForConditionalGeneration.from_pretrained(folder, **options)
    if info["missing_keys"]:
        missing = ", ".join(sorted(info["missing_keys"]))
        raise ValueError(f"model_name_or_path must hold all weights, got {folder!r} without {missing}.")
    network.generation_config.max_new_tokens = None  # the length is given by max_length
    return network


def _with_adapter(network: RandomTransformerForConditionalGeneration, rank: int, model: ModelArguments) -> "PeftModel":
    """The network with an adapter (LoRA, Hu et al. 2021), of which alone the weights are trained."""
    from peft import LoraConfig, TaskType, get_peft_model

    options = LoraConfig(
        task_type=TaskType.SEQ_2_SEQ_LM,
        r=rank,
        lora_alpha=2 * rank if model.lora_alpha is None else model.lora_alpha,
        lora_dropout=model.lora_dropout,
        target_modules=model.lora_targets,
    )
    if Path(network.name_or_path).is_dir():  # what the adapter's folder says of it is to hold wherever it is read
        network.name_or_path = str(Path(network.name_or_path).resolve())
    return get_peft_model(network, options)


def _share_out(
    network: RandomTransformerForConditionalGeneration, args: TranslationTrainingArguments
) -> RandomTransformerForConditionalGeneration:
    """The same weights, each process with its part of them. transformers splits a model as it loads it."""
    folder = Path(args.output_dir) / "initial"
    if args.process_index == 0:
        network.save_pretrained(folder)
    PartialState().wait_for_everyone()
    sizes = DistributedConfig(tp_size=args.tp_size, fsdp_size=args.fsdp_size)
    return RandomTransformerForConditionalGeneration.from_pretrained(folder, distributed_config=sizes)
