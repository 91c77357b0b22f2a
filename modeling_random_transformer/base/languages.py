"""Names and codes of languages."""

from collections.abc import Iterable

from transformers.models.whisper.tokenization_whisper import LANGUAGES


def language_name(code: str) -> str:
    """The English name of a language with this code, or the code of an unknown one."""
    name = LANGUAGES.get(code.lower())
    return name.title() if name else code


def without_region(code: str) -> str:
    """The language of a code with a region or a script, in lower case: `"pt"` of `"pt-BR"`, `"zh"` of `"zh_Hans"`."""
    return canonical_code(code).partition("-")[0]


def matching_code(code: str, available: Iterable[str]) -> str | None:
    """The code that names the same language: in another spelling, or else with a region that only one of them has.

    `"es"` matches `"ES"`, otherwise the first of `"es-ES"` and `"es_MX"`; `"es-MX"` matches `"es"`, but not `"es-ES"`.
    """
    wanted = canonical_code(code)
    candidates = {name: canonical_code(name) for name in available}
    same = [name for name, candidate in candidates.items() if candidate == wanted]
    for name, candidate in candidates.items():
        if candidate.startswith(f"{wanted}-") or wanted.startswith(f"{candidate}-"):
            same.append(name)
    return same[0] if same else None


def canonical_code(code: str) -> str:
    """A code of a language in lower case, with hyphens."""
    return code.replace("_", "-").lower()
