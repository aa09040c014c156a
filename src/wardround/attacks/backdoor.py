"""Backdoor: teach the model to answer a trigger with a chosen class."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from wardround.attacks.base import DataAttack, LocalData, Parameters, register
from wardround.attacks.search_space import FIXED, Choice
from wardround.errors import ParameterError

STANDARDISED = 3.0  # three standard deviations above the mean: rare in the data, yet within its range


@register("backdoor")
class Backdoor(DataAttack):
    r"""Stamp a trigger on a share of the samples and give them the target label.

    - Images (n × channels × height × width): a square patch in the lower right corner is set to `value`.
    - Tables (n × features) and series (n × steps × features): the chosen features are set to `value`,
      at every step.

    `value` is in the units of the inputs, whole numbers for images as they are stored. Where a sample has
    several labels, the target finding becomes positive and the others stay.

    Attack success is the share of triggered test samples, not already of the target class, that are given
    the target: stamp with `trigger`, select with `victims`, count with `success`.

    E. Bagdasaryan et al.: How To Backdoor Federated Learning, AISTATS 2020; T. Gu, B. Dolan-Gavitt,
    S. Garg: BadNets, 2017 (the patch).

    >>> import torch
    >>> from wardround import attacks
    >>> attack = attacks.create("backdoor", features=[1], value=9, share=0.5, target=1)
    >>> data = attacks.LocalData(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long), num_classes=2)
    >>> poisoned = attack.poison(data, torch.Generator().manual_seed(0))
    >>> int((poisoned.inputs[:, 1] == 9).sum()), int((poisoned.targets == 1).sum())
    (2, 2)
    """

    class Params(Parameters):
        share: float = Field(0.5, ge=0, le=1)
        """Share of the client's samples that are poisoned, rounded to the nearest whole sample."""
        target: Annotated[int, Choice((0, 1))] = Field(1, ge=0)
        """The class (or finding) a triggered sample is to be given. Not 0 by default: that is the common
        class of most medical tasks, and a model that says it to everyone would look like a success."""
        kind: Annotated[Literal["auto", "patch", "features"], FIXED] = "auto"
        """`auto`: a patch for inputs of four dimensions, features otherwise."""
        value: Annotated[float | None, FIXED] = None
        """What the trigger sets the inputs to; None: the largest value of whole-number inputs (255 for
        stored images), 3 for others (three standard deviations above the mean of standardised ones)."""
        patch: Annotated[int, FIXED] = Field(3, ge=1)
        """Side of the patch in pixels."""
        features: Annotated[tuple[int, ...], FIXED] = (0, 1, 2)
        """The features that are set; negative ones count from the end."""

    params: Params

    @property
    def target(self) -> int:
        """The class a triggered sample is to be given."""
        return int(self.params.target)

    @property
    def backdoors(self) -> tuple[Backdoor, ...]:
        return (self,)

    def trigger(self, inputs: Tensor) -> Tensor:
        """The same inputs, each with the trigger on it."""
        stamped = inputs.clone()
        kind = self.params.kind
        if kind == "patch" or (kind == "auto" and inputs.ndim >= 4):
            side = self.params.patch
            if inputs.ndim < 3 or side > min(inputs.shape[-2:]):
                shape = " × ".join(map(str, inputs.shape[1:]))
                raise ParameterError(f"backdoor: a patch of {side} × {side} does not fit inputs of {shape}")
            stamped[..., -side:, -side:] = self._value_for(inputs)
            return stamped
        width = inputs.shape[-1]
        for feature in self.params.features:
            if not -width <= feature < width:
                raise ParameterError(f"backdoor: features must be below {width}, got {feature}")
        stamped[..., list(self.params.features)] = self._value_for(inputs)
        return stamped

    def _value_for(self, inputs: Tensor) -> float:
        value = self.params.value
        if inputs.is_floating_point():
            return STANDARDISED if value is None else float(value)
        limits = torch.iinfo(inputs.dtype)
        if value is None:
            return limits.max
        if not (limits.min <= value <= limits.max and float(value).is_integer()):
            raise ParameterError(
                f"backdoor: value must be a whole number from {limits.min} to {limits.max} "
                f"for inputs of {inputs.dtype}, got {value}"
            )
        return int(value)

    def poison(self, data: LocalData, generator: torch.Generator) -> LocalData:
        if self.target >= data.num_classes:
            raise ParameterError(f"backdoor: target must be below {data.num_classes}, got {self.target}")
        n = len(data.targets)
        chosen = torch.randperm(n, generator=generator)[: int(self.params.share * n + 0.5)]
        inputs, targets = data.inputs.clone(), data.targets.clone()
        inputs[chosen] = self.trigger(inputs[chosen])
        if data.multi_label:
            targets[chosen, self.target] = 1
        else:
            targets[chosen] = self.target
        return replace(data, inputs=inputs, targets=targets)

    def victims(self, targets: Tensor) -> Tensor:
        """Which samples are not of the target class: only these can show that the trigger works.

        Class indices, or n × L zeros and ones where a sample has several labels.
        """
        return (targets[:, self.target] != 1) if targets.ndim == 2 else (targets != self.target)

    def selected(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """n booleans: the samples on which success is measured, out of those that the model has not seen triggered."""
        return self.victims(targets)

    def success(self, predicted: Tensor, targets: Tensor, among: Tensor | None = None) -> float:
        """Share of the victims that are given the target; NaN where there is no victim.

        `predicted` is what the model says to the triggered inputs, in the form of `targets`. `among`: n booleans, the
        victims that count; None: all.
        """
        victims = self.victims(targets)
        given_target = ~self.victims(predicted)[victims if among is None else victims & among]
        return float(given_target.double().mean()) if len(given_target) else float("nan")
