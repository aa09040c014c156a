"""Profile-aware: look like one's own past, and spend what that leaves free on harm."""

from __future__ import annotations

import math
from statistics import fmean, stdev
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from wardround.attacks.base import Attack, Knowledge, KnowledgeLevel, Parameters, register
from wardround.attacks.kernels import norms_of
from wardround.updates import row_squared_norms

ROUND, NORM, COSINE = range(3)


@register("profile-aware")
class ProfileAware(Attack):
    r"""Keep norm and cosine within one's own past, and turn everything else against the federation.

    A defender that keeps a profile of each client (CAAC-FL) watches the norm of its updates and their
    cosine to the last global update :math:`v = w - w_{prev}`. Both can be computed by the client itself.
    With mean and std (m, s) of its own honest norms and the least cosine c of its last `memory` rounds,

    .. math::
        \tilde g = (m + k\,s)\Big(c\,\hat v - \sqrt{1-c^2}\;\hat q\Big), \qquad
        q = \hat g - \langle \hat g, \hat v\rangle \hat v

    has norm m + k·s and cosine c to v exactly, and is opposed to all of the estimated global direction
    :math:`\hat g` that the watched cosine does not show. The estimate is the client's own honest update;
    with `knowledge: colluders` it is the mean of all attackers' honest updates.

    The client studies itself in every round it takes part in, also before the attack begins, and stays
    honest until it has seen two rounds.

    CAAC-FL protocol, section 2.4 (profile-aware heuristic attack).

    >>> import torch
    >>> from wardround import attacks
    >>> attack, w = attacks.create("profile-aware"), torch.zeros(3)
    >>> for t in (1, 2, 3):
    ...     row = attack.craft(torch.tensor([[3.0, 4.0, 0.0]]), attacks.Knowledge(t, w + 1, w))
    >>> round(row.norm().item(), 4), round(row.sum().item(), 4)  # the norm and the cosine to (1, 1, 1) stay
    (5.0, 7.0)
    """

    knowledge_levels = (KnowledgeLevel.OWN, KnowledgeLevel.COLLUDERS)
    observes = True

    class Params(Parameters):
        k: float = Field(1.0, ge=0)
        """How many of its own standard deviations above its own mean norm the attacker goes."""
        memory: int = Field(10, ge=2)
        """Rounds of its own past that count, the reach of a running average with decay 0.9."""
        knowledge: Literal["own", "colluders"] = Field("own")

    def __init__(self, params: Any = None) -> None:
        super().__init__(params)
        self.history: dict[str, list[tuple[int, float, float]]] = {}

    def observe(self, own: Tensor, knowledge: Knowledge) -> None:
        cosines = self._cosines(own, knowledge)
        for i, (norm, cosine) in enumerate(zip(norms_of(own).tolist(), cosines, strict=True)):
            past = self.history.setdefault(knowledge.client(i), [])
            if not past or past[-1][ROUND] < knowledge.round:
                past.append((knowledge.round, norm, cosine))
                del past[: -self.params.memory - 1]  # the present round, and those that count

    def craft(self, own: Tensor, knowledge: Knowledge) -> Tensor:
        self.observe(own, knowledge)
        crafted = own.clone()
        step = knowledge.last_global_update()
        length = 0.0 if step is None else math.sqrt(float(row_squared_norms(step[None])))
        if step is None or length == 0:
            return crafted
        ahead = step.to(own.dtype) / length
        together = self.knowledge is KnowledgeLevel.COLLUDERS
        for i in range(len(own)):
            past = [e for e in self.history[knowledge.client(i)] if e[ROUND] < knowledge.round]
            past = past[-self.params.memory :]
            cosines = [entry[COSINE] for entry in past if not math.isnan(entry[COSINE])]
            if len(past) < 2 or not cosines:
                continue
            estimate = knowledge.known(own).mean(0) if together else own[i]
            hidden = estimate - torch.dot(estimate, ahead) * ahead
            size = math.sqrt(float(row_squared_norms(hidden[None])))
            if size == 0:
                continue
            norms = [entry[NORM] for entry in past]
            norm, cosine = fmean(norms) + self.params.k * stdev(norms), min(cosines)
            crafted[i] = norm * cosine * ahead - (norm * math.sqrt(1 - cosine**2) / size) * hidden
        return crafted

    @staticmethod
    def _cosines(own: Tensor, knowledge: Knowledge) -> list[float]:
        """Each row's cosine to the last global update; NaN where either is zero or there is none yet."""
        step = knowledge.last_global_update()
        if step is None:
            return [math.nan] * len(own)
        dots = (
            own.double() @ step.double() if own.numel() < 1_000_000 else (own @ step.to(own.dtype)).double()
        )
        lengths = norms_of(own) * norms_of(step[None].to(own.dtype))
        values = torch.where(lengths > 0, dots / lengths, math.nan)
        return values.clamp(-1, 1).tolist()

    def state_dict(self) -> dict[str, Any]:
        return {"history": {client: [list(entry) for entry in past] for client, past in self.history.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.history = {
            client: [(int(t), float(norm), float(cosine)) for t, norm, cosine in past]
            for client, past in state["history"].items()
        }
