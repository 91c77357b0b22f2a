"""Codes of languages."""


def without_region(code: str) -> str:
    """The language of a code with a region or a script, in lower case: `"pt"` of `"pt-BR"`, `"zh"` of `"zh_Hans"`."""
    return canonical_code(code).partition("-")[0]


def canonical_code(code: str) -> str:
    """A language code in lower case, with hyphens."""
    return code.replace("_", "-").lower()
