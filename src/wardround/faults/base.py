"""The contract of a fault: what a broken hospital trains on, and what it sends.

A fault is no attack: nobody means harm, nothing is hidden, and a broken hospital knows no other. Records, analysis and
reports tell the two apart.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from wardround.attacks.base import LocalData
from wardround.errors import ParameterError
from wardround.registry import Configurable, Parameters, Registry

__all__ = ["DataFault", "Fault", "Parameters", "choose_features", "register", "registry"]


class Fault(Configurable, ABC):
    """Base of all faults. In whatever a fault does not override, the hospital works."""

    spoils_data: ClassVar[bool] = False
    """Is the hospital's data wrong?"""
    repeats_patients: ClassVar[bool] = False
    """Do patients occur more than once in it? DP-SGD, which counts each once, cannot be used then."""
    is_harmless: ClassVar[bool] = False
    """Nothing is broken: clients that are given it are healthy."""

    def spoil(self, data: LocalData, generator: torch.Generator) -> LocalData:
        """The data that the broken hospital has in place of `data`, which is not changed. Only where `spoils_data`."""
        return data

    def send(self, row: Tensor, client: str, failing: bool) -> Tensor:
        """What the hospital sends for the update that it has trained.

        `row` holds D values; where updates are split by outcome (1 + C) × D, the update and then its parts.

        Called in every round in which the hospital takes part. Before and after the fault (`failing` is False) the
        update is sent as it is, whatever is returned.
        """
        return row

    def state_dict(self) -> dict[str, Any]:
        """All that a later round depends on."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        if state:
            raise ParameterError(f"fault '{self.name}' keeps no state, but was given {', '.join(state)}")


class DataFault(Fault):
    """A fault in the hospital's data; it trains and sends as it should."""

    spoils_data = True

    @abstractmethod
    def spoil(self, data: LocalData, generator: torch.Generator) -> LocalData:
        """The data that the broken hospital has in place of `data`, which is not changed."""


registry: Registry[Fault] = Registry("fault", "wardround.faults", base=Fault)
register = registry.register


def choose_features(inputs: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """The features that are broken: `share` of the last axis, at least one, drawn for each hospital.

    The last axis of a table holds its columns, of time series their variables, of pictures their pixel columns.

    Returns:
        Their indices, sorted.
    """
    width = inputs.shape[-1]
    count = max(1, round(share * width))
    return torch.randperm(width, generator=generator)[:count].sort().values
