"""The tokenizer of a run: a saved one, or a new one trained once per run."""

from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from datasets import Dataset
from filelock import FileLock
from transformers import PreTrainedTokenizerBase

from ..data.mixing import CorpusSpec
from ..data.sources import Corpus
from ..data.tokenization import vocabulary_sample
from ..data.validation import ValidationReport
from ..tokenization_random_transformer import RandomTransformerTokenizer
from ..utils.digests import file_digest
from .arguments import VOCAB_SIZE, ModelArguments
from .checkpoints import save_atomically
from .languages import default_languages, distinct_languages
from .manifest import Manifest
from .model_init import load_tokenizer

TOKENIZER_LOCK = ".tokenizer.lock"


def prepare_tokenizer(
    folder: Path,
    manifest: Manifest,
    model_args: ModelArguments,
    corpora: Sequence[CorpusSpec],
    texts: Sequence[Dataset | Corpus],
    reports: Sequence[ValidationReport],
) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a run, which is trained first if the arguments name no saved one.

    Its `src_lang` and `tgt_lang` become the languages of the corpora, if they are the same for all.

    Args:
        folder: the output folder.
        manifest: the manifest of the run.
        model_args: the saved tokenizer, or the vocabulary size of a new one, and special tokens.
        corpora: the training corpora.
        texts: their texts, read only if the tokenizer is trained.
        reports: their validation reports; empty if the numbers of lines are unknown.
    """
    saved = model_args.model_name_or_path or model_args.tokenizer
    if saved is None:
        lines = sum(report.lines for report in reports) or None
        sample = chain.from_iterable(vocabulary_sample(text, lines) for text in texts)
        train_tokenizer(folder, manifest, sample, model_args.vocab_size, **_tag_options(corpora, model_args))
    tokenizer = load_tokenizer(str(folder) if saved is None else saved, model_args.special_tokens or ())
    for name, code in default_languages(corpora).items():
        setattr(tokenizer, name, code)
    return tokenizer


def _tag_options(corpora: Sequence[CorpusSpec], model_args: ModelArguments) -> dict[str, Any]:
    """The options of the tokenizer for language tags and other special tokens."""
    options: dict[str, Any] = {"special_tokens": model_args.special_tokens} if model_args.special_tokens else {}
    if languages := distinct_languages(corpus.languages for corpus in corpora):
        options |= {"languages": languages, **default_languages(corpora)}
    return options


def train_tokenizer(
    folder: Path, manifest: Manifest, texts: Iterable[str], vocab_size: int | None, **options: Any
) -> None:
    """Train the tokenizer of a run and save it in the run's folder, once per run.

    Args:
        folder: the output folder.
        manifest: the manifest of the run; its digest of the tokenizer is set.
        texts: the corpus, read only if the tokenizer is trained by this call.
        vocab_size: maximum size; `None` for the default.
        **options: other options of `RandomTransformerTokenizer.train`.

    Raises:
        ValueError: the folder has a tokenizer that differs from the one in the manifest.
    """
    path = folder / "tokenizer.json"
    with FileLock(folder / TOKENIZER_LOCK):
        current = Manifest.read(folder) or manifest  # another process may have trained it in the meantime
        if current.tokenizer is not None and path.is_file():
            if file_digest(path) != current.tokenizer:
                raise ValueError(f"tokenizer must be that of this run, but {path} has changed.")
        else:
            tokenizer = RandomTransformerTokenizer.train(texts, vocab_size=vocab_size or VOCAB_SIZE, **options)
            with save_atomically(folder) as temporary:
                tokenizer.save_pretrained(temporary)
            current.tokenizer = file_digest(path)
            current.write(folder)
        manifest.tokenizer = current.tokenizer
