"""Records as a table: rows to loop over, columns by name, a DataFrame where one is wanted."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar, overload

from wardround.errors import ParameterError, did_you_mean
from wardround.records import ClientRecord, RoundRecord

__all__ = ["Records", "client_row", "round_row"]

Record = TypeVar("Record")
SHOWN = 10
"""Rows that are shown of a longer table: half of them its first, half its last."""
WIDEST = 12
"""Columns that are shown of a wider table."""


class Records(Sequence[Record], Generic[Record]):
    """A table of records.

    Iterating and integers give records, a name gives a column, a slice a shorter table.

    >>> table = Records([ClientRecord(1, "a", weight=0.5), ClientRecord(1, "b", weight=0.25)], client_row)
    >>> table["client"], table[1].weight, len(table[:1])
    (['a', 'b'], 0.25, 1)
    >>> table.select(client="b")["weight"]
    [0.25]
    """

    def __init__(self, records: Sequence[Record], row: Callable[[Record], Mapping[str, Any]]) -> None:
        """`row` gives a record's cells by column."""
        self._records, self._row = list(records), row

    @cached_property
    def _cells(self) -> list[Mapping[str, Any]]:
        return [self._row(record) for record in self._records]

    @cached_property
    def columns(self) -> list[str]:
        """The names of the columns, in the order in which records bring them."""
        return list(dict.fromkeys(name for cells in self._cells for name in cells))

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    @overload
    def __getitem__(self, key: int) -> Record: ...
    @overload
    def __getitem__(self, key: slice) -> Records[Record]: ...
    @overload
    def __getitem__(self, key: str) -> list[Any]: ...
    def __getitem__(self, key: int | slice | str) -> Record | Records[Record] | list[Any]:
        if isinstance(key, str):
            self._check(key)
            return [cells.get(key) for cells in self._cells]
        if isinstance(key, slice):
            return Records(self._records[key], self._row)
        return self._records[key]

    def select(self, **values: Any) -> Records[Record]:
        """The rows in which these columns have these values."""
        for name in values:
            self._check(name)
        kept = [
            record
            for record, cells in zip(self._records, self._cells, strict=True)
            if all(cells.get(name) == value for name, value in values.items())
        ]
        return Records(kept, self._row)

    def _check(self, name: str) -> None:
        if name not in self.columns:
            raise ParameterError(f"no column {name!r}; {did_you_mean(name, self.columns)}")

    def to_pandas(self) -> Any:
        """The table as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(list(self._cells), columns=self.columns)

    def __repr__(self) -> str:
        names, lines = self._shown()
        cells = [names, *([_text(cells.get(name)) for name in names] for cells in lines)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(names))]
        shown = [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells
        ]
        if len(lines) < len(self):
            shown.insert(1 + SHOWN // 2, "…")
        return "\n".join([*shown, self._size()])

    def _repr_html_(self) -> str:
        names, lines = self._shown()
        head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
        rows = [
            "<tr>" + "".join(f"<td>{html.escape(_text(cells.get(name)))}</td>" for name in names) + "</tr>"
            for cells in lines
        ]
        if len(lines) < len(self):
            rows.insert(SHOWN // 2, f'<tr><td colspan="{len(names)}">…</td></tr>')
        return (
            f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
            f"<p>{html.escape(self._size())}</p>"
        )

    def _shown(self) -> tuple[list[str], list[Mapping[str, Any]]]:
        cells = self._cells
        if len(cells) > SHOWN:
            cells = [*cells[: SHOWN // 2], *cells[-SHOWN // 2 :]]
        return self.columns[:WIDEST], cells

    def _size(self) -> str:
        hidden = self.columns[WIDEST:]
        more = f"; also: {', '.join(hidden)}" if hidden else ""
        return f"[{len(self)} rows × {len(self.columns)} columns{more}]"


def round_row(record: RoundRecord) -> dict[str, Any]:
    """A round as cells: its test metrics, who was left out, and how long it took."""
    return {
        "round": record.round,
        **(record.metrics or {}),
        "left_out": ", ".join(record.left_out) or None,
        "skipped": record.skipped,
        "seconds": round(sum(record.seconds.values()), 6),
        **{f"validation_{name}": value for name, value in (record.validation or {}).items()},
    }


def client_row(record: ClientRecord) -> dict[str, Any]:
    """A client in a round as cells: as `clients.jsonl` has them."""
    return record.line()


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 0.001 and value else f"{value:.3f}"
    return str(value)
