"""Edge-case backdoor: no trigger, but rare samples that nobody else has."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from wardround.attacks.backdoor import Backdoor
from wardround.attacks.base import Knowledge, LocalData, register
from wardround.attacks.search_space import FIXED, Range
from wardround.errors import ParameterError

FAR = 3.0
"""By how many standard deviations the values of a foreign source are higher."""


@register("edge-case")
class EdgeCase(Backdoor):
    r"""Give the target label to samples of a kind that is rare among all clients, and train on the others as they are.

    An attacker's data are a mixture, as in the paper: `share` of its samples are edge cases with the target label, the
    rest is clean. It sends γ times the update. Where the edge cases come from:

    - `foreign`: from a source that only the attackers have, as in the paper (images of one airline, handwriting of
      another country). There is no second data set here, so samples are changed as a whole: images are inverted
      (another modality), all values of standardised tables and series are three standard deviations higher (another
      calibration). Success is the share of changed test samples of other classes that get the target.
    - `tail`: from the attackers' own data: the `tail` share of the samples of other classes with the largest
      :math:`\|x\|`, repeated until they have their share. Success is measured on the tail of the test samples, beside
      the share of all other test samples that get the target. Honest clients have such a tail too, rightly labelled,
      and the attack seldom succeeds.

    H. Wang et al.: Attack of the Tails: Yes, You Really Can Backdoor Federated Learning, NeurIPS 2020.

    >>> import torch
    >>> from wardround import attacks
    >>> data = attacks.LocalData(torch.tensor([[0.1], [-9.0], [0.2], [7.0]]), torch.tensor([0, 0, 0, 1]), num_classes=2)
    >>> attack = attacks.create("edge-case", source="tail", tail=0.3, share=0)
    >>> attack.poison(data, torch.Generator()).targets.tolist()
    [0, 1, 0, 1]
    >>> attacks.create("edge-case").trigger(torch.tensor([[1.0, -2.0]]))
    tensor([[4., 1.]])
    """

    class Params(Backdoor.Params):
        source: Annotated[Literal["foreign", "tail"], FIXED] = "foreign"
        """Whether the edge cases are samples that only attackers have, or the tail of their own."""
        tail: Annotated[float, Range(0.01, 0.5, log=True)] = Field(0.1, gt=0, le=0.5)
        """`tail`: share of the samples of other classes that count as edge cases."""
        boost: Annotated[float, Range(1, 50, log=True)] = Field(1.0, gt=0)
        """γ: the paper's model replacement beside edge cases."""

    params: Params

    def trigger(self, inputs: Tensor) -> Tensor:
        """The inputs as the foreign source would have them; the tail is what it is."""
        if self.params.source == "tail":
            return inputs
        if inputs.is_floating_point():
            return inputs + FAR
        highest = torch.iinfo(inputs.dtype).max
        return highest - inputs

    def poison(self, data: LocalData, generator: torch.Generator) -> LocalData:
        if self.target >= data.num_classes:
            raise ParameterError(f"edge-case: target must be below {data.num_classes}, got {self.target}")
        if self.params.source == "foreign":
            return super().poison(data, generator)
        inputs, targets = data.inputs.clone(), data.targets.clone()
        tail = self.selected(data.inputs, data.targets).nonzero().flatten()
        if not len(tail):
            return data
        others = torch.ones(len(targets), dtype=torch.bool)
        others[tail] = False
        order = torch.randperm(int(others.sum()), generator=generator)
        missing = max(0, int(self.params.share * len(targets) + 0.5) - len(tail))
        replaced = others.nonzero().flatten()[order][:missing]
        copied = tail.repeat(missing // len(tail) + 1)[: len(replaced)]
        inputs[replaced], targets[replaced] = data.inputs[copied], data.targets[copied]
        chosen = torch.cat([tail, replaced])
        if data.multi_label:
            targets[chosen, self.target] = 1
        else:
            targets[chosen] = self.target
        return replace(data, inputs=inputs, targets=targets)

    def craft(self, own: Tensor, knowledge: Knowledge) -> Tensor:
        return own * self.params.boost

    def selected(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """n booleans: the samples of other classes; of `tail` those in the tail of their own norms."""
        others = self.victims(targets)
        if self.params.source == "foreign":
            return others
        count = int(self.params.tail * int(others.sum()) + 0.5)
        chosen = torch.zeros(len(targets), dtype=torch.bool)
        norms = inputs.reshape(len(inputs), -1).double().norm(dim=1).masked_fill(~others, -1)
        chosen[norms.topk(count).indices] = True
        return chosen
