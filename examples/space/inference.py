"""What the page computes: translations in batches, attention and next-token distributions, ablations."""

import argparse
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
import transformers
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError
from torch import Tensor

from modeling_random_transformer.base.errors import first_line, format_value
from modeling_random_transformer.commands.command_line import model_folder
from modeling_random_transformer.extras.inspection import intervene
from modeling_random_transformer.extras.inspection.beam_search import trim_padding
from modeling_random_transformer.extras.inspection.explorer import (
    cross_attention_labels,
    distribution,
    explore,
    render,
)
from modeling_random_transformer.extras.pairs.alignments import eager_attention
from modeling_random_transformer.extras.pairs.words import word_spans
from modeling_random_transformer.inference import load_translator
from modeling_random_transformer.inference.candidates import Candidate
from modeling_random_transformer.inference.confidence import UNDERLINED_BELOW, find_calibration
from modeling_random_transformer.inference.translation import Translator as TextTranslator
from modeling_random_transformer.inference.translation import length_penalty_of
from modeling_random_transformer.inputs_random_transformer import (
    check_text,
    drop_none,
    encode_texts,
    language_id,
    longest_target,
    tokenizer_languages,
)
from modeling_random_transformer.tokenization_random_transformer import has_letters, is_blank

MAX_CHARACTERS, MAX_TOKENS = 1000, 128  # limits for one text
MAX_BEAMS = 10
MAX_BATCH_TOKENS = 4096  # limits the memory of a batch: texts × beams × tokens of the longest text
METHODS = ("greedy", "beam search", "sampling")
# The allowed range of each number, and whether it must be an integer.
RANGES: dict[str, tuple[float, float, bool]] = {
    "num_beams": (1, MAX_BEAMS, True),
    "n_best": (1, MAX_BEAMS, True),
    "length_penalty": (0, 3, False),
    "temperature": (0.1, 3, False),
    "top_p": (0.05, 1, False),
    "seed": (0, 2**31 - 1, True),
}
# Files of a model on the Hub; code is never downloaded.
FILES = ["*.json", "*.safetensors", "*.spm", "*.model", "*.png", "README.md"]


@dataclass(frozen=True)
class Options:
    """How to translate a text. Values come from clients and are checked by `Translator.check`."""

    method: str = "beam search"
    num_beams: int = 4
    n_best: int = 1
    length_penalty: float | None = None  # `None` for the value of the model
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    src_lang: str | None = None
    tgt_lang: str | None = None
    is_plain: bool = False  # the model's own translation: not repaired, and without a confidence

    def languages(self) -> dict[str, str]:
        """The languages that are given, as arguments of the pipeline."""
        codes = {"src_lang": self.src_lang, "tgt_lang": self.tgt_lang}
        return {name: code for name, code in codes.items() if code is not None}

    def of_generate(self) -> dict[str, Any]:
        """The options of `generate()` that the method uses."""
        if self.method == "greedy":
            return {"num_beams": 1, "do_sample": False}
        if self.method == "sampling":
            sampling = {"temperature": float(self.temperature), "top_p": float(self.top_p), "top_k": 0}
            return {"do_sample": True, "num_beams": 1, "num_return_sequences": int(self.n_best), **sampling}
        beams = {"num_beams": int(self.num_beams), "num_return_sequences": int(self.n_best)}
        return {"do_sample": False, **drop_none(length_penalty=self.length_penalty), **beams}


@dataclass
class Inside:
    """A translation and what the model computed for it.

    Attributes:
        source: the tokens of the text.
        target: the generated tokens, with the end token.
        attention: cross-attention weights, `[layers, heads, target_len, source_len]`.
        steps: the next-token distribution of each target token, from `explorer.distribution`.
        chosen: the id of each target token.
    """

    source: list[str]
    target: list[str]
    attention: Tensor
    steps: list[dict[str, Any]]
    chosen: list[int]


class Translator:
    """A model, its pipeline, and a lock: tracing and interventions apply to every thread that uses the model."""

    def __init__(self, folder: Path):
        # float32, so that the tab "Inside" shows the distributions that the tokens are chosen from.
        options = {"engine": "ctranslate2", "engine_dtype": "float32", "engine_folder": mkdtemp()}
        installed = find_spec("ctranslate2") is not None
        model, tokenizer = load_translator(folder, argument="MODEL", **(options if installed else {}))
        self.pipe: Any = transformers.pipeline("seq2seq", model=model, tokenizer=tokenizer)
        self.model, self.tokenizer = self.pipe.model, tokenizer
        self.model.generation_config.length_penalty = length_penalty_of(self.model.generation_config)
        self.languages = tokenizer_languages(tokenizer)
        self.max_tokens = min(MAX_TOKENS, self.pipe.source_limit(None)[0])
        self.lock = threading.RLock()  # reentrant: `ablate` holds it while `run` translates

    def check(self, text: Any, options: Options) -> None:
        """Check a text and its options.

        Raises:
            ValueError: one is invalid; the message is one line.
        """
        if options.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {options.method!r:.60}.")
        for name, (lowest, highest, integer) in RANGES.items():
            value = getattr(options, name)
            if name == "length_penalty" and value is None:
                continue
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (is_number and lowest <= value <= highest and (value == int(value) or not integer)):
                kind = "an integer" if integer else "a number"
                raise ValueError(f"{name} must be {kind} from {lowest} to {highest}, got {value!r:.60}.")
        if options.method == "beam search" and options.n_best > options.num_beams:
            raise ValueError(f"n_best must be at most num_beams, {options.num_beams}, got {options.n_best}.")
        for name in ("src_lang", "tgt_lang"):
            codes: list[str | None] = [*self.languages] or [None]
            if (code := getattr(options, name)) not in codes:
                raise ValueError(f"{name} must be one of {', '.join(map(str, codes))}, got {code!r:.60}.")
        if not isinstance(text, str) or is_blank(text):
            raise ValueError("the text must not be blank.")
        if len(text) > MAX_CHARACTERS:
            raise ValueError(f"the text must have at most {MAX_CHARACTERS} characters, got {len(text)}.")
        check_text(text, 0)

    def check_sentence(self, text: Any, options: Options) -> None:
        """Check a text that is not split into sentences, and its options.

        Raises:
            ValueError: one is invalid; the message is one line.
        """
        self.check(text, options)
        count = len(encode_texts(self.tokenizer, text, src_lang=options.src_lang, verbose=False)["input_ids"])
        if count > self.max_tokens:
            raise ValueError(f"the text must have at most {self.max_tokens} tokens, got {count}.")

    def translate(self, texts: Sequence[Any], options: Sequence[Options]) -> list[dict[str, Any]]:
        """Translate the texts of several clients, those with equal options in one batch.

        Returns:
            For each text either `{"translations": [{"text": …, "score": …}, …]}` (see `fields_of`) or `{"error": …}`:
            an invalid text does not affect the others.
        """
        answers: dict[int, dict[str, Any]] = {}
        groups: dict[tuple[Options, int | None, bool], list[int]] = defaultdict(list)
        for i, (text, chosen) in enumerate(zip(texts, options, strict=True)):
            try:
                self.check(text, chosen)
            except ValueError as error:
                answers[i] = {"error": str(error)}
            else:  # samples depend on the seed only, not on other texts of a batch
                groups[chosen, i if chosen.method == "sampling" else None, has_letters(text)].append(i)
        for (chosen, *_), members in groups.items():
            for i, candidates in zip(members, self.run([texts[i] for i in members], chosen), strict=True):
                answers[i] = {"translations": list(map(fields_of, candidates))}
        return [answers[i] for i in range(len(texts))]

    def run(self, texts: list[str], options: Options) -> list[list[Candidate]]:
        """The candidates of checked texts, the best first. Texts without letters are not split into sentences."""
        is_split = has_letters(texts[0])
        languages, search = options.languages(), options.of_generate()
        is_rated = find_calibration(self.model, self.tokenizer, **languages) is not None
        translator = TextTranslator(
            self.model,
            self.tokenizer,
            n_best=search.pop("num_return_sequences", 1),
            max_batch_tokens=MAX_BATCH_TOKENS,
            max_source_tokens=self.max_tokens if is_split else None,
            split_sentences=is_split,
            repair=not options.is_plain,
            confidence=is_rated and not options.is_plain,
            **languages,
            **search,
        )
        with self.lock, seeded(options):
            return list(translator.stream(texts, progress=False))

    def inspect(self, text: Any, options: Options) -> Inside:
        """Translate a sentence, and compute the attention and the predictions of a forward pass over its translation.

        Raises:
            ValueError: the text or an option is invalid.
        """
        self.check_sentence(text, options)
        call = self.pipe.call_options(**options.languages(), **options.of_generate(), max_batch_tokens=MAX_BATCH_TOKENS)
        inputs = self.pipe.preprocess(text, call)
        with self.lock:
            outputs = self.pipe.forward(dict(inputs), options=call)
            ends = torch.tensor(self.model.generation_config.eos_token_id).view(-1)
            ids = trim_padding(outputs["sequences"][0, 0], ends)
            device = self.model.device
            with torch.inference_mode(), eager_attention(self.model):
                outputs = self.model(
                    **{name: value.to(device) for name, value in inputs.items()},
                    decoder_input_ids=ids[None, :-1].to(device),
                    output_attentions=True,
                )
        target, source = cross_attention_labels(self.tokenizer, inputs["input_ids"][0], ids)
        return Inside(
            source=source,
            target=target,
            attention=torch.cat(outputs.cross_attentions).cpu(),
            steps=[distribution(logits, self.tokenizer) for logits in outputs.logits[0].cpu()],
            chosen=ids[1:].tolist(),
        )

    def explore(self, text: Any, options: Options, plotly: str) -> str:
        """The page of `random-transformer explore` for a sentence, which loads plotly.js from an address.

        Raises:
            ValueError: the text or an option is invalid.
        """
        self.check_sentence(text, options)
        search = drop_none(length_penalty=options.length_penalty)
        if options.tgt_lang is not None:
            search["forced_bos_token_id"] = language_id(self.tokenizer, options.tgt_lang)
        with self.lock:
            ids = encode_texts(self.tokenizer, text, src_lang=options.src_lang)["input_ids"]
            search["max_new_tokens"] = longest_target(len(ids), self.model.config)
            data = explore(self.model, self.tokenizer, text, options.num_beams, src_lang=options.src_lang, **search)
        return render(data, plotly)

    def ablate(self, text: Any, options: Options, paths: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Translate a text with the complete model, and with the values at some paths set to 0.

        Args:
            text: the text.
            options: how to translate it.
            paths: some of the paths of `parts`.

        Returns:
            The answers of `translate` without and with the intervention.

        Raises:
            ValueError: an argument is invalid.
        """
        self.check(text, options)
        options = replace(options, is_plain=True)
        known_paths = [path for choices in self.parts().values() for _, path in choices]
        if not isinstance(paths, list) or len(paths) > len(known_paths):
            raise ValueError(f"off must be a list of at most {len(known_paths)} paths, got {format_value(paths)}.")
        if unknown := [path for path in paths if path not in known_paths]:
            raise ValueError(f"off must be paths of layers and heads that the page lists, got {unknown[0]!r:.60}.")
        with self.lock:
            (before,) = self.translate([text], [options])
            with intervene(self.model, dict.fromkeys(paths, 0)):
                (after,) = self.translate([text], [options])
        return before, after

    def parts(self) -> dict[str, list[tuple[str, str]]]:
        """The parts that can be switched off: for each layer, their labels and the paths of their outputs."""
        config = self.model.config
        parts = {}
        for stack, count in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
            kinds = {"self-attention": "self_attn"} | (
                {"cross-attention": "encoder_attn"} if stack == "decoder" else {}
            )
            for layer in range(count):
                path = f"{stack}.layers.{layer}"
                choices = []
                for label, name in kinds.items():
                    choices.append((label, f"{path}.{name}.output"))
                    for head in range(config.num_heads):
                        choices.append((f"{label} head {head}", f"{path}.{name}.head.{head}.output"))
                parts[f"{stack} layer {layer}"] = [*choices, ("feed-forward network", f"{path}.ffn.output")]
        return parts


def fields_of(candidate: Candidate) -> dict[str, Any]:
    """A translation and its score as a part of an answer.

    With a calibration, there are also its confidence and the spans of its doubtful words; and its problems, if it has
    any.
    """
    fields: dict[str, Any] = {"text": candidate.translation, "score": candidate.score}
    if candidate.confidence is not None:
        fields |= {"confidence": candidate.confidence, "doubtful": doubtful_spans(candidate)}
    if candidate.problems:
        fields["problems"] = candidate.problems
    return fields


def doubtful_spans(candidate: Candidate) -> list[tuple[int, int]]:
    """The spans of the doubtful words in a translation.

    Words that it has beside those with a probability, such as placeholders and numbers, are not doubtful.
    """
    spans = word_spans(candidate.translation)
    words = [candidate.translation[start:end] for start, end in spans]
    rated = [word for word, _ in candidate.words]
    doubtful = []
    for block in SequenceMatcher(None, words, rated, autojunk=False).get_matching_blocks():
        for offset in range(block.size):
            _, probability = candidate.words[block.b + offset]
            if probability < UNDERLINED_BELOW:
                doubtful.append(spans[block.a + offset])
    return doubtful


@contextmanager
def seeded(options: Options) -> Iterator[None]:
    """Sample with the seed of the options, without a change to torch's random number generator."""
    if options.method != "sampling":
        yield
        return
    with torch.random.fork_rng():
        torch.manual_seed(int(options.seed))
        yield


def find_model(name: str) -> Path:
    """The folder of a saved model; a model on the Hub is downloaded.

    Raises:
        ValueError: there is no such model; the message is one line.
    """
    folder = Path(name)
    if not folder.exists():
        try:
            folder = Path(snapshot_download(name, allow_patterns=FILES))
        except (OSError, ValueError, HfHubHTTPError) as error:
            message = "MODEL must be a folder with a saved model or the name of a model on the Hub"
            raise ValueError(f"{message}, got {name!r}: {first_line(error)}") from error
    try:
        return model_folder(str(folder))
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"MODEL {error}") from error
