"""Selects the language of a file that matches a language code."""

from collections.abc import Iterable

from ...base.languages import canonical_code


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
