"""Dermoscopy: ISIC 2019 and HAM10000."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from wardround.datasets.base import Task, register
from wardround.datasets.images import ImageFileSource, ImageParams, Samples
from wardround.datasets.tables import numbers, read_table
from wardround.errors import DataError

LOOSE_SKIN = {"degrees": 15.0, "flips": (0, 1)}  # a lesion has no up, down, left or right


@register("isic2019")
class Isic2019(ImageFileSource):
    """Dermoscopic images of eight diagnoses; by default melanoma against the rest.

    Tschandl et al. 2018 (HAM10000), Codella et al. 2017 (MSK), Hernández-Pérez et al. 2024 (BCN20000).
    """

    task = Task.BINARY
    summary = "ISIC 2019 skin lesions: melanoma against the rest (task=multiclass: 8 diagnoses)"
    licence = "CC BY-NC 4.0"
    origin = "https://challenge.isic-archive.com/data/#2019"
    layout = (
        "ISIC_2019_Training_GroundTruth.csv, ISIC_2019_Training_Metadata.csv and the folder "
        "ISIC_2019_Training_Input of .jpg files"
    )
    class_names = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
    augmentation = LOOSE_SKIN
    load_only = frozenset({"augment", "task"})

    class Params(ImageParams):
        task: Literal["binary", "multiclass"] = "binary"

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
        return Samples(
            paths=find_images(folder / "ISIC_2019_Training_Input", names, ".jpg"),
            targets=votes.argmax(1),
            units=lesions,
            groups=[
                lesion.split("_")[0] if lesion_of.get(name) else "unknown"
                for lesion, name in zip(lesions, names, strict=True)
            ],
        )

    def labels(self, targets: np.ndarray) -> tuple[Task, tuple[str, ...], np.ndarray]:
        if self.params.task == "multiclass":
            return Task.MULTICLASS, self.class_names, targets
        return Task.BINARY, ("other", "melanoma"), (targets == self.class_names.index("MEL")).astype(np.int64)


@register("ham10000")
class Ham10000(ImageFileSource):
    """Dermoscopic images of seven diagnoses, several of one lesion among them.

    Tschandl, Rosendahl and Kittler, "The HAM10000 dataset", Scientific Data 5, 2018.
    """

    task = Task.MULTICLASS
    summary = "HAM10000 skin lesions: 7 diagnoses"
    licence = "CC BY-NC 4.0"
    origin = "https://doi.org/10.7910/DVN/DBW86T"
    layout = "HAM10000_metadata.csv and the folders HAM10000_images_part_1 and HAM10000_images_part_2 of .jpg files"
    class_names = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
    augmentation = LOOSE_SKIN

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
        )

    def _diagnosis(self, word: str, path: Path) -> int:
        if word not in self.class_names:
            raise DataError(
                f"{path}: unknown diagnosis {word!r} in column 'dx'; known: {', '.join(self.class_names)}"
            )
        return self.class_names.index(word)


def find_images(folder: Path, names: list[str], ending: str) -> list[Path]:
    """Where each named image lies below the folder; one that is nowhere keeps a path that does not exist."""
    there = {path.stem: path for path in sorted(folder.rglob(f"*{ending}"))}
    return [there.get(name, folder / f"{name}{ending}") for name in names]
