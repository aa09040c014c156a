"""FLDetector: clients whose updates do not follow from their own past and the model's movement."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from wardround.aggregators._math.client_rows import ClientRows
from wardround.aggregators._math.clustering import gap_statistic_clusters, kmeans_on_a_line
from wardround.aggregators._math.kernels import distances_and_replace
from wardround.aggregators._math.secant_pairs import SecantPairs
from wardround.aggregators.base import Aggregator, Context, Parameters, register, sample_weights
from wardround.randomness import numpy_generator
from wardround.updates import Aggregation, Updates

FAR = 1e150
"""No distance counts as longer: sums of squares stay finite."""


@register("fldetector")
class FlDetector(Aggregator):
    r"""Predict every client's update from its last one, and leave out who is persistently unlike its prediction.

    .. math:: \hat U_i^t = U_i^{t-1} + \hat H^t (w^t - w^{t-1}), \qquad
        d_i^t = \frac{\|U_i^t - \hat U_i^t\|}{\sum_j \|U_j^t - \hat U_j^t\|}

    Ĥ is the L-BFGS estimate of how updates change with the model, from the last `window` changes of the global weights
    and of the aggregate. (It is the paper's Hessian of the loss with the sign of updates instead of gradients.) A
    client's score is the mean of its d over the last `window` rounds. Once there are so many, the gap statistic says
    whether the scores form more than one group; then those of the higher of two groups (k-means) are flagged and left
    out of FedAvg. The paper stops and trains anew without them, its code only reports them at the end; here they are
    judged anew every round. k-means is exact (scores are numbers on a line), so there is nothing random but the
    reference draws, named by (seed, round). The rule keeps one row of D values per client and 2·`window` more.

    Zhang, Cao, Jia, Gong, "FLDetector: Defending Federated Learning Against Model Poisoning Attacks via Detecting
    Malicious Clients", KDD 2022.

    >>> import torch
    >>> from wardround import Updates, aggregators
    >>> rule, w = aggregators.create("fldetector", window=3), torch.zeros(50)
    >>> honest = torch.randn(8, 50, generator=torch.Generator().manual_seed(0))
    >>> for t in range(1, 8):
    ...     rows = honest.clone()
    ...     rows[0] = torch.randn(50, generator=torch.Generator().manual_seed(t))
    ...     out = rule.aggregate(Updates(rows), t, global_weights=w)
    ...     w = w + out.delta
    >>> out.flags.tolist()
    [True, False, False, False, False, False, False, False]
    """

    needs_global_weights = True
    remembers_clients = True

    rows_per_client = 1

    class Params(Parameters):
        window: int = Field(10, ge=1)
        """Rounds that a score and the estimate of Ĥ look back."""
        seed: int = Field(0, ge=0)
        """Names the reference draws of the gap statistic."""
        sample_cap: float | None = Field(None, ge=1)
        """A reported sample count above this multiple of the round's median counts as that multiple."""

    params: Params

    def __init__(self, params: Params | None = None) -> None:
        super().__init__(params)
        self.rows = ClientRows()
        """The last update of each client."""
        self.distances: dict[str, list[float]] = {}
        """Client → its last values of d."""
        self.rounds = 0
        """Rounds with predictions."""
        self.weights: Tensor | None = None
        self.aggregate_before: Tensor | None = None
        self.pairs = SecantPairs(self.params.window)
        """Changes of the global weights, and of the aggregate."""
        self._left_out: set[str] = set()
        """Who was flagged last: a guess of who will be, which saves a read of the rows where it is right."""

    def combine(self, updates: Updates, context: Context) -> Aggregation:
        weights = context.global_weights
        assert weights is not None  # `needs_global_weights` has seen to it
        weights = weights.to(updates.dtype)
        move = None if self._starts_anew(weights) or self.weights is None else weights - self.weights
        expected = None if move is None else self.pairs.estimate(move)
        guess = self._shares(updates, torch.tensor([client in self._left_out for client in updates.clients]))
        delta = self._compare(updates, expected, guess)
        scores = self._scores(updates.clients)
        flags = self._verdict(scores, context.round)
        shares = self._shares(updates, flags)
        if not torch.equal(shares, guess):
            delta = context.measurements.weighted_sum(shares)
        self._left_out = {client for client, flag in zip(updates.clients, flags, strict=True) if flag}
        self._remember(weights, move, delta)
        return Aggregation(delta, weights=shares, scores=scores, flags=flags)

    def _shares(self, updates: Updates, flags: Tensor) -> Tensor:
        """N weights of FedAvg without the flagged; of all where all are."""
        kept = ~flags if not bool(flags.all()) else torch.ones_like(flags)
        shares = sample_weights(updates, self.params.sample_cap) * kept
        total = shares.sum()
        return shares / total if total > 0 else kept.double() / kept.sum()

    def _starts_anew(self, weights: Tensor) -> bool:
        """Is this another model than the one remembered?"""
        if self.weights is None or (self.weights.shape, self.weights.dtype) == (weights.shape, weights.dtype):
            return False
        self.rows, self.distances, self.pairs = ClientRows(), {}, SecantPairs(self.params.window)
        self.weights, self.aggregate_before, self.rounds = None, None, 0
        return True

    def _compare(self, updates: Updates, expected: Tensor | None, shares: Tensor) -> Tensor:
        """Add each client's distance from its prediction, and remember its row; a client without a past has none.

        Returns:
            D values: the sum of the rows by these shares.
        """
        past, known = self.rows.matrix_of(updates.clients, updates.matrix)
        squared, combined = distances_and_replace(past, updates.matrix, expected, shares)
        if expected is None or not bool(known.any()):
            return combined
        distances = squared[known].sqrt().nan_to_num(FAR, FAR).clamp(max=FAR)
        total = float(distances.sum())
        for i, distance in zip(known.nonzero().flatten().tolist(), distances.tolist(), strict=True):
            own = self.distances.setdefault(updates.clients[i], [])
            own.append(distance / total if total > 0 else 1 / len(distances))
            del own[: -self.params.window]
        self.rounds += 1
        return combined

    def _scores(self, clients: tuple[str, ...] | list[str] | Any) -> Tensor:
        """N mean distances; 0 for who has none yet."""
        own = [self.distances.get(client, []) for client in clients]
        return torch.tensor([sum(past) / len(past) if past else 0.0 for past in own], dtype=torch.float64)

    def _verdict(self, scores: Tensor, round: int) -> Tensor:
        flags = torch.zeros(len(scores), dtype=torch.bool)
        if self.rounds < self.params.window or len(scores) < 3:
            return flags
        values = scores.numpy()
        generator = numpy_generator(self.params.seed, "fldetector", round)
        if gap_statistic_clusters(values, generator) < 2:
            return flags
        return torch.from_numpy(np.asarray(kmeans_on_a_line(values, 2)[1][1] == 1))

    def _remember(self, weights: Tensor, move: Tensor | None, delta: Tensor) -> None:
        if move is not None and self.aggregate_before is not None:
            self.pairs.append(move, torch.sub(delta, self.aggregate_before, out=self.aggregate_before))
        # Into the old places: memory that was never touched costs more than a copy.
        self.weights = _copied(weights, self.weights)
        self.aggregate_before = _copied(delta, self.aggregate_before)

    def state_dict(self) -> dict[str, Any]:
        return {
            "rows": self.rows.copies(),
            "distances": {client: list(past) for client, past in self.distances.items()},
            "rounds": self.rounds,
            "weights": None if self.weights is None else self.weights.clone(),
            "aggregate": None if self.aggregate_before is None else self.aggregate_before.clone(),
            **self.pairs.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows = ClientRows(state["rows"])
        self.distances = {client: list(past) for client, past in state["distances"].items()}
        self.rounds = state["rounds"]
        weights, aggregate = state["weights"], state["aggregate"]
        self.weights = None if weights is None else weights.clone()
        self.aggregate_before = None if aggregate is None else aggregate.clone()
        self.pairs.load_state_dict(state)


def _copied(values: Tensor, into: Tensor | None) -> Tensor:
    """D values in a place of their own."""
    return values.clone() if into is None else into.copy_(values)
