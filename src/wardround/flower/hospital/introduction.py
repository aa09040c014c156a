"""How a hospital introduces itself: its name, its number of samples, whether its table fits the federation's schema.

Where the hospital's policy allows it, statistics of its columns go along (see `datasets.statistics`); no row does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from wardround import __version__ as wardround_version
from wardround.datasets import Dataset, Task
from wardround.datasets.preprocessing import Preprocessing
from wardround.datasets.schema import Schema
from wardround.datasets.schema_check import SchemaMismatch
from wardround.datasets.statistics import MIN_COUNT
from wardround.errors import ConfigError, DataError, WardroundError
from wardround.federation.client import Client
from wardround.flower.hospital.data import HospitalData, Share
from wardround.flower.hospital.memory import HospitalMemory
from wardround.flower.hospital.policy import HospitalPolicy
from wardround.flower.messages import (
    HELLO,
    MIN_COUNT_KEY,
    REFUSED_KEY,
    SCHEMA_KEY,
    TABLE_KEY,
    UNFIT_KEY,
    VERSIONS_KEY,
    Note,
    pack,
)
from wardround.flower.orders import PREPROCESSING

__all__ = ["Introducer", "Unfit", "adopt_preprocessing", "describe_dataset", "introduce"]

LARGEST_FLOOR = 10**6
LONGEST_REASON = 500
Book = Callable[[Schema], None]


class Unfit(WardroundError):
    """The hospital's data do not fit what the server asks for.

    The message is for the hospital: it has the row. `for_server` is what the server is told.
    """

    def __init__(self, message: str, for_server: str) -> None:
        super().__init__(message)
        self.for_server = for_server


class Introducer:
    """Says who a hospital is and what its data look like, and reads the data as the federation has agreed on."""

    def __init__(self, client: Client, data: HospitalData | None, memory: HospitalMemory | None) -> None:
        """`data`: the hospital's files; None where it is played, with samples that are ready."""
        self.client, self.data, self.memory = client, data, memory
        self.policy = HospitalPolicy() if memory is None else memory.policy
        self._unfit: str | None = None
        """Why its data did not fit what the server asked for, at last."""
        self._refused: str | None = None
        """Why the server did not admit it, at last."""
        self._version: Any = wardround_version
        """What the server said it runs, at last."""

    def reply(self, order: Note) -> Note:
        """The answer to `hello`; statistics that go along are logged."""
        name = self.client.name
        self._hear_refusal(order.head.get(REFUSED_KEY))
        self._hear_version(order.head.get(VERSIONS_KEY))
        if self.data is None:
            words = describe_dataset(self.client.dataset, len(self.client.data))
            return Note({"name": name, VERSIONS_KEY: versions(), **words})
        try:
            words = introduce(self.data, order.head, self.policy, self._book)
            reply = Note({"name": name, VERSIONS_KEY: versions(), **words})
            self._unfit = None
        except Unfit as unfit:
            self._report(unfit, HELLO)
            return Note({"name": name, VERSIONS_KEY: versions(), UNFIT_KEY: unfit.for_server})
        if self.memory is not None and "statistics" in reply.head.get(TABLE_KEY, {}):
            columns = sorted(reply.head[TABLE_KEY]["statistics"]["columns"])
            self.memory.log(HELLO, pack(reply), statistics=columns)
        return reply

    def _hear_refusal(self, reason: Any) -> None:
        """Print and log why the server does not admit this hospital, once for each reason."""
        words = None if reason is None else str(reason)[:LONGEST_REASON]
        if words is not None and words.isprintable() and words != self._refused:
            print(
                f"{self.client.name}: the server refuses it: {words}; fix it: the server asks again",
                flush=True,
            )
            if self.memory is not None:
                self.memory.log(HELLO, None, refused=f"by the server: {words}")
        self._refused = words

    def _hear_version(self, told: Any) -> None:
        """Print that the server runs another version, once for each."""
        theirs = told.get("wardround") if isinstance(told, dict) else None
        if theirs is None or theirs == self._version:  # a server that does not say is an older one
            return
        self._version = theirs
        if theirs != wardround_version and str(theirs).isprintable():
            print(
                f"{self.client.name}: WARNING: the server runs wardround {str(theirs)[:20]}, this hospital "
                f"{wardround_version}; install the same everywhere",
                flush=True,
            )

    def adopt(self, order: Note) -> Share | None:
        """The hospital's samples in the columns and scales of an order; None where the order has none."""
        values = order.head.get(PREPROCESSING)
        if values is None or self.data is None:
            return None
        try:
            return adopt_preprocessing(self.data, values, self.policy, self._book)
        except Unfit as unfit:
            self._report(unfit, str(order.head.get("kind")))
            raise WardroundError(unfit.for_server) from None

    def _book(self, schema: Schema) -> None:
        """Remember that the table is checked against this schema; one too many is refused."""
        if self.memory is not None:
            self.memory.check_schema(schema.hash)

    def _report(self, unfit: Unfit, kind: str) -> None:
        """Print and log why the data do not fit, once for each reason."""
        if str(unfit) == self._unfit:
            return
        self._unfit = str(unfit)
        print(f"{self.client.name}: {unfit}; fix the data: the server asks again while it runs", flush=True)
        if self.memory is not None:
            self.memory.log(kind, None, refused=str(unfit)[:LONGEST_REASON])


def versions() -> dict[str, str]:
    """What this hospital runs."""
    return {"wardround": wardround_version, "flwr": version("flwr"), "torch": version("torch")}


def describe_dataset(dataset: Dataset, samples: int) -> dict[str, Any]:
    """What data look like that are ready for a model."""
    return {
        "samples": samples,
        "task": dataset.task.value,
        "class_names": list(dataset.class_names),
        "input_shape": list(dataset.input_shape),
        "feature_names": list(dataset.feature_names),
    }


def introduce(
    data: HospitalData, head: Mapping[str, Any], policy: HospitalPolicy, book: Book
) -> dict[str, Any]:
    """What the hospital says of its data when the server asks. Raises `Unfit` where they do not fit the schema.

    `book` is told the schema before the data are checked against it.
    """
    floor = max(_floor(head), policy.min_reported)
    if SCHEMA_KEY in head:
        schema, share = _fit(data, head[SCHEMA_KEY], policy, book)
        words = _describe_schema(schema, share)
        if share.dataset.raw is not None and policy.reports_statistics:
            words[TABLE_KEY] = {
                "label": schema.label.name,
                "statistics": data.describe(share, floor).to_dict(),
            }
        return words
    description = data.describe_without_schema(floor)
    share = data.share
    if description is None:
        return describe_dataset(share.dataset, len(share.train_rows))
    table: dict[str, Any] = {"label": description.label}
    if description.time is not None:
        table["time"] = description.time
    if policy.reports_statistics:
        table["statistics"] = description.statistics.to_dict()
    return {"samples": description.statistics.rows, TABLE_KEY: table}


def adopt_preprocessing(data: HospitalData, values: Any, policy: HospitalPolicy, book: Book) -> Share:
    """The hospital's samples as an order's preprocessing has them. Raises `Unfit` where that cannot be."""
    try:
        preprocessing = Preprocessing.from_dict(values)
    except ConfigError as error:
        raise Unfit(f"the order's {error}", "the order's preprocessing cannot be read") from None
    book(preprocessing.schema)
    return _checked(lambda: data.prepare(preprocessing), policy)


def _fit(data: HospitalData, values: Any, policy: HospitalPolicy, book: Book) -> tuple[Schema, Share]:
    try:
        schema = Schema.from_dict(values, "the federation's schema")
    except ConfigError as error:
        raise Unfit(str(error), "the schema cannot be read") from None
    book(schema)
    return schema, _checked(lambda: data.load(schema), policy)


def _checked(load: Callable[[], Share], policy: HospitalPolicy) -> Share:
    try:
        return load()
    except SchemaMismatch as mismatch:
        told = mismatch.describe(show_value=policy.report_values, show_row=False)
        raise Unfit(
            f"the data do not fit the federation's schema: {mismatch}", f"its data do not fit: {told}"
        ) from None
    except (ConfigError, DataError) as error:
        raise Unfit(str(error), "its data cannot be read; its own log says why") from None


def _describe_schema(schema: Schema, share: Share) -> dict[str, Any]:
    classes, features = schema.label.classes, schema.feature_names
    return {
        "samples": len(share.train_rows),
        "task": Task.of_label(schema.label).value,
        "class_names": list(classes),
        "input_shape": [len(features)],
        "feature_names": list(features),
    }


def _floor(head: Mapping[str, Any]) -> int:
    asked = head.get(MIN_COUNT_KEY, MIN_COUNT)
    whole = isinstance(asked, int) and not isinstance(asked, bool)
    return asked if whole and 1 <= asked <= LARGEST_FLOOR else MIN_COUNT
