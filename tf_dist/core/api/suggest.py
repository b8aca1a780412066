"""Suggestions for words that are not known."""

from __future__ import annotations

from collections.abc import Iterable


def nearest_word(word: str, known: Iterable[str], cutoff: float = 0.7) -> str:
    """The known word most like this one, "" if none is: case does not count, ``Comand`` is near ``command``."""
    import difflib  # only after a mistake: it is slow to import

    by_folded = {name.casefold(): name for name in known}
    found = difflib.get_close_matches(word.casefold(), by_folded, n=1, cutoff=cutoff)
    return by_folded[found[0]] if found else ""


def suggestion(word: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """The hint for a word that is not known: the nearest known one, else ``otherwise``, by default all known ones."""
    names = list(known)
    if near := nearest_word(word, names):
        return f"did you mean {near}?"
    return f"known: {', '.join(names)}" if otherwise is None else otherwise
