"""Brain MRI slices, in one folder per class."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from wardround.datasets.base import Task, register
from wardround.datasets.images import ImageFileSource, Samples
from wardround.errors import DataError

ENDINGS = {".jpg", ".jpeg", ".png"}
# The same four stages under the names of the two widespread releases.
STAGES = {
    "nondemented": 0, "noimpairment": 0, "verymilddemented": 1, "verymildimpairment": 1, "milddemented": 2,
    "mildimpairment": 2, "moderatedemented": 3, "moderateimpairment": 3,
}  # fmt: skip


@register("alzheimer-mri")
class AlzheimerMri(ImageFileSource):
    """Four stages of dementia. The release has no subject ids: slices of one brain may fall into two splits,
    so its figures say nothing about new patients."""

    task = Task.MULTICLASS
    summary = "Alzheimer MRI slices: 4 stages of dementia (no subject ids)"
    licence = "ODbL 1.0, as claimed by its publisher"
    origin = "https://www.kaggle.com/datasets/tourist55/alzheimers-dataset-4-class-of-images"
    layout = (
        "a folder per class (NonDemented, VeryMildDemented, MildDemented, ModerateDemented) of .jpg files, "
        "directly or below train and test"
    )
    class_names = ("NonDemented", "VeryMildDemented", "MildDemented", "ModerateDemented")
    channels = 1
    shades = None
    augmentation = {"degrees": 15.0, "flips": (1,), "noise": 0.02}

    def samples(self, folder: Path) -> Samples:
        paths: list[Path] = []
        targets: list[int] = []
        for path in sorted(folder.rglob("*")):
            stage = STAGES.get(re.sub(r"[^a-z]", "", path.parent.name.lower()))
            if stage is not None and path.suffix.lower() in ENDINGS:
                paths.append(path)
                targets.append(stage)
        missing = [name for stage, name in enumerate(self.class_names) if stage not in targets]
        if missing:
            raise DataError(
                f"{folder} has no image in a folder {' or '.join(missing)}; expected: {self.layout}; "
                f"get it from {self.origin}"
            )
        return Samples(paths, np.array(targets), [str(path) for path in paths])
