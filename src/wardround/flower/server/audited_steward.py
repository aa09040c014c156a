"""A steward whose every opening and refusal is written into the audit log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np

from wardround.privacy.encryption.refusals import Refused
from wardround.privacy.encryption.steward import Measured, StewardHandle

__all__ = ["AuditedSteward"]

Opened = TypeVar("Opened")


class AuditedSteward:
    """A `StewardHandle` that logs what it was asked to open and whether it did."""

    def __init__(self, steward: StewardHandle, log_event: Callable[..., None]) -> None:
        self.steward, self.log_event = steward, log_event

    def public_context(self) -> tuple[str, bytes]:
        return self.steward.public_context()

    def open_padded_sum(
        self, round: int, order: str, coefficients: Mapping[str, float], ciphertext: bytes
    ) -> np.ndarray:
        open_sum = partial(self.steward.open_padded_sum, round, order, coefficients, ciphertext)
        return self._logged("sum", round, coefficients, open_sum)

    def measure(self, round: int, order: str, deposits: Mapping[str, bytes]) -> dict[str, Measured]:
        clients = dict.fromkeys(deposits, "norm and cosine")
        measure = partial(self.steward.measure, round, order, deposits)
        return self._logged("scalars", round, clients, measure)

    def open_measured_sum(self, round: int, order: str, coefficients: Mapping[str, float]) -> np.ndarray:
        open_sum = partial(self.steward.open_measured_sum, round, order, coefficients)
        return self._logged("sum", round, coefficients, open_sum)

    def _logged(self, what: str, round: int, clients: Mapping[str, Any], ask: Callable[[], Opened]) -> Opened:
        try:
            opened = ask()
        except Refused as refusal:
            self.log_event(
                "opening-refused", what=what, round=round, clients=dict(clients), reason=str(refusal)
            )
            raise
        self.log_event("opened", what=what, round=round, clients=dict(clients))
        return opened
