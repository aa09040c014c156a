"""How many of 20 clients may lie before a rule can be led anywhere: `python benchmarks/breakdown.py`.

Honest rows scatter about a common direction. Attackers send rows of a magnitude up to 10¹²: all the same one,
the honest mean reversed, or each its own random one. A rule is broken as soon as one of these carries `delta`
farther from the honest mean than `BOUND` times the longest honest row; what stays within that for every
magnitude is bounded for good, whatever the attackers send.

A second table has the robustness coefficient κ̂ that rules reach (squared distance of `delta` from the honest mean over
the variance of the honest rows), the worst over these attacks and over some that stay within the honest spread, beside
the κ(N, f) that is proven, where one is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from wardround import Updates, aggregators
from wardround.federation.robustness import empirical_kappa

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
    Claim("meamed", 9, "N ≥ 2f+1", {"f": 9}),
    Claim("caf", 9, "f < N/2", {"f": 9}),
    Claim("dnc", 8, "f rows are left out", {"f": 8}),
    Claim("mda", 6, "N ≥ 2f+1", {"f": 6}),
    Claim("smea", 4, "N ≥ 2f+1", {"f": 4}),
    Claim("flame", 9, "clipped to the median norm"),
    Claim("deepsight", 9, "clipped to the median norm"),
    Claim("signguard", 9, "clipped to the median norm"),
    Claim("norm-clipping", 9, "clipped to the median norm"),
    Claim("trimmed-mean", 9, "N ≥ 2f+1", {"f": 9, "pre": ["nnm"]}),
    Claim("caac-guard", 5, "whole updates: only a norm of a hundred times the usual is brought back"),
)
NO_CLAIM = (
    Claim("fedavg", 0, "none"),
    Claim("fedmed", 0, "weights from reported losses only"),
    Claim("dos", 0, "small weights, but no bound on what they multiply"),
    Claim("foolsgold", 0, "weights from similarity only"),
    Claim("monna", 0, "one client is trusted, here one that attacks"),
    Claim("rlr", 0, "changes signs, not lengths"),
    Claim("fldetector", 0, "looks at how clients change over rounds"),
)
KAPPA_RULES = (
    "krum", "multi-krum", "median", "trimmed-mean", "meamed", "rfa", "caf", "dnc", "mda", "smea", "caac-guard",
)  # fmt: skip
"""Of the second table, each alone and behind nearest-neighbour mixing."""
KAPPA_ATTACKERS = (4, 8)


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


def hidden_rows(honest: Tensor) -> list[Tensor]:
    """Rows that stay within the honest spread or near it, one for all attackers of a round each."""
    mean, deviation = honest.mean(0), honest.std(0)
    farthest = honest[(honest - mean).square().sum(1).argmax()]
    shifts = [mean + z * deviation for z in (-3.0, -1.5, -1.0, -0.5, 0.5, 1.0, 1.5, 3.0)]
    return [*shifts, *(-strength * mean for strength in (0.1, 0.5, 1.0, 2.0)), farthest]


def make_rule(name: str, attackers: int, mixed: bool) -> aggregators.Aggregator:
    """A rule that is told the number of attackers, where it has one, alone or behind nearest-neighbour mixing."""
    known = {"f": attackers} if "f" in aggregators.registry.keys(name) else {}
    return aggregators.create(name, **known, pre=[{"name": "nnm", "f": attackers}] if mixed else [])


def worst_kappa(name: str, attackers: int, mixed: bool = False, seeds: int = 3) -> float:
    """The largest κ̂ that an attack drives a rule to, over some draws of honest rows."""
    worst = 0.0
    for seed in range(1, seeds + 1):
        honest = honest_rows(seed)
        rounds = [attacked(honest, attackers, attack, m) for attack in ATTACKS for m in MAGNITUDES]
        for row in hidden_rows(honest[attackers:]):
            rounds.append(torch.cat([row.expand(attackers, -1), honest[attackers:]]))
        for rows in rounds:
            updates = Updates(rows)
            result = make_rule(name, attackers, mixed).aggregate(updates)
            reached = empirical_kappa(updates, result, set(updates.clients[:attackers]))
            assert reached is not None
            worst = max(worst, reached)
    return worst


def proven_kappa(name: str, attackers: int, mixed: bool = False) -> float | None:
    """κ(N, f), where one is proven and the rule counts on that many attackers (the median: on a fifth)."""
    rule = make_rule(name, attackers, mixed)
    return rule.proven_kappa(CLIENTS) if rule.assumed_byzantine(CLIENTS) == attackers else None


def print_kappas() -> None:
    print("| rule | " + " | ".join(f"κ̂, f = {f} | κ proven" for f in KAPPA_ATTACKERS) + " |")
    print("|---|" + "---:|---:|" * len(KAPPA_ATTACKERS))
    for mixed in (False, True):
        for name in KAPPA_RULES:
            cells = []
            for attackers in KAPPA_ATTACKERS:
                proven = proven_kappa(name, attackers, mixed)
                cells += [
                    f"{worst_kappa(name, attackers, mixed):.2f}",
                    "–" if proven is None else f"{proven:.2f}",
                ]
            print(f"| `{name}`{' behind `nnm`' if mixed else ''} | {' | '.join(cells)} |")


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
    print()
    print_kappas()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
