"""The tokenizer of the Random Transformer: byte-level BPE, trained in one call, or a list of words.

Like the paper (section 5.1), the tokenizer uses byte-pair encoding with one vocabulary for both languages. It encodes
bytes, so that no character is unknown. Encoding is lossless up to the normalization: `decode(encode(text))` is
`normalize(text)`.
"""

import codecs
import copy
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain, groupby
from os import PathLike
from types import MappingProxyType
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BatchEncoding, PreTrainedTokenizerBase, TokenizersBackend
from transformers.utils import to_py_obj

from .configuration_random_transformer import is_int, quoted_names
from .versions_random_transformer import UNTESTED_ADVICE

# The special tokens, whose ids are 0 to 3.
SPECIAL_TOKENS = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
BOOLEAN_OPTIONS = ("keep_line_breaks", "keep_without_letters", "source_eos", "split_special_tokens")
# The options of a new tokenizer. transformers would store any other name without effect.
TOKENIZER_OPTIONS = {
    "additional_special_tokens",
    "chat_template",
    "clean_up_tokenization_spaces",
    "extra_special_tokens",
    "keep_line_breaks",
    "keep_without_letters",
    "model_input_names",
    "model_max_length",
    "padding_side",
    "source_eos",
    "split_special_tokens",
    "src_lang",
    "tgt_lang",
    "truncation_side",
    *PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES,
}
NORMALIZATIONS = ("NFC", "NFD", "NFKC", "NFKD")
# Codes such as en, zh-Hans and eng_Latn. YAML reads an unquoted `no` (Norwegian) as False.
LANGUAGE_CODE = re.compile(r"(?!False$)[A-Za-z0-9]+(?:[-_][A-Za-z0-9]+)*")
# BPE merges within the parts of a text that this pattern matches: a word with the space before it, a digit, a run of
# other symbols, or spaces. A word consists of letters with their combining marks, and of zero-width joiners and
# apostrophes between letters. See docs/explanation/decisions.md.
PATTERN = (
    r" ?[\p{L}\p{M}](?:['\u2019]?[\p{L}\p{M}\u200c\u200d])*"
    r"| ?\p{N}"
    r"| ?[^\s\p{L}\p{N}]+"
    r"|\s+(?!\S)|\s+"
)
# The first bytes of .gz, .zst, .xz and .bz2 files.
COMPRESSED = re.compile(rb"\x1f\x8b\x08|\x28\xb5\x2f\xfd|\xfd7zXZ\0|BZh[1-9]1AY&SY")
BINARY_DOCUMENTS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")  # .xlsx, .docx and other zip files; .xls and .doc
FILLERS = "\u115f\u1160\u3164\uffa0"  # invisible letters
MIN_VOCAB_SIZE = len(SPECIAL_TOKENS) + len(pre_tokenizers.ByteLevel.alphabet())

REPEATED_SPACES = re.compile("[ \t]+")
LINE_BREAKS = re.compile(r"[ \t]*[\r\n]\s*")
MIN_SHARE_OF_LINE_BREAKS = 0.01  # of the training texts; otherwise, line breaks are errors of single texts
SPACE_TOKEN = "\u0120"  # the character for a space in the names of byte-level tokens

# Normalization: texts that look equal become equal. docs/explanation/decisions.md has the reasons. The patterns have
# literal characters, because Oniguruma and JavaScript (on the web page) do not have the same names of scripts.
CONTROL_SPACES = "[\x0b\x0c\x1c-\x1f\x85]"
CONTROLS = "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]"
# No-break, typographic and Braille spaces, and line separators. A narrow no-break space connects suffixes in Mongolian.
SPACES = (
    "[\u00a0\u2000-\u200a\u2028\u2029\u205f\u2800]"
    "|\u202f(?<![\u1820-\u18af]\u202f)(?<![\u1820-\u18af][\u180b-\u180f]\u202f)"
)
# Soft hyphen, zero-width space, word joiner, byte order mark, marks of the direction of texts, fillers and the like.
INVISIBLE = (
    "\u00ad\u034f\u061c\u17b4\u17b5\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e001f\U000e0080-\U000e00ff\U000e01f0-\U000e0fff"
)
# Scripts in which joiners change the forms of letters, from Arabic to those of India and Mongolia.
JOINED = (
    "\u0620-\u0dff\u0f00-\u109f\u1700-\u180a\u1810-\u18af\u1900-\u1cff\ua800-\uaaff\uabc0-\uabff\ufb50-\ufdff"
    "\ufe70-\ufefe\U00010a00-\U00011fff\U0001e900-\U0001e95f"
)
PICTOGRAPHS = "\u2190-\u21ff\u23e9-\u23fa\u25a0-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff"
# Characters that may have a variation selector: digits (of keycaps), symbols, Chinese and Mongolian letters.
VARIABLE = (
    "#*0-9\u00a9\u00ae\u1000-\u115e\u1161-\u180a\u1810-\u1dff\u2030-\u205e\u2070-\u20ff\u2122\u2139\u2150-\u2adb"
    "\u2add-\u2fff\u3001-\ufaff\ufb50-\ufdff\ufe10-\ufefe\uff00-\U000dffff"
)
AFTER_LETTER = rf"(?<=[{JOINED}])(?<=[\p{{L}}\p{{M}}])"
BETWEEN_PICTOGRAPHS = f"(?:(?<=[{PICTOGRAPHS}])|(?<=[{PICTOGRAPHS}]\ufe0f))\u200d+[{PICTOGRAPHS}]"
# Characters that are content only beside certain other characters.
CONTEXTUAL = re.compile("[\u115f\u1160\u180b-\u180f\u200c\u200d\ufe00-\ufe0f\U000e0020-\U000e01ef]")
OUT_OF_CONTEXT = "(?={})(?:{})".format(
    CONTEXTUAL.pattern,  # makes the search fast
    "|".join(
        (
            f"(?!{AFTER_LETTER})(?!{BETWEEN_PICTOGRAPHS})[\u200c\u200d]",
            rf"\u200c(?![\u200c\u200d]*(?=[{JOINED}])[\p{{L}}\p{{M}}])",  # a non-joiner at the end of a word
            f"(?<![{VARIABLE}])[\u180b-\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]",  # a variation selector
            "(?<![\U0001f3f4\U000e0020-\U000e007f])[\U000e0020-\U000e007f]+",  # letters of the flag of a region
            "(?<![\u1100-\u115e])[\u115f\u1160]+(?![\u1161-\u11ff])",  # fillers of Korean syllables
        )
    ),
)
HYPHENS_AND_LIGATURES = "hyphens and ligatures"
# Patterns and their replacements, for each kind of change. The Unicode form is the last step.
REPLACEMENTS: dict[str, list[tuple[str, str]]] = {
    "control characters": [(CONTROL_SPACES, " "), (CONTROLS, "")],
    "spaces": [(SPACES, " ")],
    "zero-width characters": [(f"[{INVISIBLE}]", ""), (OUT_OF_CONTEXT, "")],
    HYPHENS_AND_LIGATURES: [
        ("[\u2010\u2011]", "-"),
        ("\ufb00", "ff"),
        ("\ufb01", "fi"),
        ("\ufb02", "fl"),
        ("\ufb03", "ffi"),
        ("\ufb04", "ffl"),
        ("[\ufb05\ufb06]", "st"),
    ],
}


class RandomTransformerTokenizer(TokenizersBackend):
    """A tokenizer that appends the end-of-sequence token to every text, source or target.

    Create one with `train` or `train_from_files`, or with `from_words` for a toy vocabulary. It supports the complete
    tokenizer interface of transformers: batches, padding (on the right), truncation, offsets, `text_target=`,
    `train_new_from_iterator`, saving and `AutoTokenizer`.

    With `languages`, texts start with a language tag, as with `M2M100Tokenizer`. Sources start with the tag of
    `src_lang`, targets (`text_target=`) with the tag of `tgt_lang`. Setting one of them affects all threads that share
    the tokenizer. `encode_texts` and `pipeline("seq2seq")` take the languages as arguments instead. `generate()` needs
    `forced_bos_token_id=tokenizer.get_lang_id("de")` to translate into German.

    With `is_split_into_words=True`, words are encoded as they are given: in a sentence, all but the first need the
    space before them, as in `["a", " small", " dog"]`.

    Calling the tokenizer recognizes special tokens in a text, such as `</s>`, as all tokenizers of transformers do. For
    texts of users, which may contain any characters, use `encode_texts`.
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
        normalization: str | None = "NFC",
        pattern: str = PATTERN,
        languages: Sequence[str] = (),
        special_tokens: Sequence[str] = (),
        show_progress: bool = False,
        **options: Any,
    ) -> "RandomTransformerTokenizer":
        """Train a byte-level BPE vocabulary.

        Args:
            texts: the corpus, source and target together. It is read once and may be a generator.
            vocab_size: maximum size, including the special tokens and 256 bytes. A small corpus yields fewer entries.
            min_frequency: minimum count of a pair to be merged.
            normalization: the Unicode form of the normalization, see `text_normalizer`; `None` for no normalization.
            pattern: a regular expression that matches the parts of a text. BPE merges within a part only.
            languages: codes such as `"en"` and `"de"`, for a model of several languages. Each has a tag, `__en__`.
            special_tokens: other special tokens, such as `<bt>`. A special token includes the spaces after it.
            show_progress: show the trainer's progress bar.
            **options: arguments of the tokenizer itself, such as `model_max_length`, `src_lang`, `tgt_lang`,
                `keep_without_letters` and `keep_line_breaks`.

        Raises:
            ValueError: an argument is invalid, or there is no text, as in a generator that was read before.
        """
        check_iterable_of_texts("texts", texts)
        check_options(options)
        added = added_tokens(languages, special_tokens)
        check_integer("vocab_size", vocab_size, MIN_VOCAB_SIZE + len(added), "the special tokens and the 256 bytes")
        check_integer("min_frequency", min_frequency, 1, "once")
        backend = untrained_bpe(normalization, pattern)
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            min_frequency=min_frequency,
            special_tokens=[*SPECIAL_TOKENS.values(), *added],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=show_progress,
        )
        checked = TrainingTexts(texts)
        backend.train_from_iterator(checked, trainer)
        if not checked.count:
            raise ValueError("texts must contain a text, got none.")
        if checked.with_line_breaks > MIN_SHARE_OF_LINE_BREAKS * checked.count:
            options = {"keep_line_breaks": True, **options}
        if added:
            options["extra_special_tokens"] = [*map(str, added), *options.get("extra_special_tokens", [])]
        if languages:
            options = {"languages": list(languages), "src_lang": None, "tgt_lang": None, **options}
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
        return cls.train(lines_of_files(paths), vocab_size, **options)

    @classmethod
    def from_words(
        cls, words: Sequence[str], *, bos_token: str, eos_token: str, pad_token: str | None = None, **options: Any
    ) -> "RandomTransformerTokenizer":
        """Create a word-level vocabulary, with ids in the given order, for texts with words separated by spaces.

        For example the ten words of the blog post, with `bos_token="SOS", eos_token="EOS"`.

        Args:
            words: the vocabulary, including the special tokens. Words are normalized, as texts are.
            bos_token: the first word of a target.
            eos_token: the word appended to a text.
            pad_token: the padding word; `eos_token` when `None`.
            **options: arguments of the tokenizer itself. `unk_token` replaces unknown words. Without it, unknown words
                raise a ValueError.

        Raises:
            ValueError: a word is given twice, a special token is not among the words, or an option is unknown.
        """
        check_options(options)
        words = [normalize(word) for word in words]
        repeated = sorted({word for word in words if words.count(word) > 1})
        if repeated:
            raise ValueError(f"words must be unique, got {quoted_names(repeated)} more than once.")
        special = {"bos_token": bos_token, "eos_token": eos_token, "pad_token": pad_token or eos_token}
        if options.get("unk_token") is not None:
            special["unk_token"] = options["unk_token"]
        for name, token in special.items():
            if token not in words:
                raise ValueError(f"{name} must be one of the words, got {token!r}.")

        vocabulary = {word: index for index, word in enumerate(words)}
        backend = Tokenizer(models.WordLevel(vocabulary, unk_token=special.get("unk_token", "")))
        backend.normalizer = text_normalizer()
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return cls._from_backend(backend, **{**options, **special})

    # The base class stores its arguments in `init_kwargs` and saves them. It rebuilds the backend of a subclass that
    # defines `__init__`.
    init_kwargs: Any = MappingProxyType({})  # until the base class has stored the arguments

    @property
    def languages(self) -> list[str]:
        """The codes of the languages; empty for a tokenizer without language tags."""
        return list(self.init_kwargs.get("languages", ()))

    @property
    def src_lang(self) -> str | None:
        """The language of sources, one of `languages`; `None` if it is not set."""
        return self.init_kwargs.get("src_lang")

    @src_lang.setter
    def src_lang(self, code: str | None) -> None:
        self.init_kwargs["src_lang"] = None if code is None else self._check_language("src_lang", code)
        self._set_template(code)

    @property
    def tgt_lang(self) -> str | None:
        """The language of targets, one of `languages`; `None` if it is not set."""
        return self.init_kwargs.get("tgt_lang")

    @tgt_lang.setter
    def tgt_lang(self, code: str | None) -> None:
        self.init_kwargs["tgt_lang"] = None if code is None else self._check_language("tgt_lang", code)

    @property
    def keep_without_letters(self) -> bool:
        """Whether the pipeline returns texts without letters, such as numbers, unchanged. It is saved."""
        return self.init_kwargs.get("keep_without_letters", True)

    @keep_without_letters.setter
    def keep_without_letters(self, value: bool) -> None:
        check_boolean("keep_without_letters", value)
        self.init_kwargs["keep_without_letters"] = value

    @property
    def keep_line_breaks(self) -> bool:
        """Whether line breaks within a text are content, as in poems and code. It is saved.

        The default is true if more than 1% of the texts had line breaks when the vocabulary was trained.
        """
        return self.init_kwargs.get("keep_line_breaks", self.keeps_spaces)

    @keep_line_breaks.setter
    def keep_line_breaks(self, value: bool) -> None:
        check_boolean("keep_line_breaks", value)
        self.init_kwargs["keep_line_breaks"] = value

    @property
    def add_eos_token(self) -> bool:
        """Whether the end token is appended to each text, as by default. transformers reads it to add a start token."""
        has_special_tokens = self.backend_tokenizer.num_special_tokens_to_add(is_pair=False) > 0
        return self.init_kwargs.get("add_eos_token", has_special_tokens)

    @add_eos_token.setter
    def add_eos_token(self, value: bool) -> None:
        if self.languages and not value:
            raise ValueError(f"add_eos_token must be True for a tokenizer with languages, got {value!r}.")
        self.init_kwargs["add_eos_token"] = value
        self.update_post_processor()

    def get_lang_token(self, lang: str) -> str:
        """The tag of a language, such as `"__de__"`; raises a `ValueError` for an unknown language."""
        return language_tag(self._check_language("lang", lang))

    def get_lang_id(self, lang: str) -> int:
        """The id of a language's tag, for `forced_bos_token_id`; raises a `ValueError` for an unknown language."""
        return self.convert_tokens_to_ids(self.get_lang_token(lang))

    @property
    def control_tokens(self) -> list[str]:
        """The special tokens that `encode_texts` never finds in a text: padding, start, end, unknown, language tags."""
        named = (getattr(self, name) for name in SPECIAL_TOKENS)
        return [*filter(None, named), *map(language_tag, self.languages)]

    def __call__(
        self, text: Any = None, text_pair: Any = None, text_target: Any = None, *args: Any, **options: Any
    ) -> BatchEncoding:
        """Tokenize sources (`text`) and targets (`text_target`), each with the tag of its language.

        Raises:
            ValueError: a language is given, which is an argument of `encode_texts`, or a text is invalid.
            RuntimeError: the installed version of transformers does not call `_switch_to_target_mode` for targets.
        """
        if self.languages:
            for name in ("src_lang", "tgt_lang"):
                if name in options:  # they would have no effect
                    raise ValueError(
                        f"{name} must be an attribute or an argument of encode_texts, got {options[name]!r}."
                    )
            if text is not None:
                self._check_language("src_lang", self.src_lang)
        self.was_in_target_mode = False
        with self._invalid_text_errors(text, text_pair, text_target, args, options):
            encoding = super().__call__(text, text_pair, text_target, *args, **options)
        if options.get("split_special_tokens") and isinstance(self.backend_tokenizer.model, models.WordLevel):
            self._check_words(encoding)
        if text_target is not None and not self.was_in_target_mode:
            raise RuntimeError(f"targets have no language tag. {UNTESTED_ADVICE}")
        return encoding

    def encode(
        self, text: Any, text_pair: Any = None, add_special_tokens: bool = True, *args: Any, **options: Any
    ) -> list[int]:
        """The token ids of a source; raises a `ValueError` if its language is not set."""
        if self.languages and add_special_tokens:
            self._check_language("src_lang", self.src_lang)
        return super().encode(text, text_pair, add_special_tokens, *args, **options)

    def tokenize(self, text: str, *args: Any, **options: Any) -> list[str]:
        """The tokens of a text."""
        with self._invalid_text_errors(text, args, options):
            return super().tokenize(text, *args, **options)

    def add_tokens(
        self, new_tokens: str | AddedToken | Sequence[str | AddedToken], special_tokens: bool = False
    ) -> int:
        """Add words to the vocabulary.

        Returns:
            The number of new tokens. Byte-level BPE names each byte by a character, such as `"é"`. A word that is the
            name of another text's token is not added, since its id would stand for two texts.

        Raises:
            ValueError: such a word is a special token.
        """
        tokens = [new_tokens] if isinstance(new_tokens, str | AddedToken) else list(new_tokens)
        taken = [token for token in tokens if is_name_of_other_text(self.backend_tokenizer, str(token))]
        if taken and special_tokens:
            raise ValueError(f"special tokens must not be names of tokens of another text, got {str(taken[0])!r}.")
        self.__dict__.pop("texts_of_added_tokens", None)
        return super().add_tokens([token for token in tokens if token not in taken], special_tokens=special_tokens)

    @cached_property
    def texts_of_added_tokens(self) -> dict[str, str]:
        """The texts of added tokens, such as `"Straße"`, which the byte-level decoder would read as names of bytes."""
        decoder, normalizer = self.backend_tokenizer.decoder, self.backend_tokenizer.normalizer
        texts: dict[str, str] = {}
        if not isinstance(decoder, decoders.ByteLevel):
            return texts
        for token in self.added_tokens_decoder.values():
            is_normalized = token.normalized and normalizer is not None
            text = normalizer.normalize_str(token.content) if is_normalized else token.content
            for name in (token.content, text):  # the backend uses both
                if decoder.decode([name]) != text:
                    texts[name] = text
        return texts

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **options: Any) -> Any:
        """The text of token ids, or of each row of ids; see `PreTrainedTokenizerBase.decode`."""
        if not self.texts_of_added_tokens:
            return super().decode(token_ids, skip_special_tokens=skip_special_tokens, **options)
        ids = to_py_obj(token_ids)
        if isinstance(ids, int):
            ids = [ids]
        if ids and isinstance(ids[0], list | tuple):
            return [self.decode(row, skip_special_tokens, **options) for row in ids]
        skipped: set[str | None] = {None}  # the token of an id outside the vocabulary
        if skip_special_tokens:
            skipped |= {token.content for token in self.added_tokens_decoder.values() if token.special}
        tokens = self.convert_ids_to_tokens(ids)
        return self.convert_tokens_to_string([token for token in tokens if token not in skipped])

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """The text of tokens. The decoder joins the bytes of characters between added tokens."""
        texts, decode = self.texts_of_added_tokens, super().convert_tokens_to_string
        parts = []
        for is_added, group in groupby(tokens, key=texts.__contains__):
            run = list(group)
            parts += [texts[token] for token in run] if is_added else [decode(run)]
        return "".join(parts)

    def encode_texts(
        self, *args: Any, src_lang: str | None = None, tgt_lang: str | None = None, **options: Any
    ) -> BatchEncoding:
        """Tokenize texts that are data: the same as `tokenizer(...)`, but `control_tokens` in a text are plain text.

        Therefore `decode(..., skip_special_tokens=True)` restores any text. Special tokens that were declared in
        training, such as `special_tokens=["<bt>"]`, are still recognized. All entry points of the package use this
        method. It does not change the tokenizer, so several threads may call it.

        Args:
            *args: the arguments of `tokenizer(...)`.
            src_lang: language code of the sources; the tokenizer's `src_lang` when `None`.
            tgt_lang: language code of the targets; the tokenizer's `tgt_lang` when `None`.
            **options: the arguments of `tokenizer(...)`.

        Raises:
            ValueError: a language is unknown, or a text contains a control token of a word-level vocabulary, which
                cannot encode it as plain text.
        """
        tokenizer = copy.copy(self)
        tokenizer._tokenizer = self._text_backend()
        tokenizer.init_kwargs = dict(self.init_kwargs)
        for name, code in (("src_lang", src_lang), ("tgt_lang", tgt_lang)):
            if code is not None:
                tokenizer.init_kwargs[name] = self._check_language(name, code)
        return tokenizer(*args, **options, split_special_tokens=True)

    @property
    def keeps_spaces(self) -> bool:
        """Whether several spaces are content, as in code: the vocabulary has a token of them."""
        return self.backend_tokenizer.token_to_id(SPACE_TOKEN * 2) is not None

    def without_extra_spaces(self, text: str) -> str:
        """A text as it is translated: white space at its ends is removed, and other white space becomes one space.

        Several spaces are hardly visible, lines are often broken by the width of a page, and both are rare in the texts
        of a training set. Between words, they are kept if they are content; see `keeps_spaces` and `keep_line_breaks`.
        Tokenizers without normalization keep all of them.
        """
        is_byte_level = isinstance(self.backend_tokenizer.decoder, decoders.ByteLevel)
        if not is_byte_level or self.backend_tokenizer.normalizer is None:
            return text
        text = normalize(text).strip()
        if not self.keep_line_breaks:
            text = LINE_BREAKS.sub(" ", text)
        return text if self.keeps_spaces else REPEATED_SPACES.sub(" ", text)

    def _text_backend(self) -> Tokenizer:
        """A backend with the same model that recognizes declared special tokens only, even if these are split."""
        backend, control = Tokenizer(self.backend_tokenizer.model), self.control_tokens
        for part in ("normalizer", "pre_tokenizer", "post_processor"):
            setattr(backend, part, getattr(self.backend_tokenizer, part))
        # Sorted by id, so that the ids remain equal.
        added = [token for _, token in sorted(self.added_tokens_decoder.items())]
        if not self.split_special_tokens:  # otherwise the user's choice: all special tokens are plain text
            for token in added:
                token.special = token.content in control
        backend.add_tokens(added)
        return backend

    def _check_language(self, name: str, code: Any) -> str:
        if not self.languages:
            raise ValueError(f"{name} must be None for a tokenizer without languages, got {code!r}.")
        if code not in self.languages:
            raise ValueError(f"{name} must be one of {', '.join(self.languages)}, got {code!r}.")
        return code

    def _switch_to_input_mode(self) -> None:
        """Called by the base class before it tokenizes sources in a call. `encode` and `tokenize` do not call it."""
        self._use_merges(of_target=False)
        if self.languages:
            self._set_template(self.src_lang)
        elif not self.init_kwargs.get("source_eos", True):  # the end token ends targets only (OpenNMT)
            self.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B")

    def _switch_to_target_mode(self) -> None:
        """Called by the base class before it tokenizes targets."""
        self.was_in_target_mode = True
        if self.languages:
            self._set_template(self._check_language("tgt_lang", self.tgt_lang))
        elif not self.init_kwargs.get("source_eos", True):
            self._set_template(None)
        self._use_merges(of_target=True)

    def _use_merges(self, of_target: bool) -> None:
        """Split words by the merges of targets or of sources, which may differ in converted models."""
        if self.init_kwargs.get("target_merges"):
            self.backend_tokenizer.model = self._target_model if of_target else self._source_model

    def _set_template(self, lang: str | None) -> None:
        tag = None if lang is None else self.get_lang_token(lang)
        self.backend_tokenizer.post_processor = template(self.backend_tokenizer, self.eos_token, tag)

    @property
    def add_prefix_space(self) -> bool:
        """Whether a space is prepended to a text, so that its first word has the usual tokens. This is not lossless."""
        return getattr(self.backend_tokenizer.pre_tokenizer, "add_prefix_space", False)

    @add_prefix_space.setter
    def add_prefix_space(self, value: bool) -> None:
        check_boolean("add_prefix_space", value)
        pre_tokenizer = self.backend_tokenizer.pre_tokenizer
        if hasattr(pre_tokenizer, "add_prefix_space"):
            pre_tokenizer.add_prefix_space = value
        elif value:
            raise ValueError(f"add_prefix_space must be False for this tokenizer, got {value!r}.")

    @classmethod
    def _from_backend(cls, backend: Tokenizer, eos_token: str, **options: Any) -> "RandomTransformerTokenizer":
        if backend.token_to_id(eos_token) is None:
            raise ValueError(f"eos_token must be in the vocabulary, got {eos_token!r}.")
        backend.post_processor = template(backend, eos_token)
        return cls(tokenizer_object=backend, eos_token=eos_token, **options)._completed()

    def _completed(self) -> "RandomTransformerTokenizer":
        """This tokenizer, after its languages are checked, with the template of sources and the model of targets."""
        languages = self.init_kwargs.get("languages", [])
        if not isinstance(languages, list) or not all(
            isinstance(code, str) and self.backend_tokenizer.token_to_id(language_tag(code)) is not None
            for code in languages
        ):
            raise ValueError(f"languages must be a list of codes with tags in the vocabulary, got {languages!r}.")
        for name in ("src_lang", "tgt_lang"):
            code = self.init_kwargs.get(name)
            if code is not None:
                setattr(self, name, code)  # the setters check them
        merges = self.init_kwargs.get("target_merges")
        if merges:
            self._build_target_model(merges)
        self._switch_to_input_mode()
        return self

    def _build_target_model(self, merges: Sequence[str]) -> None:
        """Build the BPE model of targets, which has the vocabulary of the model of sources."""
        model = self.backend_tokenizer.model
        options = {}
        for name in ("unk_token", "end_of_word_suffix"):
            value = getattr(model, name)
            if value is not None:
                options[name] = value
        ids = self.backend_tokenizer.get_vocab(with_added_tokens=False)
        pairs: list[Any] = [tuple(merge.split(" ")) for merge in merges]
        self._source_model = model
        self._target_model = models.BPE(ids, pairs, **options)

    def train_new_from_iterator(self, *args: Any, **kwargs: Any) -> "RandomTransformerTokenizer":
        """`TokenizersBackend.train_new_from_iterator`. Sources and targets of the new tokenizer share its merges."""
        tokenizer = super().train_new_from_iterator(*args, **kwargs)
        tokenizer.init_kwargs.pop("target_merges", None)
        return tokenizer

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> "RandomTransformerTokenizer":
        """`PreTrainedTokenizerBase.from_pretrained`, with a ValueError for a file that cannot be parsed."""
        try:
            return super().from_pretrained(*args, **kwargs)._completed()
        except Exception as error:
            if type(error) is not Exception:  # the backend raises a plain Exception for files that it cannot parse
                raise
            raise ValueError(f"tokenizer.json must contain a tokenizer of the tokenizers library: {error}.") from error

    @contextmanager
    def _invalid_text_errors(self, *arguments: Any) -> Iterator[None]:
        """Raise a ValueError for invalid texts, for which the backend raises errors of general classes."""
        try:
            yield
        except Exception as error:
            self._switch_to_input_mode()  # the base class switches back only after a success
            if isinstance(error, TypeError):  # the backend's error for strings that are not valid UTF-8
                check_unicode(arguments)
            if "Missing [UNK] token" not in str(error):
                raise
            words = quoted_names(self.get_vocab())
            raise ValueError(
                f"text must consist of words in the vocabulary ({words}), since the tokenizer has no unk_token."
            ) from error

    def _check_words(self, encoding: BatchEncoding) -> None:
        """Raise an error for a control token that is a word of a text, since a word has one id only."""
        control = {*self.control_tokens} - {self.unk_token}
        for row in encoding.encodings or ():
            for token, is_added in zip(row.tokens, row.special_tokens_mask, strict=True):
                if token in control and not is_added:
                    raise ValueError(f"text must not contain the special words of the vocabulary, got {token!r}.")


def language_tag(code: str) -> str:
    """The special token of a language: `"de"` → `"__de__"`, as in `M2M100Tokenizer`."""
    return f"__{code}__"


def added_tokens(languages: Sequence[str], special_tokens: Sequence[str]) -> list[AddedToken]:
    """The special tokens in addition to `SPECIAL_TOKENS`, in the order of their ids."""
    for name, values in (("languages", languages), ("special_tokens", special_tokens)):
        if isinstance(values, str):  # each of its characters would be one of them
            raise ValueError(f"{name} must be a list of strings, got {values!r}.")
    for code in languages:
        if not isinstance(code, str) or LANGUAGE_CODE.fullmatch(code) is None:
            raise ValueError(f"languages must be codes such as 'en', 'zh-Hans' and 'eng_Latn', got {code!r}.")
    tokens = [*map(language_tag, languages), *special_tokens]
    for token in special_tokens:
        if not isinstance(token, str) or not token.strip() or token != token.strip():
            raise ValueError(f"special_tokens must be strings without spaces at their ends, got {token!r}.")
        if not token.isascii() and token in pre_tokenizers.ByteLevel.alphabet():
            raise ValueError(f"special_tokens must not be the name of a byte, got {token!r}.")
    repeated = [token for token in tokens if tokens.count(token) > 1 or token in SPECIAL_TOKENS.values()]
    if repeated:
        raise ValueError(f"languages and special_tokens must be unique, got {repeated[0]!r} more than once.")
    return [AddedToken(token, special=True, normalized=False, rstrip=token in special_tokens) for token in tokens]


def replacing(steps: Iterable[tuple[str, str]]) -> normalizers.Sequence:
    """A normalizer that replaces patterns, one after the other."""
    return normalizers.Sequence([normalizers.Replace(Regex(pattern), content) for pattern, content in steps])


def text_normalizer(form: str = "NFC", kinds: Iterable[str] = REPLACEMENTS) -> normalizers.Sequence:
    """The normalizer of new tokenizers. Texts that look equal get equal tokens.

    Control characters and invisible characters are removed, except where they change other characters. No-break and
    typographic spaces become spaces, hyphens the character of the keyboard, and ligatures their letters. Then the
    Unicode form is applied.

    Args:
        form: `"NFC"`, `"NFD"`, `"NFKC"` or `"NFKD"`.
        kinds: the kinds of replacements. Earlier versions did not replace hyphens and ligatures.
    """
    steps = [replacing(REPLACEMENTS[kind]) for kind in kinds]
    return normalizers.Sequence([*steps, getattr(normalizers, form)()])


NORMALIZER = text_normalizer()


def normalize(text: str) -> str:
    """A text after the normalization of new tokenizers, with question marks instead of lone surrogates."""
    if text.isascii() and text.isprintable():
        return text
    return NORMALIZER.normalize_str(text.encode(errors="replace").decode())


def unicode_error(text: str) -> UnicodeEncodeError | None:
    """The error of a text with lone surrogates, which stand for bytes that are not UTF-8; `None` for other texts."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error
    return None


def has_letters(text: str) -> bool:
    """Whether a text has letters. Numbers and punctuation alone are not translated."""
    return any(character.isalpha() and character not in FILLERS for character in text)


def is_iterable_of_texts(value: Any) -> bool:
    """Whether several texts can be read from a value. One text, a dictionary and a table are no iterables of texts."""
    is_iterable = hasattr(value, "__iter__") or hasattr(value, "__getitem__")
    is_table = hasattr(value, "columns")  # iterates over the names of its columns, as a dictionary does over its keys
    return is_iterable and not is_table and not isinstance(value, str | bytes | Mapping)


def check_iterable_of_texts(name: str, value: Any) -> None:
    """Raise a `ValueError` for an argument from which several texts cannot be read."""
    if not is_iterable_of_texts(value):
        raise ValueError(f"{name} must be an iterable of strings, got one {type(value).__name__}.")


def is_blank(text: str) -> bool:
    """Whether a text has no visible character."""
    return not has_letters(text) and not normalize(text).strip()


def untrained_bpe(normalization: str | None, pattern: str) -> Tokenizer:
    """A byte-level BPE model without merges."""
    if normalization not in (None, *NORMALIZATIONS):
        raise ValueError(f"normalization must be None or one of {', '.join(NORMALIZATIONS)}, got {normalization!r}.")
    backend = Tokenizer(models.BPE())
    if normalization is not None:
        backend.normalizer = text_normalizer(normalization)
    try:
        split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    except Exception as error:  # the backend has no more specific class
        raise ValueError(f"pattern must be a regular expression, got {pattern!r}: {error}.") from error
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    backend.decoder = decoders.ByteLevel()
    return backend


def template(backend: Tokenizer, eos_token: str, tag: str | None = None) -> processors.TemplateProcessing:
    """The template that appends the end token to each text, and prepends the tag of a language if there is one."""
    start, special = ([], [eos_token]) if tag is None else ([tag], [tag, eos_token])
    return processors.TemplateProcessing(
        single=[*start, "$A", eos_token],
        pair=[*start, "$A", eos_token, "$B", eos_token],
        special_tokens=[(token, backend.token_to_id(token)) for token in special],
    )


def is_name_of_other_text(backend: Tokenizer, word: str) -> bool:
    """Whether byte-level BPE has a token with the name `word` that stands for another text."""
    is_byte_level = isinstance(backend.decoder, decoders.ByteLevel)
    return is_byte_level and backend.model.token_to_id(word) is not None and backend.decoder.decode([word]) != word


def check_options(options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if name not in TOKENIZER_OPTIONS:
            raise ValueError(f"options must be among {', '.join(sorted(TOKENIZER_OPTIONS))}, got {name!r}.")
        if name in BOOLEAN_OPTIONS:
            check_boolean(name, value)
        if name == "model_max_length":
            check_integer(name, value, 1, "the end token")


def check_boolean(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}.")


def check_integer(name: str, value: Any, minimum: int, reason: str) -> None:
    if not is_int(value) or value < minimum:
        raise ValueError(f"{name} must be an integer of at least {minimum} ({reason}), got {value!r}.")


def check_unicode(value: Any) -> None:
    """Raise a ValueError for the first string with a lone surrogate, at any depth of nested containers."""
    if isinstance(value, str):
        if error := unicode_error(value):
            excerpt = value[max(0, error.start - 20) : error.start + 20]
            raise ValueError(
                f"text must not contain lone surrogates, got {value[error.start]!a} at position {error.start}, "
                f"in {excerpt!a}."
            ) from error
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            check_unicode(item)


class TrainingTexts:
    """The texts of a new vocabulary, which are read once, checked and counted."""

    def __init__(self, texts: Iterable[str]):
        self.texts = texts
        self.count = 0
        self.with_line_breaks = 0

    def __iter__(self) -> Iterator[str]:
        for text in self.texts:
            if not isinstance(text, str):
                raise ValueError(f"texts must contain only strings, got {type(text).__name__} at index {self.count}.")
            self.count += 1
            self.with_line_breaks += "\n" in text.strip()
            yield text


# Reading of text files. `train_from_files` needs it in saved folders; `data/readers.py` uses it for all other text.


def lines_of_files(paths: Iterable[str | PathLike]) -> Iterator[str]:
    for path in paths:
        with open(path, "rb") as file:
            yield from read_lines(file, str(path))


def read_lines(file: Iterable[bytes], name: str = "the file") -> Iterator[str]:
    """Decode the lines of a UTF-8 file, without their line feeds, carriage returns and byte order mark.

    Only a line feed ends a line, so a file has as many lines as `wc -l` counts. In a file without line feeds, carriage
    returns end lines. `str.splitlines()` would also split at U+2028, form feeds and other characters within a text.

    Args:
        file: a file opened in binary mode, or any other iterable of lines.
        name: name of the file in error messages.

    Raises:
        ValueError: a line is not UTF-8 or has a NUL character; the message gives its number.
    """
    for number, line in enumerate(checked_line_bytes(file, name), start=1):
        try:
            yield line.rstrip(b"\r\n").decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            hint = " It can be read as Windows-1252: save the file as UTF-8." if is_windows_1252(line) else ""
            raise ValueError(f"{name} must be UTF-8 text, but line {number} is not: {error}.{hint}") from error


def checked_line_bytes(file: Iterable[bytes], name: str) -> Iterator[bytes]:
    """The lines of a text file in an encoding that extends ASCII, after a check of their bytes.

    Args:
        file: a file opened in binary mode, or any other iterable of lines.
        name: name of the file in error messages.

    Raises:
        ValueError: the file is a spreadsheet or another document, compressed, UTF-16 or UTF-32, or a line has a NUL
            character; the message gives its number.
    """
    lines = iter(file)
    first = next(lines, b"")
    if first.startswith(BINARY_DOCUMENTS):
        raise ValueError(f"{name} must be text, got a spreadsheet or document (by its first bytes): export its texts.")
    if COMPRESSED.match(first):
        raise ValueError(f"{name} must be text, got a compressed file (by its first bytes): decompress it.")
    if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ValueError(f"{name} must be UTF-8 text, got UTF-16 or UTF-32 (by its byte order mark): save it as UTF-8.")
    if b"\n" not in first and b"\r" in first[:-1]:  # the line ends of old Macintosh computers
        first_lines = [line + b"\n" for line in first.removesuffix(b"\r").split(b"\r")]
    else:
        first_lines = [first] if first else []
    for number, line in enumerate(chain(first_lines, lines), start=1):
        if b"\0" in line:
            if max(line[::2].count(0), line[1::2].count(0)) > len(line) // 4:
                raise ValueError(
                    f"{name} must be UTF-8 text, got UTF-16 or UTF-32 (NUL bytes in line {number}): save it as UTF-8."
                )
            raise ValueError(f"{name} must be text without NUL characters, got one in line {number}.")
        yield line


def is_windows_1252(line: bytes) -> bool:
    """Whether the bytes beyond ASCII are letters or punctuation in Windows-1252, which extends Latin-1."""
    try:
        return all(char.isprintable() for char in line.rstrip(b"\r\n").decode("cp1252") if not char.isascii())
    except UnicodeDecodeError:
        return False
