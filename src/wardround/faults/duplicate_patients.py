"""Patients that are in the table more than once."""

from __future__ import annotations

from dataclasses import replace

import torch
from pydantic import Field

from wardround.attacks.base import LocalData
from wardround.faults.base import DataFault, Parameters, register


@register("duplicate-patients")
class DuplicatePatients(DataFault):
    """A share of the patients is in the table `times` times: an import that ran again and again.

    The hospital trains on all these rows and reports as many samples, so it counts for more than it has.
    """

    repeats_patients = True

    class Params(Parameters):
        times: int = Field(5, ge=2)
        """How often such a patient occurs."""
        share: float = Field(1.0, gt=0, le=1)
        """Of the patients, drawn for each hospital."""

    params: Params

    def spoil(self, data: LocalData, generator: torch.Generator) -> LocalData:
        patients = len(data.targets)
        count = max(1, round(self.params.share * patients))
        repeated = torch.randperm(patients, generator=generator)[:count]
        rows = torch.cat([torch.arange(patients), repeated.repeat(self.params.times - 1)])
        return replace(data, inputs=data.inputs[rows], targets=data.targets[rows])
