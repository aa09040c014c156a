"""Measures of single clients: weight, figures on their own test samples, and variation over rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wardround.analysis.runs import Run

__all__ = ["distance_from_the_rest", "minority_clients", "own_metrics"]


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
    honest = [client for client in held if client not in run.byzantine and client not in run.broken]
    farthest = sorted(honest, key=lambda client: (-distance[client], client))
    return farthest[: max(1, len(honest) // 4)]


def own_metrics(run: Run, metric: str) -> dict[str, float]:
    """A test metric of the final model on each client's own test samples, where it is defined."""
    if metric == run.main:
        return dict(run.digest.own)
    last = next((record.per_client for record in reversed(run.rounds) if record.per_client), {})
    return {client: value for client, metrics in last.items() if (value := metrics.get(metric)) is not None}
