"""ISIC 2019: dermoscopic images of skin lesions."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from wardround.datasets.augmentation import ANY_WAY_UP
from wardround.datasets.base import Task, register, split_units
from wardround.datasets.csv_files import numbers, read_table
from wardround.datasets.images import ImageFileSource, ImageParams, Samples, find_images
from wardround.datasets.patient_groups import ages, person_groups
from wardround.errors import DataError


@register("isic2019")
class Isic2019(ImageFileSource):
    """Dermoscopic images of eight diagnoses; by default melanoma against the rest.

    Tschandl et al. 2018 (HAM10000), Codella et al. 2017 (MSK), Hernández-Pérez et al. 2024 (BCN20000).
    """

    version = 2  # since 2 with patient groups
    task = Task.BINARY
    summary = "ISIC 2019 skin lesions: melanoma against the rest (task=multiclass: 8 diagnoses)"
    licence = "CC BY-NC 4.0"
    origin = "https://challenge.isic-archive.com/data/#2019"
    layout = (
        "ISIC_2019_Training_GroundTruth.csv, ISIC_2019_Training_Metadata.csv and the folder "
        "ISIC_2019_Training_Input of .jpg files"
    )
    class_names = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
    needs_every_class = False  # melanoma against the rest asks for no squamous cell carcinoma
    augmentation = ANY_WAY_UP
    load_only = frozenset({"augment", "task", "stratified"})

    class Params(ImageParams):
        new: ClassVar[frozenset[str]] = frozenset({"stratified"})

        task: Literal["binary", "multiclass"] = "binary"
        stratified: bool = False
        """Whether train, validation and test have the same share of each class. No lesion is in two of them either
        way."""

    params: Params

    def samples(self, folder: Path) -> Samples:
        truth = read_table(
            folder / "ISIC_2019_Training_GroundTruth.csv", ["image", *self.class_names], self.origin
        )
        about = read_table(folder / "ISIC_2019_Training_Metadata.csv", ["image", "lesion_id"], self.origin)
        lesion_of = dict(zip(about["image"], about["lesion_id"], strict=True))
        path = folder / "ISIC_2019_Training_GroundTruth.csv"
        votes = np.column_stack([numbers(truth[name], name, path) for name in self.class_names])
        said = votes.sum(1) == 1
        if not said.all():
            image = truth["image"][int((~said).argmax())]
            raise DataError(
                f"{path}: image {image} has not exactly one of the diagnoses {', '.join(self.class_names)}"
            )
        names = truth["image"]
        # A lesion without an id is a lesion of its own; the id's prefix is the clinic that sent it.
        lesions = [lesion_of.get(name, "") or name for name in names]
        sites = [
            lesion.split("_")[0] if lesion_of.get(name) else "unknown"
            for lesion, name in zip(lesions, names, strict=True)
        ]
        row_of = {name: row for row, name in enumerate(about["image"])}
        rows = [row_of.get(name) for name in names]
        return Samples(
            paths=find_images(folder / "ISIC_2019_Training_Input", names, ".jpg"),
            targets=votes.argmax(1),
            units=lesions,
            groups=sites,
            patient_groups=person_groups(
                _cells(about, "sex", rows), ages(_cells(about, "age_approx", rows)), sites
            ),
        )

    def labels(self, targets: np.ndarray) -> tuple[Task, tuple[str, ...], np.ndarray]:
        if self.params.task == "multiclass":
            return Task.MULTICLASS, self.class_names, targets
        return Task.BINARY, ("other", "melanoma"), (targets == self.class_names.index("MEL")).astype(np.int64)

    def parts(
        self, units: np.ndarray, labels: np.ndarray, seed: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return split_units(units, seed, strata=labels if self.params.stratified else None)


def _cells(table: dict[str, list[str]], column: str, rows: list[int | None]) -> list[str] | None:
    """A column's cells of these rows, "" where the table has no such row; None where it has no such column."""
    cells = table.get(column)
    return None if cells is None else ["" if row is None else cells[row] for row in rows]
