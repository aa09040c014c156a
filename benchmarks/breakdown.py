"""How many of 20 clients may lie before a rule can be led anywhere: `python benchmarks/breakdown.py`.

Honest rows scatter about a common direction. Attackers send rows of a magnitude up to 10¹²: all the same one,
the honest mean reversed, or each its own random one. A rule is broken as soon as one of these carries `delta`
farther from the honest mean than `BOUND` times the longest honest row; what stays within that for every
magnitude is bounded for good, whatever the attackers send.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from wardround import Updates, aggregators

CLIENTS, DIMENSION = 20, 200
MAGNITUDES = (1.0, 1e2, 1e6, 1e12)
ATTACKS = ("large", "opposite", "random")
BOUND = 20.0
"""Generous on purpose: the geometric median may move by 2(N−b)/(N−2b) honest radii, 11 with b = 9 of 20."""
CLEAN_ROUNDS = (0, 12)
"""Honest rounds before the attack, for rules that remember: none, and more than CAAC's bootstrap."""


@dataclass(frozen=True)
class Claim:
    """A rule, how it is set up for 20 clients, and how many attackers it claims to withstand."""

    name: str
    claimed: int
    why: str
    params: dict[str, Any] = field(default_factory=dict)


CLAIMS = (
    Claim("krum", 8, "N ≥ 2f+3", {"f": 8}),
    Claim("multi-krum", 8, "N ≥ 2f+3", {"f": 8}),
    Claim("bulyan", 4, "N ≥ 4f+3", {"f": 4}),
    Claim("median", 9, "f < N/2"),
    Claim("trimmed-mean", 9, "N ≥ 2f+1", {"f": 9}),
    Claim("rfa", 8, "less than half of the samples, and 100 steps to get there"),
    Claim("rfa", 9, "less than half of the samples", {"iterations": 1000}),
    Claim("centered-clipping", 20, "every pull is at most τ"),
    Claim("fltrust", 20, "direction from g₀, length ‖g₀‖"),
    Claim("lasa", 9, "clipped to the median norm"),
    Claim("caac", 9, "clipped to at most f_max · median norm"),
    Claim("caac-guard", 10, "clipped to the median norm; one more by the flags"),
    Claim("caac-guard", 10, "the same, and g₀ votes", {"root": True}),
)
NO_CLAIM = (
    Claim("fedavg", 0, "none"),
    Claim("fedmed", 0, "weights from reported losses only"),
    Claim("dos", 0, "small weights, but no bound on what they multiply"),
)


def honest_rows(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 0.5 + 0.5 * torch.randn(CLIENTS, DIMENSION, generator=generator, dtype=torch.float64)


def attacked(rows: Tensor, attackers: int, attack: str, magnitude: float) -> Tensor:
    """The first rows replaced by what the attackers send."""
    generator = torch.Generator().manual_seed(7)
    rows, mean = rows.clone(), rows[attackers:].mean(0) if attackers < len(rows) else rows.mean(0)
    noise = torch.randn(CLIENTS, DIMENSION, generator=generator, dtype=torch.float64)
    sent = {"large": noise[:1], "opposite": -mean[None], "random": noise[:attackers]}[attack]
    rows[:attackers] = magnitude * sent
    return rows


def worst_distance(claim: Claim, attackers: int) -> float:
    """The farthest that any attack carries delta from the honest mean, in lengths of the longest honest row."""
    remembers = bool(aggregators.create(claim.name, **claim.params).state_dict())
    return max(
        _distance(claim, attackers, attack, magnitude, past)
        for attack in ATTACKS
        for magnitude in MAGNITUDES
        for past in (CLEAN_ROUNDS if remembers else CLEAN_ROUNDS[:1])
    )


def _distance(claim: Claim, attackers: int, attack: str, magnitude: float, past: int) -> float:
    rule = aggregators.create(claim.name, **claim.params)
    for t in range(1, past + 1):
        _aggregate(rule, honest_rows(t), t)
    honest = honest_rows(past + 1)
    delta = _aggregate(rule, attacked(honest, attackers, attack, magnitude), past + 1)
    mean = (honest[attackers:] if attackers < CLIENTS else honest).mean(0)
    return float(torch.linalg.vector_norm(delta - mean) / torch.linalg.vector_norm(honest, dim=1).max())


def _aggregate(rule: aggregators.Aggregator, rows: Tensor, round: int) -> Tensor:
    updates = Updates(rows, metrics={"loss": torch.full((CLIENTS,), 0.5)})
    weights, root = torch.ones(DIMENSION, dtype=torch.float64), honest_rows(999).mean(0)
    return rule.aggregate(updates, round, global_weights=weights, root_update=root).delta


def breaks_at(claim: Claim) -> int | None:
    """The smallest number of attackers that can lead the rule anywhere; None: not even all of them."""
    for attackers in range(1, CLIENTS + 1):
        if worst_distance(claim, attackers) > BOUND:
            return attackers
    return None


def main() -> None:
    print("| rule | withstands (claimed) | because | farthest there | breaks at |")
    print("|---|---|---|---|---|")
    for claim in CLAIMS + NO_CLAIM:
        parameters = ", ".join(f"{k}={v}" for k, v in claim.params.items())
        name = f"`{claim.name}`" + (f" ({parameters})" if parameters else "")
        farthest = f"{worst_distance(claim, claim.claimed):.2f}" if claim.claimed else "–"
        broken = breaks_at(claim)
        print(f"| {name} | {claim.claimed} | {claim.why} | {farthest} | {broken if broken else 'never'} |")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
