"""Translation of disturbed sources: capitals, typing errors, invisible characters, numbers and placeholders.

With --repair, what the pipeline does for them; without it, the model alone.
"""

import argparse
from pathlib import Path

import numpy as np

from modeling_random_transformer.base.placeholders import PLACEHOLDER
from modeling_random_transformer.data.sources import ParallelText, pairs_of
from modeling_random_transformer.extras.inspection.robustness import PairList, disturbances
from modeling_random_transformer.inference import load_translator, translate
from modeling_random_transformer.inference.evaluation import score
from modeling_random_transformer.training.methods.augmentation import CHANGEABLE_NUMBER

COPIED = {"with a number": CHANGEABLE_NUMBER, "with a placeholder": PLACEHOLDER}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, nargs="+", required=True, help="folders of saved models")
    parser.add_argument("--source_file", type=Path, required=True, help="test sources, one per line")
    parser.add_argument("--target_file", type=Path, required=True, help="their references")
    parser.add_argument("--num_beams", type=int, default=4, help="beam size")
    parser.add_argument("--engine", choices=["ctranslate2"], help="engine that translates")
    parser.add_argument("--repair", action="store_true", help="translate as translate --repair does")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the disturbances")


def run(options: argparse.Namespace) -> None:
    pairs = list(pairs_of([ParallelText(options.source_file, options.target_file)]))
    for folder in options.model:
        model, tokenizer = load_translator(folder, engine=options.engine)
        print(f"| {folder.name} | BLEU | chrF++ | of the clean chrF++ | copied |\n|---|---|---|---|---|")
        clean = 0.0
        for name, disturbed in {"clean": pairs, **disturbances(pairs, tokenizer, options.seed)}.items():
            sources, references = map(list, zip(*disturbed, strict=True))
            translations = translate(
                sources, model, tokenizer, num_beams=options.num_beams, repair=options.repair, progress=False
            )
            scores = score(translations, references)
            chrf = scores["chrf"]["score"]
            clean = clean or chrf
            copied = ""
            if name in COPIED:
                copied = f"{share_of_copies(name, disturbed, translations):.1%}"
            print(
                f"| {name} | {scores['bleu']['score']:.1f} | {chrf:.1f} | {chrf / clean:.1%} | {copied} |", flush=True
            )


def share_of_copies(name: str, disturbed: PairList, translations: list[str]) -> float:
    """The share of translations with all numbers, or placeholders, that a source and its reference have."""
    find = COPIED[name].findall
    are_copied = []
    for (source, reference), translation in zip(disturbed, translations, strict=True):
        expected = {*find(source)} & {*find(reference)}
        are_copied.append(expected <= {*find(translation)})
    return float(np.mean(are_copied))
