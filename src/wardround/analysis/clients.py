"""Measures of single clients: weight, figures on their own test samples, and variation over rounds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev

from wardround.analysis.runs import Run
from wardround.records import ClientRecord

__all__ = ["distance_from_the_rest", "minority_clients", "own_metrics", "shares_of_weight", "variation"]


def distance_from_the_rest(held: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Total variation distance between a client's class mix and that of all clients together.

    >>> distance_from_the_rest({"a": [90, 10], "b": [10, 90]})
    {'a': 0.4, 'b': 0.4}
    """
    pooled = [sum(counts) for counts in zip(*held.values(), strict=True)]
    whole = sum(pooled)
    distances = {}
    for client, counts in held.items():
        own = sum(counts)
        gaps = (
            (abs(c / own - p / whole) for c, p in zip(counts, pooled, strict=True)) if own else iter((2.0,))
        )
        distances[client] = round(sum(gaps) / 2, 12)
    return distances


def minority_clients(run: Run) -> list[str]:
    """The quarter of the honest clients (at least one) whose class mix is farthest from that of all."""
    held = run.record.get("clients") or {}
    if not held:
        return []
    distance = distance_from_the_rest(held)
    honest = [client for client in held if client not in run.byzantine]
    farthest = sorted(honest, key=lambda client: (-distance[client], client))
    return farthest[: max(1, len(honest) // 4)]


def shares_of_weight(clients: Sequence[ClientRecord]) -> dict[str, float]:
    """Each client's mean weight over its rounds as a multiple of an equal share 1/N."""
    present: dict[int, int] = defaultdict(int)
    for record in clients:
        present[record.round] += record.weight is not None
    shares: dict[str, list[float]] = defaultdict(list)
    for record in clients:
        if record.weight is not None:
            shares[record.client].append(record.weight * present[record.round])
    return {client: fmean(values) for client, values in shares.items()}


def variation(clients: Sequence[ClientRecord], column: str) -> float | None:
    """The coefficient of variation of a column over rounds, mean over honest clients.

    0 means that every client has the same value in all rounds.
    """
    values: dict[str, list[float]] = defaultdict(list)
    for record in clients:
        value = None if record.byzantine else record.get(column)
        if value is not None and math.isfinite(value):
            values[record.client].append(value)
    variations = [
        pstdev(own) / abs(fmean(own)) for own in values.values() if len(own) > 1 and abs(fmean(own)) > 1e-12
    ]
    return fmean(variations) if variations else None


def own_metrics(run: Run, metric: str) -> dict[str, float]:
    """A test metric of the final model on each client's own test samples, where it is defined."""
    last = next((record.per_client for record in reversed(run.rounds) if record.per_client), {})
    return {client: value for client, metrics in last.items() if (value := metrics.get(metric)) is not None}
