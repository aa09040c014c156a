"""MIMIC-III: in-hospital mortality of adults in intensive care, from their first 48 hours there."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from wardround.datasets.base import (
    Dataset,
    MappedRows,
    Parameters,
    Split,
    Task,
    check_classes,
    register,
    split_units,
)
from wardround.datasets.images import mapped
from wardround.datasets.mimic3.variables import VARIABLES
from wardround.datasets.patient_groups import groups_of_rows, person_groups
from wardround.datasets.prepared_cache import Cache, PreparedSource, Workspace
from wardround.datasets.table import Table
from wardround.datasets.tabular import built_in_schema, tabular_dataset

STATISTICS = ("min", "max", "mean", "last")
STATIC = ("age", "male")
"""Channels of a series that do not change with time."""
LEVELS = {"gender": ("F", "M"), "admission_type": ("ELECTIVE", "EMERGENCY", "URGENT")}
"""Of adults: newborns are another admission type."""


@register("mimic3")
class Mimic3(PreparedSource):
    """Death in hospital of adults (18 or older) in their first ICU stay, if that lasted a day or more.

    Features come from the first 48 hours in the ICU (or until it is left): demographics, vital signs,
    laboratory values, Glasgow coma scale, urine. `view: tabular` has minimum, maximum, mean and last value of
    every variable; `view: series` an hourly grid, gaps filled forward, with a mask of what was measured.
    The natural clients are the care units (MICU, SICU, CCU, …).

    Johnson et al., "MIMIC-III, a freely accessible critical care database", Scientific Data 3, 2016.
    """

    task = Task.BINARY
    summary = "MIMIC-III: in-hospital mortality in the ICU (view=tabular or series)"
    extra = "mimic3"
    licence = "PhysioNet Credentialed Health Data License 1.5.0 (the demo: ODbL 1.0)"
    origin = (
        "https://physionet.org/content/mimiciii/1.4/ (demo: https://physionet.org/content/mimiciii-demo/1.4/)"
    )
    layout = "PATIENTS, ADMISSIONS, ICUSTAYS, CHARTEVENTS, LABEVENTS and OUTPUTEVENTS as .csv or .csv.gz"
    load_only = frozenset({"view", "memory"})

    class Params(Parameters):
        view: Literal["tabular", "series"] = "tabular"
        hours: int = Field(48, ge=1, le=240)
        """Length of the window that features come from."""
        memory: str = Field("4GB", pattern=r"^\d+(\.\d+)?\s?(MB|GB)$")
        """What the streaming of the tables may use in memory."""

    params: Params

    def raw_files(self, folder: Path | None) -> Iterable[Path]:
        from wardround.datasets.mimic3.tables import locate

        assert folder is not None
        return [table.path for table in locate(folder, self.origin).values()]

    def build(self, folder: Path | None, work: Workspace) -> dict[str, Any]:
        from wardround.datasets.mimic3.extraction import extract

        assert folder is not None
        return extract(folder, work, self.params.hours, self.params.memory, self.origin)

    def read(self, cache: Cache, seed: int) -> Dataset:
        with np.load(cache / "stays.npz") as stored:
            stays = {name: stored[name] for name in stored.files}
        names = ("survived", "died in hospital")
        if self.params.view == "series":
            return self._series(cache, stays, names, seed)
        values = np.load(cache / "tabular.npy")
        columns = [f"{variable.name}_{statistic}" for variable in VARIABLES for statistic in STATISTICS]
        table = Table(
            numeric={"age": stays["age"], **dict(zip(columns, values.T, strict=True))},
            categorical={"gender": stays["gender"], "admission_type": stays["admission_type"]},
            targets=stays["died"],
            units=stays["subject_id"],
            groups=stays["care_unit"].tolist(),
            facts=cache.facts,
            patient_groups=_patient_groups(stays),
        )
        schema = built_in_schema(list(table.numeric), LEVELS, "died in hospital", names)
        return tabular_dataset(self.name, self.task, names, table, seed, schema)

    def _series(
        self, cache: Cache, stays: dict[str, np.ndarray], names: tuple[str, ...], seed: int
    ) -> Dataset:
        grid = mapped(cache / "series.npy")
        parts = split_units(stays["subject_id"], seed)
        targets = torch.from_numpy(stays["died"])
        train, validation, test = (
            Split(
                cast(Tensor, MappedRows(grid, torch.from_numpy(part))),
                targets[part],
                tuple(stays["care_unit"][part].tolist()),
                groups_of_rows(_patient_groups(stays), part),
            )
            for part in parts
        )
        moments = np.load(cache / "moments.npy")
        channels = (*STATIC, *(variable.name for variable in VARIABLES))
        return check_classes(
            Dataset(
                self.name,
                self.task,
                names,
                train,
                validation,
                test,
                to_input=SeriesInput.fitted(moments[parts[0]]),
                feature_names=(*channels, *(f"{name}_measured" for name in channels[len(STATIC) :])),
                facts=cache.facts,
            )
        )


def _patient_groups(stays: dict[str, np.ndarray]) -> dict[str, list[str]]:
    """Sex, age band and care unit of every stay."""
    return person_groups(stays["gender"], stays["age"], stays["care_unit"])


class SeriesInput:
    """An hourly grid with gaps → standardised, filled forward (0, the mean, before the first value), and
    beside it which hours had a value of their own."""

    def __init__(self, mean: Tensor, deviation: Tensor) -> None:
        self.mean, self.deviation = mean, deviation

    @classmethod
    def fitted(cls, moments: np.ndarray) -> SeriesInput:
        """From count, sum and sum of squares (n × 3 × channels) of the stays to fit on."""
        count, total, squares = moments.astype(float).sum(0)
        count = np.maximum(count, 1)
        mean = total / count
        deviation = np.sqrt(np.maximum(squares / count - mean**2, 0))
        deviation[deviation < 1e-6 * np.maximum(1, np.abs(mean))] = 1.0  # never measured or never varies
        return cls(torch.from_numpy(mean.astype(np.float32)), torch.from_numpy(deviation.astype(np.float32)))

    def __call__(self, stored: Tensor) -> Tensor:
        mean, deviation = self.mean.to(stored.device), self.deviation.to(stored.device)
        there = ~stored.isnan()
        hours = torch.arange(stored.shape[1], device=stored.device).view(1, -1, 1)
        latest = torch.where(there, hours, 0).cummax(1).values
        filled = stored.gather(1, latest).sub(mean).div(deviation).nan_to_num(0.0)
        return torch.cat([filled, there[:, :, len(STATIC) :].to(filled.dtype)], 2)
