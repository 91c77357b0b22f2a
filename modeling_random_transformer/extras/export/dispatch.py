"""Attaches an inference engine to a model, with an export that is cached beside its files."""

import hashlib
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedTokenizerBase
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.utils import GenerateBeamEncoderDecoderOutput
from transformers.utils import logging

from ...base import ENGINES
from ...base.errors import reraise_as_value_error
from ...generation_random_transformer import modified_module
from ...inputs_random_transformer import check_choice, pad_ids
from ...pipeline_random_transformer import ForcedPrefix
from ...verification_random_transformer import Snapshot, tensors_of
from .engines import engine_module, search_options, table_positions, token_list, token_names
from .shortlist import check_vmap

logger = logging.get_logger(__name__)

ENGINE = "CTranslate2"
# `generate()` stops when no running beam scores higher than the finished ones (`early_stopping=False`), CTranslate2
# when beams · patience have finished. For higher length penalties, no patience gives the scores of `generate()` for a
# model of little data, which prefers long hypotheses (docs/results/engines.md).
PATIENCE = 2
MAX_LENGTH_PENALTY = 0.8
MODES = (GenerationMode.GREEDY_SEARCH, GenerationMode.BEAM_SEARCH)
BATCHES = 4  # of the pipeline in one call of the engine, which splits them again: the checks of a call take time
DEFAULT_DTYPE = "int8"  # 1.1 to 3 times as fast as float32 on every CPU that was measured (docs/results/engines.md)


def attach_engine(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    folder: str | PathLike,
    engine: str = "ctranslate2",
    dtype: str | None = None,
    shortlist: str | PathLike | None = None,
) -> None:
    """Let an engine compute `model.generate()` where it computes the same; otherwise the reason is logged.

    Args:
        model: the model, on the CPU. If it cannot be exported, it is not changed.
        tokenizer: its tokenizer.
        folder: the folder of exported models; see `cached_export`.
        engine: `"ctranslate2"`.
        dtype: dtype of the engine's weights; `None` for the fastest one.
        shortlist: the file `vmap.txt` of an export with a lexical shortlist.

    Raises:
        ValueError: the engine is unknown or not installed, or does not support the dtype; or the folder cannot be
            written, or the shortlist cannot be read.
    """
    check_choice(ENGINES, engine=engine)
    dtype = dtype or DEFAULT_DTYPE
    engine_module(engine, dtype)
    content = None if shortlist is None else read_shortlist(shortlist, model, tokenizer)
    from .cache import cached_export  # imports the engine

    try:
        exported = cached_export(model, tokenizer, Path(folder), engine=engine, dtype=dtype, shortlist=content)
    except ValueError as error:
        logger.warning_once("generate() runs the model, not %s: %s", engine, error)
        return
    except OSError as error:
        message = "engine_folder must be a folder that can be written"
        raise ValueError(f"{message}, got {str(folder)!r}: {error.strerror}.") from error
    model.engine = CTranslate2Engine(exported, model, tokenizer)


def read_shortlist(file: str | PathLike, model: Any, tokenizer: PreTrainedTokenizerBase) -> bytes:
    """The content of a shortlist.

    Raises:
        ValueError: it cannot be read, or is not one for the vocabulary of the model.
    """
    with reraise_as_value_error(f"engine_shortlist must be a file that can be read, got {str(file)!r}"):
        content = Path(file).read_bytes()
    with reraise_as_value_error(f"engine_shortlist must be vmap.txt of an export of this model, got {str(file)!r}"):
        check_vmap(content, *token_names(tokenizer, model.config.vocab_size))
    return content


def digest_of(tensors: Iterable[Any]) -> str:
    """A digest of the dtypes, shapes and values of tensors."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


# CTranslate2 under `generate()`: it computes the calls that it supports, for a model that is loaded too


class CTranslate2Engine:
    """The `engine` of a model: an exported model that computes `generate()`.

    Its results equal those of the model up to rounding, except that beam search
    distributes the probability of forbidden tokens over the others, as with `renormalize_logits=True`, and excludes
    that of a prefix from the score that the length penalty divides.

    Args:
        folder: the exported model.
        model: the model itself, as it was exported.
        tokenizer: its tokenizer.
    """

    def __init__(self, folder: str | PathLike, model: Any, tokenizer: PreTrainedTokenizerBase):
        from .ctranslate2 import ParallelTranslator  # an extra

        config = model.config
        self.translate, self.name = ParallelTranslator(folder), Path(folder).name  # with its dtype and digest
        self.batches = max(self.translate.threads, BATCHES)
        self.source, self.target = token_names(tokenizer, config.vocab_size)
        self.target_ids = {token: i for i, token in enumerate(self.target)}
        self.exported = search_options(model.generation_config, config, ENGINE)
        modules = list(model.modules())
        self.snapshot = Snapshot(modules)
        self.digest = digest_of(tensors_of(modules))
        self.positions = table_positions(config)

    def __deepcopy__(self, _: Any) -> "CTranslate2Engine":
        return self  # `changed_model` compares the copy with the export

    def generate(
        self,
        model: Any,
        inputs: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: Any = None,
        **kwargs: Any,
    ) -> Any:
        """`model.generate()`, or `None` if the engine does not compute this call; the reason is logged once.

        With `return_dict_in_generate`, the output has `sequences`.
        """
        options, given = model._prepare_generation_config(generation_config, **kwargs)
        ids, mask = given.pop("input_ids", inputs), given.pop("attention_mask", None)
        given.pop("labels", None)  # of `Seq2SeqTrainer`, without effect
        if options.max_new_tokens is None and kwargs.get("max_length") is not None:
            options.max_new_tokens = kwargs["max_length"] - 1  # which counts the start token
        prefixes = [each for each in logits_processor or () if isinstance(each, ForcedPrefix)]
        given["logits_processor"] = [each for each in logits_processor or () if each not in prefixes]
        reason = (
            unsupported_request(options, given)
            or self.unsupported_inputs(ids, mask, options)
            or self.unsupported_search(model, options)
            or self.changed_model(model)
        )
        if reason:
            logger.warning_once("generate() runs the model, not %s: %s.", ENGINE, reason)
            return None
        return self.search(model, options, ids, mask, prefixes)

    def unsupported_inputs(self, ids: Tensor | None, mask: Tensor | None, options: GenerationConfig) -> str | None:
        """A message about texts that the engine cannot translate; `None` if it can."""
        if ids is None or not ids.numel():
            return "no input_ids were given"
        if ids.min() < 0 or ids.max() >= len(self.source):
            return "input_ids were not in the vocabulary"
        if mask is None and (ids == options.pad_token_id).any():
            return "input_ids were given without attention_mask"
        if mask is not None and not mask.any(dim=1).all():
            return "a source is empty"
        if mask is not None and (mask.long().diff(dim=1) > 0).any():
            return "a source has padding before its last token"  # which is removed, so that positions would change
        longest = max(ids.shape[1], options.max_new_tokens)
        return f"{longest} tokens exceed its {self.positions} positions" if longest > self.positions else None

    def unsupported_search(self, model: Any, options: GenerationConfig) -> str | None:
        """A message about a search that the engine does not compute; `None` if it does."""
        try:
            search = search_options(options, model.config, ENGINE)
        except ValueError as error:
            return str(error).rstrip(".")
        exported = self.exported
        if (search.start_token, search.end_tokens) != (exported.start_token, exported.end_tokens):
            return "the start token or the end token is another one than at the export"
        if set(exported.suppressed_tokens) - set(search.suppressed_tokens):
            return "tokens were allowed that the export suppresses"
        if search.min_new_tokens > options.max_new_tokens:
            return "the minimum length is greater than the maximum length"
        return None

    def changed_model(self, model: Any) -> str | None:
        """A message if the model computes something else than its export; `None` if it does not."""
        if model.device.type != "cpu":
            return f"the model is on the device {model.device}"
        if reason := modified_module(model.named_modules()):
            return reason
        modules = list(model.modules())
        if self.snapshot.has_code_of(modules) and self.has_exported_weights(modules):
            return None
        return "the code or the weights have changed since the export"

    def has_exported_weights(self, modules: list[nn.Module]) -> bool:
        """Whether the weights are those that were exported; all values are compared only if they may have changed."""
        if not self.snapshot.has_weights_of(modules):
            if digest_of(tensors_of(modules)) != self.digest:
                return False
            self.snapshot = Snapshot(modules)
        return True

    def search(
        self, model: Any, options: GenerationConfig, ids: Tensor, mask: Tensor | None, prefixes: list[ForcedPrefix]
    ) -> Any:
        """The output of `generate()`: `sequences`, `[batch · candidates, length]`, or a `ModelOutput` with them."""
        search = search_options(options, model.config, ENGINE)
        used = (torch.ones_like(ids) if mask is None else mask).tolist()
        pairs = zip(ids.tolist(), used, strict=True)
        rows = [[self.source[i] for i, is_used in zip(*pair, strict=True) if is_used] for pair in pairs]
        first = [] if search.first_token is None else [self.target[search.first_token]]
        forced = [[self.target[i] for i in row if i >= 0] for prefix in prefixes for row in prefix.prefix_ids.tolist()]
        results = self.translate(
            rows,
            [prefix or first for prefix in forced] or [first] * len(rows),
            beam_size=options.num_beams,
            patience=1 if options.early_stopping else PATIENCE,
            num_hypotheses=options.num_return_sequences,
            length_penalty=options.length_penalty if options.num_beams > 1 else 0,
            min_decoding_length=search.min_new_tokens,
            max_decoding_length=options.max_new_tokens,
            no_repeat_ngram_size=search.no_repeat_ngram_size,
            suppress_sequences=[[self.target[i] for i in word] for word in search.suppressed_sequences],
            return_end_token=True,
        )
        hypotheses = [hypothesis for result in results for hypothesis in result.hypotheses]
        found = [[search.start_token, *map(self.target_ids.__getitem__, hypothesis)] for hypothesis in hypotheses]
        if forced_ends := token_list(options.forced_eos_token_id):
            last, end = options.max_new_tokens, min(forced_ends)
            found = [[*row[:last], end] if len(row) > last else row for row in found]
        sequences = pad_ids(found, options.pad_token_id or 0)
        if not options.return_dict_in_generate:
            return sequences
        return GenerateBeamEncoderDecoderOutput(sequences=sequences)


def unsupported_request(options: GenerationConfig, given: dict[str, Any]) -> str | None:
    """A message about an argument of `generate()` that the engine does not support; `None` if none.

    Args:
        options: the effective options.
        given: the other arguments.
    """
    mode = options.get_generation_mode(given.get("assistant_model"))
    requested = sorted(name for name, value in given.items() if not (value is None or value is False or value == []))
    unsupported = {
        f"the generation mode {mode.value!r}": mode not in MODES,
        "early_stopping='never'": options.early_stopping == "never",
        f"early_stopping=False with a length penalty above {MAX_LENGTH_PENALTY}": searches_longer(options),
        "output_attentions": options.output_attentions,
        "output_hidden_states": options.output_hidden_states,
        "output_logits": options.output_logits,
        "output_scores": options.output_scores,
        "no max_new_tokens": options.max_new_tokens is None,
        ", ".join(requested): bool(requested),
    }
    return next((f"{name} was requested" for name, used in unsupported.items() if used), None)


def searches_longer(options: GenerationConfig) -> bool:
    """Whether beam search with these options goes on for longer than the engine's."""
    return options.num_beams > 1 and not options.early_stopping and options.length_penalty > MAX_LENGTH_PENALTY
