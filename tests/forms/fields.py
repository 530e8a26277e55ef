"""The fields of forms as a browser would send them, and the errors that a page shows."""

from __future__ import annotations

import itertools
import re
from html import unescape
from html.parser import HTMLParser
from typing import Any

import httpx

MARKUP = '<img src=x onerror="alert(1)">'
_numbers = itertools.count(1)


class _Fields(HTMLParser):
    """The fields of a page with the values that a browser would send."""

    def __init__(self) -> None:
        super().__init__()
        self.fields: dict[str, list[str]] = {}
        self._select = self._area = ""
        self._chosen: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        name, value = given.get("name") or "", given.get("value") or ""
        if tag == "input" and given.get("type") in ("checkbox", "radio"):
            if "checked" in given:
                self._add(name, value)
        elif tag == "input" and given.get("type") != "file":
            self._add(name, value)
        elif tag == "select":
            self._select, self._chosen = name, None
        elif tag == "option" and self._select and ("selected" in given or self._chosen is None):
            self._chosen = given.get("value")
            if self._chosen is None:
                self._chosen = "\0"  # the text that follows
        elif tag == "textarea":
            self._area = name
            self._add(name, "")

    def handle_data(self, data: str) -> None:
        if self._area:
            self.fields[self._area][-1] += data
        elif self._select and self._chosen == "\0":
            self._chosen = data

    def handle_endtag(self, tag: str) -> None:
        if tag == "select":
            self._add(self._select, self._chosen or "")
            self._select = ""
        elif tag == "textarea":
            self._area = ""

    def _add(self, name: str, value: str) -> None:
        self.fields.setdefault(name, []).append(value)


def fields_of(page: httpx.Response) -> dict[str, list[str]]:
    """What a browser would send if the only form of a page were submitted unchanged."""
    found = _Fields()
    found.feed(page.text)
    return found.fields


def errors_of(page: httpx.Response) -> dict[str, str]:
    """The errors that a page shows, by the name of the field; "" is the one above the form."""
    found = re.findall(r'<p class="error" id="([^"]+)-error">(.*?)</p>', page.text, re.DOTALL)
    errors = {name: unescape(text) for name, text in found}
    above = re.search(r'role="alert"><p>(.*?)</p>', page.text, re.DOTALL)
    return {**errors, **({"": unescape(above[1])} if above else {})}


def filled(page: httpx.Response, **changes: Any) -> dict[str, Any]:
    """The fields of a page's form with some changed; "__" in a name stands for "."."""
    return {**fields_of(page), **{name.replace("__", "."): v for name, v in changes.items()}}


def new_word() -> str:
    """A word that no other test uses."""
    return f"word{next(_numbers)}"
