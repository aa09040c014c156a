"""Published figures beside ours: the section `published:` of a matrix, and the table it becomes.

A matrix that repeats somebody else's experiment says under `published:` what they printed. `wardround matrix` then
prints our figures beside theirs; see docs/anchors.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field, ValidationError, field_validator, model_validator

from wardround.analysis.clients import own_metrics
from wardround.analysis.measures import MEASURES, Measured
from wardround.analysis.rendering import Cell, Table, plus_minus, signed
from wardround.analysis.statistics import describe
from wardround.errors import ConfigError, did_you_mean
from wardround.registry import Parameters, explain

__all__ = ["Figure", "Published", "Reproduced", "published_table", "read_published", "reproduce"]

ALL_CLIENTS = "all"
"""In place of a client: the figure on the whole test split."""
Value = float | tuple[float, float]
"""A published figure, or the figure and its standard deviation over seeds."""


class Figure(Parameters):
    """What was published about one kind of run."""

    label: str
    """What the source calls it."""
    where: dict[str, Any] = {}
    """Dotted key → value: the runs that it is about. A section may give a part of its keys; null: not given."""
    value: Value | None = None
    """The figure on the whole test split: a number, or `[mean, standard deviation]`."""
    clients: dict[str, Value] = {}
    """Client → the figure on that client's own test samples."""
    groups: dict[str, dict[str, Value]] = {}
    """Attribute → patient group → the figure on the test samples of that group: `{site: {va: 0.64}}`."""
    measure: str | None = None
    """None: that of the whole section."""
    tolerance: float | None = Field(None, gt=0)
    """None: that of the whole section."""
    note: str = ""
    """Why a figure does not come out, or what else must be known; printed below the table."""

    @model_validator(mode="after")
    def _says_something(self) -> Figure:
        if self.value is None and not self.clients and not self.groups:
            raise ValueError(f"'{self.label}' has no figure; give value, clients or groups")
        return self

    @field_validator("measure")
    @classmethod
    def _known_measure(cls, name: str | None) -> str | None:
        return None if name is None else _measure(name)


class Published(Parameters):
    """The section `published:` of a matrix."""

    source: str
    """Who published the figures, and where."""
    measure: str = "auroc"
    """Which of our measures (the columns of runs.csv of `wardround analyze`) the figures are."""
    tolerance: float = Field(gt=0)
    """The largest difference that counts as reproduced."""
    percent: bool = False
    """The source prints per cent: 95.9 instead of 0.959."""
    figures: tuple[Figure, ...] = Field(min_length=1)
    note: str = ""
    """What must be known about the comparison; printed below the table."""

    @field_validator("measure")
    @classmethod
    def _known_measure(cls, name: str) -> str:
        return _measure(name)


@dataclass(frozen=True)
class Reproduced:
    """One published figure and ours."""

    label: str
    client: str
    """The client or patient group; `all`: the whole test split."""
    measure: str
    published: float
    published_sd: float | None
    ours: float | None
    """The mean over seeds; None where no run is about it, or no run has the measure."""
    sd: float | None
    seeds: int
    tolerance: float

    @property
    def difference(self) -> float | None:
        """Ours minus theirs."""
        return None if self.ours is None else self.ours - self.published

    @property
    def within(self) -> bool | None:
        """Is it within the tolerance, or within the published spread over seeds? None where we have no figure."""
        if self.difference is None:
            return None
        return abs(self.difference) <= max(self.tolerance, self.published_sd or 0.0) + 1e-9


def read_published(matrix: Mapping[str, Any], where: str = "matrix") -> Published | None:
    """The section `published:` of a matrix, checked; None where it has none."""
    values = matrix.get("published")
    if values is None:
        return None
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}: published must have the keys {', '.join(Published.model_fields)}")
    try:
        return Published(**values)
    except ValidationError as error:
        raise ConfigError(f"{where}: published: {explain(error, Published)}") from None
    except TypeError as error:
        raise ConfigError(f"{where}: published: keys must be words ({error})") from None


def reproduce(published: Published, measured: Sequence[Measured]) -> list[Reproduced]:
    """Every published figure with ours, in the order in which the section has them."""
    unit = 0.01 if published.percent else 1.0
    result = []
    for figure in published.figures:
        members = [m for m in measured if _is_about(figure.where, m.run.config)]
        measure = figure.measure or published.measure
        tolerance = figure.tolerance or published.tolerance
        for place, value, values in _places(figure, measure, members):
            ours = describe([one for one in values if one is not None])
            mean, spread = value if isinstance(value, tuple) else (value, None)
            result.append(
                Reproduced(
                    figure.label,
                    place,
                    measure,
                    mean * unit,
                    _times(spread, unit),
                    None if ours is None else ours.mean,
                    None if ours is None else ours.sd,
                    0 if ours is None else ours.n,
                    tolerance * unit,
                )
            )
    return result


def _places(
    figure: Figure, measure: str, members: Sequence[Measured]
) -> Iterator[tuple[str, Value, list[float | None]]]:
    """Where a figure was measured, what was published for it, and ours of every run."""
    if figure.value is not None:
        yield ALL_CLIENTS, figure.value, [m[measure] for m in members]
    for client, value in figure.clients.items():
        yield client, value, [own_metrics(m.run, measure).get(client) for m in members]
    for attribute, of_group in figure.groups.items():
        for group, value in of_group.items():
            figures = [m.run.details.groups.get(attribute, {}).get(group, {}).get(measure) for m in members]
            own = [one if isinstance(one, float) else None for one in figures]
            yield group, value, own


def published_table(published: Published, measured: Sequence[Measured], key: str = "published") -> Table:
    """Published and own figures side by side, with the difference and whether it is within the tolerance."""
    lines = reproduce(published, measured)
    per_client = any(line.client != ALL_CLIENTS for line in lines)
    several = len({line.measure for line in lines}) > 1
    factor, digits = (100, 1) if published.percent else (1, 3)  # in the unit of the source
    rows: list[list[Cell]] = []
    for line in lines:
        words: list[Cell] = [line.label]
        words += [line.client] if per_client else []
        words += [MEASURES[line.measure].heading] if several else []
        rows.append(
            [
                *words,
                plus_minus(line.published * factor, _times(line.published_sd, factor), digits),
                plus_minus(_times(line.ours, factor), _times(line.sd, factor), digits),
                line.seeds,
                None if line.difference is None else signed(line.difference * factor, digits),
                {True: "yes", False: "no", None: None}[line.within],
            ]
        )
    known = [line for line in lines if line.within is not None]
    heading = "" if several else f"{MEASURES[published.measure].heading}: "
    reproduced = sum(bool(line.within) for line in known)
    points = "per cent points " if published.percent else ""
    notes = [
        f"Ours: mean ± standard deviation over seeds. Within: at most {published.tolerance:g} {points}from the "
        "published figure, where no other tolerance is said, or within its own spread over seeds. "
        f"{reproduced} of {len(known)} are."
    ]
    if len(known) < len(lines):
        missing = len(lines) - len(known)
        notes.append(
            f"{missing} of {len(lines)} figures have none of ours: no finished run, or too few samples."
        )
    notes += [published.note] if published.note else []
    notes += [f"{figure.label}: {figure.note}" for figure in published.figures if figure.note]
    names = ["run", *(["client"] if per_client else []), *(["measure"] if several else [])]
    return Table(
        key,
        f"{heading}ours beside {published.source}",
        [*names, "published", "ours", "seeds", "difference", "within"],
        rows,
        tuple(notes),
        words=len(names),
    )


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _measure(name: str) -> str:
    if name not in MEASURES:
        raise ValueError(f"no measure '{name}'; {did_you_mean(name, MEASURES)}")
    return name


def _is_about(where: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    return all(_agrees(value, _value(config, key)) for key, value in where.items())


def _value(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _agrees(wanted: Any, actual: Any) -> bool:
    """Does a value of a configuration, with all its defaults, have all that is wanted of it?

    >>> _agrees({"name": "nnm"}, {"name": "nnm", "f": 2}), _agrees(None, []), _agrees([{"name": "arc"}], [])
    (True, True, False)
    """
    if wanted is None or wanted == []:
        return actual is None or actual == [] or actual == ()
    if isinstance(wanted, Mapping):
        return isinstance(actual, Mapping) and all(_agrees(v, actual.get(k)) for k, v in wanted.items())
    if isinstance(wanted, list):
        return (
            isinstance(actual, list | tuple)
            and len(wanted) == len(actual)
            and all(_agrees(one, other) for one, other in zip(wanted, actual, strict=True))
        )
    return bool(wanted == actual)
