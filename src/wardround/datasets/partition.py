"""Who holds which samples: label preferences and sizes in, one list of rows a client out.

Every partition is a matrix of preferences (clients × classes: in what proportions would this client like
the classes) and a vector of wanted sizes. One mechanism turns the two into an assignment that uses every
sample exactly once: the preferences are scaled until rows meet the sizes and columns the class counts
(iterative proportional fitting), rounded to whole samples, and dealt out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from wardround.datasets.base import Split
from wardround.errors import ConfigError
from wardround.randomness import numpy_generator
from wardround.registry import Configurable, Parameters, Registry

__all__ = ["Assignment", "Partition", "available", "create", "registry"]

Sizes = Literal["equal", "power-law", "lognormal"]


@dataclass(frozen=True, eq=False)
class Assignment:
    """The rows of each client in the training split, and in the test split in like proportions."""

    clients: tuple[str, ...]
    train: tuple[np.ndarray, ...]
    test: tuple[np.ndarray, ...]


class PartitionParams(Parameters):
    """What all partitions have in common."""

    clients: int = Field(20, ge=1)
    sizes: Sizes = "equal"
    size_exponent: float = Field(1.0, ge=0)
    """`power-law`: the k-th largest client wants a size proportional to k^−exponent."""
    size_sigma: float = Field(1.0, ge=0)
    """`lognormal`: standard deviation of the logarithm of the sizes."""
    min_size: int = Field(10, ge=1)
    """No client holds fewer samples than this."""


class Partition(Configurable):
    """Base of all partitions: a partition says which classes its clients prefer."""

    summary: ClassVar[str] = ""
    Params: ClassVar[type[Parameters]] = PartitionParams

    def preferences(self, classes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        """clients × classes, non-negative; a zero means never. `classes` holds the class counts."""
        raise NotImplementedError

    def assign(self, train: Split, test: Split, seed: int) -> Assignment:
        """Deal out both splits, the same for the same seed."""
        p: Any = self.params
        labels, test_labels = class_of(train), class_of(test)
        counts = np.bincount(labels, minlength=int(max(labels.max(), test_labels.max(initial=0))) + 1)
        if len(labels) < p.clients * p.min_size:
            raise ConfigError(
                f"partition: {p.clients} clients × min_size {p.min_size} need {p.clients * p.min_size} "
                f"training samples, the dataset has {len(labels)}"
            )
        rng = numpy_generator(seed, "partition")
        sizes = self.wanted_sizes(len(labels), rng)
        preferences = self.preferences(counts, p.clients, rng)
        wanted = whole_counts(fit(preferences, sizes, counts), preferences > 0, counts, p.min_size)
        dealt = deal(labels, wanted, rng)
        like = deal(test_labels, shares_of(wanted, np.bincount(test_labels, minlength=len(counts))), rng)
        return Assignment(client_names(p.clients), dealt, like)

    def wanted_sizes(self, total: int, rng: np.random.Generator) -> np.ndarray:
        """Sizes that sum to `total`, none below the minimum."""
        p: Any = self.params
        if p.sizes == "equal":
            raw = np.ones(p.clients)
        elif p.sizes == "power-law":
            raw = rng.permutation(np.arange(1, p.clients + 1, dtype=float) ** -p.size_exponent)
        else:
            raw = rng.lognormal(0.0, p.size_sigma, p.clients)
        spare = total - p.clients * p.min_size
        return p.min_size + spare * raw / raw.sum()


registry: Registry[Partition] = Registry("partition", "wardround.datasets")
register = registry.register
available = registry.available
create = registry.create


@register("iid")
class Iid(Partition):
    """Every client draws from the same distribution."""

    summary = "every client has the classes in the same proportions"

    def preferences(self, classes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        return np.tile(classes / classes.sum(), (clients, 1))


@register("dirichlet")
class Dirichlet(Partition):
    """Class proportions of a client drawn from Dir(α): small α, few classes a client."""

    summary = "class proportions of each client ~ Dirichlet(α)"

    class Params(PartitionParams):
        alpha: float = Field(0.1, gt=0)
        sizes: Sizes = "power-law"

    def preferences(self, classes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        drawn = rng.dirichlet(np.full(len(classes), self.params.alpha), size=clients)
        # Tiny α underflows to exact zeros, which would forbid a class for ever; keep them merely tiny.
        return np.maximum(drawn, 1e-12)


def class_of(split: Split) -> np.ndarray:
    """One class a sample; of a multi-label sample the first positive finding (none: a class of its own)."""
    targets = split.targets.numpy()
    if targets.ndim == 1:
        return targets.astype(np.int64)
    positive = targets > 0
    return np.where(positive.any(1), positive.argmax(1), targets.shape[1])


def client_names(count: int) -> tuple[str, ...]:
    """hospital-00 … with as many digits as needed."""
    digits = max(2, len(str(count - 1)))
    return tuple(f"hospital-{i:0{digits}d}" for i in range(count))


def fit(preferences: np.ndarray, sizes: np.ndarray, counts: np.ndarray, steps: int = 200) -> np.ndarray:
    """Scale rows and columns in turn until rows sum to `sizes` and columns to `counts`, as far as can be."""
    matrix = np.asarray(preferences, dtype=float).copy()
    for _ in range(steps):
        matrix *= (sizes / np.maximum(matrix.sum(1), 1e-300))[:, None]
        matrix *= counts / np.maximum(matrix.sum(0), 1e-300)
    return matrix


def whole_counts(
    matrix: np.ndarray, allowed: np.ndarray, counts: np.ndarray, min_size: int
) -> np.ndarray:
    """Whole numbers close to `matrix` with exact column sums and no row below `min_size`."""
    whole = np.column_stack([_round_to_sum(matrix[:, c], int(counts[c])) for c in range(len(counts))])
    while True:
        sizes = whole.sum(1)
        poor = int(sizes.argmin())
        if sizes[poor] >= min_size:
            return whole
        # The richest client that can spare one gives of the class it has most of, among those allowed here.
        givable = np.where(allowed[poor][None, :] & (sizes > min_size)[:, None], whole, 0)
        if not givable.any():
            raise ConfigError(
                f"partition: no way to give every client {min_size} samples; lower partition.min_size or "
                "partition.clients"
            )
        giver = int(np.argmax(np.where(givable.any(1), sizes, -1)))
        label = int(givable[giver].argmax())
        amount = int(min(min_size - sizes[poor], sizes[giver] - min_size, givable[giver, label]))
        whole[giver, label] -= amount
        whole[poor, label] += amount


def shares_of(wanted: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Split other samples of the same classes in the proportions in which `wanted` splits its own."""
    portions = wanted / np.maximum(wanted.sum(0), 1)
    return np.column_stack(
        [_round_to_sum(portions[:, c] * counts[c], int(counts[c])) for c in range(len(counts))]
    )


def deal(labels: np.ndarray, wanted: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Shuffle each class and cut it into the wanted numbers; rows of each client, sorted."""
    pieces: list[list[np.ndarray]] = [[] for _ in range(len(wanted))]
    for label in range(wanted.shape[1]):
        rows = rng.permutation(np.flatnonzero(labels == label))
        for client, piece in enumerate(np.split(rows, np.cumsum(wanted[:, label])[:-1])):
            pieces[client].append(piece)
    return tuple(np.sort(np.concatenate(piece)) for piece in pieces)


def _round_to_sum(values: Sequence[float] | np.ndarray, total: int) -> np.ndarray:
    """Largest remainders: whole numbers close to `values` (rescaled) that sum to `total`."""
    values = np.asarray(values, dtype=float)
    if values.sum() <= 0:
        values = np.ones(len(values))
    scaled = np.round(values * (total / values.sum()), 9)  # so that the last bit cannot decide a tie
    whole = np.floor(scaled).astype(int)
    order = np.argsort(-(scaled - whole), kind="stable")
    whole[order[: total - whole.sum()]] += 1
    return whole
