"""HAM10000: dermoscopic images of skin lesions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydantic import Field

from wardround.datasets.augmentation import ANY_WAY_UP
from wardround.datasets.base import Task, register
from wardround.datasets.csv_files import read_table
from wardround.datasets.images import ImageFileSource, ImageParams, Samples, find_images
from wardround.datasets.patient_groups import ages, person_groups
from wardround.errors import DataError


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

    class Params(ImageParams):
        size: int = Field(128, ge=8, le=1024)

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

    def _diagnosis(self, word: str, path: Path) -> int:
        if word not in self.class_names:
            raise DataError(
                f"{path}: unknown diagnosis {word!r} in column 'dx'; known: {', '.join(self.class_names)}"
            )
        return self.class_names.index(word)
