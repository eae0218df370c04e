"""Tables whose columns are declared once, for the page and for its CSV file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from django.db.models import QuerySet
from django.http import HttpResponse
from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from console.widgets import csv_file

Row = TypeVar("Row")
Cell = SafeString | str


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column: its title, the cell of a row on a page, and the value of a row in a file.

    A column without `cell` is in files only, a column without `value` on pages only.
    """

    title: str
    cell: Callable[[Row], Cell] | None = None
    value: Callable[[Row], str] | None = field(default=None, kw_only=True)
    is_number: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Generic[Row]):
    """Rows with their columns. `is_cut` is true if there are more rows; `css` has additional CSS classes."""

    title: str
    columns: Sequence[Column[Row]]
    rows: Sequence[Row]
    is_cut: bool = False
    css: str = ""

    @classmethod
    def of(cls, title: str, columns: Sequence[Column[Any]], rows: "QuerySet[Any]", *, most: int) -> "Table[Any]":
        """Return a table with the first `most` rows of a query set."""
        # One row more than shown: its presence means that there are more, without counting them.
        found = list(rows[: most + 1])
        return cls(title=title, columns=columns, rows=found[:most], is_cut=len(found) > most)

    @property
    def shown(self) -> list[Column[Row]]:
        """The columns of the page."""
        return [column for column in self.columns if column.cell is not None]

    @property
    def lines(self) -> list[tuple[Row, list[tuple[Column[Row], Cell]]]]:
        """Each row with its cells on the page and their columns."""
        return [(row, [(column, column.cell(row)) for column in self.columns if column.cell]) for row in self.rows]

    @property
    def html(self) -> SafeString:
        """The table for a field of a read-only form."""
        return render_to_string("console/table.html", {"table": self})

    def csv_file(self, name: str) -> HttpResponse:
        """Return the table as a CSV file to download."""
        columns = [(column.title.lower(), column.value) for column in self.columns if column.value is not None]
        rows = ([value(row) for _, value in columns] for row in self.rows)
        return csv_file(name, [[title for title, _ in columns], *rows])
