"""Profile-aware: look like one's own past, and spend what that leaves free on harm."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from wardround.attacks.base import Attack, Knowledge, Parameters, register
from wardround.attacks.search_space import Range
from wardround.updates import row_squared_norms

ROUND, NORM, COSINE = range(3)
DECAY = 0.9
HIDDEN = 1e-3  # a smaller part of an estimate than this, orthogonal to the last step, is rounding


@dataclass
class Past:
    """What one client remembers of itself and of the global models it was sent."""

    rounds: list[tuple[int, float, float]] = field(default_factory=list)
    """Round, norm of the honest update, its cosine to the last global update (NaN where there is none)."""
    direction: Tensor | None = None
    """Running average of the global updates."""


@register("profile-aware")
class ProfileAware(Attack):
    r"""Keep norm and cosine within one's own past, and turn everything else against the federation.

    A defender that keeps a profile of each client (CAAC-FL) watches the norm of its updates and their
    cosine to the last global update :math:`v = w - w_{prev}`. Both can be computed by the client itself.
    With mean and std (m, s) of its own honest norms and the least cosine c of its last `memory` rounds,

    .. math::
        \tilde g = (m + k\,s)\Big(c\,\hat v - \sqrt{1-c^2}\;\hat q\Big), \qquad
        q = e - \langle e, \hat v\rangle \hat v

    has norm m + k·s and cosine c to v exactly, and is opposed to all of the estimated global direction e
    that the watched cosine does not show. The estimate is the running average of the global updates
    the client was sent (decay 0.9), and its own honest update where these show nothing beyond v.

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

    observes = True

    class Params(Parameters):
        k: Annotated[float, Range(0, 10)] = Field(1.0, ge=0)
        """How many of its own standard deviations above its own mean norm the attacker goes."""
        memory: Annotated[int, Range(2, 20)] = Field(10, ge=2)
        """Rounds of its own past that count, the reach of a running average with decay 0.9."""

    params: Params

    def __init__(self, params: Params | None = None) -> None:
        super().__init__(params)
        self.past: dict[str, Past] = {}

    def observe(self, own: Tensor, knowledge: Knowledge) -> None:
        step = knowledge.last_global_update()
        length = 0.0 if step is None else _norm(step)
        for i, honest in enumerate(own):
            past = self.past.setdefault(knowledge.client(i), Past())
            if past.rounds and past.rounds[-1][ROUND] >= knowledge.round:
                continue  # seen already
            norm, cosine = _norm(honest), math.nan
            if step is not None and length > 0 and norm > 0:
                dot = float(torch.dot(honest, step.to(honest.dtype)))
                cosine = min(1.0, max(-1.0, dot / (norm * length)))
            past.rounds.append((knowledge.round, norm, cosine))
            del past.rounds[: -self.params.memory - 1]  # the present round, and those that count
            if step is not None:
                past.direction = step if past.direction is None else torch.lerp(step, past.direction, DECAY)

    def craft(self, own: Tensor, knowledge: Knowledge) -> Tensor:
        self.observe(own, knowledge)
        crafted = own.clone()
        step = knowledge.last_global_update()
        length = 0.0 if step is None else _norm(step)
        if step is None or length == 0:
            return crafted
        ahead = step.to(own.dtype) / length
        for i, honest in enumerate(own):
            past = self.past[knowledge.client(i)]
            rounds = [entry for entry in past.rounds if entry[ROUND] < knowledge.round][-self.params.memory :]
            cosines = [entry[COSINE] for entry in rounds if not math.isnan(entry[COSINE])]
            hidden = _unit_beside(ahead, past.direction, honest)
            if len(rounds) < 2 or not cosines or hidden is None:
                continue
            norms = [entry[NORM] for entry in rounds]
            norm, cosine = fmean(norms) + self.params.k * stdev(norms), min(cosines)
            torch.mul(hidden, -norm * math.sqrt(1 - cosine**2), out=crafted[i])
            crafted[i].add_(ahead, alpha=norm * cosine)
        return crafted

    def state_dict(self) -> dict[str, Any]:
        return {
            client: {"rounds": [list(entry) for entry in past.rounds], "direction": _copy(past.direction)}
            for client, past in self.past.items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.past = {
            client: Past(
                [(int(t), norm, cosine) for t, norm, cosine in past["rounds"]], _copy(past["direction"])
            )
            for client, past in state.items()
        }


def _unit_beside(ahead: Tensor, *estimates: Tensor | None) -> Tensor | None:
    """The part of the first usable estimate that is orthogonal to `ahead`, normalised; None if there is none."""
    for estimate in estimates:
        if estimate is None:
            continue
        estimate = estimate.to(ahead.dtype)
        beside = estimate.sub(ahead, alpha=float(torch.dot(estimate, ahead)))
        beside.sub_(ahead, alpha=float(torch.dot(beside, ahead)))  # again: the first leaves rounding behind
        size = _norm(beside)
        if size > HIDDEN * _norm(estimate):
            return beside.div_(size)
    return None


def _norm(vector: Tensor) -> float:
    return math.sqrt(float(row_squared_norms(vector[None])))


def _copy(vector: Tensor | None) -> Tensor | None:
    return None if vector is None else vector.clone()
