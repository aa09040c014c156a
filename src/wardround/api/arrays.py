"""A user's arrays as rows to train on: numpy, torch, pandas or lists, and what is wrong with them in one line."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wardround.api.frames import raw_columns
from wardround.datasets.base import Task
from wardround.datasets.in_memory import Rows
from wardround.datasets.label_words import choose_positive
from wardround.errors import ConfigError, DataError, WardroundWarning

__all__ = ["Samples", "read_inputs", "read_samples"]

MOST_CLASSES = 50


@dataclass(frozen=True, eq=False)
class Samples:
    """Everybody's rows, with one meaning of classes and columns."""

    clients: dict[str | None, Rows]
    task: Task
    class_names: tuple[str, ...]
    feature_names: tuple[str, ...]


def read_samples(
    clients: Mapping[str, Any] | Mapping[None, Any], positive: object = None, raw: bool = False
) -> Samples:
    """Check the clients' arrays and bring them to one form.

    Args:
        clients: Client → (X, y); the only key None where nobody is named.
        positive: Of two labels the one to predict; None: the words say it, or the later in order.
        raw: X are tables with gaps and words, which are preprocessed later.
    """
    if not clients:
        raise ConfigError("clients: give at least one, as {'name': (X, y), …}")
    inputs: dict[str | None, Tensor] = {}
    columns: dict[str | None, dict[str, np.ndarray]] = {}
    labels: dict[str | None, np.ndarray] = {}
    names: tuple[str, ...] = ()
    for client, pair in clients.items():
        where = "dataset" if client is None else f"client '{client}'"
        x, y = _pair(pair, where)
        names = names or tuple(map(str, getattr(x, "columns", ())))
        labels[client] = _labels(y, where)
        if raw:
            columns[client] = raw_columns(x, where)
            inputs[client] = torch.empty((len(next(iter(columns[client].values()), ())), 0))
        else:
            inputs[client] = read_inputs(x, where)
        if len(inputs[client]) != len(labels[client]):
            raise DataError(f"{where}: X has {len(inputs[client])} rows, y has {len(labels[client])}")
        if not len(inputs[client]):
            raise DataError(f"{where} has no rows")
    _check_alike(inputs)
    dimensions = {client: values.ndim for client, values in labels.items()}
    if len(set(dimensions.values())) > 1:
        raise DataError("some clients have one label per row, others several: y must have one form for all")
    if 2 in dimensions.values():
        samples = _several_labels(inputs, labels, names)
    else:
        samples = _one_label(inputs, labels, names, positive)
    if not raw:
        return samples
    if samples.task is Task.MULTILABEL:
        raise DataError("preprocessing is for tables with one label per row; y has several columns")
    return replace(
        samples,
        clients={client: replace(rows, columns=columns[client]) for client, rows in samples.clients.items()},
    )


def _pair(pair: Any, where: str) -> tuple[Any, Any]:
    if isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2:
        return pair[0], pair[1]
    raise ConfigError(f"{where}: expected a pair (X, y), got {type(pair).__name__}")


def read_inputs(values: Any, where: str) -> Tensor:
    """X as float32; an error that says where a value is no finite number."""
    columns = list(map(str, getattr(values, "columns", ())))
    array = _array(values)
    if array.dtype.kind not in "biuf":
        word = next(((row, column) for row, column in _cells(values, array)), None)
        shown = "" if word is None else f" ({word[1]} holds {word[0]!r})"
        raise DataError(
            f"{where}: X must be numbers{shown}; encode words first, or use a CSV file as the dataset"
        )
    if array.ndim < 2:
        raise DataError(
            f"{where}: X must be rows × features, got the shape {array.shape}; try X.reshape(-1, 1)"
        )
    array = array.astype(np.float32, copy=False)
    if not np.isfinite(array).all():
        place = np.argwhere(~np.isfinite(array))[0]
        bad = int((~np.isfinite(array)).sum())
        column = columns[place[1]] if len(columns) > place[1] else place[1]
        raise DataError(
            f"{where}: X holds {bad} NaN or infinite value(s), the first in row {place[0]}, column {column}; "
            "fill gaps before training, for example with the median"
        )
    return torch.tensor(array)  # a copy: the user's array may change while it is trained on


def _cells(values: Any, array: np.ndarray) -> Any:
    """(cell, column) of every cell that is no number."""
    columns = list(getattr(values, "columns", range(array.shape[1] if array.ndim > 1 else 1)))
    for row in array.reshape(len(array), -1)[:1000]:
        for column, cell in zip(columns, row, strict=False):
            if not isinstance(cell, int | float | np.number):
                yield cell, f"column {column}"


def _array(values: Any) -> np.ndarray:
    if isinstance(values, Tensor):
        return values.detach().cpu().numpy()
    if hasattr(values, "to_numpy"):
        return np.asarray(values.to_numpy())
    try:
        return np.asarray(values)
    except ValueError as error:
        raise DataError(f"not an array of numbers: {error}") from None


def _labels(values: Any, where: str) -> np.ndarray:
    array = _array(values)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim not in (1, 2):
        raise DataError(
            f"{where}: y must have one label per row (or a column per finding), got {array.shape}"
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise DataError(f"{where}: y holds NaN or infinite values; leave rows without a label out")
    if array.dtype.kind == "O" and any(
        value is None or (isinstance(value, float) and value != value) for value in array.flat
    ):
        raise DataError(f"{where}: y holds empty labels; leave rows without a label out")
    return array


def _check_alike(inputs: Mapping[str | None, Tensor]) -> None:
    (first, one), *others = inputs.items()
    for client, tensor in others:
        if tensor.shape[1:] != one.shape[1:]:
            raise DataError(
                f"client '{client}': a row of X has the shape {tuple(tensor.shape[1:])}, one of client '{first}' "
                f"{tuple(one.shape[1:])}; all clients need the same columns"
            )


def _several_labels(
    inputs: dict[str | None, Tensor], labels: dict[str | None, np.ndarray], names: tuple[str, ...]
) -> Samples:
    widths = {values.shape[1] for values in labels.values()}
    if len(widths) > 1:
        raise DataError(f"y has {sorted(widths)} columns at different clients; all need the same findings")
    for client, values in labels.items():
        if not np.isin(values, (0, 1)).all():
            raise DataError(
                f"client '{client}': several columns of y are findings, each 0 or 1 in every row; times and events "
                "are read from a table: dataset={'name': 'csv', 'file': …, 'time': …, 'event': …}"
            )
    rows = {
        client: Rows(inputs[client], torch.tensor(values.astype(np.float32)))
        for client, values in labels.items()
    }
    findings = tuple(f"finding {i}" for i in range(widths.pop()))
    return Samples(rows, Task.MULTILABEL, findings, names)


def _one_label(
    inputs: dict[str | None, Tensor],
    labels: dict[str | None, np.ndarray],
    names: tuple[str, ...],
    positive: object,
) -> Samples:
    known = sorted({value for values in labels.values() for value in values.tolist()}, key=_order)
    if len(known) < 2:
        raise DataError(f"every row has the label {known[0]!r}; two classes are needed")
    if len(known) > MOST_CLASSES:
        raise DataError(
            f"y has {len(known)} different values, more than {MOST_CLASSES}: a number to predict is not a class"
        )
    if positive is not None:
        if len(known) != 2 or positive not in known:
            raise ConfigError(f"positive={positive!r} must be one of two labels, y has {known}")
        known = [*(value for value in known if value != positive), positive]
    elif len(known) == 2 and isinstance(known[1], str):
        known = _positive_last(known)
    elif len(known) == 2:
        known = _with_positive_last(known)
    index = {value: i for i, value in enumerate(known)}
    rows = {
        client: Rows(inputs[client], torch.tensor([index[value] for value in values.tolist()]))
        for client, values in labels.items()
    }
    task = Task.BINARY if len(known) == 2 else Task.MULTICLASS
    return Samples(rows, task, tuple(map(_word, known)), names)


def _with_positive_last(labels: list[Any]) -> list[Any]:
    """Two labels with the one to predict last; says so where no word tells which one that is."""
    chosen = choose_positive([_word(label) for label in labels])
    one, other = labels
    ordered = [one, other] if _word(other) == chosen.name else [other, one]
    if not chosen.is_known:
        warnings.warn(
            f"y is {_word(ordered[0])} or {chosen.name}, and {chosen.name} is taken for the one to predict; "
            f"say positive={ordered[0]!r} if it is the other one",
            WardroundWarning,
            stacklevel=2,
        )
    return ordered


def _positive_last(known: list[Any]) -> list[Any]:
    """Two words with the one to predict last; says so where no word tells which one that is."""
    positive = choose_positive(list(map(str, known)))
    ordered = sorted(known, key=lambda value: str(value) == positive.name)
    if not positive.is_known:
        warnings.warn(
            f"y is {ordered[0]!r} or {ordered[1]!r}, and {ordered[1]!r} is taken for the one to predict; say "
            f"positive={ordered[0]!r} if it is the other one",
            WardroundWarning,
            stacklevel=5,
        )
    return ordered


def _order(value: object) -> tuple[bool, Any]:
    """Numbers before words, each in their own order."""
    return isinstance(value, str), value


def _word(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(int(value) if isinstance(value, bool) else value)
