"""Bucketing: means of randomly drawn groups of rows."""

from __future__ import annotations

import torch
from pydantic import Field

from wardround.aggregators._math.measurements import Measurements
from wardround.aggregators.preaggregation.base import Mixer, Mixture, Parameters, PreContext, register
from wardround.randomness import seed_for
from wardround.updates import Updates


@register("bucketing")
class Bucketing(Mixer):
    r"""Draw the clients into buckets of `s`, anew every round, and replace each bucket by the mean of its rows.

    .. math:: Y_b = \frac{1}{|B_b|} \sum_{j \in B_b} U_j, \qquad b = 1, \dots, \lceil N/s \rceil

    The last bucket may be smaller. The rule behind sees ⌈N/s⌉ rows, of which up to f are spoilt by a Byzantine
    client: its f stays as it is. A bucket counts with the mean of its clients' sample counts and reports. Weights are
    shared out among a bucket's clients; scores and flags of buckets are nobody's, so there are none. A rule that
    remembers clients cannot stand behind it.

    The draw is named by (seed, round, client): the order of clients has no influence on it.

    Karimireddy, He, Jaggi, "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing", ICLR 2022.

    >>> import torch
    >>> from wardround import Updates, aggregators
    >>> sent = Updates(torch.tensor([[1.0], [2.0], [3.0], [4.0], [5.0], [-900.0]]))
    >>> out = aggregators.create("median", pre=[{"name": "bucketing", "s": 2}]).aggregate(sent)
    >>> out.delta, out.columns["bucket"].tolist()
    (tensor([3.5000]), [2.0, 1.0, 0.0, 0.0, 1.0, 2.0])
    """

    keeps_clients = False
    averages = True

    class Params(Parameters):
        s: int = Field(2, ge=1)
        """Clients in a bucket."""
        seed: int = Field(0, ge=0)
        """Names the draw."""

    params: Params

    def rows(self, rows: int) -> int:
        return -(-rows // self.params.s)

    def rows_needed(self, rows: int, context: PreContext) -> int:
        return (rows - 1) * self.params.s + 1

    def mix(self, updates: Updates, measurements: Measurements, context: PreContext) -> Mixture:
        n, s = len(updates), self.params.s
        drawn = sorted(
            range(n),
            key=lambda i: seed_for(self.params.seed, "bucketing", context.round, updates.clients[i]),
        )
        mixing = torch.zeros(self.rows(n), n, dtype=torch.float64)
        for place, client in enumerate(drawn):
            mixing[place // s, client] = 1
        bucket = mixing.argmax(0).double()
        mixing /= mixing.sum(1, keepdim=True)
        return Mixture(mixing, mixing, {"bucket": bucket})
