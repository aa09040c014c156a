"""How much privacy a run has spent so far, by Opacus's accountants.

Every release is a (subsampled) Gaussian mechanism: a noise multiplier, a sampling rate, a number of steps. Each
client has its own history; the reported ε is that of the client that has spent most. No amplification by a
round's choice of clients is claimed: the server knows whom it chose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

from wardround.errors import require
from wardround.privacy.encryption.refusals import BudgetSpent

__all__ = ["Ledger", "Release"]

Release = tuple[float, float, int]
"""Noise multiplier, sampling rate, steps."""


class Ledger:
    """What every client has spent.

    >>> ledger = Ledger(delta=1e-5)
    >>> ledger.spend({"a": (2.0, 1.0, 1)})
    >>> once = ledger.epsilon()
    >>> ledger.spend({"a": (2.0, 1.0, 1)})
    >>> once < ledger.epsilon() < 2 * once
    True
    """

    def __init__(
        self, delta: float, accountant: Literal["rdp", "prv"] = "rdp", budget: float | None = None
    ) -> None:
        self.delta, self.accountant, self.budget = delta, accountant, budget
        self.steps: dict[str, Counter[tuple[float, float]]] = {}
        self._curves: dict[tuple[float, float], Any] = {}
        self._known: dict[frozenset[tuple[tuple[float, float], int]], float] = {}

    def spend(self, releases: dict[str, Release]) -> None:
        """Book one round: client → what it released."""
        self.steps = self._after(releases)

    def check(self, releases: dict[str, Release], round: int) -> None:
        """Raise if this round would overspend the budget; nothing is booked."""
        if self.budget is None:
            return
        after = self._worst(self._after(releases).values())
        if after > self.budget:
            raise BudgetSpent(
                f"privacy budget: round {round} would spend ε = {after:.3f} of {self.budget:g} "
                f"(δ = {self.delta:g}); ε so far {self.epsilon():.3f}"
            )

    def epsilon(self) -> float:
        """ε of the whole run so far, of the client who has spent most."""
        return self._worst(self.steps.values())

    def _after(self, releases: dict[str, Release]) -> dict[str, Counter[tuple[float, float]]]:
        after = dict(self.steps)
        for client, (multiplier, rate, steps) in releases.items():
            after[client] = Counter(after.get(client, {})) + Counter({(multiplier, rate): steps})
        return after

    def _worst(self, histories: Iterable[Counter[tuple[float, float]]]) -> float:
        return max((self._epsilon_of(frozenset(history.items())) for history in histories), default=0.0)

    def _epsilon_of(self, history: frozenset[tuple[tuple[float, float], int]]) -> float:
        if history not in self._known:
            spent = self._prv if self.accountant == "prv" else self._rdp
            self._known[history] = spent(sorted(history)) if history else 0.0
        return self._known[history]

    def _rdp(self, history: list[tuple[tuple[float, float], int]]) -> float:
        rdp = require("opacus.accountants.analysis.rdp", "privacy")
        orders = require("opacus.accountants", "privacy").RDPAccountant.DEFAULT_ALPHAS
        for (multiplier, rate), _ in history:
            if (multiplier, rate) not in self._curves:
                self._curves[multiplier, rate] = rdp.compute_rdp(
                    q=rate, noise_multiplier=multiplier, steps=1, orders=orders
                )
        total = sum(self._curves[release] * steps for release, steps in history)
        return float(rdp.get_privacy_spent(orders=orders, rdp=total, delta=self.delta)[0])

    def _prv(self, history: list[tuple[tuple[float, float], int]]) -> float:
        accountant = require("opacus.accountants", "privacy").PRVAccountant()
        accountant.history = [(multiplier, rate, steps) for (multiplier, rate), steps in history]
        return float(accountant.get_epsilon(delta=self.delta))

    def state_dict(self) -> dict[str, Any]:
        """Plain lists and numbers."""
        return {
            client: [[multiplier, rate, steps] for (multiplier, rate), steps in history.items()]
            for client, history in self.steps.items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what was spent."""
        self.steps = {
            client: Counter({(multiplier, rate): steps for multiplier, rate, steps in history})
            for client, history in state.items()
        }
