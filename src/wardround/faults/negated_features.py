"""Features with the wrong sign."""

from __future__ import annotations

from dataclasses import replace

import torch
from pydantic import Field

from wardround.attacks.base import LocalData
from wardround.faults.base import DataFault, Parameters, choose_features, register


@register("negated-features")
class NegatedFeatures(DataFault):
    """A share of the features has the wrong sign: an export that subtracts the wrong way, a picture read inverted.

    Of stored pictures (0 to 255) each pixel x becomes 255 − x, as where an X-ray's photometric interpretation is
    ignored.
    """

    class Params(Parameters):
        share: float = Field(1.0, gt=0, le=1)
        """Of the features, drawn for each hospital."""

    params: Params

    def spoil(self, data: LocalData, generator: torch.Generator) -> LocalData:
        chosen = choose_features(data.inputs, self.params.share, generator)
        inputs = data.inputs.clone()
        if inputs.dtype == torch.uint8:
            inputs[..., chosen] = 255 - inputs[..., chosen]
        else:
            inputs[..., chosen] = -inputs[..., chosen]
        return replace(data, inputs=inputs)
