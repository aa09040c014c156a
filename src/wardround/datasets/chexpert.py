"""CheXpert: Stanford's chest X-rays."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import numpy as np

from wardround.datasets.base import Task, register
from wardround.datasets.chest_xrays import ChestXrayParams, ChestXraySource
from wardround.datasets.csv_files import read_table
from wardround.datasets.images import Samples
from wardround.datasets.patient_groups import ages, person_groups
from wardround.errors import DataError


@register("chexpert")
class CheXpert(ChestXraySource):
    """Chest X-rays of 65,240 patients; 13 findings, what the report leaves uncertain counted as absent.

    Irvin et al., "CheXpert: a large chest radiograph dataset with uncertainty labels", AAAI 2019. The two
    tables are taken together and split anew by patient.
    """

    version = 2  # since 2 with patient groups
    task = Task.MULTILABEL
    summary = "CheXpert chest X-rays: 13 findings, uncertain counts as absent"
    licence = "Stanford University Dataset Research Use Agreement"
    origin = "https://stanfordmlgroup.github.io/competitions/chexpert"
    layout = "train.csv, valid.csv and the folders train and valid of .jpg files (CheXpert-v1.0 or -small)"
    class_names = (
        "Enlarged Cardiomediastinum", "Cardiomegaly", "Lung Opacity", "Lung Lesion", "Edema", "Consolidation",
        "Pneumonia", "Atelectasis", "Pneumothorax", "Pleural Effusion", "Pleural Other", "Fracture",
        "Support Devices",
    )  # fmt: skip

    class Params(ChestXrayParams):
        view: Literal["frontal", "lateral", "all"] = "frontal"

    params: Params

    def samples(self, folder: Path) -> Samples:
        paths: list[Path] = []
        patients: list[str] = []
        rows: list[list[float]] = []
        about: dict[str, list[str]] = {"Sex": [], "Age": []}
        for name in ("train.csv", "valid.csv"):
            table = read_table(folder / name, ["Path", "Frontal/Lateral", *self.class_names], self.origin)
            views = [view.strip().lower() for view in table["Frontal/Lateral"]]
            for row in (i for i, view in enumerate(views) if self.params.view in ("all", view)):
                paths.append(_image(folder, table["Path"][row]))
                patients.append(_patient(table["Path"][row], folder / name))
                rows.append([self._present(table[c][row], c, folder / name) for c in self.class_names])
                for column, cells in about.items():
                    cells.append(table[column][row] if column in table else "")
        if not rows:
            raise DataError(f"{folder}: train.csv and valid.csv list no image with view '{self.params.view}'")
        groups = person_groups(about["Sex"], ages(about["Age"]))
        return Samples(paths, np.array(rows, dtype=np.float32), patients, patient_groups=groups)

    def _present(self, cell: str, column: str, path: Path) -> float:
        """1 mentioned as present; 0 absent, −1 uncertain and an empty cell (not mentioned) all count as 0."""
        try:
            value = float(cell or 0)
        except ValueError:
            value = float("nan")
        if value not in (1, 0, -1):
            raise DataError(f"{path}: column '{column}' holds {cell!r}; expected 1, 0, -1 or nothing")
        return float(value == 1)


def _image(folder: Path, listed: str) -> Path:
    """Tables name images from the release's own top folder on, whatever that folder is called here."""
    parts = Path(listed).parts
    candidates: Iterable[Path] = (folder / listed, folder.joinpath(*parts[1:]))
    return next((path for path in candidates if path.is_file()), folder.joinpath(*parts[1:]))


def _patient(listed: str, path: Path) -> str:
    match = re.search(r"patient\d+", listed)
    if match is None:
        raise DataError(f"{path}: no patient number in the image path {listed!r}; expected …/patient00001/…")
    return match.group()
