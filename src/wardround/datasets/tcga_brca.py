"""TCGA-BRCA as FLamby has it: survival with breast cancer in six regions."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from wardround.datasets.base import Dataset, Task, register
from wardround.datasets.csv_files import numbers, read_table
from wardround.datasets.prepared_cache import Cache, PreparedSource, Workspace
from wardround.datasets.table import Table
from wardround.datasets.tabular import built_in_schema, tabular_dataset
from wardround.errors import DataError
from wardround.survival import encode

FILES = ("brca.csv", "centers.csv", "train_test_split.csv")
PATIENT, EVENT, TIME = "pid", "E", "T"
CLASS_NAMES = ("censored", "died")


@register("tcga-brca")
class TcgaBrca(PreparedSource):
    """Overall survival of 1,088 patients with breast cancer from 39 clinical columns; the clients are the regions of
    the hospitals that sent the samples.

    The split is the published one, whatever the seed: 866 patients for training, 222 for testing, none for validation.
    FLamby trains on the columns as they are: `preprocessing: {scale: none}`.

    du Terrail et al., "FLamby: Datasets and Benchmarks for Cross-Silo Federated Learning in Realistic Healthcare
    Settings", NeurIPS 2022, Datasets and Benchmarks; Liu et al., "An integrated TCGA pan-cancer clinical data
    resource", Cell 173, 2018.
    """

    task = Task.SURVIVAL
    summary = "TCGA-BRCA as FLamby has it: survival of 1,088 patients, six regions (natural split)"
    licence = "TCGA open access; FLamby's tables: MIT"
    origin = "FLamby, flamby/datasets/fed_tcga_brca (https://github.com/owkin/FLamby)"
    layout = "a folder with " + ", ".join(FILES)

    def raw_files(self, folder: Path | None) -> Iterable[Path]:
        assert folder is not None
        files = [folder / name for name in FILES]
        for path in files:
            if not path.is_file():
                raise DataError(f"{path} does not exist; expected: {self.layout}; get it from {self.origin}")
        return files

    def build(self, folder: Path | None, work: Workspace) -> dict[str, Any]:
        brca, centers, split = self.raw_files(folder)
        table = read_table(brca, [PATIENT, EVENT, TIME])
        region_of = _regions(centers)
        fold_of = _folds(split)
        chosen = [row for row, patient in enumerate(table[PATIENT]) if patient in fold_of]
        if len(chosen) < len(fold_of):
            raise DataError(f"{split} names {len(fold_of)} patients, of whom {brca} has {len(chosen)}")
        names = [name for name in table if name not in (PATIENT, EVENT, TIME)]
        cells = {
            name: numbers([table[name][row] for row in chosen], name, brca) for name in (*names, EVENT, TIME)
        }
        if not np.isin(cells[EVENT], (0, 1)).all() or not (cells[TIME] >= 0).all():
            raise DataError(
                f"{brca}: expected 0 or 1 in column {EVENT} and a time of at least 0 in column {TIME}"
            )
        patients = [table[PATIENT][row] for row in chosen]
        regions = [region_of.get(patient.split("-")[1], "") for patient in patients]
        if "" in regions:
            raise DataError(f"{centers} has no region of the source site of {patients[regions.index('')]}")
        with work.writing("rows.npz") as path, path.open("wb") as file:
            np.savez(
                file,
                names=np.array(names),
                features=np.column_stack([cells[name] for name in names]),
                times=cells[TIME],
                events=cells[EVENT] == 1,
                regions=np.array(regions),
                is_test=np.array([fold_of[patient] == "test" for patient in patients]),
            )
        work.progress("patients", len(chosen), len(chosen))
        return {
            region: {"rows": regions.count(region), "died": sum(
                int(event) for event, own in zip(cells[EVENT], regions, strict=True) if own == region
            )}
            for region in dict.fromkeys(regions)
        }  # fmt: skip

    def read(self, cache: Cache, seed: int) -> Dataset:
        with np.load(cache / "rows.npz") as stored:
            rows = {name: stored[name] for name in stored.files}
        names = [str(name) for name in rows["names"]]
        table = Table(
            numeric=dict(zip(names, rows["features"].T, strict=True)),
            categorical={},
            targets=encode(rows["times"], rows["events"]),
            units=np.arange(len(rows["times"])),
            groups=[str(region) for region in rows["regions"]],
            facts=cache.facts,
        )
        test = rows["is_test"]
        parts = (np.flatnonzero(~test), np.empty(0, dtype=np.int64), np.flatnonzero(test))
        schema = built_in_schema(names, {}, EVENT, CLASS_NAMES, time=TIME)
        return tabular_dataset(self.name, self.task, CLASS_NAMES, table, seed, schema, parts=parts)


def _regions(path: Path) -> dict[str, str]:
    """Code of a source site → region."""
    table = read_table(path, ["TSS Code", "Region"])
    return dict(zip(table["TSS Code"], table["Region"], strict=True))


def _folds(path: Path) -> dict[str, str]:
    """Patient → train or test."""
    table = read_table(path, [PATIENT, "fold"])
    if wrong := set(table["fold"]) - {"train", "test"}:
        raise DataError(f"{path}: column fold holds {sorted(wrong)[0]!r}, expected train or test")
    return dict(zip(table[PATIENT], table["fold"], strict=True))
