"""Means of some clients' rows, and noise: what defences end in."""

from __future__ import annotations

import torch
from torch import Tensor

from wardround.aggregators._math.measurements import Measurements
from wardround.randomness import torch_generator
from wardround.updates import Updates

__all__ = ["clip_scale", "gaussian", "mean_of", "name_order"]


def clip_scale(norms: Tensor, bound: float) -> Tensor:
    """N factors min(1, bound/‖U_i‖), float64."""
    return torch.where(norms > bound, bound / norms.clamp(min=1e-300), 1.0)


def mean_of(kept: Tensor, measurements: Measurements, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The plain mean of the kept rows, each times its factor.

    Args:
        kept: N booleans, one of them true at least.
        measurements: Of the N rows.
        scale: N factors; None: all 1.

    Returns:
        The mean (D values), and the weights (N values that sum to 1).
    """
    weights = kept.double() / kept.sum()
    return measurements.weighted_sum(weights if scale is None else weights * scale), weights


def gaussian(updates: Updates, std: float, *path: int | str) -> Tensor:
    """D draws of N(0, std²), named by a path."""
    noise = torch.randn(updates.dimension, generator=torch_generator(*path), dtype=torch.float32)
    return noise.to(updates.dtype) * std


def name_order(updates: Updates) -> Tensor:
    """N places of the clients, by name: clusterings break ties by order, which must not be that of arrival."""
    names = updates.clients
    return torch.tensor(sorted(range(len(names)), key=names.__getitem__))
