"""Exports a model to CTranslate2, an inference engine in C++.

CTranslate2's loader of BART is subclassed to support all positions, heads with `d_k` other than `d_v`, both orders of
norms, `attention_scale`, two vocabularies and suppressed tokens. Models with several end tokens, or with an activation
or an option of `generate()` that the engine does not support, cannot be exported.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ctranslate2
import numpy as np
import torch
from ctranslate2.converters.transformers import BartLoader
from ctranslate2.specs import TransformerDecoderSpec, TransformerEncoderSpec, TransformerSpec
from ctranslate2.specs.common_spec import Activation
from ctranslate2.specs.model_spec import visit_spec
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ...base.files import StrPath, read_json
from ...inference.scoring import label_log_probabilities
from ...inference.translation import PAPER_LENGTH_PENALTY
from ...inputs_random_transformer import TextError, check_choice, check_string, encode_texts, source_text
from ...modeling_random_transformer import LearnedPositions, RandomTransformerForConditionalGeneration
from ...tokenization_random_transformer import has_letters, is_blank
from .compare import check_equal, compared_ids, reference_of
from .engines import EngineTranslate
from .search import SearchOptions, engine_search, read_search, table_positions, token_names, vocabularies

# Name in transformers → activation. CTranslate2's own converter knows only some of them.
ACTIVATIONS = {
    "relu": Activation.RELU,
    "gelu": Activation.GELU,
    "gelu_python": Activation.GELU,
    "gelu_new": Activation.GELUTanh,
    "gelu_fast": Activation.GELUTanh,
    "gelu_pytorch_tanh": Activation.GELUTanh,
    "quick_gelu": Activation.GELUSigmoid,
    "silu": Activation.SWISH,
    "swish": Activation.SWISH,
    "gelu_python_tanh": Activation.GELUTanh,
    "gelu_accurate": Activation.GELUTanh,
    "tanh": Activation.Tanh,
    "sigmoid": Activation.Sigmoid,
}
# Additional fields of the engine's config.json.
SEARCH = "search"
PREFIX = "source_prefix"
PENALTY = "length_penalty"
PATIENCE_KEY = "patience"
BATCH_SIZE = 32  # sources of similar length that one thread translates together
BATCH_TOKENS = 4096  # limit on their tokens, with padding
SHORTLIST_BATCH = 8  # batch size with a shortlist, which contains the tokens for all sources of the batch
SHORTLIST = "vmap.txt"
SUPPRESSED = -1e9  # bias of tokens that generate() never chooses


def save(
    model: RandomTransformerForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    dtype: str,
    shortlist: bytes | None = None,
) -> None:
    """Save a model in CTranslate2's format, after a comparison of the scores in float32 with the model's.

    Args:
        model: on any device, in any dtype.
        tokenizer: its tokenizer, whose vocabulary is exported too.
        folder: an empty folder.
        dtype: dtype of the weights, `"float32"`, `"bfloat16"` or `"int8"`.
        shortlist: the contents of `vmap.txt`; see `export_model`.

    Raises:
        ValueError: CTranslate2 does not support an option of the model, which the message names.
    """
    check_scores(model, tokenizer)
    write(build_spec(model, tokenizer), folder, dtype)
    if shortlist is not None:
        (folder / SHORTLIST).write_bytes(shortlist)
    tokenizer.save_pretrained(folder)


def write(spec: TransformerSpec, folder: StrPath, dtype: str) -> None:
    """Write a specification, which changes it, with weights of this dtype."""
    spec.validate()
    spec.optimize(quantization=dtype)
    visit_spec(spec, reduce_range)
    spec.save(str(folder))


def reduce_range(layer: Any, name: str, weight: Any) -> None:
    """Round an int8 weight to 7 bits in place: CPUs without VNNI saturate sums of two products above 2**15.

    An activation is at most 255, so that the sum is at most 2 · 255 · 64.
    """
    *_, own_name = name.split("/")
    scale = getattr(layer, f"{own_name}_scale", None)
    if scale is None or getattr(weight, "dtype", None) != "int8":  # a weight in float, or the name of an equal one
        return
    rounded = np.rint(weight.array * (64 / 127))
    weight.array = rounded.astype(np.int8)
    scale.array = scale.array * np.float32(64 / 127)


def load(folder: StrPath) -> EngineTranslate:
    """Load an exported model as a function that translates sentences; see `ParallelTranslator`.

    With language tags, it translates from the tokenizer's `src_lang` to the language that was selected at the export.
    The translation of a blank text is `""`. Other texts without letters are returned unchanged, as by the pipeline.

    Raises:
        ValueError: the folder was exported by an earlier version, without the options of the search. The function
            raises it for a text that is not a string or above the tokenizer's `model_max_length`.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    source, target = vocabularies(tokenizer)
    token_of = {i: token for token, i in source.items()}
    config = read_json(Path(folder) / "config.json")
    if SEARCH not in config:
        raise ValueError(f"folder must contain a config.json with {SEARCH!r}, got {str(folder)!r}: export it again.")
    options = dict(config[SEARCH])
    first = options.pop("target_prefix")
    options["length_penalty"] = config.get(PENALTY, PAPER_LENGTH_PENALTY)
    options["patience"] = config.get(PATIENCE_KEY, 1)
    keeps_without_letters = getattr(tokenizer, "keep_without_letters", True)
    engine = ParallelTranslator(folder)

    def translate(texts: Sequence[str], num_beams: int, max_new_tokens: int) -> list[str]:
        translations = []
        indices = []
        for i, text in enumerate(texts):
            check_string(text, i)
            is_visible = not is_blank(text)
            translations.append(text if is_visible else "")
            if has_letters(text) or (is_visible and not keeps_without_letters):
                indices.append(i)
        sources = [source_text(texts[i], tokenizer, None, config[PREFIX]) for i in indices]
        rows = encode_texts(tokenizer, sources, verbose=False)["input_ids"] if sources else []
        limit = tokenizer.model_max_length
        for i, row in zip(indices, rows, strict=True):
            if len(row) > limit:
                raise TextError(
                    i, f"texts must have at most tokenizer.model_max_length={limit} tokens, got {len(row)}."
                )
        results = engine(
            [[token_of[i] for i in row] for row in rows],
            [first] * len(rows),
            beam_size=num_beams,
            max_decoding_length=max_new_tokens,
            **options,
        )
        for i, result in zip(indices, results, strict=True):
            # Ids outside the tokenizer's vocabulary have placeholder names.
            ids = [target[token] for token in result.hypotheses[0] if token in target]
            translations[i] = tokenizer.decode(ids, skip_special_tokens=True)
        return translations

    return translate


class ParallelTranslator:
    """An exported model that translates one batch per CPU thread of torch.

    Several threads for one batch are slower, also for a single sentence (docs/results/engines.md).
    """

    def __init__(self, folder: StrPath):
        self.folder = Path(folder)
        self.threads = torch.get_num_threads()
        self.has_shortlist = (self.folder / SHORTLIST).is_file()
        self.translator = ctranslate2.Translator(str(folder), "cpu", inter_threads=self.threads, intra_threads=1)

    def __call__(
        self, sources: Sequence[Sequence[str]], prefixes: Sequence[Sequence[str]], **options: Any
    ) -> list[Any]:
        """CTranslate2's results for the tokens of sources, and what the targets must begin with.

        Sources with and without a prefix are not in one batch, because beam search would miss empty hypotheses.

        Args:
            sources: the tokens of each source.
            prefixes: the first tokens of each target.
            **options: those of `translate_batch`.
        """
        results: list[Any] = [None] * len(sources)
        for has_prefix in {bool(prefix) for prefix in prefixes}:
            indices = [i for i, prefix in enumerate(prefixes) if bool(prefix) == has_prefix]
            rows = self.translate([sources[i] for i in indices], [prefixes[i] for i in indices], **options)
            for i, result in zip(indices, rows, strict=True):
                results[i] = result
        return results

    def translate(
        self, sources: Sequence[Sequence[str]], prefixes: Sequence[Sequence[str]], **options: Any
    ) -> list[Any]:
        """The results for sources that all have a prefix, or none."""
        longest = max(map(len, sources))
        sizes = [
            SHORTLIST_BATCH if self.has_shortlist else BATCH_SIZE,
            math.ceil(len(sources) / self.threads),
            BATCH_TOKENS // longest,
        ]
        return self.translator.translate_batch(
            sources,
            prefixes,
            max_batch_size=max(min(sizes), 1),
            use_vmap=self.has_shortlist,
            max_input_length=0,  # unlimited; the default truncates sources silently
            **options,
        )


def build_spec(
    model: RandomTransformerForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    tokens: Sequence[list[str]] | None = None,
    suppressed: Sequence[int] = (),
) -> TransformerSpec:
    """CTranslate2's specification of a model, with its weights, its vocabularies and the options of its search.

    Args:
        model: the model.
        tokenizer: its tokenizer.
        tokens: the source and the target vocabulary; `None` for those of `token_names`.
        suppressed: more tokens that no target has.

    Raises:
        ValueError: CTranslate2 does not support an option of the model, which the message names.
    """
    search = read_search(model, tokenizer, "CTranslate2")
    if len(search.end_tokens) != 1:
        raise ValueError(
            f"eos_token_id must be one token id for CTranslate2, got {model.generation_config.eos_token_id}."
        )
    config = model.config
    check_choice(ACTIVATIONS, activation_function=config.activation_function)
    options = {
        "activation": ACTIVATIONS[config.activation_function],
        "head_dim": max(config.d_k, config.d_v),  # narrower heads are padded with zeros
        # Only a pre-norm specification has a final norm; its order of norms is set below.
        "pre_norm": True,
        "no_final_norm": not config.final_layer_norm,
    }
    spec = TransformerSpec(
        TransformerEncoderSpec(config.encoder_layers, config.num_heads, **options),
        TransformerDecoderSpec(config.decoder_layers, config.num_heads, **options),
    )
    spec.encoder.pre_norm = spec.decoder.pre_norm = config.norm_order == "pre"
    WeightLoader().set_weights(spec, model, [*search.suppressed_tokens, *suppressed])
    source, target = tokens or token_names(tokenizer, config.vocab_size)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    set_config(spec.config, config.layer_norm_eps, search, target, tokenizer.unk_token)
    return spec


class WeightLoader(BartLoader):
    """Copies weights to a specification."""

    def set_weights(self, spec: TransformerSpec, model: Any, suppressed: list[int]) -> None:
        """Copy all weights, with a bias that excludes the suppressed tokens."""
        model = reference_of(model)  # heads are padded and weights quantized in place
        self.set_encoder(spec.encoder, model.model.encoder)
        self.set_decoder(spec.decoder, model.model.decoder)
        self.set_linear(spec.decoder.projection, model.lm_head)
        if suppressed:
            bias = torch.zeros(model.config.vocab_size)
            if model.lm_head.bias is not None:
                bias += model.lm_head.bias.detach()
            bias[suppressed] = SUPPRESSED
            spec.decoder.projection.bias = bias

    def set_common_layers(self, spec: Any, stack: Any) -> None:
        """Set what `set_encoder` and `set_decoder` share: embeddings, positions and the final norm."""
        [embeddings] = spec.embeddings if isinstance(spec.embeddings, list) else [spec.embeddings]
        self.set_embeddings(embeddings, stack.embed_tokens)
        spec.scale_embeddings = stack.config.scale_embedding
        spec.position_encodings.encodings = position_table(stack)
        if stack.config.final_layer_norm:
            self.set_layer_norm(spec.layer_norm, stack.layer_norm)

    def set_attention(self, spec: Any, attention: Any, self_attention: bool = False) -> None:
        pad_heads(attention)
        super().set_attention(spec, attention, self_attention)
        spec.queries_scale = attention.scaling


def set_config(config: Any, layer_norm_eps: float, search: SearchOptions, target: list[str], unk: str | None) -> None:
    """Set the engine's config.json.

    Args:
        config: the configuration of a specification.
        layer_norm_eps: that of the model.
        search: the options of the search.
        target: the tokens of the target vocabulary in the order of their ids.
        unk: the unknown token, if there is one.
    """
    config.layer_norm_epsilon = layer_norm_eps
    # add_source_bos and add_source_eos stay off, since the tokenizer appends the end token.
    config.decoder_start_token = config.bos_token = target[search.start_token]
    config.eos_token = target[search.end_tokens[0]]
    # Required by the engine. A tokenizer without an unknown token raises an error for unknown words.
    config.unk_token = unk or config.eos_token
    longer = [sequence for sequence in search.suppressed_sequences if len(sequence) > 1]
    arguments = {  # arguments of translate_batch
        "target_prefix": [] if search.first_token is None else [target[search.first_token]],
        "min_decoding_length": search.min_new_tokens,
        "no_repeat_ngram_size": search.no_repeat_ngram_size,
        "suppress_sequences": [[target[i] for i in sequence] for sequence in longer],
    }
    config.add_attribute(SEARCH, arguments)
    config.add_attribute(PREFIX, search.prefix)
    config.add_attribute(PENALTY, search.length_penalty)
    config.add_attribute(PATIENCE_KEY, search.patience)


def check_scores(model: RandomTransformerForConditionalGeneration, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise a ValueError if the engine does not compute what the modules compute, whose code may have been edited."""
    with TemporaryDirectory() as scratch:
        write(build_spec(model, tokenizer), scratch, "float32")
        engine = ctranslate2.Translator(scratch, intra_threads=torch.get_num_threads())
    ids, labels = scored_ids(model, engine_search(model.generation_config, model.config, "CTranslate2"))
    source_names, target_names = token_names(tokenizer, model.config.vocab_size)
    source = [source_names[i] for i in ids]
    target = [target_names[i] for i in labels]
    [result] = engine.score_batch([source], [target], max_input_length=0)
    check_equal("CTranslate2", torch.tensor(result.log_probs), model_scores(model))


def scored_ids(model: RandomTransformerForConditionalGeneration, search: SearchOptions) -> Tensor:
    """The source and the target whose scores are compared, `[2, length]`."""
    return compared_ids(model.config, [search.start_token, *search.end_tokens, *search.suppressed_tokens])


@torch.no_grad()
def model_scores(model: RandomTransformerForConditionalGeneration) -> Tensor:
    """The log-probability of each token of a random target and of its end, by the modules, `[length + 1]`.

    Raises:
        ValueError: CTranslate2 does not support an option of the search.
    """
    search = engine_search(model.generation_config, model.config, "CTranslate2")
    ids, labels = scored_ids(model, search)
    start = torch.tensor([search.start_token])
    end = torch.tensor(search.end_tokens[:1])
    inputs = torch.cat([start, labels])
    targets = torch.cat([labels, end])
    outputs = reference_of(model)(input_ids=ids[None], decoder_input_ids=inputs[None], return_dict=True)
    logits = outputs.logits[0]
    logits[:, search.suppressed_tokens] = -torch.inf
    return label_log_probabilities(logits, targets)


def pad_heads(attention: Any) -> None:
    """Pad the heads of all projections to the larger of `d_k` and `d_v` in place, which does not change the outputs."""
    config = attention.config
    for layer in (attention.q_proj, attention.k_proj, attention.v_proj):
        for name, parameter in list(layer.named_parameters()):
            widened = widen_heads(parameter, config)
            setattr(layer, name, nn.Parameter(widened))
    output = attention.out_proj
    rows = widen_heads(output.weight.T, config)
    output.weight = nn.Parameter(rows.T)


def widen_heads(weight: Tensor, config: Any) -> Tensor:
    """Append rows of zeros to each head: `[heads · d_k or d_v, …]` → `[heads · width, …]`."""
    heads = weight.detach().unflatten(0, (config.num_heads, -1))
    width = max(config.d_k, config.d_v)
    padded = heads.new_zeros(len(heads), width, *heads.shape[2:])
    padded[:, : heads.shape[1]] = heads
    return padded.flatten(0, 1)


def position_table(stack: Any) -> Tensor:
    """The position embeddings, `[positions, d_model]`."""
    config = stack.config
    positions = stack.embed_positions
    if isinstance(positions, LearnedPositions):
        return positions.weight[config.position_offset :]
    count = table_positions(config)
    if positions is None:
        return torch.zeros(count, config.d_model)  # the engine would add sinusoids without a table
    return positions.encode(torch.arange(count))
