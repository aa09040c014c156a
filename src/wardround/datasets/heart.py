"""UCI heart disease: four hospitals, a natural federation."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from wardround.datasets.base import Dataset, Task, register
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

    def raw_files(self, folder: Path | None) -> Iterable[Path]:
        assert folder is not None
        files = [folder / f"processed.{hospital}.data" for hospital in HOSPITALS]
        for path in files:
            if not path.is_file():
                raise DataError(f"{path} does not exist; expected: {self.layout}; get it from {self.origin}")
        return files

    def build(self, folder: Path | None, work: Workspace) -> dict[str, Any]:
        tables = [_read(path) for path in self.raw_files(folder)]
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


def _read(path: Path) -> np.ndarray:
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
    for name in ZERO_IS_MISSING:
        column = cells[:, COLUMNS.index(name)]
        column[column == 0] = np.nan
    if np.isnan(cells[:, -1]).any():
        row = int(np.isnan(cells[:, -1]).argmax()) + 1
        raise DataError(f"{path}, line {row}: no diagnosis in the last column")
    return cells
