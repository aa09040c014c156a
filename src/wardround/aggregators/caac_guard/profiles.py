"""What CAAC-Guard remembers of every client from round to round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from wardround.aggregators._math.order_statistics import GAUSSIAN_MAD

__all__ = ["Profiles", "direction_limits"]


WAYS = 2
"""Of counting clients for the centres of outcomes: by patients, and all alike."""
PARDON = 0.01
"""How far the mean side of a client moves towards 1 in a round that is no evidence."""


def direction_limits(directions: Tensor, counts: Tensor) -> Tensor:
    """How low the mean cosine of an honest part may be, by how many patients it is of (N × C).

    At most 0. Few patients make a noisy part: below 0 only counts what lies three standard deviations below the parts
    that agree. Their spread (by the median absolute deviation of those with a positive cosine, so that no number of
    liars widens it) grows with the root of how many fewer patients a part has than the median one.

    Args:
        directions: N × C mean cosines; NaN where there is none.
        counts: N × C patients.

    >>> cosines = torch.tensor([[0.8], [0.9], [0.6], [0.7], [-0.1]])
    >>> direction_limits(cosines, torch.tensor([[100.0], [100.0], [100.0], [100.0], [4.0]])).flatten()
    tensor([ 0.0000,  0.0000,  0.0000,  0.0000, -1.4739])
    """
    limits = torch.zeros_like(directions)
    for outcome in range(directions.shape[1]):
        agrees = directions[:, outcome] > 0
        if bool(agrees.any()):
            values, patients = directions[agrees, outcome], counts[agrees, outcome]
            centre = values.quantile(0.5)
            spread = (values - centre).abs().quantile(0.5) / GAUSSIAN_MAD
            fewer = (patients.quantile(0.5) / counts[:, outcome].clamp_min(1)).clamp_min(1).sqrt()
            limits[:, outcome] = (centre - 3 * spread * fewer).clamp(max=0)
    return limits


class Profiles:
    """A profile per client: how well its parts agree with its peers', and whether its outcomes are the right way round.

    Profiles learn from everybody in every round, flagged or not.
    """

    def __init__(self) -> None:
        self.clients: dict[str, int] = {}
        """Client → its place."""
        self.directions = torch.empty(0, 0, dtype=torch.float64)
        """K × C mean cosines; NaN for an outcome that was never compared."""
        self.sides = torch.empty(0, WAYS, dtype=torch.float64)
        """K × 2 means of `Sides.values`, by either way of counting; NaN for a client that never showed its side."""
        self.furthest = [0.0] * WAYS
        """The largest squared distance between outcomes so far, by either way."""
        self.flagged = torch.empty(0, dtype=torch.bool)
        """K: was the client flagged in its last round?"""

    def places(self, clients: Sequence[str], outcomes: int) -> Tensor:
        """Where the profiles of some clients lie; new ones are added."""
        new = [client for client in clients if client not in self.clients]
        if new or self.directions.shape[1] != outcomes:
            if self.directions.shape[1] != outcomes:
                self.directions = torch.full((len(self.clients), outcomes), torch.nan, dtype=torch.float64)
            empty = torch.full((len(new), outcomes), torch.nan, dtype=torch.float64)
            self.directions = torch.cat([self.directions, empty])
            unknown = torch.full((len(new), WAYS), torch.nan, dtype=torch.float64)
            self.sides = torch.cat([self.sides, unknown])
            self.flagged = torch.cat([self.flagged, torch.zeros(len(new), dtype=torch.bool)])
            self.clients |= {client: len(self.clients) + i for i, client in enumerate(new)}
        return torch.tensor([self.clients[client] for client in clients], dtype=torch.long)

    def remember_directions(self, places: Tensor, cosines: Tensor, memory: float) -> Tensor:
        """Let mean cosines follow those of the round (N × C; NaN: not compared).

        Returns:
            N × C mean cosines; NaN for an outcome in which the client was never compared.
        """
        self.directions[places] = _follow(self.directions[places], cosines, memory)
        return self.directions[places]

    def follow_sides(self, places: Tensor, sides: Tensor, memory: float, way: int) -> Tensor:
        """What the mean sides would be with those of the round (N; NaN for a client that shows nothing)."""
        return _follow(self.sides[places, way], sides, memory)

    def remember_sides(
        self, places: Tensor, sides: Tensor, apart: float, memory: float, way: int, is_evidence: bool = True
    ) -> Tensor:
        """Let mean sides follow those of the round, if it can tell them, and return them (N).

        Once a model has learnt, what its patients still teach is what it gets wrong, and outcomes are hardly apart any
        more. Such a round is no evidence: every mean then moves a little towards innocence, so that a verdict passes.

        Args:
            places: Of the N clients.
            sides: N: what `compare_outcomes` gives.
            apart: How far the outcomes are apart in this round.
            memory: Share of the past.
            way: Of counting, 0 or 1.
            is_evidence: Can the round tell sides at all?
        """
        self.furthest[way] = max(self.furthest[way], apart)
        if apart < self.furthest[way] / 2 or not is_evidence:
            self.sides[places, way] += PARDON * (1 - self.sides[places, way])
        else:
            self.sides[places, way] = self.follow_sides(places, sides, memory, way)
        return self.sides[places, way]

    def table(self) -> dict[str, dict[str, float]]:
        """Client → column → value."""
        return {
            client: {
                "direction": float(self.directions[place].nan_to_num(nan=1.0).min()),
                "discrimination": float(self.sides[place].nan_to_num(nan=1.0).min()),
                "flagged": float(self.flagged[place]),
            }
            for client, place in self.clients.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """All there is."""
        return {
            "clients": dict(self.clients),
            "directions": self.directions.clone(),
            "sides": self.sides.clone(),
            "furthest": list(self.furthest),
            "flagged": self.flagged.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.clients = dict(state["clients"])
        self.directions, self.sides = state["directions"].clone(), state["sides"].clone()
        self.flagged, self.furthest = state["flagged"].clone(), list(state["furthest"])


def _follow(past: Tensor, now: Tensor, memory: float) -> Tensor:
    """Means that follow what is new; NaN in either stands for nothing."""
    mixed = torch.where(past.isnan(), now, memory * past + (1 - memory) * now)
    return torch.where(now.isnan(), past, mixed)
