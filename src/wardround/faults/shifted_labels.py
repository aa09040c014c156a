"""Labels that belong to another patient, or to another code."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field

from wardround.attacks.base import LocalData
from wardround.errors import ParameterError
from wardround.faults.base import DataFault, Parameters, register


@register("shifted-labels")
class ShiftedLabels(DataFault):
    """The label column has slipped against the patients, or its codes have.

    - `of: patients`: each patient has the label of the one `by` rows above, in an order drawn for each hospital: a join
      that went wrong. How often each label occurs does not change;
    - `of: codes`: class y is recorded as (y + `by`) mod C: two code books. With two classes, all labels are inverted;
      of several findings per patient each stands for its neighbour.
    """

    class Params(Parameters):
        by: int = Field(1, ge=1)
        """Rows, or codes."""
        of: Literal["patients", "codes"] = "patients"
        """What has slipped: the rows of the table, or the codes of the classes."""

    params: Params

    def spoil(self, data: LocalData, generator: torch.Generator) -> LocalData:
        if self.params.of == "patients":
            order = torch.randperm(len(data.targets), generator=generator)
            targets = data.targets.clone()
            targets[order] = data.targets[order.roll(self.params.by)]
            return replace(data, targets=targets)
        if data.multi_label:
            return replace(data, targets=data.targets.roll(self.params.by, dims=1))
        if data.targets.ndim != 1 or data.targets.is_floating_point():
            raise ParameterError("fault 'shifted-labels' with of: codes needs classes; use of: patients")
        return replace(data, targets=(data.targets + self.params.by) % data.num_classes)
