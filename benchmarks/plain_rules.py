"""The plain way to write rules: what anybody would, with torch, numpy and scikit-learn, unchecked and unexact.

Each takes the N × D matrix and what else a round has (`global_weights`, `root_update`), and returns D values.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

Plain = Callable[[Tensor, dict[str, Tensor]], Any]


def mean(rows: Tensor, _: dict[str, Tensor]) -> Tensor:
    return rows.mean(0)


def fedavg(rows: Tensor, _: dict[str, Tensor]) -> Tensor:
    return torch.full((len(rows),), 1 / len(rows)) @ rows


def median(rows: Tensor, _: dict[str, Tensor]) -> Any:
    return np.median(rows.numpy(), axis=0)


def trimmed_mean(rows: Tensor, _: dict[str, Tensor]) -> Any:
    n, f = len(rows), len(rows) // 5
    return np.sort(rows.numpy(), axis=0)[f : n - f].mean(axis=0)


def meamed(rows: Tensor, _: dict[str, Tensor]) -> Tensor:
    n, f = len(rows), len(rows) // 5
    centre = torch.from_numpy(np.median(rows.numpy(), axis=0))
    nearest = (rows - centre).abs().argsort(0)[: n - f]
    return rows.gather(0, nearest).mean(0)


def krum_scores(distances: Tensor, f: int) -> Tensor:
    n = len(distances)
    return distances.square().sort(1).values[:, 1 : n - f - 1].sum(1)


def krum(rows: Tensor, _: dict[str, Tensor]) -> Tensor:
    return rows[krum_scores(torch.cdist(rows, rows), len(rows) // 5).argmin()]


def multi_krum(rows: Tensor, _: dict[str, Tensor]) -> Tensor:
    n, f = len(rows), len(rows) // 5
    return rows[krum_scores(torch.cdist(rows, rows), f).argsort()[: n - f]].mean(0)


def bulyan(rows: Tensor, extra: dict[str, Tensor]) -> Tensor:
    n, f = len(rows), len(rows) // 5
    distances, left, chosen = torch.cdist(rows, rows), list(range(n)), []
    for _ in range(n - 2 * f):
        chosen.append(left.pop(int(krum_scores(distances[left][:, left], f).argmin())))
    selected = rows[chosen]
    centre = torch.from_numpy(np.median(selected.numpy(), axis=0))
    nearest = (selected - centre).abs().argsort(0)[: len(chosen) - 2 * f]
    return selected.gather(0, nearest).mean(0)


def rfa(rows: Tensor, _: dict[str, Tensor]) -> Tensor:
    z = rows.mean(0)
    for _ in range(100):
        beta = 1 / (rows - z).norm(dim=1).clamp(min=1e-6)
        following = (beta / beta.sum()) @ rows
        if (following - z).norm() < 1e-6 * z.norm():
            break
        z = following
    return z


def centered_clipping(rows: Tensor, extra: dict[str, Tensor]) -> Tensor:
    v = extra["root_update"]
    for _ in range(3):
        away = rows - v
        v = v + (away * (10 / away.norm(dim=1)).clamp(max=1)[:, None]).mean(0)
    return v


def fltrust(rows: Tensor, extra: dict[str, Tensor]) -> Tensor:
    root = extra["root_update"]
    trust = cosine_similarity(rows, root[None]).clamp(min=0)
    return (trust / trust.sum() * root.norm() / rows.norm(dim=1)) @ rows


def caac(rows: Tensor, extra: dict[str, Tensor]) -> Tensor:
    norms, cosines = rows.norm(dim=1), cosine_similarity(rows, extra["root_update"][None])
    scale = (norms.median() / norms).clamp(max=1) * (1 + cosines)
    return (scale / scale.sum()) @ rows


def norm_clipping(rows: Tensor, _: dict[str, Tensor]) -> Tensor:
    norms = rows.norm(dim=1)
    bound = norms.median()
    mean = (rows * (bound / norms).clamp(max=1)[:, None]).mean(0)
    return mean + 0.001 * bound * torch.randn_like(mean)


def rlr(rows: Tensor, _: dict[str, Tensor]) -> Tensor:
    agree = rows.sign().sum(0).abs() >= 0.4 * len(rows)
    return torch.where(agree, 1.0, -1.0) * rows.mean(0)


def dnc(rows: Tensor, _: dict[str, Tensor]) -> Tensor:
    drawn = rows[:, torch.randperm(rows.shape[1])[:10_000]]
    centred = drawn - drawn.mean(0)
    v = torch.linalg.svd(centred, full_matrices=False).Vh[0]
    return rows[(centred @ v).square().argsort()[: len(rows) - len(rows) // 5]].mean(0)


def foolsgold(rows: Tensor, extra: dict[str, Tensor]) -> Tensor:
    history = rows + rows
    unit = normalize(history)
    greatest = (unit @ unit.T).fill_diagonal_(-1).max(1).values
    weights = (1 - greatest).clamp(0, 1)
    return (weights / weights.sum()) @ rows


def flame(rows: Tensor, extra: dict[str, Tensor]) -> Tensor:
    from sklearn.cluster import HDBSCAN

    n, unit = len(rows), normalize(extra["global_weights"] + rows)
    distances = (1 - unit @ unit.T).clamp(min=0).double().numpy()
    if n > 2:
        HDBSCAN(metric="precomputed", min_cluster_size=n // 2 + 1, min_samples=1, copy=True).fit(distances)
    return norm_clipping(rows, extra)


def signguard(rows: Tensor, extra: dict[str, Tensor]) -> Tensor:
    from sklearn.cluster import MeanShift, estimate_bandwidth

    drawn = rows[:, torch.randperm(rows.shape[1])[: rows.shape[1] // 10]]
    shares = torch.stack([(drawn > 0).float().mean(1), (drawn < 0).float().mean(1)], 1).numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        MeanShift(bandwidth=max(float(estimate_bandwidth(shares, quantile=0.5)), 1e-6)).fit(shares)
    return norm_clipping(rows, extra)


PLAIN: dict[str, Plain] = {
    "mean": mean, "fedavg": fedavg, "median": median, "trimmed-mean": trimmed_mean, "meamed": meamed, "krum": krum,
    "multi-krum": multi_krum, "bulyan": bulyan, "rfa": rfa, "centered-clipping": centered_clipping, "fltrust": fltrust,
    "caac": caac, "norm-clipping": norm_clipping, "rlr": rlr, "dnc": dnc, "foolsgold": foolsgold, "flame": flame,
    "signguard": signguard,
}  # fmt: skip
"""Rule → its plain way, where there is a short one."""
