"""Scoring given translations against a forward pass, and an ensemble of two models against its members."""

import argparse
from functools import partial

import torch

from modeling_random_transformer import RandomTransformerTokenizer
from modeling_random_transformer.extras.ensemble import EnsembleForSeq2SeqLM
from modeling_random_transformer.inference.scoring import Scorer

from .generate import DEVICE, generate
from .models import END, SIZES, VOCAB_SIZE, ours
from .timing import paired


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", choices=SIZES, default="tiny", help="model size")
    parser.add_argument("--batch", type=int, default=32, help="batch size")
    parser.add_argument("--length", type=int, default=24, help="tokens of the longest source and target")
    parser.add_argument("--pairs", type=int, default=5, help="timed pairs")


def run(options: argparse.Namespace) -> None:
    models = [ours(SIZES[options.size]).to(DEVICE).eval() for _ in range(2)]
    scorer = Scorer(models[0], RandomTransformerTokenizer.train(["a"], 300))
    lengths = torch.linspace(options.length // 2, options.length, options.batch).long().tolist()
    sources, targets = ([torch.randint(END + 1, VOCAB_SIZE, (n,)).tolist() for n in lengths] for _ in range(2))
    inputs, _ = scorer.inputs(sources, targets)

    @torch.inference_mode()
    def forward() -> None:
        models[0](**inputs, use_cache=False)

    speedup = paired(lambda: scorer.forward(sources, targets), forward, options.pairs)
    print(f"score, speedup over a forward pass: {speedup}")

    ensemble = EnsembleForSeq2SeqLM(models)
    ids = torch.randint(END + 1, VOCAB_SIZE, (options.batch, options.length), device=DEVICE)

    def one_after_the_other(beams: int) -> None:
        for model in models:
            generate(model, ids, beams)

    for beams in (1, 4):
        speedup = paired(partial(generate, ensemble, ids, beams), partial(one_after_the_other, beams), options.pairs)
        print(f"ensemble of two, {beams} beams, speedup over its members one after the other: {speedup}")
