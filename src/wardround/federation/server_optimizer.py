"""How the global model moves by an aggregated update: plain, with momentum, or with adaptive rates per coordinate."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from wardround.registry import Parameters
from wardround.updates import Layout

__all__ = ["ServerOptimizer", "ServerParams"]

STATISTICS = ("running_mean", "running_var")
"""What BatchNorm measures is averaged, not optimised."""


class ServerParams(Parameters):
    """The server's optimiser, which takes the aggregate for a gradient."""

    optimizer: Literal["sgd", "momentum", "adam", "yogi"] = "sgd"
    lr: float | None = Field(None, gt=0)
    """η; None: `server_lr` (1) for sgd and momentum, 0.01 for adam and yogi."""
    beta1: float = Field(0.9, ge=0, lt=1)
    """Decay of the running mean (momentum, adam, yogi)."""
    beta2: float = Field(0.99, ge=0, lt=1)
    """Decay of the running mean of squares (adam, yogi)."""
    tau: float = Field(1e-3, gt=0)
    """Adaptivity: squares start at τ², and rates are 1/(√v + τ)."""


class ServerOptimizer:
    r"""Steps of the global model from aggregated updates Δ.

    .. math:: \text{sgd: } w \leftarrow w + \eta\Delta; \qquad
        \text{momentum: } m \leftarrow \beta_1 m + \Delta,\; w \leftarrow w + \eta m; \qquad
        \text{adam, yogi: } m \leftarrow \beta_1 m + (1-\beta_1)\Delta,\; w \leftarrow w + \eta\frac{m}{\sqrt v + \tau}

    with v ← β₂v + (1−β₂)Δ² (adam) or v ← v − (1−β₂)Δ² sign(v − Δ²) (yogi), from v = τ² and without bias correction, as
    in the paper. Running statistics of BatchNorm take the plain step Δ.

    Reddi et al., "Adaptive Federated Optimization", ICLR 2021; Hsu, Qi, Brown, 2019 (momentum).

    >>> layout = Layout(("w",), ((2,),))
    >>> optimizer = ServerOptimizer(ServerParams(optimizer="momentum", lr=1.0, beta1=0.5), layout)
    >>> [optimizer.step(torch.ones(2)).tolist()[0] for _ in range(3)]
    [1.0, 1.5, 1.75]
    """

    def __init__(self, params: ServerParams, layout: Layout, server_lr: float = 1.0) -> None:
        self.params = params
        adaptive = params.optimizer in ("adam", "yogi")
        self.lr = params.lr if params.lr is not None else 0.01 if adaptive else server_lr
        self.average: Tensor | None = None
        self.squares: Tensor | None = None
        self._statistics = [
            part for name, part in layout.slices.items() if name.rpartition(".")[2] in STATISTICS
        ]

    def step(self, delta: Tensor) -> Tensor:
        """What is added to the weights (D), for an aggregated update (D)."""
        p = self.params
        if p.optimizer == "sgd":
            return self.lr * delta
        if self.average is None:
            self.average = torch.zeros_like(delta)
        if p.optimizer == "momentum":
            self.average = self.average.mul(p.beta1).add_(delta)
            return self._restore(self.lr * self.average, delta)
        if self.squares is None:
            self.squares = torch.full_like(delta, p.tau**2)
        squared = delta.square()
        self.average = self.average.mul(p.beta1).add_(delta, alpha=1 - p.beta1)
        if p.optimizer == "adam":
            self.squares = self.squares.mul(p.beta2).add_(squared, alpha=1 - p.beta2)
        else:
            self.squares = self.squares - (1 - p.beta2) * squared * torch.sign(self.squares - squared)
        return self._restore(self.lr * self.average / (self.squares.sqrt() + p.tau), delta)

    def _restore(self, step: Tensor, delta: Tensor) -> Tensor:
        for part in self._statistics:
            step[part] = delta[part]
        return step

    def state_dict(self) -> dict[str, Any]:
        """The running means; nothing for plain steps."""
        values = {"average": self.average, "squares": self.squares}
        return {name: value.clone() for name, value in values.items() if value is not None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.average, self.squares = state.get("average"), state.get("squares")
