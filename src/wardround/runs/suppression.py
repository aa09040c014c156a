"""Whom a rule leaves out: honest clients, their patients, and the patients of each outcome.

One definition for every rule with weights: a client is *suppressed* in a round when its weight is below a tenth of what
FedAvg would give it, its share of the round's samples. Each of its patients then counts for less than a tenth. (The
measures `low_…` compare with an equal share 1/N instead, as the CAAC-FL protocol does.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from wardround.records import ClientRecord

__all__ = ["SUPPRESSED_BELOW", "suppressed_shares", "suppressed_to_a_tenth"]

SUPPRESSED_BELOW = 0.1  # of the weight that FedAvg would give


def suppressed_to_a_tenth(clients: Sequence[ClientRecord]) -> list[bool | None]:
    """Was the weight below a tenth of FedAvg's? None where the rule gives no weights, or the client has no samples."""
    total: dict[int, float] = defaultdict(float)
    for record in clients:
        if record.weight is not None:
            total[record.round] += record.num_samples or 0
    return [
        None
        if record.weight is None or not record.num_samples
        else record.weight < SUPPRESSED_BELOW * record.num_samples / total[record.round]
        for record in clients
    ]


def suppressed_shares(
    clients: Sequence[ClientRecord], held: Mapping[str, Sequence[int]]
) -> dict[str, float | None]:
    """The suppressed share of honest client-rounds, of their patients, and of the patients of the worst-off outcome.

    Args:
        clients: One record per client and round. Attackers and broken clients are left out of all three.
        held: Client → training samples per outcome, as a simulation records them.

    >>> records = [ClientRecord(1, "a", num_samples=90, weight=1.0), ClientRecord(1, "b", num_samples=10, weight=0.0)]
    >>> suppressed_shares(records, {"a": [90, 0], "b": [6, 4]})
    {'suppressed_clients': 0.5, 'suppressed_patients': 0.1, 'suppressed_outcome': 1.0}
    """
    verdicts = zip(clients, suppressed_to_a_tenth(clients), strict=True)
    known = [(record, out) for record, out in verdicts if out is not None and record.is_honest]
    values: dict[str, float | None] = {
        "suppressed_clients": _share([(1.0, out) for _, out in known]),
        "suppressed_patients": _share([(record.num_samples or 0.0, out) for record, out in known]),
    }
    outcomes = max((len(counts) for counts in held.values()), default=0)
    of_outcomes = [
        _share([(held[record.client][outcome], out) for record, out in known if record.client in held])
        for outcome in range(outcomes)
    ]
    values["suppressed_outcome"] = max((share for share in of_outcomes if share is not None), default=None)
    return values


def _share(weighed: Sequence[tuple[float, bool]]) -> float | None:
    whole = sum(amount for amount, _ in weighed)
    return sum(amount for amount, out in weighed if out) / whole if whole else None
