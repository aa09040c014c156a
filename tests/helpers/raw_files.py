"""Small made-up files in the layouts in which real datasets are distributed."""

from __future__ import annotations

import csv
import gzip
import io
import pickle
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

from wardround import datasets
from wardround.datasets.mimic3.tables import COLUMNS

ISIC = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
HAM = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
STAGES = ("NonDemented", "VeryMildDemented", "MildDemented", "ModerateDemented")
START = datetime(2150, 3, 1, 6, 0)


def write_picture(path: Path, seed: int = 0, size: tuple[int, int] = (20, 16), colour: bool = True) -> None:
    """A picture of noise, the same for the same seed."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (size[1], size[0], 3) if colour else (size[1], size[0])
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def write_isic(folder: Path, images: int = 48) -> Path:
    """ISIC 2019: one of the eight diagnoses after the other; two images per lesion, some without a lesion."""
    truth, about = ["image," + ",".join(ISIC) + ",UNK"], ["image,age_approx,lesion_id,sex"]
    for i in range(images):
        name = f"ISIC_{i:04d}"
        truth.append(f"{name}," + ",".join("1.0" if i % 8 == c else "0.0" for c in range(8)) + ",0.0")
        sex = "female" if i % 8 < 4 else ""
        about.append(f"{name},{10 * (i % 8) + 5},{'' if i % 6 == 5 else f'HAM_{i // 2}'},{sex}")
        write_picture(folder / "ISIC_2019_Training_Input" / f"{name}.jpg", i)
    (folder / "ISIC_2019_Training_GroundTruth.csv").write_text("\n".join(truth) + "\n")
    (folder / "ISIC_2019_Training_Metadata.csv").write_text("\n".join(about) + "\n")
    return folder


def write_ham(folder: Path, images: int = 70) -> Path:
    """HAM10000: two images per lesion, in two folders."""
    lines = ["lesion_id,image_id,dx,dx_type,age,sex,localization,dataset"]
    for i in range(images):
        kind, sex = i // 2 % 7, "female" if i // 2 % 7 < 3 else "male"
        site = "vidir" if i % 4 < 2 else "rosendahl"
        lines.append(f"HAM_{i // 2},ISIC_{i},{HAM[kind]},histo,{20 + 10 * kind},{sex},back,{site}")
        write_picture(folder / f"HAM10000_images_part_{1 + i % 2}" / f"ISIC_{i}.jpg", i)
    (folder / "HAM10000_metadata.csv").write_text("\n".join(lines) + "\n")
    return folder


def write_nih(folder: Path, images: int = 30) -> Path:
    """ChestX-ray8: three images per patient, one without and two with findings."""
    lines = [
        "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,OriginalImage[Width,Height],"
    ]
    found = ["No Finding", "Cardiomegaly|Emphysema", "Hernia"]
    for i in range(images):
        age = ["030Y", "45", "414"][i % 3]
        lines.append(f"{i:08d}_000.png,{found[i % 3]},0,{i // 3},{age},{'MFF'[i % 3]},2894,2729,")
        write_picture(folder / f"images_{1 + i % 2:03d}" / "images" / f"{i:08d}_000.png", i, colour=False)
    (folder / "Data_Entry_2017.csv").write_text("\n".join(lines) + "\n")
    return folder


def write_chexpert(folder: Path, patients: int = 20) -> Path:
    """CheXpert: two views per patient, cells of every kind."""
    findings = datasets.registry.get("chexpert").class_names
    for part, numbers in (("train", range(patients)), ("valid", range(patients, patients + 4))):
        lines = ["Path,Sex,Age,Frontal/Lateral,No Finding," + ",".join(findings)]
        for patient in numbers:
            for view in ("frontal", "lateral"):
                path = f"{part}/patient{patient:05d}/study1/view_{view}.jpg"
                cells = ["1.0", "-1.0", "", "0.0", *["1.0" if patient % 2 else ""] * 9]
                who = "Female,70" if patient % 2 else "Male,30"
                lines.append(f"CheXpert-v1.0-small/{path},{who},{view.title()},," + ",".join(cells))
                write_picture(folder / path, patient, colour=False)
        (folder / f"{part}.csv").write_text("\n".join(lines) + "\n")
    return folder


def write_brains(folder: Path, per_stage: int = 10) -> Path:
    """Alzheimer MRI: a folder per stage, below train and test."""
    for stage, name in enumerate(STAGES):
        for i in range(per_stage):
            part = "train" if i < 0.7 * per_stage else "test"
            write_picture(folder / part / name / f"{i}.jpg", per_stage * stage + i, colour=False)
    return folder


def idx(array: np.ndarray) -> bytes:
    """An array of bytes in MNIST's format."""
    head = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return head + array.astype(np.uint8).tobytes()


def write_mnist(folder: Path, train: int = 160, test: int = 30) -> Path:
    """MNIST: images packed, labels not."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for part, count in (("train", train), ("t10k", test)):
        images = rng.integers(0, 256, (count, 28, 28))
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx(np.arange(count) % 10))
    return folder


def write_cifar(folder: Path, per_batch: int = 40) -> Path:
    """CIFAR-10: six pickled batches."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        batch = {
            b"data": rng.integers(0, 256, (per_batch, 3072), dtype=np.uint8),
            b"labels": [i % 10 for i in range(per_batch)],
            b"batch_label": name.encode(),
        }
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    return folder


def write_medmnist(
    path: Path,
    labels: Callable[[int], np.ndarray] = lambda n: np.arange(n) % 2,
    shape: tuple[int, ...] = (28, 28),
    counts: tuple[int, int, int] = (30, 6, 9),
    **changes: np.ndarray | None,
) -> Path:
    """A MedMNIST file; `changes` replace arrays, None leaves one out."""
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray | None] = {}
    for part, count in zip(("train", "val", "test"), counts, strict=True):
        arrays[f"{part}_images"] = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
        arrays[f"{part}_labels"] = labels(count).astype(np.uint8)
    arrays |= changes
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


class MimicRelease:
    """A small release of MIMIC-III: patients with a stay of three days each and one heart rate; every fourth died."""

    def __init__(self, folder: Path, capitals: bool = True, packed: bool = True, patients: int = 40) -> None:
        self.folder, self.capitals, self.packed = folder, capitals, packed
        self.tables: dict[str, list[dict[str, object]]] = {name: [] for name in COLUMNS}
        for patient in range(patients):
            self.patient(patient, died=patient % 4 == 0)
            self.stay(patient, 100 + patient, 0, 72)
            self.chart(patient, 220045, 1, 80)

    def patient(self, subject: int, born: datetime | None = None, died: bool = False) -> None:
        born = born or START - timedelta(days=50 * 365)
        self.tables["PATIENTS"].append({"subject_id": subject, "gender": "FM"[subject % 2], "dob": born})
        self.tables["ADMISSIONS"].append(
            {
                "subject_id": subject,
                "hadm_id": subject,
                "admission_type": "EMERGENCY",
                "hospital_expire_flag": int(died),
            }
        )

    def stay(self, subject: int, icustay: int, start: float, hours: float) -> None:
        begins = START + timedelta(hours=start)
        self.tables["ICUSTAYS"].append(
            {
                "subject_id": subject,
                "hadm_id": subject,
                "icustay_id": icustay,
                "first_careunit": ["MICU", "SICU"][subject % 2],
                "intime": begins,
                "outtime": begins + timedelta(hours=hours),
            }
        )

    def chart(self, subject, itemid, hour, value, valuenum=..., unit="", error="", icustay=...) -> None:
        self.tables["CHARTEVENTS"].append(
            {
                "subject_id": subject,
                "icustay_id": 100 + subject if icustay is ... else icustay,
                "itemid": itemid,
                "charttime": START + timedelta(hours=hour),
                "value": value,
                "valuenum": value if valuenum is ... else valuenum,
                "valueuom": unit,
                "error": error,
            }
        )

    def lab(self, subject, itemid, hour, value, unit="") -> None:
        time = START + timedelta(hours=hour)
        row = {"subject_id": subject, "itemid": itemid, "charttime": time, "value": value, "valuenum": value}
        self.tables["LABEVENTS"].append({**row, "valueuom": unit})

    def output(self, subject, itemid, hour, value, error="") -> None:
        self.tables["OUTPUTEVENTS"].append(
            {
                "subject_id": subject,
                "icustay_id": 100 + subject,
                "itemid": itemid,
                "charttime": START + timedelta(hours=hour),
                "value": value,
                "valueuom": "ml",
                "iserror": error,
            }
        )

    def write(self) -> Path:
        self.folder.mkdir(exist_ok=True)
        for name, rows in self.tables.items():
            text = io.StringIO()
            # A column that nobody asked for comes first, as ROW_ID does in the real ones.
            columns = ["row_id", *COLUMNS[name]]
            header = [column.upper() for column in columns] if self.capitals else columns
            csv.writer(text).writerow(header)
            writer = csv.DictWriter(text, columns)
            writer.writerows({"row_id": i, **row} for i, row in enumerate(rows))
            content = text.getvalue().encode()
            if self.packed:
                (self.folder / f"{name}.csv.gz").write_bytes(gzip.compress(content))
            else:
                (self.folder / f"{name}.csv").write_bytes(content)
        return self.folder
