"""Label flipping: train honestly on wrong answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from wardround.attacks.base import DataAttack, LocalData, Parameters, register
from wardround.attacks.search_space import FIXED, Choice
from wardround.errors import ParameterError
from wardround.survival import events_of, is_survival

BETWEEN = "source-target"


@register("label-flip")
class LabelFlip(DataAttack):
    r"""Flip each label with probability p, then train and send as an honest client would.

    - `mode: random`: to another class, uniformly;
    - `mode: invert`: y → C−1−y (the middle class of an odd C stays);
    - `mode: source-target` with `source` and `target`: only labels of the source class, to the target.

    Where a sample has several labels, each of its zeros and ones is a label of two classes: `random` and
    `invert` turn each over with probability p, and `source-target` moves a positive finding from the
    source to the target. Labels that are not known (NaN) stay so. Of a survival task the two classes are censored (0)
    and event (1): who had the event is said to be censored at that time and the other way round; times stay.

    FedBNP document, section III-A (random, p = 0.8); Alkhunaizi et al., MICCAI 2022 (class 0 to 1).

    >>> import torch
    >>> from wardround import attacks
    >>> data = attacks.LocalData(torch.zeros(4, 1), torch.tensor([0, 1, 2, 3]), num_classes=4)
    >>> attacks.create("label-flip", p=1, mode="invert").poison(data, torch.Generator()).targets
    tensor([3, 2, 1, 0])
    """

    class Params(Parameters):
        p: float = Field(0.8, ge=0, le=1)
        """Probability that a label is flipped."""
        mode: Annotated[Literal["random", "invert", "source-target"], Choice(("random", "invert"))] = "random"
        """Which label takes the old one's place."""
        source: Annotated[int | None, FIXED] = Field(None, ge=0)
        """The class that is flipped (source-target)."""
        target: Annotated[int | None, FIXED] = Field(None, ge=0)
        """The class it becomes (source-target)."""

        @model_validator(mode="before")
        @classmethod
        def _mode_from_classes(cls, values: Any) -> Any:
            if isinstance(values, dict) and {"source", "target"} <= values.keys() and "mode" not in values:
                return {**values, "mode": BETWEEN}
            return values

        @model_validator(mode="after")
        def _classes_fit_mode(self) -> LabelFlip.Params:
            classes = self.source is not None, self.target is not None
            if self.mode == BETWEEN and not (all(classes) and self.source != self.target):
                raise ValueError("mode source-target needs a source and another target")
            if self.mode != BETWEEN and any(classes):
                raise ValueError(f"source and target belong to mode source-target, not {self.mode}")
            return self

    params: Params

    def poison(self, data: LocalData, generator: torch.Generator) -> LocalData:
        self._check(data)
        targets = data.targets
        if is_survival(targets):
            events = events_of(targets).long()
            flipped = self._flipped_class(events, data.num_classes, generator)
            chosen = torch.rand(targets.shape, generator=generator) < self.params.p
            return replace(data, targets=torch.where(chosen & (flipped != events), -targets, targets))
        if not data.multi_label:
            flipped = self._flipped_class(targets, data.num_classes, generator)
            chosen = torch.rand(targets.shape, generator=generator) < self.params.p
            return replace(data, targets=torch.where(chosen, flipped, targets))
        if self.params.mode == BETWEEN:
            return replace(data, targets=self._moved_finding(targets, generator))
        chosen = torch.rand(targets.shape, generator=generator) < self.params.p
        return replace(data, targets=torch.where(chosen, 1 - targets, targets))

    def _flipped_class(self, targets: Tensor, classes: int, generator: torch.Generator) -> Tensor:
        if self.params.mode == "invert":
            return classes - 1 - targets
        if self.params.mode == BETWEEN:
            source, target = self.params.source, self.params.target
            assert source is not None  # this mode has both
            assert target is not None
            return torch.where(targets == source, target, targets).to(targets.dtype)
        step = torch.randint(1, classes, targets.shape, generator=generator).to(targets.dtype)
        return (targets + step) % classes

    def _moved_finding(self, targets: Tensor, generator: torch.Generator) -> Tensor:
        chosen = torch.rand(len(targets), generator=generator) < self.params.p
        moved = chosen & (targets[:, self.params.source] == 1)
        targets = targets.clone()
        targets[moved, self.params.source] = 0
        targets[moved, self.params.target] = 1
        return targets

    def _check(self, data: LocalData) -> None:
        if data.num_classes < 2 and not data.multi_label:
            raise ParameterError(f"label-flip needs two or more classes, got {data.num_classes}")
        for name in ("source", "target"):
            value = getattr(self.params, name)
            if value is not None and value >= data.num_classes:
                raise ParameterError(f"label-flip: {name} must be below {data.num_classes}, got {value}")
