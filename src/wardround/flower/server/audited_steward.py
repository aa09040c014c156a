"""The way to the steward, with every opening and refusal in the audit log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from wardround.privacy.encryption.refusals import Refused
from wardround.privacy.encryption.steward import Deposit, Measured, StewardHandle

__all__ = ["WatchedSteward"]


class WatchedSteward:
    """A `StewardHandle` that tells what it was asked to open and whether it did."""

    def __init__(self, steward: StewardHandle, tell: Callable[..., None]) -> None:
        self.steward, self.tell = steward, tell

    def begin(self, after: str | None = None) -> str:
        session = self.steward.begin(after)
        self.tell("steward-session", session=session, after=after)
        return session

    def public_context(self) -> tuple[str, bytes]:
        return self.steward.public_context()

    def open_padded_sum(
        self, session: str, round: int, coefficients: Mapping[str, float], ciphertext: bytes
    ) -> np.ndarray:
        return self._told(
            "sum", round, coefficients, self.steward.open_padded_sum, session, round, coefficients, ciphertext
        )

    def measure(self, session: str, round: int, deposits: Mapping[str, Deposit]) -> dict[str, Measured]:
        clients = dict.fromkeys(deposits, "norm and cosine")
        return self._told("scalars", round, clients, self.steward.measure, session, round, deposits)

    def open_measured_sum(self, session: str, round: int, coefficients: Mapping[str, float]) -> np.ndarray:
        return self._told(
            "sum", round, coefficients, self.steward.open_measured_sum, session, round, coefficients
        )

    def _told(
        self, what: str, round: int, clients: Mapping[str, Any], ask: Callable[..., Any], *args: Any
    ) -> Any:
        try:
            opened = ask(*args)
        except Refused as refusal:
            self.tell("opening-refused", what=what, round=round, clients=dict(clients), reason=str(refusal))
            raise
        self.tell("opened", what=what, round=round, clients=dict(clients))
        return opened
