"""What CAAC-Guard remembers of every client from round to round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from wardround.aggregators._math.order_statistics import GAUSSIAN_MAD

__all__ = ["Profiles", "direction_limits", "weigh_evidence", "weighted_median"]

AGREEMENT = 0.5
"""The median cosine from which on clients agree on what distinguishes outcomes. Chosen on `icu`: with SGD it is 0.7 to
0.9 while the model learns, with Adam, whose scaling of coordinates hides it, 0.05 to 0.4."""


def weighted_median(values: Tensor, weights: Tensor) -> float:
    """The least value with at least half of the weight at or below it.

    >>> weighted_median(torch.tensor([5.0, 1.0, 3.0]), torch.tensor([1.0, 1.0, 1.0]))
    3.0
    """
    order = values.argsort()
    reached = weights[order].cumsum(0)
    return float(values[order][int((reached >= reached[-1] / 2).nonzero()[0])])


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
    tensor([ 0.0000,  0.0000,  0.0000,  0.0000, -0.3620])
    """
    limits = torch.zeros_like(directions)
    for outcome in range(directions.shape[1]):
        agrees = directions[:, outcome] > 0
        if bool(agrees.any()):
            values, patients = directions[agrees, outcome], counts[agrees, outcome]
            centre, even = values.quantile(0.5), torch.ones_like(values)
            spread = weighted_median((values - centre).abs(), even) / GAUSSIAN_MAD
            fewer = (patients.quantile(0.5) / counts[:, outcome].clamp_min(1)).clamp_min(1).sqrt()
            limits[:, outcome] = (centre - 3 * spread * fewer).clamp(max=0)
    return limits


def weigh_evidence(seen: Tensor, patients: Tensor) -> Tensor:
    """How much what is seen in a round says about each client.

    It says as much as clients agree on what distinguishes outcomes, whichever way round they have it: the median of the
    absolute values is its weight, and below `AGREEMENT` nothing counts. A negative value counts only if it is no noise,
    that is three standard deviations (by the median absolute deviation) below that median.

    Args:
        seen: N values from −1 to 1; NaN where a client shows nothing.
        patients: N weights of the medians.

    Returns:
        N values; NaN where a client shows nothing.

    >>> ones = torch.ones(5)
    >>> weigh_evidence(torch.tensor([0.8, 0.8, 0.9, 0.7, -0.5]), ones)  # four agree, and one is against them
    tensor([ 0.6400,  0.6400,  0.7200,  0.5600, -0.4000])
    >>> weigh_evidence(torch.tensor([0.8, 0.7, 0.8, -0.8, -0.7]), ones)  # all agree but for the sign
    tensor([ 0.6400,  0.5600,  0.6400, -0.6400, -0.5600])
    >>> weigh_evidence(torch.tensor([0.3, 0.1, -0.2, 0.2, -0.5]), ones)  # nobody agrees with anybody
    tensor([0., 0., 0., 0., 0.])
    """
    shown = ~seen.isnan()
    if not bool(shown.any()):
        return seen
    values, weights = seen[shown].abs(), patients[shown]
    agreement = weighted_median(values, weights)
    if agreement < AGREEMENT:
        return torch.where(shown, 0.0, seen)
    spread = weighted_median((values - agreement).abs(), weights) / GAUSSIAN_MAD
    noise = (seen < 0) & (seen > agreement - 3 * spread)
    return torch.where(noise, 0.0, seen) * agreement


class Profiles:
    """A profile per client: how well its parts agree with its peers', and whether its outcomes are the right way round.

    Profiles learn from everybody in every round, flagged or not.
    """

    def __init__(self) -> None:
        self.clients: dict[str, int] = {}
        """Client → its place."""
        self.directions = torch.empty(0, 0, dtype=torch.float64)
        """K × C mean cosines; NaN for an outcome that was never compared."""
        self.evidence = torch.empty(0, dtype=torch.float64)
        """K fading sums."""
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
            self.evidence = torch.cat([self.evidence, torch.zeros(len(new), dtype=torch.float64)])
            self.flagged = torch.cat([self.flagged, torch.zeros(len(new), dtype=torch.bool)])
            self.clients |= {client: len(self.clients) + i for i, client in enumerate(new)}
        return torch.tensor([self.clients[client] for client in clients], dtype=torch.long)

    def remember_directions(self, places: Tensor, cosines: Tensor, memory: float) -> Tensor:
        """Let mean cosines follow those of the round (N × C; NaN: not compared).

        Returns:
            N × C mean cosines; NaN for an outcome in which the client was never compared.
        """
        past = self.directions[places]
        mixed = torch.where(past.isnan(), cosines, memory * past + (1 - memory) * cosines)
        mixed = torch.where(cosines.isnan(), past, mixed)
        self.directions[places] = mixed
        return mixed

    def remember_evidence(self, places: Tensor, counted: Tensor, memory: float) -> Tensor:
        """Add the evidence of a round (N values; NaN for a client that shows nothing) to what is left of the past.

        Returns:
            N fading sums; negative where a client's updates are the wrong way round.
        """
        shown = ~counted.isnan()
        self.evidence[places[shown]] = memory * self.evidence[places[shown]] + counted[shown]
        return self.evidence[places]

    def table(self) -> dict[str, dict[str, float]]:
        """Client → column → value."""
        return {
            client: {
                "direction": float(self.directions[place].nan_to_num(nan=1.0).min()),
                "discrimination": float(self.evidence[place]),
                "flagged": float(self.flagged[place]),
            }
            for client, place in self.clients.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """All there is."""
        return {
            "clients": dict(self.clients),
            "directions": self.directions.clone(),
            "evidence": self.evidence.clone(),
            "flagged": self.flagged.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.clients = dict(state["clients"])
        self.directions, self.evidence = state["directions"].clone(), state["evidence"].clone()
        self.flagged = state["flagged"].clone()
