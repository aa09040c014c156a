"""SUPPORT2, embedded: death in hospital of 9,105 critically ill adults."""

from __future__ import annotations

import csv
import gzip
import io
from functools import lru_cache
from importlib import resources
from typing import ClassVar, Literal

import numpy as np

from wardround.datasets.base import Dataset, DatasetSource, Parameters, Task, register
from wardround.datasets.patient_groups import person_groups
from wardround.datasets.table import Table
from wardround.datasets.tabular import built_in_schema, tabular_dataset
from wardround.survival import encode

# What is only known after the fact, what foresees it (other models' and doctors' survival estimates), or
# what the outcome itself decides (costs, orders not to resuscitate, days).
LEAKS = {
    "death", "d.time", "slos", "sfdm2", "charges", "totcst", "totmcst", "surv2m", "surv6m", "prg2m",
    "prg6m", "dnr", "dnrday", "hday", "avtisst",
}  # fmt: skip
LABEL, PATIENT = "hospdead", "sno"
TIME, EVENT = "d.time", "death"
"""Days of follow-up, and whether the patient died in that time: the survival task."""
LEVELS = {
    "sex": ("female", "male"),
    "dzgroup": (
        "ARF/MOSF w/Sepsis", "CHF", "COPD", "Cirrhosis", "Colon Cancer", "Coma", "Lung Cancer", "MOSF w/Malig",
    ),
    "dzclass": ("ARF/MOSF", "COPD/CHF/Cirrhosis", "Cancer", "Coma"),
    "income": ("$11-$25k", "$25-$50k", ">$50k", "under $11k"),
    "race": ("asian", "black", "hispanic", "other", "white"),
    "ca": ("metastatic", "no", "yes"),
}  # fmt: skip
"""What SUPPORT2's description says of its categories."""
CLASS_NAMES = ("survived", "died in hospital")
SURVIVAL_NAMES = ("censored", "died")


@register("icu")
class Icu(DatasetSource):
    """In-hospital death from what is known of a patient on day 3 in intensive care; with `task: survival` the time to
    death, at any place, in up to 2029 days of follow-up.

    Knaus et al., "The SUPPORT prognostic model", Annals of Internal Medicine 122(3), 1995.

    >>> from wardround import datasets
    >>> data = datasets.create("icu").load(seed=0)
    >>> len(data.train) + len(data.validation) + len(data.test)
    9105
    """

    task = Task.BINARY
    summary = "SUPPORT2: in-hospital death of 9,105 critically ill adults (embedded)"
    licence = "CC BY 4.0"
    origin = "embedded; UCI Machine Learning Repository, data set 880"

    class Params(Parameters):
        new: ClassVar[frozenset[str]] = frozenset({"task"})

        task: Literal["binary", "survival"] = "binary"
        """Death in hospital, or the time to death."""

    params: Params

    def load(self, seed: int) -> Dataset:
        survival = self.params.task == "survival"
        table = _table(survival)
        label, time, names = (EVENT, TIME, SURVIVAL_NAMES) if survival else (LABEL, None, CLASS_NAMES)
        schema = built_in_schema(list(table.numeric), LEVELS, label, names, ("income", "race"), time)
        return tabular_dataset(self.name, Task.of_label(schema.label), names, table, seed, schema)


@lru_cache(maxsize=1)
def _table(survival: bool) -> Table:
    """The embedded file, read once for all seeds of a process."""
    packed = resources.files("wardround.datasets").joinpath("files/support2.csv.gz").read_bytes()
    rows = list(csv.DictReader(io.StringIO(gzip.decompress(packed).decode())))
    columns = [c for c in rows[0] if c not in LEAKS | {LABEL, PATIENT}]

    def numbers(column: str) -> np.ndarray:
        return np.array([float(row[column] or "nan") for row in rows])

    targets = np.array([int(row[LABEL]) for row in rows])
    if survival:
        targets = encode(numbers(TIME), numbers(EVENT) == 1)
    return Table(
        numeric={c: numbers(c) for c in columns if c not in LEVELS},
        categorical={c: np.array([row[c] for row in rows]) for c in LEVELS},
        targets=targets,
        units=[row[PATIENT] for row in rows],
        patient_groups=person_groups([row["sex"] for row in rows], numbers("age")),
    )
