"""The hospitals' replies of one round, checked: one bad reply costs one row, never the round."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wardround.flower.messages import KEYS, PART_COUNTS, PARTS, SAMPLES, SPENT, Note
from wardround.flower.secure_aggregation.cohort import PublicKeys, read_public_key
from wardround.flower.server.broker import Failure, Reply
from wardround.privacy.encryption.refusals import Refused
from wardround.updates import MOST_SAMPLES, Layout, Parts, Updates

__all__ = ["MaskedReplies", "Replies", "SealedReplies"]


class Replies:
    """The updates of one round as they come in. A row is filled as its reply arrives: messages need not be kept."""

    def __init__(
        self, clients: Sequence[str], dimension: int, dtype: torch.dtype, by_outcome: bool = False
    ) -> None:
        """`by_outcome`: updates were to be split."""
        self.clients, self.dimension, self.dtype = tuple(clients), dimension, dtype
        self.by_outcome = by_outcome
        self.parts: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        """Client → the parts of its update (C × D), and its patients of each outcome (C)."""
        self.samples: dict[str, float] = {}
        self.loss: dict[str, float] = {}
        self.hashes: dict[str, str] = {}
        self.norms: dict[str, float] = {}
        self.problems: dict[str, str] = {}
        """Client → why what it sent is of no use."""
        self.absent: dict[str, str] = {}
        """Client → why it sent nothing."""
        self._allocate()

    def _allocate(self) -> None:
        self.rows = {client: row for row, client in enumerate(self.clients)}
        self.matrix = torch.full((len(self.clients), self.dimension), math.nan, dtype=self.dtype)

    def take(self, client: str, reply: Reply) -> None:
        """Check one reply and store its update."""
        if isinstance(reply, Failure):
            self.absent[client] = reply.reason
            return
        count, loss = reply.metrics.get(SAMPLES), reply.metrics.get("loss", math.nan)
        self.samples[client] = float(count) if count is not None and abs(count) <= MOST_SAMPLES else math.inf
        self.loss[client] = float(loss)
        problem = self._store(client, reply) or _no_count(count)
        if problem is not None:
            self.problems[client] = problem

    def _store(self, client: str, reply: Note) -> str | None:
        """Store the client's update where the rule will read it; returns what is wrong with it."""
        update, expected = reply.arrays.get("update"), (self.dimension,)
        if update is None:
            return "no update in its answer"
        self.hashes[client] = hashlib.sha256(update.tobytes()).hexdigest()
        if update.shape != expected:
            return f"an update of shape {update.shape} instead of {expected}"
        if update.dtype.kind != "f":
            return f"an update of kind {update.dtype}"
        row = torch.from_numpy(update.copy())
        self.norms[client] = float(torch.linalg.vector_norm(row, dtype=torch.float64))
        if not math.isfinite(self.norms[client]):
            return "not finite"
        self.matrix[self.rows[client]] = row
        return self._store_parts(client, reply) if self.by_outcome else None

    def _store_parts(self, client: str, reply: Note) -> str | None:
        """Store the parts of an update, which were asked for; returns what is wrong with them."""
        rows, counts = reply.arrays.get(PARTS), reply.arrays.get(PART_COUNTS)
        if rows is None or counts is None:
            return "its update is not split by outcome, as the order asked"
        if rows.ndim != 2 or rows.shape[1] != self.dimension or counts.shape != rows.shape[:1]:
            return f"parts of shape {rows.shape} and counts of shape {counts.shape}"
        if rows.dtype.kind != "f" or counts.dtype.kind != "f":
            return f"parts of kind {rows.dtype}"
        self.parts[client] = (rows, counts)
        return None

    def close(self, unanswered: Sequence[str], deadline: float, sample_cap: float | None) -> None:
        """No more replies come: name who is absent, and who claims far more samples than all others."""
        for client in unanswered:
            self.absent.setdefault(client, f"no answer within {deadline:g} s")
        counts = [self.samples[client] for client in self.usable]
        if sample_cap is not None and counts:
            most = sample_cap * median(counts)
            for client in self.usable:
                if self.samples[client] > most:
                    self.problems[client] = (
                        f"sample count {self.samples[client]:g} is more than {sample_cap:g} times the median"
                    )
        if self.parts:
            usual = Counter(len(counts) for _, counts in self.parts.values()).most_common(1)[0][0]
            for client, (_, own) in self.parts.items():
                if len(own) != usual:
                    self.problems.setdefault(client, f"parts of {len(own)} outcomes instead of {usual}")
        for client in self.problems:
            self._clear(client)

    def _clear(self, client: str) -> None:
        self.matrix[self.rows[client]] = math.nan

    @property
    def answered(self) -> list[str]:
        """Who sent something, malformed or not."""
        return [client for client in self.clients if client in self.samples]

    @property
    def usable(self) -> list[str]:
        """Who sent something well-formed."""
        return [client for client in self.answered if client not in self.problems]

    def updates(self, layout: Layout) -> Updates:
        """What the rule sees: one row per client that replied, of NaN where the reply was of no use."""
        clients = self.answered
        rows = [self.rows[client] for client in clients]
        matrix = self.matrix if len(rows) == len(self.clients) else self.matrix[rows]
        return self._with_reports(matrix, clients, layout)

    def _with_reports(self, matrix: Tensor, clients: Sequence[str], layout: Layout | None) -> Updates:
        # A count that is none would be recorded as one: the row is dropped anyway, whatever the count.
        counts = [self.samples[c] if math.isfinite(self.samples[c]) else 0.0 for c in clients]
        losses = {"loss": [self.loss[c] for c in clients]}
        return Updates(matrix, clients, counts, losses, layout, self._parts_of(clients))

    def _parts_of(self, clients: Sequence[str]) -> Parts | None:
        """The parts of these clients' updates, of NaN where they are of no use; None where nothing was split."""
        usable = {client for client in clients if client in self.parts and client not in self.problems}
        if not usable:
            return None
        outcomes = len(self.parts[min(usable)][1])
        rows = torch.full((len(clients), outcomes, self.dimension), math.nan, dtype=self.dtype)
        counts = torch.zeros(len(clients), outcomes, dtype=torch.float64)
        for place, client in enumerate(clients):
            if client in usable:
                own_rows, own_counts = self.parts[client]
                rows[place] = torch.from_numpy(own_rows.copy())
                counts[place] = torch.from_numpy(own_counts.astype(np.float64))
        return Parts(rows, counts)

    def received(self) -> dict[str, dict[str, Any]]:
        """For the audit log: hash, norm and sample count of what each client sent."""
        return {
            client: {
                "sha256": self.hashes.get(client),
                "norm": self.norms.get(client),
                "samples": self.samples[client],
            }
            for client in self.answered
        }


class HiddenReplies(Replies):
    """Replies of whose updates nothing is known but who sent them and what was reported."""

    def updates(self, layout: Layout) -> Updates:
        clients = self.answered
        return self._with_reports(torch.zeros(len(clients), 1), clients, None)


class SealedReplies(HiddenReplies):
    """Replies whose updates are encrypted."""

    def _allocate(self) -> None:
        self.sealed: dict[str, bytes] = {}

    def _store(self, client: str, reply: Note) -> str | None:
        ciphertext = reply.arrays.get("ciphertext")
        if ciphertext is None or ciphertext.dtype != np.uint8:
            return "no ciphertext in its answer"
        content = ciphertext.tobytes()
        self.hashes[client] = hashlib.sha256(content).hexdigest()
        self.sealed[client] = content
        return None

    def _clear(self, client: str) -> None:
        self.sealed.pop(client, None)


class MaskedReplies(HiddenReplies):
    """Replies whose updates have not left the hospitals yet: reports, and public keys for masks."""

    def _allocate(self) -> None:
        self.keys: dict[str, PublicKeys] = {}
        self.spent: set[str] = set()
        """Clients whose update was masked in an earlier attempt at this round."""

    def _store(self, client: str, reply: Note) -> str | None:
        if reply.head.get(SPENT) is True:
            self.spent.add(client)
            return "its update of this round was masked already, for a sum that was lost"
        keys = reply.head.get(KEYS)
        if not isinstance(keys, list) or len(keys) != 3 or not all(isinstance(key, str) for key in keys):
            return "no public keys in its answer"
        try:
            for key in keys[:2]:
                read_public_key(key)
        except Refused as problem:
            return str(problem)
        self.keys[client] = PublicKeys(*keys)
        return None

    def _clear(self, client: str) -> None:
        self.keys.pop(client, None)


def _no_count(count: float | None) -> str | None:
    if count is None:
        return "no sample count in its answer"
    return None if 1 <= count <= MOST_SAMPLES else f"sample count {count:g}"
