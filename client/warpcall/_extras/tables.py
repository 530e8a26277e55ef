"""Results as tables: in a notebook, as rows, and for pandas."""

from __future__ import annotations

import html
import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

MOST_ROWS = 200  # of a table in a notebook

T = TypeVar("T")


class Table:
    """Base of results that are rows.

    Attributes:
        SHOWN: the columns that a notebook shows; `to_rows` has all of them.
    """

    SHOWN: ClassVar[tuple[str, ...]] = ()

    def to_rows(self) -> list[dict[str, Any]]:
        """The rows, each as a dict by the names of the columns."""
        raise NotImplementedError

    def to_pandas(self) -> Any:
        """The rows as a pandas.DataFrame.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            raise ImportError("to_pandas needs pandas: pip install pandas") from None
        return pandas.DataFrame(self.to_rows())

    def __repr__(self) -> str:
        # All fields of all rows would fill many screens.
        count = len(self.to_rows())
        rows = "1 row" if count == 1 else f"{count:,} rows"
        return f"{type(self).__name__} of {rows}: see to_rows() or to_pandas()"

    def __str__(self) -> str:
        """The table that the command line prints."""
        # By its name, as pandas: the command line is a part that needs all of the SDK, and takes
        # 200 ms to import. No other module of the SDK may need it.
        text: str = importlib.import_module("warpcall._cli.printed").text_of(self)
        return text

    def _repr_html_(self) -> str:
        return html_table(self.SHOWN, self.to_rows())


class Listed(list[T]):
    """A list of objects that a notebook shows as a table.

    Args:
        columns: the attributes that the table shows.
    """

    def __init__(self, items: Iterable[T] = (), columns: Sequence[str] = ()) -> None:
        super().__init__(items)
        self._columns = tuple(columns)

    def _repr_html_(self) -> str | None:
        return table_of_objects(self._columns, self)


def table_of_objects(columns: Sequence[str], items: Sequence[object]) -> str | None:
    """An HTML table of these attributes of some objects.

    Returns:
        None without objects, so that a notebook shows what `repr` has.
    """
    if not items:
        return None
    rows = [{name: getattr(one, name) for name in columns} for one in items]
    return html_table(columns, rows, "")


def html_table(
    columns: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    hint: str = ": see to_rows() or to_pandas()",
) -> str:
    """An HTML table. Everything in it is escaped; columns without a value are left out.

    Args:
        hint: how to see the rows that do not fit.
    """
    shown = [name for name in columns if any(_has_value(row.get(name)) for row in rows)]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in shown)
    lines = [
        "".join(f"<td>{html.escape(_cell(row.get(name)))}</td>" for name in shown)
        for row in rows[:MOST_ROWS]
    ]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    more = len(rows) - MOST_ROWS
    rest = f"<p>and {more:,} more rows{hint}</p>" if more > 0 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"


def _has_value(value: object) -> bool:
    # Not `value == None`, which is true for numpy's float64.
    return value is not None and not (isinstance(value, list) and not value)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
