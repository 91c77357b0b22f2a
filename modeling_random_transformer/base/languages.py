"""Names of languages."""

from transformers.models.whisper.tokenization_whisper import LANGUAGES


def language_name(code: str) -> str:
    """The English name of a language with this code, or the code of an unknown one."""
    name = LANGUAGES.get(code.lower())
    return name.title() if name else code
