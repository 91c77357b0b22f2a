"""Compare a converted model with the original package: tokens, logits and translations of sentences.

    python examples/migration/compare_with_original.py joeynmt outputs/joeynmt test2016.en
    python examples/migration/compare_with_original.py eole outputs/eole test2016.en
    python examples/migration/compare_with_original.py opennmt model_step_60.pt test2016.en

Both packages must be installed; OpenNMT-py 3 also needs the environment variable TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1.
Three figures are printed: sentences with equal tokens; the largest difference of a logit, for the translations of the
original as targets; and sentences with equal translations by five beams. The last figure is that of transformers'
search over the logits of both models, and that of each package's own search.
"""

import argparse
import tempfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_random_transformer.extras.conversion import convert_eole, convert_joeynmt, convert_opennmt
from modeling_random_transformer.extras.conversion.eole import make_tokenizer as eole_tokenizer
from modeling_random_transformer.extras.conversion.eole import read_config as eole_config
from modeling_random_transformer.extras.conversion.joeynmt import find_checkpoint
from modeling_random_transformer.extras.conversion.joeynmt import make_tokenizer as joeynmt_tokenizer
from modeling_random_transformer.extras.conversion.joeynmt import read_config as joeynmt_config
from modeling_random_transformer.extras.conversion.opennmt import make_tokenizer as opennmt_tokenizer
from modeling_random_transformer.extras.conversion.opennmt import read_stored
from tests.helpers.references import Search

BATCH, BEAMS, NEW_TOKENS = 20, 5, 40
Logits = Callable[[Tensor, Tensor, Tensor], Tensor]


class JoeyNMT:
    """The original, in JoeyNMT 2."""

    def __init__(self, folder: Path):
        from joeynmt.config import load_config, parse_global_args
        from joeynmt.data import load_data
        from joeynmt.helpers import load_checkpoint
        from joeynmt.model import build_model

        config = load_config(folder / "config.yaml")
        self.arguments = parse_global_args(config, mode="translate")
        sides = self.arguments.data
        for side in ("src", "trg"):
            sides[side]["voc_file"] = str(folder / f"{side}_vocab.txt")
        source, target, _, _, self.data = load_data(sides, datasets=["stream"])
        self.model = build_model(config["model"], source, target)
        path = find_checkpoint(folder)
        self.model.load_state_dict(load_checkpoint(path, map_location="cpu")["model_state"])
        self.model.eval()
        options = joeynmt_config(path)
        self.joined = joeynmt_tokenizer(folder, options)
        self.pad = self.model.pad_index

    def tokenize(self, texts: list[str]) -> list[list[int]]:
        tokenizer = self.data.tokenizer[self.data.src_lang]
        pieces = [tokenizer(tokenizer.pre_process(text)) for text in texts]
        return [self.model.src_vocab.sentences_to_ids([row], bos=False, eos=True)[0][0] for row in pieces]

    def logits(self, ids: Tensor, mask: Tensor, targets: Tensor) -> Tensor:
        batch = {"src": ids, "src_mask": mask.bool()[:, None], "src_length": mask.sum(1), "trg_input": targets}
        trg_mask = torch.ones_like(targets).bool()[:, None]
        return self.model._encode_decode(**batch, trg_mask=trg_mask)[0]

    def translate(self, texts: list[str]) -> list[str]:
        from joeynmt.search import search

        ids, mask = pad_rows(self.tokenize(texts), self.pad)
        batch = SimpleNamespace(src=ids, src_mask=mask.bool()[:, None], src_length=mask.sum(1), has_trg=False)
        output_ids = search(self.model, batch, max_output_length=NEW_TOKENS, beam_size=BEAMS, beam_alpha=1.0)[0]
        sentences = self.model.trg_vocab.arrays_to_sentences(output_ids, cut_at_eos=True)
        return [self.data.tokenizer[self.data.trg_lang].post_process(row) for row in sentences]


class Eole:
    """The original, in eole."""

    def __init__(self, folder: Path):
        from eole.config.run import PredictConfig
        from eole.inference_engine import InferenceEnginePY

        options = {"model_path": [str(folder)], "src": "unused", "beam_size": BEAMS, "max_length": NEW_TOKENS}
        self.engine = InferenceEnginePY(PredictConfig(**options, world_size=0, gpu_ranks=[], compute_dtype="fp32"))
        torch.backends.cuda.enable_math_sdp(True)  # eole turns it off, which also affects a CPU
        self.model = self.engine.predictor.model
        self.joined = eole_tokenizer(folder, eole_config(folder))
        self.pad = self.model.src_pad_idx

    def tokenize(self, texts: list[str]) -> list[list[int]]:
        pipe, vocabulary = self.engine.transforms["sentencepiece"], self.engine.vocabs["src"]
        return [vocabulary(pipe.apply({"src": text, "tgt": None})["src"]) for text in texts]

    def logits(self, ids: Tensor, mask: Tensor, targets: Tensor) -> Tensor:
        self.model.decoder._disable_cache()
        longer = torch.nn.functional.pad(targets, (0, 2))  # a step of one token would require the cache
        output = self.model(ids, longer, mask.sum(1))
        return self.model.generator(output.dec_out)[:, :-1]

    def translate(self, texts: list[str]) -> list[str]:
        return [rows[0] for rows in self.engine.infer_list(texts)[2]]


class OpenNMT:
    """The original, in OpenNMT-py 3."""

    def __init__(self, path: Path):
        from onmt.inference_engine import InferenceEnginePY
        from onmt.opts import translate_opts
        from onmt.transforms import TransformPipe, make_transforms
        from onmt.utils.parse import ArgumentParser

        content, stored = read_stored(path)
        self.joined = opennmt_tokenizer(path, content, stored)
        parser = ArgumentParser()
        translate_opts(parser)
        options = {"model": path, "src": "unused", "beam_size": BEAMS, "max_length": NEW_TOKENS, "min_length": 0}
        options["transforms"] = next(name for name in ("sentencepiece", "bpe") if name in stored["_all_transform"])
        for side in ("src", "tgt"):
            options[f"{side}_subword_model"] = path.parent / Path(stored[f"{side}_subword_model"]).name
        engine_options = parser.parse_args(
            [part for name, value in options.items() for part in (f"-{name}", str(value))]
        )
        ArgumentParser.validate_translate_opts(engine_options)
        ArgumentParser._get_all_transform_translate(engine_options)
        ArgumentParser.validate_translate_opts_dynamic(engine_options)
        self.engine = InferenceEnginePY(engine_options)
        self.model, self.vocabs = self.engine.translator.model, self.engine.vocabs
        self.pipe = TransformPipe.build_from(
            make_transforms(engine_options, self.engine.transforms_cls, self.vocabs).values()
        )
        self.pad = self.vocabs["src"]["<blank>"]

    def tokenize(self, texts: list[str]) -> list[list[int]]:
        return [self.vocabs["src"](self.pipe.apply({"src": text.split(), "tgt": None})["src"]) for text in texts]

    def logits(self, ids: Tensor, mask: Tensor, targets: Tensor) -> Tensor:
        longer = torch.nn.functional.pad(targets, (0, 1))  # the last token is not read
        output, _ = self.model(ids[..., None], longer[..., None], mask.sum(1))
        return self.model.generator(output)

    def translate(self, texts: list[str]) -> list[str]:
        return [rows[0] for rows in self.engine.infer_list(texts)[1]]


ORIGINALS: dict[str, tuple[Any, Callable[..., Any]]] = {
    "joeynmt": (JoeyNMT, convert_joeynmt),
    "eole": (Eole, convert_eole),
    "opennmt": (OpenNMT, convert_opennmt),
}


def pad_rows(rows: list[list[int]], pad: int) -> tuple[Tensor, Tensor]:
    """The ids, `[batch, length]`, and their mask."""
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], True, pad)
    return ids, (torch.arange(ids.shape[1]) < torch.tensor([len(row) for row in rows])[:, None]).long()


@torch.inference_mode()
def compare(kind: str, folder: Path, texts: list[str]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        original_class, convert = ORIGINALS[kind]
        convert(folder, Path(scratch) / "converted")
        model = AutoModelForSeq2SeqLM.from_pretrained(Path(scratch) / "converted")
        tokenizer = AutoTokenizer.from_pretrained(Path(scratch) / "converted")
    original = original_class(folder)
    source_ids, target_ids = torch.tensor(original.joined.source_ids), torch.tensor(original.joined.target_ids)
    unknown = (target_ids == target_ids[tokenizer.unk_token_id]).index_fill(
        0, torch.tensor([tokenizer.unk_token_id]), False
    )

    def logits(ids: Tensor, mask: Tensor, targets: Tensor) -> Tensor:
        """The original's, for the ids of the converted model."""
        sources = source_ids[ids].where(mask.bool(), original.pad)
        return original.logits(sources, mask, target_ids[targets])[..., target_ids].masked_fill(unknown, -torch.inf)

    tokens = [[original.joined.source_ids[i] for i in row] for row in tokenizer(texts)["input_ids"]]
    print("equal tokens:", sum(a == b for a, b in zip(tokens, original.tokenize(texts), strict=True)), "of", len(texts))
    search = Search(logits, model.generation_config, model.config.vocab_size)
    options = {"num_beams": BEAMS, "max_new_tokens": NEW_TOKENS, "length_penalty": 1.0}
    largest, size, equal, equal_search = 0.0, 0.0, 0, 0
    for k in range(0, len(texts), BATCH):
        batch = tokenizer(texts[k : k + BATCH], padding=True, return_tensors="pt")
        ours = model.generate(**batch, **options)
        theirs = search.generate(**batch, **options, use_cache=False)
        expected = logits(batch["input_ids"], batch["attention_mask"], theirs)[theirs != tokenizer.pad_token_id][
            :, ~unknown
        ]
        actual = model(**batch, decoder_input_ids=theirs).logits[theirs != tokenizer.pad_token_id][:, ~unknown]
        largest, size = max(largest, float((actual - expected).abs().max())), max(size, float(expected.abs().max()))
        first, second = (tokenizer.batch_decode(rows, skip_special_tokens=True) for rows in (ours, theirs))
        equal += sum(a == b for a, b in zip(first, second, strict=True))
        original_translations = original.translate(texts[k : k + BATCH])
        equal_search += sum(a.strip() == b.strip() for a, b in zip(first, original_translations, strict=True))
        print(f"{k + len(original_translations)}: logits of up to {size:.1f} differ by {largest:.1e}; ", end="")
        print(f"equal translations: {equal} by one search, {equal_search} by each package's own", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("format", choices=ORIGINALS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--sentences", type=int, default=200)
    arguments = parser.parse_args()
    with arguments.texts.open(encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in islice(file, arguments.sentences)]
    compare(arguments.format, arguments.folder, lines)
