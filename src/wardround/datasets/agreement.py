"""A schema that nobody wrote: columns, levels and classes that clients' statistics have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from wardround.datasets.schema import MOST_LEVELS, Column, Label, Schema
from wardround.datasets.statistics import CategoryStatistics, NumberStatistics, TableStatistics
from wardround.errors import DataError

__all__ = ["agree_on_columns", "agree_on_label"]


def _needed(clients: int) -> int:
    """How many clients must have what is to be used: one alone cannot add anything, if there are others to ask."""
    return 1 if clients < 3 else 2


def agree_on_label(
    labels: Mapping[str, str],
    clients: Mapping[str, TableStatistics],
    times: Mapping[str, str | None] | None = None,
) -> Label:
    """The label that most clients name, with the classes that two of them have (one, if there are fewer than three).

    Args:
        labels: Client → name of its label column.
        clients: Client → statistics, whose classes are in the client's order: of two the positive one is the last.
        times: Client → the column of times of a survival task, None for other tasks. What most clients say of those
            with that label decides.
    """
    name = Counter(labels[client] for client in sorted(labels)).most_common(1)[0][0]
    of_label = [clients[client] for client in sorted(clients) if labels.get(client) == name]
    holders = Counter(cls for client in of_label for cls in client.classes)
    classes = [cls for cls, count in holders.items() if count >= _needed(len(clients))]
    if len(classes) < 2:
        raise DataError(
            f"the hospitals have {len(classes)} classes of label '{name}' in common ({', '.join(classes) or 'none'}), "
            "two are needed: give a schema (federation.schema)"
        )
    orders = Counter(tuple(cls for cls in client.classes if cls in classes) for client in of_label)
    whole = [order for order, _ in orders.most_common() if len(order) == len(classes)]
    said = Counter((times or {}).get(client) for client in sorted(labels) if labels[client] == name)
    time = said.most_common(1)[0][0]
    return Label(name=name, classes=whole[0] if whole else tuple(sorted(classes)), time=time)


def agree_on_columns(clients: Mapping[str, TableStatistics], label: Label) -> Schema:
    """A schema out of what clients say of their tables, where nobody wrote one.

    A column is used if two clients have it (one, if there are fewer than three): one client alone cannot add any. Its
    type is what most say. Its levels are all that somebody has said; a cell with another one is none of them.
    """
    needed = _needed(len(clients))
    said: dict[str, list[NumberStatistics | CategoryStatistics]] = {}
    for client in sorted(clients):
        for name, column in clients[client].columns.items():
            if column.count or column.missing < 1:  # a column without a value is as good as none
                said.setdefault(name, []).append(column)
    columns = [
        _agreed_column(name, own, len(clients))
        for name, own in said.items()
        if len(own) >= needed and name not in (label.name, label.time)
    ]
    if not columns:
        raise DataError("the clients' tables have no column in common")
    numbers_first = sorted(columns, key=lambda column: column.type != "number")
    return Schema(columns=tuple(numbers_first), label=label)


def _agreed_column(name: str, said: Sequence[NumberStatistics | CategoryStatistics], clients: int) -> Column:
    words = [one for one in said if isinstance(one, CategoryStatistics)]
    required = len(said) == clients
    if 2 * len(words) < len(said):
        return Column(name=name, required=required)
    holders = Counter(level for one in words for level in one.levels)
    most_common = sorted(holders, key=lambda level: (-holders[level], level))[:MOST_LEVELS]
    gaps = not required or any(one.missing > 0 for one in said)
    return Column(
        name=name,
        type="category",
        levels=tuple(sorted(most_common)),
        other=True,
        required=required,
        missing=gaps,
    )
