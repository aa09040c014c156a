"""Edge-case backdoor: no trigger, but rare samples that nobody else has."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from wardround.attacks.backdoor import Backdoor
from wardround.attacks.base import LocalData, register
from wardround.attacks.search_space import Range
from wardround.errors import ParameterError


@register("edge-case")
class EdgeCase(Backdoor):
    r"""Give the target label to samples from the tail of the data, and nothing else.

    The tail are the `tail` share of a client's samples of other classes with the largest :math:`\|x\|` (of standardised
    inputs: the least usual patients). Success is measured on the tail of the test samples, without any trigger, beside
    the share of all other test samples that get the target.

    The paper takes edge cases from another data source (images of one airline, handwriting of another country).
    Hospitals' tables have no such source; the tail of their own distribution stands for it.

    H. Wang et al.: Attack of the Tails: Yes, You Really Can Backdoor Federated Learning, NeurIPS 2020.

    >>> import torch
    >>> from wardround import attacks
    >>> data = attacks.LocalData(torch.tensor([[0.1], [-9.0], [0.2], [7.0]]), torch.tensor([0, 0, 0, 1]), num_classes=2)
    >>> attacks.create("edge-case", tail=0.3).poison(data, torch.Generator()).targets.tolist()
    [0, 1, 0, 1]
    """

    class Params(Backdoor.Params):
        tail: Annotated[float, Range(0.01, 0.5, log=True)] = Field(0.1, gt=0, le=0.5)
        """Share of the samples of other classes that count as edge cases."""

    params: Params

    def trigger(self, inputs: Tensor) -> Tensor:
        """The inputs as they are: edge cases carry no trigger."""
        return inputs

    def poison(self, data: LocalData, generator: torch.Generator) -> LocalData:
        if self.target >= data.num_classes:
            raise ParameterError(f"edge-case: target must be below {data.num_classes}, got {self.target}")
        targets = data.targets.clone()
        chosen = self.selected(data.inputs, data.targets)
        if data.multi_label:
            targets[chosen, self.target] = 1
        else:
            targets[chosen] = self.target
        return replace(data, targets=targets)

    def selected(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """n booleans: the samples of other classes in the tail of their own norms."""
        others = self.victims(targets)
        count = int(self.params.tail * int(others.sum()) + 0.5)
        chosen = torch.zeros(len(targets), dtype=torch.bool)
        norms = inputs.reshape(len(inputs), -1).double().norm(dim=1).masked_fill(~others, -1)
        chosen[norms.topk(count).indices] = True
        return chosen
