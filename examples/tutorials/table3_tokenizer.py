"""The tokenizer that all rows of Table 3 share."""

import copy
from pathlib import Path

from modeling_random_transformer.jobs import Job
from modeling_random_transformer.training import DataArguments, ModelArguments, TranslationTrainingArguments
from modeling_random_transformer.training.arguments import VOCAB_SIZE
from modeling_random_transformer.training.manifest import MANIFEST, Run, fingerprint
from modeling_random_transformer.training.preparation import prepare_data


def train_once(folder: Path, data: DataArguments, model: ModelArguments, args: TranslationTrainingArguments) -> str:
    """Train the tokenizer that a run with these arguments would train, unless the folder contains it.

    Args:
        folder: the folder of the tokenizer, also written with a manifest.
        data: the training set.
        model: the vocabulary size and special tokens.
        args: the recipe; its `output_dir` is not used.

    Returns:
        The folder.

    Raises:
        ValueError: the tokenizer in the folder was trained with other arguments or data.
    """
    corpora = data.corpora("train")
    inputs = {
        "vocab_size": model.vocab_size or VOCAB_SIZE,
        "special_tokens": model.special_tokens,
        "training set": fingerprint(corpora),
    }
    folder.mkdir(parents=True, exist_ok=True)
    job = Job(folder / MANIFEST, advice="use another output_dir")
    job.begin("inputs", inputs)
    if "tokenizer" not in job.stages:
        args = copy.copy(args)
        args.output_dir = str(folder)
        prepare_data(Run(data, model, args, {"train": corpora}, job), ["train"])
    return str(folder)
