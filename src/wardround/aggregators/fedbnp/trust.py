"""Trust out of two opinions, and what follows from it: weights and verdicts."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

__all__ = ["FLAG_BELOW", "TrustForm", "combined_trust", "shares"]

TrustForm = Literal["document", "sharp"]
FLAG_BELOW = 0.5
"""A client is flagged when its trust is below this, on the scale of `sharp`."""


def combined_trust(
    attention: Tensor, policy: Tensor, alpha: float = 0.6, form: TrustForm = "document"
) -> Tensor:
    r"""Trust in each client from the attention's opinion a and the agent's policy π, both in (0, 1).

    .. math:: t_k = \sigma(\alpha a_k + (1-\alpha)\pi_k) \ \text{(document)}, \qquad
        t_k = \alpha a_k + (1-\alpha)\pi_k \ \text{(sharp)}

    The document's form squeezes every trust into (0.5, 0.73): whoever is surely an attacker keeps at least
    0.68 of the weight of whoever is surely honest. `sharp` leaves the scale as it is.

    >>> sure = torch.tensor([0.0, 1.0])
    >>> combined_trust(sure, sure, form="document")
    tensor([0.5000, 0.7311])
    >>> combined_trust(sure, sure, form="sharp")
    tensor([0., 1.])
    """
    mixed = alpha * attention + (1 - alpha) * policy
    return torch.sigmoid(mixed) if form == "document" else mixed


def shares(trust: Tensor) -> Tensor:
    """The trusts normalised to weights; equal ones where nobody is trusted at all.

    >>> shares(torch.tensor([1.0, 3.0])), shares(torch.zeros(2))
    (tensor([0.2500, 0.7500]), tensor([0.5000, 0.5000]))
    """
    total = trust.sum()
    return trust / total if total > 0 else torch.full_like(trust, 1 / len(trust))
