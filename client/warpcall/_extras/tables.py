"""Results as tables: in a notebook, as rows, and for pandas."""

from __future__ import annotations

import html
import importlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

MOST_ROWS = 200  # of a table in a notebook


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

    def _repr_html_(self) -> str:
        return html_table(self.SHOWN, self.to_rows())


def html_table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """An HTML table. Everything in it is escaped; columns without a value are left out."""
    shown = [name for name in columns if any(row.get(name) not in (None, []) for row in rows)]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in shown)
    lines = [
        "".join(f"<td>{html.escape(_cell(row.get(name)))}</td>" for name in shown)
        for row in rows[:MOST_ROWS]
    ]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    more = len(rows) - MOST_ROWS
    rest = f"<p>and {more:,} more rows: see to_rows() or to_pandas()</p>" if more > 0 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
