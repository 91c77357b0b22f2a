"""The tokenizer of a run: loads a saved one, or trains one."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ..base import load_extra
from ..base.errors import reraise_as_value_error
from ..base.saved_files import TOKENIZER_FILE
from ..data.sources import distinct_languages
from ..data.tokenization import vocabulary_sample
from ..tokenization_random_transformer import RandomTransformerTokenizer, added_tokens
from .checkpoints import save_atomically
from .methods.augmentation import Augmentation
from .run_record import fingerprint
from .run_state import Run


def load_tokenizer(name: str, special_tokens: Sequence[str] = ()) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a folder or of the Hub, or import a SentencePiece model.

    Args:
        name: the folder, the name on the Hub or the SentencePiece model.
        special_tokens: special tokens to add if the tokenizer does not have them.

    Raises:
        ValueError: the SentencePiece model cannot be imported, or a special token is invalid.
    """
    if Path(name).suffix in (".model", ".spm"):
        tokenizer = load_extra("sentencepiece").from_sentencepiece(name)
    else:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    new = [token for token in added_tokens((), special_tokens) if str(token) not in tokenizer.all_special_tokens]
    if new:
        tokenizer.add_special_tokens({"extra_special_tokens": new}, replace_extra_special_tokens=False)
    return tokenizer


def load_parent_tokenizer(argument: str, parent: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a parent model. A `ValueError` names the argument if there is none."""
    with reraise_as_value_error(f"{argument} must be a saved model with its tokenizer, got {parent!r}"):
        return load_tokenizer(parent)


def special_ids(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """The ids of special tokens in the configuration of a new model."""
    # A target starts with the padding token if the tokenizer has no start token, as in Marian and T5.
    start = tokenizer.pad_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    return {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "decoder_start_token_id": start,
    }


def prepare_tokenizer(run: Run, lines: int) -> PreTrainedTokenizerBase:
    """The tokenizer of a run, which is trained if the arguments name no saved tokenizer.

    If all training corpora have the same languages, they become its `src_lang` and `tgt_lang`.

    Args:
        run: the run.
        lines: number of lines of the training corpora, which are read if the tokenizer is trained; 0 if unknown.

    Raises:
        ValueError: the folder has a tokenizer that differs from the recorded one.
    """
    arguments_by_corpus = [{*corpus.languages.arguments.items()} for corpus in run.corpora["train"]]
    defaults = dict(sorted(set.intersection(*arguments_by_corpus)))
    tokenizer = run.tokenizer
    if tokenizer is None:
        train_tokenizer(run, lines, defaults)
        tokenizer = load_tokenizer(str(run.folder))
    for name, code in defaults.items():
        setattr(tokenizer, name, code)
    return tokenizer


def train_tokenizer(run: Run, lines: int, defaults: Mapping[str, str]) -> None:
    """Train the tokenizer of a run and save it in the output folder, unless an earlier call has."""
    corpora = run.corpora["train"]
    options: dict[str, Any] = {
        "vocab_size": run.model_args.size_of_new_vocabulary,
        **defaults,
        "languages": distinct_languages(corpora),
        "special_tokens": run.model_args.special_tokens or [],
    }
    inputs = {"training set": fingerprint(corpora), **options}
    if run.args.augment:
        inputs["augment"] = run.args.augment

    def train_and_save() -> None:
        sample: Iterable[str] = chain.from_iterable(vocabulary_sample(corpus, lines or None) for corpus in corpora)
        if run.args.augment:  # otherwise, words in capitals would be split into letters
            augmentation = Augmentation(RandomTransformerTokenizer.train([""], **options))
            sample = augmentation.texts(sample, run.args.order_seed)
        tokenizer = RandomTransformerTokenizer.train(sample, **options)
        with save_atomically(run.folder) as temporary:
            tokenizer.save_pretrained(temporary)

    # Inputs change only if nothing has been trained with the tokenizer.
    run.job.run("tokenizer", inputs, train_and_save, [run.folder / TOKENIZER_FILE], repeats_if_changed=True)
