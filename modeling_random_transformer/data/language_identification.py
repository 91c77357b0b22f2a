"""Language identification with py3langid, an optional package.

py3langid (BSD license, a model of 139 languages in 5 MB, no download) is a naive Bayes classifier of byte sequences
(Lui and Baldwin 2012). docs/how_to/clean.md has measurements.
"""


class LanguageFilter:
    """Accepts texts unless they are identified as another language with a sufficient probability.

    Short texts are accepted: their probabilities are small.

    Args:
        language: ISO 639 code of the language.
        min_probability: the least probability of another language to reject a text, 0 to 1.
        argument: name of the argument in error messages.

    Raises:
        ValueError: py3langid is not installed or does not know the language.
    """

    def __init__(self, language: str, min_probability: float, argument: str = "language"):
        try:
            from py3langid.langid import MODEL_FILE, LanguageIdentifier
        except ImportError as error:
            raise ValueError(
                f"{argument} requires py3langid: pip install 'random-transformer[langid]', got {language!r} without it."
            ) from error
        identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        if language not in identifier.labels:
            raise ValueError(f"{argument} must be one of {', '.join(sorted(identifier.labels))}, got {language!r}.")
        self._classify = identifier.classify
        self._language, self._min_probability = language, min_probability

    def __call__(self, text: str) -> bool:
        language, probability = self._classify(text)
        return language == self._language or probability < self._min_probability
