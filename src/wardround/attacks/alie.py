"""A Little Is Enough: hide inside the spread of the honest updates."""

from __future__ import annotations

from statistics import NormalDist
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from wardround.attacks.base import Attack, Knowledge, KnowledgeLevel, register
from wardround.attacks.disguise import DisguiseParams, disguised
from wardround.attacks.matrix_operations import moments, norms_of
from wardround.attacks.search_space import Range
from wardround.errors import ParameterError

EPSILON = 1e-8


@register("alie")
class Alie(Attack):
    r"""Shift the mean of the known updates by k standard deviations, coordinate by coordinate.

    .. math:: \tilde g = \mu + k\,\sigma, \qquad \sigma_j = \mathrm{std}_i(U_{ij}) + 10^{-8}

    with the unbiased std over the known updates. `k: auto` takes the largest shift that, for normal
    updates, still leaves a majority behind the attackers,

    .. math:: z_{max} = \Phi^{-1}\Big(\frac{N-s-f}{N-f}\Big), \qquad s = \lfloor N/2\rfloor + 1 - f.

    `match_norm: true` rescales the row to the median norm of the known updates. All attackers send the
    same row.

    G. Baruch, M. Baruch, Y. Goldberg: A Little Is Enough: Circumventing Defenses for Distributed Learning,
    NeurIPS 2019; CAAC-FL protocol, section 9.2 (k = 2.5).

    >>> import torch
    >>> from wardround import attacks
    >>> honest = torch.tensor([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]])
    >>> attacks.create("alie").craft(honest[:1], attacks.Knowledge(round=1, honest=honest))
    tensor([[7., 1.]])
    """

    knowledge_levels = (KnowledgeLevel.OMNISCIENT, KnowledgeLevel.COLLUDERS)

    class Params(DisguiseParams):
        k: Annotated[float | Literal["auto"], Range(-10, 10)] = 2.5
        """Standard deviations to shift by; `auto`: the paper's z_max."""
        match_norm: bool = False
        """Rescale the row to the median norm of the known updates."""
        knowledge: Literal["omniscient", "colluders"] = Field("omniscient")
        """Whose honest updates are known: everyone's, or the attackers' own."""

    params: Params

    @disguised
    def craft(self, own: Tensor, knowledge: Knowledge) -> Tensor:
        known = knowledge.known(own)
        mean, std = moments(known)
        row = mean.add_(std.add_(EPSILON), alpha=self._shift(own, knowledge))
        if self.params.match_norm:
            length = norms_of(row[None])
            if length > 0:
                row *= float(norms_of(known).quantile(0.5) / length)
        return row.repeat(len(own), 1)

    def _shift(self, own: Tensor, knowledge: Knowledge) -> float:
        if self.params.k != "auto":
            return float(self.params.k)
        if knowledge.honest is not None and self.knowledge is KnowledgeLevel.OMNISCIENT:
            clients = len(knowledge.others(own)) + len(own)
        elif knowledge.total_clients is not None:
            clients = knowledge.total_clients
        else:
            raise ParameterError("alie: k: auto needs the number of clients: Knowledge(total_clients=…)")
        return z_max(clients, len(own))


def z_max(clients: int, byzantine: int) -> float:
    """The paper's largest safe shift for N clients of which f are Byzantine.

    >>> round(z_max(50, 24), 2)  # the paper's example needs two supporters among 26: Φ⁻¹(24/26)
    1.43
    """
    if clients < 2 * byzantine + 1:
        raise ParameterError(f"alie: k: auto needs N ≥ 2f+1, got N={clients}, f={byzantine}")
    supporters = clients // 2 + 1 - byzantine
    return NormalDist().inv_cdf((clients - supporters - byzantine) / (clients - byzantine))
