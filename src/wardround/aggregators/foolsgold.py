"""FoolsGold: clients whose updates resemble each other over the rounds are taken for one attacker's sybils."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from wardround.aggregators._math.client_rows import ClientRows
from wardround.aggregators._math.kernels import CentredGram, centred_gram, norms_and_gram
from wardround.aggregators.base import Aggregator, Context, register
from wardround.updates import Aggregation, Updates

CERTAIN = 0.99
"""What the weight of the least similar client counts as before the logit, which has no value at 1."""

SMALLEST, LARGEST = 1e-60, 1e60
"""Squared norms between these lose nothing in float64 products."""


@register("foolsgold")
class FoolsGold(Aggregator):
    r"""Weights that fall with the greatest cosine between a client's past and another's.

    With H_i the sum of all updates of client i and c_ij = cos(H_i, H_j), m_i = max_j c_ij:

    .. math:: c_{ij} \leftarrow c_{ij}\, m_i / m_j \text{ where } m_j > m_i \text{ (pardoning)}, \qquad
        v_i = 1 - \max_j c_{ij}, \qquad v_i \leftarrow v_i / \max_j v_j, \qquad
        v_i \leftarrow \ln\frac{v_i}{1-v_i} + \tfrac12

    with v clamped to [0, 1] before and after the logit, and the greatest v taken as 0.99 in it, as in the authors'
    code. The paper adds Σ v_i U_i; here the v_i are normalised to shares, so that the step does not grow with the
    number of clients. The authors compare output layers only, here it is the whole update. Where all look like sybils
    (all v_i = 0; the paper divides by zero there) all count the same. Colluders are found, a single attacker is not:
    it resembles nobody. The rule keeps one row of D values per client. Scores are max_j c_ij after pardoning.

    Fung, Yoon, Beschastnikh, "The Limitations of Federated Learning in Sybil Settings", RAID 2020.

    >>> import torch
    >>> from wardround import Updates, aggregators
    >>> sent = Updates(torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.1, 0.1, 5.0], [0.1, 0.1, 5.0]]))
    >>> aggregators.create("foolsgold").aggregate(sent).weights.tolist()
    [0.5, 0.5, 0.0, 0.0]
    """

    remembers_clients = True
    rows_per_client = 1

    def __init__(self, params: Any = None) -> None:
        super().__init__(params)
        self.sums = ClientRows()
        """The sum of each client's updates."""

    def combine(self, updates: Updates, context: Context) -> Aggregation:
        similarity = _cosines(*self._history(updates))
        value, greatest = foolsgold_values(similarity)
        weights = value / value.sum() if bool(value.sum() > 0) else torch.full_like(value, 1 / len(value))
        return Aggregation(context.measurements.weighted_sum(weights), weights=weights, scores=greatest)

    def _history(self, updates: Updates) -> tuple[Tensor, Tensor, CentredGram | None]:
        """N × D sums of each client's updates, this round's included, with their norms and products about 0.

        A sum that is not finite starts anew.
        """
        rows = updates.matrix
        sums, _ = self.sums.matrix_of(updates.clients, rows)
        sums.add_(rows)
        nowhere = sums.new_zeros(sums.shape[1])
        squared, geometry = norms_and_gram(sums, centre=nowhere)
        lost = [
            i
            for i in (~squared.isfinite()).nonzero().flatten().tolist()
            if not bool(sums[i].isfinite().all())
        ]
        if lost:  # not only their squares
            sums[lost] = rows[lost]
            squared, geometry = norms_and_gram(sums, centre=nowhere)
        return sums, squared, geometry

    def state_dict(self) -> dict[str, Any]:
        return {"sums": self.sums.copies()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sums = ClientRows(state["sums"])


def foolsgold_values(similarity: Tensor) -> tuple[Tensor, Tensor]:
    """FoolsGold's weights, before they are normalised.

    Args:
        similarity: N × N cosines between clients.

    Returns:
        N values in [0, 1], and each client's greatest cosine after pardoning.
    """
    n = len(similarity)
    if n == 1:
        return torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    others = similarity.clone().fill_diagonal_(0)  # as the authors: their code takes the identity away
    most = others.max(1).values
    factor = torch.where(
        (most[None, :] > most[:, None]) & (most[None, :] != 0), most[:, None] / most[None, :], 1.0
    )
    greatest = (others * factor).fill_diagonal_(0).max(1).values
    value = (1 - greatest).clamp(0, 1)
    if not bool(value.max() > 0):
        return torch.zeros_like(value), greatest
    value = value / value.max()
    value = torch.where(value == 1, CERTAIN, value)
    return (torch.log(value / (1 - value)) + 0.5).clamp(0, 1), greatest


def _cosines(rows: Tensor, squared: Tensor, geometry: CentredGram | None) -> Tensor:
    """N × N cosines of rows with these squared norms and products; 0 with a row that is zero."""
    if geometry is not None and bool(((squared > SMALLEST) & (squared < LARGEST)).all()):  # no square is lost
        gram = geometry.gram
    else:
        scale = rows.abs().amax(1).clamp(min=torch.finfo(rows.dtype).tiny)
        scaled = torch.where(scale[:, None] > 0, rows / scale[:, None], 0.0)
        gram = centred_gram(Updates(scaled), centre=scaled.new_zeros(scaled.shape[1])).gram
    norms = gram.diagonal().sqrt()
    lengths = norms[:, None] * norms[None, :]
    return torch.where(lengths > 0, gram / lengths.clamp(min=1e-300), 0.0).clamp(-1, 1)
