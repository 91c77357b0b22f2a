"""The languages of a run: those of its corpora, which the tokenizer must have."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from ..data.mixing import CorpusSpec
from ..pipeline_random_transformer import tokenizer_languages
from .arguments import ModelArguments
from .model_init import load_tokenizer


def distinct_languages(directions: Iterable[Sequence[str] | None]) -> list[str]:
    """The codes of all languages of pairs of languages, in the order of their first use."""
    return list(dict.fromkeys(chain.from_iterable(direction or () for direction in directions)))


def default_languages(corpora: Iterable[CorpusSpec]) -> dict[str, str]:
    """The `src_lang` and the `tgt_lang` of the tokenizer, if it is the same for all corpora."""
    pairs = [corpus.languages for corpus in corpora if corpus.languages is not None]
    sides = {"src_lang": {source for source, _ in pairs}, "tgt_lang": {target for _, target in pairs}}
    return {name: codes.pop() for name, codes in sides.items() if len(codes) == 1}


def check_languages(sets: Mapping[str, Sequence[CorpusSpec]], model_args: ModelArguments) -> None:
    """Check that the tokenizer has, or will have, the languages of all sets.

    Raises:
        ValueError: it does not.
    """
    used = distinct_languages(corpus.languages for corpora in sets.values() for corpus in corpora)
    available, origin = distinct_languages(corpus.languages for corpus in sets["train"]), "the training corpora"
    if (saved := model_args.model_name_or_path or model_args.tokenizer) is not None:
        tokenizer = load_tokenizer(saved)
        available, origin = tokenizer_languages(tokenizer), f"the tokenizer in {saved}"
        if available and not used and None in (tokenizer.src_lang, tokenizer.tgt_lang):
            raise ValueError(f"source_lang and target_lang must be of {', '.join(available)} for {origin}, got none.")
    unknown = [code for code in used if code not in available]
    if unknown:
        raise ValueError(
            f"source_lang and target_lang must be languages of {origin} ({', '.join(available) or 'none'}), got "
            f"{', '.join(unknown)}."
        )
