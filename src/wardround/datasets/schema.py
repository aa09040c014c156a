"""A schema: what the columns of all hospitals' tables mean, as people write it down in `schema.yaml`."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from wardround.errors import ConfigError
from wardround.registry import Parameters, explain
from wardround.yaml_text import read_yaml_file

__all__ = ["MOST_COLUMNS", "MOST_LEVELS", "Column", "Label", "Schema", "SchemaOption", "canonical"]

MOST_COLUMNS, MOST_LEVELS = 5_000, 200
"""Nobody's table needs more; a server or hospital that says more is not believed."""
VERSION = 1


@lru_cache(maxsize=4096)  # a table has few levels and many cells
def canonical(cell: str) -> str:
    """A cell as levels are compared: without spaces around it, and 3.0 is 3.

    >>> canonical(" 3.0"), canonical("typical"), canonical("0.70")
    ('3', 'typical', '0.7')
    """
    text = cell.strip()
    try:
        value = float(text)
    except ValueError:
        return text
    return f"{value:.12g}" if abs(value) < float("inf") else text


def _words(values: Any, key: str) -> Any:
    """Numbers in YAML lists as words; yes and no without quotes are not words for YAML."""
    if not isinstance(values, list | tuple):
        return values
    for value in values:
        if isinstance(value, bool):
            raise ValueError(
                f"{key}: {value} is how YAML reads yes, no, true or false: write it in quotes, 'yes'"
            )
    return tuple(canonical(str(value)) if isinstance(value, int | float) else value for value in values)


class Column(Parameters):
    """One feature."""

    name: str = Field(min_length=1, max_length=200)
    type: Literal["number", "category"] = "number"
    unit: str | None = Field(None, max_length=80)
    """For people; values are not converted."""
    levels: tuple[str, ...] = Field((), max_length=MOST_LEVELS)
    """The words of a category, in the order of their features."""
    other: bool = False
    """May a cell hold something else, or nothing? It is then none of the levels that are listed."""
    range: tuple[float | None, float | None] | None = None
    """Least and largest number that is allowed; null: no limit."""
    required: bool = True
    """Must every hospital have the column? One that lacks it has no value there."""
    missing: bool = True
    """May a cell be empty? A category has a feature of its own for that; a number is imputed."""
    missing_values: tuple[str, ...] = Field((), max_length=MOST_LEVELS)
    """Further cells that mean "no value": a cholesterol of 0, -9."""

    @field_validator("levels", "missing_values", mode="before")
    @classmethod
    def _as_words(cls, values: Any, info: Any) -> Any:
        return _words(values, str(info.field_name))

    @model_validator(mode="after")
    def _consistent(self) -> Column:
        where = f"column '{self.name}'"
        if self.type == "number" and (self.levels or self.other):
            raise ValueError(f"{where}: a number has no levels; say type: category")
        if self.type == "category" and not self.levels and not self.other:
            raise ValueError(f"{where}: a category needs levels (or other: true)")
        if self.type == "category" and self.range is not None:
            raise ValueError(f"{where}: a category has no range")
        if len({canonical(level) for level in self.levels}) < len(self.levels):
            raise ValueError(f"{where}: a level is listed twice")
        if self.range is not None and None not in self.range and self.range[0] > self.range[1]:  # type: ignore[operator]
            raise ValueError(
                f"{where}: range: the least must not be above the largest, got {list(self.range)}"
            )
        if not self.required and not self.missing:
            raise ValueError(f"{where}: with required: false a hospital may lack it, so missing must be true")
        return self


class Label(Parameters):
    """What is predicted."""

    name: str = Field(min_length=1, max_length=200)
    classes: tuple[str, ...] = Field(min_length=2, max_length=MOST_LEVELS)
    """Their names; of two, the positive one is the last. In YAML also a mapping of names to cells that mean them."""
    positive: str | None = None
    """Of two classes the one to predict; None: the last."""
    time: str | None = Field(None, min_length=1, max_length=200)
    """The column with the time until the event, or until a patient was lost from sight: a survival task. The label then
    says whether the event happened: its second class."""
    cells: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Class → the cells that mean it; a class that is not listed is written as its name."""

    @model_validator(mode="before")
    @classmethod
    def _classes_with_cells(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        values = dict(values)
        classes = values.get("classes")
        if isinstance(classes, Mapping):
            cells = {
                str(name): _words(list(own) if isinstance(own, list | tuple) else [own], "classes")
                for name, own in classes.items()
            }
            values["classes"], values["cells"] = tuple(cells), cells
        elif classes is not None:
            values["classes"] = _words(classes, "classes")
        if isinstance(values.get("positive"), int | float):
            values["positive"] = _words([values["positive"]], "positive")[0]
        return values

    @model_validator(mode="after")
    def _positive_last(self) -> Label:
        where, names = f"label '{self.name}'", self.classes
        if len(set(names)) < len(names):
            raise ValueError(f"{where}: a class is listed twice")
        if self.time is not None and len(names) != 2:
            raise ValueError(
                f"{where}: with a time it has two classes, censored and event, got {', '.join(names)}"
            )
        if self.time == self.name:
            raise ValueError(f"{where}: is the column of events and cannot be that of times too")
        meanings = [cell for name in names for cell in self.cells_of(name)]
        if len(set(meanings)) < len(meanings):
            raise ValueError(f"{where}: a cell stands for two classes")
        if self.positive is None:
            return self
        if len(names) != 2 or self.positive not in names:
            raise ValueError(
                f"{where}: positive must be one of two classes, got {self.positive!r} of {', '.join(names)}"
            )
        ordered = (*(name for name in names if name != self.positive), self.positive)
        object.__setattr__(self, "classes", ordered)
        return self

    def cells_of(self, name: str) -> tuple[str, ...]:
        """The cells (as levels are compared) that mean a class."""
        return tuple(canonical(cell) for cell in self.cells.get(name, (name,)))

    def index(self) -> dict[str, int]:
        """Cell → number of the class."""
        return {cell: number for number, name in enumerate(self.classes) for cell in self.cells_of(name)}


class Schema(Parameters):
    """Columns, label, and what other columns are for. Columns of a file that it does not name are not used.

    >>> schema = Schema.from_dict({
    ...     "columns": [{"name": "age", "unit": "years", "range": [0, 120]},
    ...                 {"name": "pain", "type": "category", "levels": ["none", "typical"], "required": False}],
    ...     "label": {"name": "num", "classes": {"healthy": [0], "sick": [1, 2, 3, 4]}, "positive": "sick"}})
    >>> schema.label.classes, schema.label.cells_of("sick"), schema.column("pain").required
    (('healthy', 'sick'), ('1', '2', '3', '4'), False)
    """

    columns: tuple[Column, ...] = Field(min_length=1, max_length=MOST_COLUMNS)
    label: Label
    patient: str | None = None
    """Rows with the same value are one patient's: they stay in one split."""
    client: str | None = None
    """Whose row it is, in a table of several hospitals."""
    groups: tuple[str, ...] = ()
    """Columns whose values are patient groups, to report metrics for each."""

    @model_validator(mode="after")
    def _one_role_each(self) -> Schema:
        names = [column.name for column in self.columns]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"column '{twice}' is listed twice")
        for role in ("patient", "client"):
            if getattr(self, role) in (*names, self.label.name):
                raise ValueError(f"column '{getattr(self, role)}' is given two roles")
        if self.label.name in names:
            raise ValueError(f"column '{self.label.name}' is the label and cannot be a feature")
        if self.label.time in (*names, self.patient, self.client) and self.label.time is not None:
            raise ValueError(f"column '{self.label.time}' is the time to the event and can be nothing else")
        return self

    def column(self, name: str) -> Column:
        """The column of this name."""
        return next(column for column in self.columns if column.name == name)

    @property
    def numbers(self) -> list[Column]:
        """The columns of numbers, in order."""
        return [column for column in self.columns if column.type == "number"]

    @property
    def categories(self) -> list[Column]:
        """The columns of words, in order."""
        return [column for column in self.columns if column.type == "category"]

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The features that a model gets: numbers, then one for every level, and for a missing one."""
        names = [column.name for column in self.numbers]
        for column in self.categories:
            names += [f"{column.name}={level}" for level in column.levels]
            names += [f"{column.name}=missing"] if column.missing else []
        return tuple(names)

    @property
    def hash(self) -> str:
        """The same for the same schema, however it is written down."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Plain values without the defaults: what goes into a file."""
        values: dict[str, Any] = {
            "version": VERSION,
            "columns": [column.non_default() for column in self.columns],
            "label": self.label.non_default(),
        }
        if self.label.cells:
            del values["label"]["cells"]
            values["label"]["classes"] = {
                name: list(self.label.cells_of(name)) for name in self.label.classes
            }
        for role in ("patient", "client", "groups"):
            if value := getattr(self, role):
                values[role] = list(value) if isinstance(value, tuple) else value
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "schema") -> Schema:
        """The schema in plain values; a mistake is one line that begins with `where`."""
        if not isinstance(values, Mapping):
            raise ConfigError(f"{where}: expected keys and values (columns, label)")
        own = dict(values)
        version = own.pop("version", VERSION)
        if version != VERSION:
            raise ConfigError(
                f"{where}: version {version!r} of schemas is not known; this program has {VERSION}"
            )
        try:
            return cls(**own)
        except ValidationError as error:
            raise ConfigError(f"{where}: {explain(error, cls)}") from None
        except TypeError as error:
            raise ConfigError(f"{where}: keys must be words ({error})") from None

    @classmethod
    def load(cls, path: Path) -> Schema:
        """Read `schema.yaml` (or JSON)."""
        values = read_yaml_file(Path(path), hint="; make it by `wardround schema infer`")
        return cls.from_dict(values, str(path))

    @classmethod
    def infer(cls, *files: Path, label: str, **options: Any) -> Schema:
        """A first schema out of tables, for people to edit (see `schema_inference.infer_schema`)."""
        from wardround.datasets.schema_inference import infer_schema

        return infer_schema(files, label, **options).schema

    def dump(self) -> str:
        """The text of `schema.yaml`, one line per column."""
        values = self.to_dict()
        lines = [f"version: {values['version']}", "columns:"]
        lines += [f"  - {_flow(column)}" for column in values["columns"]]
        lines += [f"{key}: {_flow(values[key])}" for key in values if key not in ("version", "columns")]
        return "\n".join(lines) + "\n"


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # pydantic has an old method `schema` of its own, which nobody here calls

    class SchemaOption(Parameters):
        """The option `schema` of those who take one."""

        schema: Path | dict[str, Any] | None = None  # type: ignore[assignment]
        """What the columns mean: a file (`wardround schema infer` writes one), or its content."""

        def given_schema(self) -> Schema | None:
            """The schema that is given, read and checked."""
            given = self.schema
            if given is None:
                return None
            return Schema.from_dict(given) if isinstance(given, Mapping) else Schema.load(given)


def _flow(value: Any) -> str:
    """A value on one line of YAML."""
    return (
        yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=100_000, allow_unicode=True)
        .removesuffix("\n")
        .removesuffix("\n...")
    )
