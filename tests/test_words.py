"""The check for replaced words finds them in names, comments and pages, and passes other words."""

from __future__ import annotations

import pytest

from tools.check_words import check


@pytest.mark.parametrize(
    "text",
    [
        "class HttpxRoad:",
        "direct_road = 1",
        "ROADS = ()",
        "# memory that is lent on",
        "The user gets his answer.",
        "errand.py",
    ],
)
def test_a_replaced_word_is_found_in_any_form(text: str) -> None:
    assert list(check("service/some.py", text))


@pytest.mark.parametrize("text", ["broadcast", "aggregate(x)", "history", "knowledge", "delegate"])
def test_a_word_that_only_contains_one_is_no_finding(text: str) -> None:
    assert list(check("service/some.py", text)) == []


def test_the_changelog_may_name_what_was_renamed() -> None:
    assert list(check("CHANGELOG.md", "- `Road` -> `Transport`")) == []
    assert list(check("CHANGELOG.md", "- the road")) != []
