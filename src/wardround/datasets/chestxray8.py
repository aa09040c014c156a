"""ChestX-ray8 (now with 14 findings): the chest X-rays of the NIH."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from wardround.datasets.base import Task, register
from wardround.datasets.chest_xrays import ChestXraySource
from wardround.datasets.csv_files import read_table
from wardround.datasets.images import Samples, find_images
from wardround.datasets.patient_groups import ages, person_groups
from wardround.errors import DataError


@register("chestxray8")
class ChestXray8(ChestXraySource):
    """Frontal X-rays of 30,805 patients; 14 findings read from the reports by machine.

    Wang et al., "ChestX-ray8: hospital-scale chest X-ray database and benchmarks", CVPR 2017.
    """

    version = 2  # since 2 with patient groups
    task = Task.MULTILABEL
    summary = "NIH chest X-rays: 14 findings"
    licence = "free use with attribution to the NIH Clinical Center"
    origin = "https://nihcc.app.box.com/v/ChestXray-NIHCC"
    layout = "Data_Entry_2017.csv (or Data_Entry_2017_v2020.csv) and the folders images_001 … of .png files"
    class_names = (
        "Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Effusion", "Emphysema", "Fibrosis", "Hernia",
        "Infiltration", "Mass", "Nodule", "Pleural_Thickening", "Pneumonia", "Pneumothorax",
    )  # fmt: skip

    def samples(self, folder: Path) -> Samples:
        places = [folder / "Data_Entry_2017.csv", folder / "Data_Entry_2017_v2020.csv"]
        path = next((place for place in places if place.is_file()), places[0])
        table = read_table(path, ["Image Index", "Finding Labels", "Patient ID"], self.origin)
        targets = np.zeros((len(table["Image Index"]), len(self.class_names)), dtype=np.float32)
        for row, cell in enumerate(table["Finding Labels"]):
            for finding in cell.split("|"):
                if finding in self.class_names:
                    targets[row, self.class_names.index(finding)] = 1
                elif finding != "No Finding":
                    raise DataError(
                        f"{path}: unknown finding {finding!r} in row {row + 1}; known: No Finding, "
                        f"{', '.join(self.class_names)}"
                    )
        names = [name.removesuffix(".png") for name in table["Image Index"]]
        # The first release calls the sex `Patient Gender`, a later one `Patient Sex`.
        sex = table.get("Patient Gender", table.get("Patient Sex"))
        groups = person_groups(sex, ages(table.get("Patient Age")))
        return Samples(
            find_images(folder, names, ".png"), targets, table["Patient ID"], patient_groups=groups
        )
