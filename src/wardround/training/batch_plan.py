"""Which samples are in which step, when clients of unequal sizes train side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

__all__ = ["BatchPlan", "KeptBatchPlans", "Step"]

KEPT_SLOTS = 2_000_000
"""Of all plans that are kept."""


@dataclass(frozen=True)
class Step:
    """The first `clients` of the group take a batch of at most `width` samples each."""

    clients: int
    width: int
    first: int
    """The first of its clients × width slots."""
    batch: int
    """The first of its `clients` batches."""

    @property
    def last(self) -> int:
        """One past the last slot."""
        return self.first + self.clients * self.width


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """All steps of a group of clients. A slot is a place for a sample in a step: client by client, row by row.

    Clients stand in the order of falling size, so those that still have a batch are the first ones: nobody
    waits, and nothing is computed for a client that is done. Only within a step are batches brought to the
    length of the longest: a spare slot repeats the first sample of its own batch, with no weight.

    >>> plan = BatchPlan.of(np.array([5, 3]), batch_size=2, epochs=1)
    >>> [(step.clients, step.width) for step in plan.steps]
    [(2, 2), (2, 2), (1, 1)]
    >>> plan.position.tolist()  # 0–4 the first client's samples in its order, 5–7 the second's
    [0, 1, 5, 6, 2, 3, 7, 7, 4]
    >>> plan.weight.tolist()
    [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 1.0, 0.0, 1.0]
    """

    steps: list[Step]
    position: np.ndarray
    """Slot → position in the clients' sample orders, which lie end to end, epoch after epoch."""
    weight: np.ndarray
    """Slot → 1 / its batch's size; 0 for a spare slot."""
    client: np.ndarray
    """Slot → client."""
    batch_sizes: np.ndarray
    """Samples of each (step, client)."""
    epochs: int
    """Of the client that needs most: so many orders of its samples are needed."""

    @classmethod
    def of(cls, sizes: np.ndarray, batch_size: int, epochs: int, steps: int | None = None) -> BatchPlan:
        """The plan for clients of these sizes, in falling order; with `steps`, of so many steps for each of them.

        Below, a pair is a step and a client that takes part in it, step by step. The arrays named `…_of` and `taken`
        have one entry per pair; `active`, `width` and `first` have one per step.
        """
        batches = -(-sizes // batch_size)
        totals = batches * epochs if steps is None else np.full_like(batches, steps)
        # How many clients take part in step s: those whose total is above s. Totals fall, so this is a prefix.
        active = np.searchsorted(-totals, -np.arange(totals[0]), side="left")
        step_of = np.repeat(np.arange(len(active)), active)
        starts = np.cumsum(active) - active
        client_of = np.arange(len(step_of)) - starts[step_of]
        epoch, batch = np.divmod(step_of, batches[client_of])
        taken = np.minimum(batch_size, sizes[client_of] - batch * batch_size)
        width = np.maximum.reduceat(taken, starts)
        offsets = np.cumsum(sizes) - sizes
        origin = epoch * sizes.sum() + offsets[client_of] + batch * batch_size

        slots = width[step_of]
        pair = np.repeat(np.arange(len(step_of)), slots)
        within = np.arange(len(pair)) - np.repeat(np.cumsum(slots) - slots, slots)
        real = within < taken[pair]
        first = np.cumsum(active * width) - active * width
        return cls(
            [
                Step(*step)
                for step in zip(active.tolist(), width.tolist(), first.tolist(), starts.tolist(), strict=True)
            ],
            origin[pair] + np.where(real, within, 0),
            real / taken[pair],
            client_of[pair],
            taken,
            int(epoch.max()) + 1,
        )

    def samples_seen(self) -> np.ndarray:
        """Samples that each client trains on, repeated ones included."""
        return np.bincount(self.client, weights=self.weight > 0).astype(np.int64)

    def windows(self, slots: int) -> Iterator[list[Step]]:
        """The steps in pieces of about `slots` slots, so that the samples of a piece fit into the cache."""
        piece: list[Step] = []
        for step in self.steps:
            if piece and step.last - piece[0].first > slots:
                yield piece
                piece = []
            piece.append(step)
        if piece:
            yield piece


class KeptBatchPlans:
    """Plans by the sizes they are for: most rounds have the same clients as the one before.

    >>> kept = KeptBatchPlans(batch_size=2, epochs=1)
    >>> kept.of(np.array([5, 3])) is kept.of(np.array([5, 3]))
    True
    """

    def __init__(self, batch_size: int, epochs: int, steps: int | None = None) -> None:
        self.batch_size, self.epochs, self.steps = batch_size, epochs, steps
        self._kept: dict[bytes, BatchPlan] = {}
        self._slots = 0

    def of(self, sizes: np.ndarray) -> BatchPlan:
        """The plan for clients of these sizes, in falling order."""
        key = sizes.tobytes()
        plan = self._kept.get(key)
        if plan is None:
            plan = BatchPlan.of(sizes, self.batch_size, self.epochs, self.steps)
            if self._slots + len(plan.position) > KEPT_SLOTS:
                self._kept.clear()
                self._slots = 0
            self._kept[key] = plan
            self._slots += len(plan.position)
        return plan
