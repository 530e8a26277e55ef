"""Tables that are sorted by links in their heads, and filtered by the words of a form.

Both are parameters of the page's address, so a link keeps them and no script is needed. With
scripts, app.js asks for the page again as a reader types, and replaces the tables of the page.
A list that comes in pages is sorted and filtered by the database (`jobs/search.py`), and only
its head and its form are made here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from markupsafe import Markup

from warpcall.errors import InvalidInput
from warpcall_bench.words import LONGEST, MOST_WORDS, natural, words_of
from warpcall_service.text import brief

FEW = 3  # rows that a reader sees at a glance, so that no form to filter them is shown
BEFORE = "before"  # the parameter of the pages of a list, which another order or filter ends


class Address(Protocol):
    """The address of the page that a table is on; `View` has it."""

    @property
    def query(self) -> Mapping[str, str]: ...
    def path_here(self) -> str: ...
    def here(self, changes: Mapping[str, str]) -> str: ...


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a page, as its template needs it.

    Attributes:
        name: of the table on its page; empty for the main one. Its parameters begin with it.
        rows: those that the filter leaves, in the order that the reader asked for.
        total: number of rows without the filter.
        labels: heads of the columns that sort.
        sort: label by which the rows are sorted; empty for the order in which they came.
        descending: whether the largest is first.
        filter_text: what the reader has typed.
    """

    view: Address
    name: str
    rows: Sequence[Any]
    total: int
    labels: Sequence[str]
    sort: str
    descending: bool
    filter_text: str

    @property
    def id(self) -> str:
        """Id of the element that holds the table."""
        return f"list-{self.name}" if self.name else "list"

    def head(self, label: str, classes: str = "", shown: str = "") -> Markup:
        """The cell of the table's head, with a link that sorts if the column can be sorted.

        The first click on a column of numbers or times puts the largest first.
        """
        class_ = Markup(' class="{}"').format(classes) if classes else ""
        if label not in self.labels or self.total < 2:
            return Markup("<th{}>{}</th>").format(class_, shown or label)
        is_sorted = label == self.sort
        down = not self.descending if is_sorted else "num" in classes.split()
        parameter = _parameter(self.name, "sort")
        link = self.view.here({parameter: ("-" if down else "") + label, BEFORE: ""})
        said = ""
        if is_sorted:
            said = Markup(' aria-sort="{}"').format(
                "descending" if self.descending else "ascending"
            )
        return Markup('<th{}{}><a class="sort" href="{}#{}">{}</a></th>').format(
            class_, said, link, self.id, shown or label
        )

    def form(self, what: str, as_typed: bool = True) -> Markup:
        """The form to filter the rows; nothing if they are few.

        Args:
            what: the rows, in a word for those who cannot see where the field stands.
            as_typed: whether scripts send it while a reader types; for pages that take little time.
        """
        if self.total <= FEW and not self.filter_text:
            return Markup()
        parameter = _parameter(self.name, "find")
        hidden = Markup().join(
            Markup('<input type="hidden" name="{}" value="{}">').format(name, value)
            for name, value in self.view.query.items()
            if name not in (parameter, BEFORE)
        )
        return Markup(
            '<form class="find" method="get" action="{}#{}"{}>{}'
            '<input type="search" id="{}" name="{}" value="{}" maxlength="{}" size="16" hx-preserve'
            ' placeholder="Filter" aria-label="Filter {}" autocomplete="off" spellcheck="false">'
            "<noscript><button>Filter</button></noscript></form>"
        ).format(
            self.view.path_here(),
            self.id,
            Markup(" data-live") if as_typed else "",
            hidden,
            f"find-{self.id}",
            parameter,
            self.filter_text,
            LONGEST,
            what,
        )

    def nothing(self) -> Markup:
        """What stands in place of the rows if the filter leaves none."""
        if self.rows or not self.filter_text:
            return Markup()
        link = self.view.here({_parameter(self.name, "find"): ""})
        return Markup(
            '<tr><td colspan="20" class="muted">Nothing has “{}” in it. <a href="{}#{}">All</a></td></tr>'
        ).format(self.filter_text, link, self.id)


def table(
    view: Address,
    name: str,
    rows: Iterable[Any],
    columns: Mapping[str, str],
    search: Sequence[str] = (),
) -> Table:
    """A table of rows that are all there.

    Args:
        columns: what sorts a column, by the label of its head: a path of attributes such as
            "used.requests" or, with places in lists, "leaders.0.name"; "-relative" for what falls as
            that rises. The filter reads them, too.
        search: further paths that the filter reads.

    Raises:
        InvalidInput: the reader's parameters name no column, or are too long.
    """
    found = [*rows]
    made = ordered(view, name, found, [*columns])
    if made.filter_text:
        getters = [_getter(path.removeprefix("-")) for path in (*columns.values(), *search)]
        words = words_of(made.filter_text)
        found = [row for row in found if has_words(row, getters, words)]
    if made.sort:
        path = columns[made.sort]
        get = _getter(path.removeprefix("-"))
        down = made.descending != path.startswith("-")
        known = [row for row in found if get(row) not in (None, "")]
        missing = [row for row in found if get(row) in (None, "")]
        found = sorted(known, key=lambda row: _order(get(row)), reverse=down) + missing
    return replace(made, rows=found)


def ordered(view: Address, name: str, rows: Sequence[Any], labels: Sequence[str]) -> Table:
    """A table whose rows came in the reader's order already.

    Raises:
        InvalidInput: as `table`.
    """
    sort, find = sort_of(view, name, labels), find_of(view, name)
    label, descends = sort.removeprefix("-"), sort.startswith("-")
    return Table(view, name, rows, len(rows), labels, label, descends, find)


def find_of(view: Address, name: str) -> str:
    """What the reader has typed to filter a table.

    Raises:
        InvalidInput: it is longer than a filter may be.
    """
    parameter = _parameter(name, "find")
    find = view.query.get(parameter, "").strip()
    words = len(words_of(find))
    if len(find) > LONGEST or words > MOST_WORDS:
        raise InvalidInput(
            f"{parameter} must have at most {LONGEST} characters and {MOST_WORDS} words, got "
            f"{len(find)} and {words}",
            field=parameter,
        )
    return find


def sort_of(view: Address, name: str, labels: Iterable[str]) -> str:
    """The label by which the reader wants a table to be sorted, after a - for the largest first.

    Raises:
        InvalidInput: there is no such label.
    """
    parameter = _parameter(name, "sort")
    sort = view.query.get(parameter, "")
    if sort and sort.removeprefix("-") not in labels:
        raise InvalidInput(
            f"{parameter} must be one of {', '.join(labels)}, with a - before it for the largest "
            f"first, got {brief(sort)}",
            field=parameter,
        )
    return sort


def has_words(
    row: object, getters: Sequence[Callable[[object], object]], words: Sequence[str]
) -> bool:
    """Whether a row has all words in what the getters return."""
    text = "\n".join(_text(get(row)) for get in getters).casefold()
    return all(word in text for word in words)


def _order(value: object) -> tuple[tuple[int, Any], ...]:
    return ((0, value),) if isinstance(value, (int, float)) else natural(_text(value))


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, (list, tuple)):
        return " ".join(map(_text, value))
    return str(value)


def _parameter(name: str, which: str) -> str:
    return f"{name}.{which}" if name else which


def _getter(path: str) -> Callable[[object], Any]:
    parts = path.split(".")

    def get(row: Any) -> Any:
        for part in parts:
            if row is None:
                return None
            if part.isdecimal():
                row = row[int(part)] if int(part) < len(row) else None
            else:
                row = row[part] if isinstance(row, Mapping) else getattr(row, part)
        return row

    return get
