"""Model replacement: scale a backdoored update until it survives the average."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from wardround.attacks.backdoor import Backdoor
from wardround.attacks.base import Knowledge, register
from wardround.attacks.matrix_operations import norms_of
from wardround.attacks.search_space import FIXED, Choice


@register("model-replacement")
class ModelReplacement(Backdoor):
    r"""Train on backdoored data and send γ times the update, so that the average becomes the backdoored model.

    .. math:: \tilde g = \gamma\, g_{bd}, \qquad \gamma = N / B \text{ (`auto`)}, \qquad
        \gamma \leftarrow \min\!\Big(\gamma, \frac{S\,\|w^t - w^{t-1}\|}{\|g_{bd}\|}\Big) \text{ with a bound } S

    With γ = N/B for B attackers among N clients, FedAvg of equal clients moves to the mean of the backdoored models.
    The bound is the paper's *train-and-scale*: it keeps the row as short as an anomaly detector tolerates. Its
    *constrain-and-scale* trains with the detector's measure in the loss, here the Euclidean distance, as in the
    authors' code (not squared: a pull of constant strength towards the global model):

    .. math:: \mathcal L = \alpha \mathcal L_{class} + (1-\alpha) \mathcal L_{ano}, \qquad
        \mathcal L_{ano} = \|w - w^t\|_2

    Attackers have the learning rate and the number of steps of everybody else; the paper gives them more steps, a
    falling rate and an early stop.

    E. Bagdasaryan, A. Veit, Y. Hua, D. Estrin, V. Shmatikov: How To Backdoor Federated Learning, AISTATS 2020.

    >>> import torch
    >>> from wardround import attacks
    >>> attack = attacks.create("model-replacement")
    >>> attack.craft(torch.ones(2, 3), attacks.Knowledge(round=1, total_clients=10))[0]
    tensor([5., 5., 5.])
    """

    class Params(Backdoor.Params):
        boost: Annotated[float | Literal["auto"], FIXED] = "auto"
        """γ; `auto`: N/B, the clients over the attackers (N where each attacker knows only of itself)."""
        alpha: Annotated[float, Choice((1.0, 0.9, 0.7, 0.5))] = Field(1.0, gt=0, le=1)
        """α: share of the classification loss in the attackers' training; below 1 it is constrain-and-scale."""
        bound: Annotated[float | None, Choice((None, 1.0, 2.0, 5.0, 10.0))] = Field(None, gt=0)
        """S: the greatest norm of a row, as a multiple of the norm of the last global step; None: no bound."""

    params: Params

    @property
    def stealth(self) -> float:
        return 1 - self.params.alpha

    def craft(self, own: Tensor, knowledge: Knowledge) -> Tensor:
        boost = self.params.boost
        factor = (knowledge.total_clients or len(own)) / len(own) if boost == "auto" else float(boost)
        rows = own * factor
        step = knowledge.last_global_update()
        if self.params.bound is None or step is None:
            return rows
        return within(rows, self.params.bound * float(norms_of(step.reshape(1, -1))))


def within(rows: Tensor, radius: float) -> Tensor:
    """B × D rows, those longer than `radius` brought down to it."""
    norms = norms_of(rows)
    scale = (radius / norms.clamp(min=1e-300)).clamp(max=1)
    return rows * scale.to(rows.dtype)[:, None]
