"""A variational autoencoder of honest updates: what it cannot rebuild does not look honest."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from wardround.aggregators.fedbnp.reproducible_networks import seeded
from wardround.randomness import seed_for, torch_generator
from wardround.threads import one_thread

__all__ = ["Vae", "comparable"]

LONGEST = 1e4
"""A row longer than so many median norms counts as that long: its error is beyond all others anyway."""


def comparable(rows: Tensor, length: float) -> Tensor:
    """Rows in units of `length` (the median norm of their round), a typical coordinate near 1, in float32.

    >>> comparable(torch.tensor([[3.0, 4.0], [30.0, 40.0]]), length=5.0).norm(dim=1)
    tensor([ 1.4142, 14.1421])
    """
    rows = rows.double()
    unit = rows.shape[1] ** 0.5 / length if length > 0 else 1.0
    norms = rows.norm(dim=1, keepdim=True)
    shrink = (LONGEST * length / norms).clamp(max=1.0) if length > 0 else 1.0
    return torch.where(norms > 0, rows * shrink * unit, 0.0).float()


class Vae(nn.Module):
    r"""Encoder d → 128 → 128 → (μ, log σ² of 64), mirrored decoder.

    .. math:: \mathcal{L} = \|\hat g - g\|_2^2 + \beta\, \mathrm{KL}(\mathcal{N}(\mu, \sigma^2)\,\|\,
        \mathcal{N}(0, I))

    Kingma & Welling, "Auto-encoding variational Bayes", ICLR 2014; FedBNP document, section III-D.

    >>> rows = torch.randn(64, 1, generator=torch.Generator().manual_seed(0)) * torch.ones(64, 20)
    >>> vae = Vae(20, seed=0)
    >>> vae.fit(rows, epochs=25, seed=0)
    >>> strange = torch.tensor([1.0, -1.0]).repeat(10)
    >>> bool(vae.error(strange[None]) > 2 * vae.error(rows).mean())
    True
    """

    def __init__(self, inputs: int, hidden: int = 128, latent: int = 64, seed: int = 0) -> None:
        super().__init__()
        self.inputs = inputs
        with seeded(seed_for(seed, "vae")):
            self.body = nn.Sequential(
                nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()
            )
            self.mean, self.log_variance = nn.Linear(hidden, latent), nn.Linear(hidden, latent)
            self.decoder = nn.Sequential(
                nn.Linear(latent, hidden), nn.ReLU(),
                nn.Linear(hidden, hidden), nn.ReLU(),
                nn.Linear(hidden, inputs),
            )  # fmt: skip

    def loss(self, rows: Tensor, noise: Tensor, beta: float) -> Tensor:
        """The loss of a batch, a mean over its rows; `noise` is ε of z = μ + σ ⊙ ε."""
        hidden = self.body(rows)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden).clamp(-20, 20)
        rebuilt = self.decoder(mean + (log_variance / 2).exp() * noise)
        error = functional.mse_loss(rebuilt, rows, reduction="sum")
        divergence = (mean.square() + log_variance.exp() - 1 - log_variance).sum() / 2
        loss: Tensor = (error + beta * divergence) / len(rows)
        return loss

    def fit(
        self,
        rows: Tensor,
        epochs: int = 25,
        beta: float = 0.1,
        lr: float = 1e-3,
        batch_size: int = 16,
        seed: int = 0,
    ) -> None:
        """Learn honest rows (see `comparable`); continues from what has been learnt before."""
        generator = torch_generator(seed, "vae", "fit")
        optimizer = torch.optim.Adam(self.parameters(), lr=lr, fused=True)
        latent = self.mean.out_features
        with one_thread(), torch.enable_grad():
            for _ in range(epochs):
                for batch in torch.randperm(len(rows), generator=generator).split(batch_size):
                    noise = torch.randn(len(batch), latent, generator=generator)
                    optimizer.zero_grad()
                    self.loss(rows[batch], noise, beta).backward()
                    optimizer.step()

    def error(self, rows: Tensor) -> Tensor:
        """‖g − decode(μ(g))‖² of each row, in float64: without the sampling, so that it is the same each time."""
        with one_thread(), torch.no_grad():
            rebuilt = self.decoder(self.mean(self.body(rows)))
            errors: Tensor = (rebuilt.double() - rows.double()).square().sum(1)
            return errors
