"""Names and codes of languages."""

from transformers.models.whisper.tokenization_whisper import LANGUAGES


def language_name(code: str) -> str:
    """The English name of a language with this code, or the code of an unknown one."""
    name = LANGUAGES.get(code.lower())
    return name.title() if name else code


def without_region(code: str) -> str:
    """The language of a code with a region or a script, in lower case: `"pt"` of `"pt-BR"`, `"zh"` of `"zh_Hans"`."""
    return canonical_code(code).partition("-")[0]


def canonical_code(code: str) -> str:
    """A code of a language in lower case, with hyphens."""
    return code.replace("_", "-").lower()
