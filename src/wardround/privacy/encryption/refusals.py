"""Errors of privacy and encryption: refused openings, a spent budget, vectors that cannot be encrypted."""

from __future__ import annotations

from wardround.errors import WardroundError

__all__ = ["BudgetSpent", "KeysSpent", "Refused", "StewardAway", "Unsealable"]


class Refused(WardroundError):
    """The steward will not open this; `client` is the one that is to blame, where it is one client's fault."""

    def __init__(self, message: str, client: str | None = None) -> None:
        super().__init__(message)
        self.client = client


class KeysSpent(Refused):
    """The steward's keys have had their run: it is past this round, or has answered it for another order."""


class StewardAway(WardroundError):
    """The steward cannot be reached; it may be back in a while."""


class BudgetSpent(WardroundError):
    """One more round would spend more privacy than the run may."""


class Unsealable(WardroundError):
    """A vector that a cipher cannot hold: not finite, or too large."""
