"""Names of languages, for the lists that servers and packages show."""

from transformers.models.whisper.tokenization_whisper import LANGUAGES


def language_name(code: str) -> str:
    """The English name of a language, or its code if it is unknown."""
    name = LANGUAGES.get(code.lower())
    return name.title() if name else code
