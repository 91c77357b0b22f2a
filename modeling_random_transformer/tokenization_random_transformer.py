"""The tokenizer of the Random Transformer: lossless byte-level BPE, trained in one call, or a list of words.

Byte-pair encoding over bytes (the paper, section 5.1, uses byte-pair encoding with one vocabulary for both languages)
has no unknown characters, because every byte is in the vocabulary.
"""

from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BatchEncoding, TokenizersBackend

# With ids 0 to 3.
SPECIAL_TOKENS = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
NORMALIZATIONS = ("NFC", "NFD", "NFKC", "NFKD")
MIN_VOCAB_SIZE = len(SPECIAL_TOKENS) + len(pre_tokenizers.ByteLevel.alphabet())


class RandomTransformerTokenizer(TokenizersBackend):
    """A tokenizer that appends the end-of-sequence token to every text, source or target.

    Create one with `train` or `train_from_files`, or with `from_words` for a toy vocabulary. It supports the complete
    tokenizer interface of transformers: batches, padding (on the right), truncation, offsets, `text_target=`,
    `train_new_from_iterator`, saving and `AutoTokenizer`.

    Special tokens in a text, such as `</s>`, are recognized. Use `split_special_tokens=True` for untrusted texts.
    """

    vocab_files_names = {"tokenizer_file": "tokenizer.json"}
    model_input_names = ["input_ids", "attention_mask"]
    padding_side = "right"

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        vocab_size: int = 37000,
        *,
        min_frequency: int = 2,
        normalization: str | None = None,
        show_progress: bool = False,
        **options: Any,
    ) -> "RandomTransformerTokenizer":
        """Train a byte-level BPE vocabulary.

        Args:
            texts: the corpus, source and target together. It is read once and may be a generator.
            vocab_size: maximum size, including the 4 special tokens and 256 bytes. A small corpus yields fewer
                entries.
            min_frequency: minimum count of a pair to be merged.
            normalization: a Unicode normalization form to apply first; `None` keeps the tokenizer lossless.
            show_progress: show the trainer's progress bar.
            **options: arguments of the tokenizer itself, such as `model_max_length`.

        Raises:
            ValueError: an argument is invalid.
        """
        if isinstance(texts, str | bytes):
            raise ValueError(f"texts must be an iterable of strings, got one {type(texts).__name__}.")
        _check_integer("vocab_size", vocab_size, MIN_VOCAB_SIZE, "the special tokens and the 256 bytes")
        _check_integer("min_frequency", min_frequency, 1, "once")
        if normalization not in (None, *NORMALIZATIONS):
            raise ValueError(
                f"normalization must be None or one of {', '.join(NORMALIZATIONS)}, got {normalization!r}."
            )

        backend = Tokenizer(models.BPE())
        if normalization is not None:
            backend.normalizer = getattr(normalizers, normalization)()
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            min_frequency=min_frequency,
            special_tokens=list(SPECIAL_TOKENS.values()),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=show_progress,
        )
        backend.train_from_iterator(_strings_only(texts), trainer)
        return cls._from_backend(backend, **{**SPECIAL_TOKENS, **options})

    @classmethod
    def train_from_files(
        cls, paths: str | PathLike | Sequence[str | PathLike], vocab_size: int = 37000, **options: Any
    ) -> "RandomTransformerTokenizer":
        """Train a byte-level BPE vocabulary from UTF-8 text files with one text per line.

        Args:
            paths: one or more files; source and target files share one vocabulary.
            vocab_size: maximum size.
            **options: the other arguments of `train`.

        Raises:
            OSError: a file cannot be read.
            ValueError: a line is not UTF-8, or an argument is invalid.
        """
        paths = [paths] if isinstance(paths, str | PathLike) else list(paths)
        if not paths:
            raise ValueError("paths must name at least one file, got none.")
        return cls.train(_lines(paths), vocab_size, **options)

    @classmethod
    def from_words(
        cls, words: Sequence[str], *, bos_token: str, eos_token: str, pad_token: str | None = None, **options: Any
    ) -> "RandomTransformerTokenizer":
        """Create a word-level vocabulary, with ids in the given order, for texts with words separated by spaces.

        For example the ten words of the blog post, with `bos_token="SOS", eos_token="EOS"`.

        Args:
            words: the vocabulary, including the special tokens.
            bos_token: the first word of a target.
            eos_token: the word appended to a text.
            pad_token: the padding word; `eos_token` when `None`.
            **options: arguments of the tokenizer itself. `unk_token` replaces unknown words; without it they raise a
                ValueError.

        Raises:
            ValueError: a word is given twice, or a special token is not among the words.
        """
        words = list(words)
        repeated = sorted({word for word in words if words.count(word) > 1})
        if repeated:
            raise ValueError(f"words must be unique, got {', '.join(map(repr, repeated))} more than once.")
        special = {"bos_token": bos_token, "eos_token": eos_token, "pad_token": pad_token or eos_token}
        if options.get("unk_token") is not None:
            special["unk_token"] = options["unk_token"]
        for name, token in special.items():
            if token not in words:
                raise ValueError(f"{name} must be one of the words, got {token!r}.")

        vocabulary = {word: index for index, word in enumerate(words)}
        backend = Tokenizer(models.WordLevel(vocabulary, unk_token=special.get("unk_token", "")))
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return cls._from_backend(backend, **{**options, **special})

    @property
    def add_prefix_space(self) -> bool:
        """Whether a space is prepended to a text, so that its first word is tokenized like the others; not lossless."""
        return getattr(self.backend_tokenizer.pre_tokenizer, "add_prefix_space", False)

    @add_prefix_space.setter
    def add_prefix_space(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise ValueError(f"add_prefix_space must be True or False, got {value!r}.")
        pre_tokenizer = self.backend_tokenizer.pre_tokenizer
        if hasattr(pre_tokenizer, "add_prefix_space"):
            pre_tokenizer.add_prefix_space = value
        elif value:
            raise ValueError(f"add_prefix_space must be False for a word-level vocabulary, got {value!r}.")

    @classmethod
    def _from_backend(cls, backend: Tokenizer, eos_token: str, **options: Any) -> "RandomTransformerTokenizer":
        backend.post_processor = processors.TemplateProcessing(
            single=f"$A {eos_token}",
            pair=f"$A {eos_token} $B {eos_token}",
            special_tokens=[(eos_token, backend.token_to_id(eos_token))],
        )
        return cls(tokenizer_object=backend, eos_token=eos_token, **options)

    @classmethod
    def _from_pretrained(cls, *args: Any, **kwargs: Any) -> "RandomTransformerTokenizer":
        try:
            return super()._from_pretrained(*args, **kwargs)
        except Exception as error:
            if type(error) is not Exception:  # the backend raises a plain Exception for files that it cannot parse
                raise
            raise ValueError(f"tokenizer.json must contain a tokenizer of the tokenizers library: {error}.") from error

    def _encode_plus(self, *args: Any, **kwargs: Any) -> BatchEncoding:
        try:
            return super()._encode_plus(*args, **kwargs)
        except TypeError:  # the backend's error for strings that are not valid UTF-8
            _check_unicode([args, kwargs])
            raise
        except Exception as error:  # the backend has no more specific class
            if "Missing [UNK] token" not in str(error):
                raise
            words = ", ".join(map(repr, self.get_vocab()))
            raise ValueError(
                f"text must consist of words in the vocabulary ({words}), since the tokenizer has no unk_token."
            ) from error


def _check_integer(name: str, value: Any, minimum: int, reason: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ValueError(f"{name} must be an integer of at least {minimum} ({reason}), got {value!r}.")


def _check_unicode(value: Any) -> None:
    """Raise a ValueError for the first string with a lone surrogate, at any depth of nested containers."""
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            excerpt = value[max(0, error.start - 20) : error.start + 20]
            raise ValueError(
                f"text must not contain lone surrogates, got {value[error.start]!a} at position {error.start}, "
                f"in {excerpt!a}."
            ) from error
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            _check_unicode(item)


def _strings_only(texts: Iterable[str]) -> Iterator[str]:
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"texts must contain only strings, got {type(text).__name__} at index {number}.")
        yield text


def _lines(paths: Iterable[str | PathLike]) -> Iterator[str]:
    for path in paths:
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    yield line.rstrip(b"\r\n").decode("utf-8")
                except UnicodeDecodeError as error:
                    raise ValueError(f"{path} must be UTF-8 text, but line {number} is not: {error}.") from error
