"""HAM10000: dermoscopic images of skin lesions."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from wardround.datasets.augmentation import ANY_WAY_UP
from wardround.datasets.base import Task, register, split_units
from wardround.datasets.csv_files import read_table
from wardround.datasets.images import ImageFileSource, ImageParams, Samples, find_images
from wardround.datasets.patient_groups import ages, person_groups
from wardround.errors import DataError

PAPERS_SHARES = (8910 / 10015, 0.0, 1105 / 10015)
"""Train, validation and test of Alkhunaizi et al., "Suppressing poisoning attacks on federated learning for medical
imaging", MICCAI 2022: images drawn one by one, and none to validate on."""


@register("ham10000")
class Ham10000(ImageFileSource):
    """Dermoscopic images of seven diagnoses, several of one lesion among them.

    Tschandl, Rosendahl and Kittler, "The HAM10000 dataset", Scientific Data 5, 2018.
    """

    version = 2  # since 2 with patient groups
    task = Task.MULTICLASS
    summary = "HAM10000 skin lesions: 7 diagnoses"
    licence = "CC BY-NC 4.0"
    origin = "https://doi.org/10.7910/DVN/DBW86T"
    layout = "HAM10000_metadata.csv and the folders HAM10000_images_part_1 and HAM10000_images_part_2 of .jpg files"
    class_names = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
    augmentation = ANY_WAY_UP

    load_only = frozenset({"augment", "split"})

    class Params(ImageParams):
        new: ClassVar[frozenset[str]] = frozenset({"split"})

        size: int = Field(128, ge=8, le=1024)
        split: Literal["lesion", "image"] = "lesion"
        """What is drawn for train, validation and test: whole lesions (70, 10 and 20 %), or single images (89, 0 and
        11 %, as the DOS paper has them), whose test images may be of lesions that were trained on."""

    params: Params

    def samples(self, folder: Path) -> Samples:
        # The archive's own download has no ending; the widespread one has.
        places = [folder / "HAM10000_metadata.csv", folder / "HAM10000_metadata"]
        path = next((place for place in places if place.is_file()), places[0])
        table = read_table(path, ["lesion_id", "image_id", "dx"], self.origin)
        targets = np.array([self._diagnosis(word, path) for word in table["dx"]])
        return Samples(
            paths=find_images(folder, table["image_id"], ".jpg"),
            targets=targets,
            units=table["lesion_id"],
            groups=table.get("dataset"),
            patient_groups=person_groups(table.get("sex"), ages(table.get("age")), table.get("dataset")),
        )

    def parts(
        self, units: np.ndarray, labels: np.ndarray, seed: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if self.params.split == "image":
            return split_units(np.arange(len(units)), seed, PAPERS_SHARES)
        return super().parts(units, labels, seed)

    def _diagnosis(self, word: str, path: Path) -> int:
        if word not in self.class_names:
            raise DataError(
                f"{path}: unknown diagnosis {word!r} in column 'dx'; known: {', '.join(self.class_names)}"
            )
        return self.class_names.index(word)
