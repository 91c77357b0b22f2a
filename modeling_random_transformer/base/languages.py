"""Names and codes of languages."""

from transformers.models.whisper.tokenization_whisper import LANGUAGES


def language_name(code: str) -> str:
    """The English name of a language, or its code if it is unknown."""
    name = LANGUAGES.get(code.lower())
    return name.title() if name else code


def without_region(code: str) -> str:
    """The language of a code with a region or a script, in lower case: `"pt"` of `"pt-BR"`, `"zh"` of `"zh_Hans"`."""
    return canonical_code(code).partition("-")[0]


def canonical_code(code: str) -> str:
    """A language code in lower case, with hyphens."""
    return code.replace("_", "-").lower()
