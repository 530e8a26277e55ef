"""Suggests names in errors about attributes that do not exist."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from warpcall._text import did_you_mean


class Suggests:
    """Base of classes with a method for each op. Its AttributeError names the op that was meant.

    Python itself suggests only names that differ by a few letters, and "softmax" for
    "masked_softmax" by more.
    """

    if not TYPE_CHECKING:  # a type checker would otherwise let all names pass

        def __getattr__(self, name: str) -> NoReturn:
            # It is called for names that were not found, also before __init__ ran, as by pickle.
            kind = type(self)
            text = f"{kind.__name__!r} object has no attribute {name!r}"
            if name.startswith("_"):
                raise AttributeError(text, name=name, obj=self)
            known = [known for known in dir(kind) if not known.startswith("_")]
            meant = did_you_mean(name, known)
            # For an error with an `obj` Python would add a suggestion of its own.
            raise AttributeError(text + meant, name=name, obj=None if meant else self)
