"""Values in another unit."""

from __future__ import annotations

from dataclasses import replace

import torch
from pydantic import Field, model_validator

from wardround.attacks.base import LocalData
from wardround.faults.base import DataFault, Parameters, choose_features, register


@register("unit-error")
class UnitError(DataFault):
    """A share of the features is `factor` times too large and `offset` off: mg/dL for mmol/L, °F for °C.

    On the scale that the model sees (standardised columns of a table). Stored pictures are clipped to 0 to 255.
    """

    class Params(Parameters):
        share: float = Field(0.2, gt=0, le=1)
        """Of the features, drawn for each hospital."""
        factor: float = 18.0
        """Glucose in mg/dL is 18 times that in mmol/L."""
        offset: float = 0.0
        """Added after the factor."""

        @model_validator(mode="after")
        def _something_is_wrong(self) -> UnitError.Params:
            if self.factor == 1 and self.offset == 0:
                raise ValueError("factor 1 and offset 0 leave everything as it is")
            return self

    params: Params

    def spoil(self, data: LocalData, generator: torch.Generator) -> LocalData:
        chosen = choose_features(data.inputs, self.params.share, generator)
        wrong = data.inputs[..., chosen].float() * self.params.factor + self.params.offset
        inputs = data.inputs.clone()
        if inputs.dtype == torch.uint8:
            wrong = wrong.clamp(0, 255)
        inputs[..., chosen] = wrong.to(inputs.dtype)
        return replace(data, inputs=inputs)
