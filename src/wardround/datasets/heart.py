"""UCI heart disease: four hospitals, a natural federation."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from wardround.datasets.base import Dataset, Parameters, Task, register
from wardround.datasets.csv_files import numbers
from wardround.datasets.patient_groups import person_groups
from wardround.datasets.prepared_cache import Cache, PreparedSource, Workspace
from wardround.datasets.table import Table
from wardround.datasets.tabular import built_in_schema, tabular_dataset
from wardround.errors import DataError

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
COLUMNS = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca",
    "thal", "num",
)  # fmt: skip
LEVELS = {
    "cp": ("1", "2", "3", "4"),
    "restecg": ("0", "1", "2"),
    "slope": ("1", "2", "3"),
    "thal": ("3", "6", "7"),
}
CLASS_NAMES = ("no disease", "disease")
SEX_NAMES = {0.0: "female", 1.0: "male"}
# A serum cholesterol or a blood pressure of 0 is not a measurement: Switzerland writes missing ones so.
ZERO_IS_MISSING = ("chol", "trestbps")
FLAMBY_DROPS = ("slope", "ca", "thal")
FLAMBY_TRAIN, FLAMBY_SEED = 0.66, 43


@register("heart")
class Heart(PreparedSource):
    """Coronary artery disease (a narrowing of more than half) from 13 findings, in four hospitals.

    Detrano et al., "International application of a new probability algorithm for the diagnosis of coronary
    artery disease", American Journal of Cardiology 64, 1989.
    """

    task = Task.BINARY
    summary = "UCI heart disease, four hospitals (natural split)"
    licence = "CC BY 4.0"
    origin = "UCI Machine Learning Repository, data set 45 (https://archive.ics.uci.edu/dataset/45)"
    layout = "a folder with " + ", ".join(f"processed.{name}.data" for name in HOSPITALS)

    class Params(Parameters):
        new: ClassVar[frozenset[str]] = frozenset({"variant"})

        variant: Literal["full", "flamby"] = "full"
        """`flamby`: rows, columns and split of FLamby's Fed-Heart-Disease. Columns slope, ca and thal and all rows with
        a gap are left out (740 rows stay), a zero is a value, chest pain and ECG are indicators without the first
        level, and 66 % of each hospital's rows are for training, whatever the seed; none are for validation."""

    params: Params

    def raw_files(self, folder: Path | None) -> Iterable[Path]:
        assert folder is not None
        files = [folder / f"processed.{hospital}.data" for hospital in HOSPITALS]
        for path in files:
            if not path.is_file():
                raise DataError(f"{path} does not exist; expected: {self.layout}; get it from {self.origin}")
        return files

    def build(self, folder: Path | None, work: Workspace) -> dict[str, Any]:
        zeros = () if self.params.variant == "flamby" else ZERO_IS_MISSING
        tables = [_read(path, zeros) for path in self.raw_files(folder)]
        with work.writing("rows.npz") as path, path.open("wb") as file:
            np.savez(
                file,
                cells=np.concatenate(tables),
                hospital=np.repeat(np.arange(len(HOSPITALS)), [len(table) for table in tables]),
            )
        work.progress("hospitals", len(HOSPITALS), len(HOSPITALS))
        return {
            name: {"rows": len(table), "disease": int((table[:, -1] > 0).sum())}
            for name, table in zip(HOSPITALS, tables, strict=True)
        }

    def read(self, cache: Cache, seed: int) -> Dataset:
        with np.load(cache / "rows.npz") as stored:
            cells, hospital = stored["cells"], stored["hospital"]
        if self.params.variant == "flamby":
            return self._as_flamby(cells, hospital, cache.facts)
        columns = dict(zip(COLUMNS, cells.T, strict=True))
        words = {
            name: np.array(["" if np.isnan(value) else f"{value:g}" for value in columns[name]])
            for name in LEVELS
        }
        table = Table(
            numeric={name: columns[name] for name in COLUMNS[:-1] if name not in LEVELS},
            categorical=words,
            targets=(columns["num"] > 0).astype(np.int64),
            units=np.arange(len(cells)),
            groups=[HOSPITALS[i] for i in hospital],
            facts=cache.facts,
            patient_groups=person_groups(
                [SEX_NAMES.get(code, "") for code in columns["sex"]],
                columns["age"],
                [HOSPITALS[i] for i in hospital],
            ),
        )
        schema = built_in_schema(
            list(table.numeric), LEVELS, "num", CLASS_NAMES, ("restecg", "slope", "thal")
        )
        return tabular_dataset(self.name, self.task, CLASS_NAMES, table, seed, schema)

    def _as_flamby(self, cells: np.ndarray, hospital: np.ndarray, facts: dict[str, Any]) -> Dataset:
        """The dataset of du Terrail et al., "FLamby", NeurIPS 2022, Datasets and Benchmarks."""
        used = [COLUMNS.index(name) for name in COLUMNS if name not in FLAMBY_DROPS]
        whole = ~np.isnan(cells[:, used]).any(1)
        cells, hospital = cells[whole], hospital[whole]
        columns = dict(zip(COLUMNS, cells.T, strict=True))
        numeric = {n: columns[n] for n in COLUMNS[:-1] if n not in LEVELS and n not in FLAMBY_DROPS}
        for name in ("cp", "restecg"):
            numeric |= {
                f"{name}={level}": (columns[name] == float(level)).astype(float) for level in LEVELS[name][1:]
            }
        targets, names = (columns["num"] > 0).astype(np.int64), [HOSPITALS[i] for i in hospital]
        table = Table(
            numeric=numeric,
            categorical={},
            targets=targets,
            units=np.arange(len(cells)),
            groups=names,
            facts=facts,
            patient_groups=person_groups(
                [SEX_NAMES.get(code, "") for code in columns["sex"]], columns["age"], names
            ),
        )
        schema = built_in_schema(list(numeric), {}, "num", CLASS_NAMES)
        parts = _split_as_flamby(targets, hospital)
        return tabular_dataset(self.name, self.task, CLASS_NAMES, table, 0, schema, parts=parts)


def _split_as_flamby(targets: np.ndarray, hospital: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows for training, none, and rows for testing: by class where a hospital has three of each, with a fixed seed."""
    from sklearn.model_selection import train_test_split

    train: list[np.ndarray] = []
    test: list[np.ndarray] = []
    for number in range(len(HOSPITALS)):
        own = np.flatnonzero(hospital == number)
        counts = np.unique(targets[own], return_counts=True)[1]
        stratify = targets[own] if len(counts) > 1 and counts.min() > 2 else None
        chosen = train_test_split(
            np.arange(len(own)),
            test_size=1.0 - FLAMBY_TRAIN,
            train_size=FLAMBY_TRAIN,
            random_state=FLAMBY_SEED,
            shuffle=True,
            stratify=stratify,
        )
        train.append(own[np.sort(chosen[0])])
        test.append(own[np.sort(chosen[1])])
    return np.concatenate(train), np.empty(0, dtype=np.int64), np.concatenate(test)


def _read(path: Path, zero_is_missing: Iterable[str]) -> np.ndarray:
    """rows × 14 numbers, NaN where missing."""
    lines = [
        line.split(",")
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n")
        if line.strip()
    ]
    for number, line in enumerate(lines, 1):
        if len(line) != len(COLUMNS):
            raise DataError(f"{path}, line {number}: {len(line)} values, expected {len(COLUMNS)}")
    if not lines:
        raise DataError(f"{path} is empty")
    cells = np.column_stack([
        numbers([line[i] for line in lines], name, path) for i, name in enumerate(COLUMNS)
    ])  # fmt: skip
    for name in zero_is_missing:
        column = cells[:, COLUMNS.index(name)]
        column[column == 0] = np.nan
    if np.isnan(cells[:, -1]).any():
        row = int(np.isnan(cells[:, -1]).argmax()) + 1
        raise DataError(f"{path}, line {row}: no diagnosis in the last column")
    return cells
