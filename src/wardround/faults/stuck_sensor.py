"""A sensor that always says the same."""

from __future__ import annotations

from dataclasses import replace

import torch
from pydantic import Field

from wardround.attacks.base import LocalData
from wardround.faults.base import DataFault, Parameters, choose_features, register


@register("stuck-sensor")
class StuckSensor(DataFault):
    """A share of the features has one value for all patients: that of one of them, drawn for each hospital."""

    class Params(Parameters):
        share: float = Field(0.5, gt=0, le=1)
        """Of the features, drawn for each hospital."""

    params: Params

    def spoil(self, data: LocalData, generator: torch.Generator) -> LocalData:
        chosen = choose_features(data.inputs, self.params.share, generator)
        last = int(torch.randint(len(data.inputs), (1,), generator=generator))
        inputs = data.inputs.clone()
        inputs[..., chosen] = data.inputs[last][..., chosen].expand_as(inputs[..., chosen])
        return replace(data, inputs=inputs)
