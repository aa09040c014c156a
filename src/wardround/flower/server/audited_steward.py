"""A steward whose every opening and refusal is written into the audit log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np

from wardround.privacy.encryption.refusals import Refused
from wardround.privacy.encryption.steward import Deposit, Measured, StewardHandle

__all__ = ["AuditedSteward"]

Opened = TypeVar("Opened")


class AuditedSteward:
    """A `StewardHandle` that logs what it was asked to open and whether it did."""

    def __init__(self, steward: StewardHandle, log_event: Callable[..., None]) -> None:
        self.steward, self.log_event = steward, log_event

    def begin(self, after: str | None = None) -> str:
        session = self.steward.begin(after)
        self.log_event("steward-session", session=session, after=after)
        return session

    def public_context(self) -> tuple[str, bytes]:
        return self.steward.public_context()

    def open_padded_sum(
        self, session: str, round: int, coefficients: Mapping[str, float], ciphertext: bytes
    ) -> np.ndarray:
        open_sum = partial(self.steward.open_padded_sum, session, round, coefficients, ciphertext)
        return self._logged("sum", round, coefficients, open_sum)

    def measure(self, session: str, round: int, deposits: Mapping[str, Deposit]) -> dict[str, Measured]:
        clients = dict.fromkeys(deposits, "norm and cosine")
        measure = partial(self.steward.measure, session, round, deposits)
        return self._logged("scalars", round, clients, measure)

    def open_measured_sum(self, session: str, round: int, coefficients: Mapping[str, float]) -> np.ndarray:
        open_sum = partial(self.steward.open_measured_sum, session, round, coefficients)
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
