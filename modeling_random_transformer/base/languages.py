"""Names of languages."""

from transformers.models.whisper.tokenization_whisper import LANGUAGES


def language_name(code: str) -> str:
    """The English name of a language with this code, or the code of an unknown one."""
    name = LANGUAGES.get(code.lower())
    return name.title() if name else code


def without_region(code: str) -> str:
    """The language of a code with a region or a script, in lower case: `"pt"` of `"pt-BR"`, `"zh"` of `"zh_Hans"`."""
    return code.replace("_", "-").partition("-")[0].lower()
