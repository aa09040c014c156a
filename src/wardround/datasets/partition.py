"""Who holds which samples: label preferences and sizes in, one list of rows a client out.

Every partition is a matrix of preferences (clients × classes: in what proportions would this client like
the classes) and a vector of wanted sizes. One mechanism turns the two into an assignment that uses every
sample exactly once: the preferences are scaled until rows meet the sizes and columns the class counts
(iterative proportional fitting), rounded to whole samples, and dealt out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from wardround.datasets.base import Split
from wardround.errors import ConfigError
from wardround.randomness import numpy_generator
from wardround.registry import Configurable, Parameters, Registry

__all__ = [
    "Assignment", "Partition", "PartitionParams", "Sizes", "available", "create", "deal", "register",
    "registry",
]  # fmt: skip

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
    cross_validation: int | None = Field(None, ge=2)
    """Assign clients by this many stratified folds: see `fold`."""
    fold: int = Field(0, ge=0)
    """Which fold the dealing starts at. Every class is cut into equal folds, and the clients take their
    samples from fold `fold` on, in a circle: over the folds a client keeps its size and class counts and
    gets other samples."""

    @model_validator(mode="after")
    def _fold_exists(self) -> PartitionParams:
        if self.fold >= (self.cross_validation or 1):
            raise ValueError(
                f"fold must be below cross_validation, got fold={self.fold}, "
                f"cross_validation={self.cross_validation}"
            )
        return self


class Partition(Configurable):
    """Base of all partitions: a partition says which classes its clients prefer."""

    summary: ClassVar[str] = ""

    class Params(PartitionParams):
        """What all partitions have in common."""

    params: PartitionParams

    def preferences(self, classes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        """clients × classes, non-negative; a zero means never. `classes` holds the class counts."""
        raise NotImplementedError

    def assign(self, train: Split, test: Split, seed: int) -> Assignment:
        """Deal out both splits, the same for the same seed."""
        p = self.params
        labels, test_labels = class_of(train), class_of(test)
        if len(labels) < p.clients * p.min_size:
            raise ConfigError(
                f"partition: {p.clients} clients × min_size {p.min_size} need {p.clients * p.min_size} "
                f"training samples, the dataset has {len(labels)}"
            )
        counts = np.bincount(labels, minlength=int(max(labels.max(), test_labels.max(initial=0))) + 1)
        rng = numpy_generator(seed, "partition")
        sizes = self.wanted_sizes(len(labels), p.clients, rng)
        preferences = self.preferences(counts, p.clients, rng)
        wanted = whole_counts(fit(preferences, sizes, counts), preferences > 0, counts, p.min_size)
        dealt = deal(labels, wanted, rng, p.fold / p.cross_validation if p.cross_validation else 0.0)
        like = deal(test_labels, shares_of(wanted, np.bincount(test_labels, minlength=len(counts))), rng)
        return Assignment(client_names(p.clients), dealt, like)

    def wanted_sizes(self, total: int, clients: int, rng: np.random.Generator) -> np.ndarray:
        """Sizes that sum to `total`, none below the minimum."""
        p = self.params
        if p.sizes == "equal":
            raw = np.ones(clients)
        elif p.sizes == "power-law":
            raw = rng.permutation(np.arange(1, clients + 1, dtype=float) ** -p.size_exponent)
        else:
            raw = rng.lognormal(0.0, p.size_sigma, clients)
        spare = total - clients * p.min_size
        sizes: np.ndarray = p.min_size + spare * raw / raw.sum()
        return sizes


registry: Registry[Partition] = Registry("partition", "wardround.datasets", base=Partition)
register = registry.register
available = registry.available
create = registry.create


def class_of(split: Split) -> np.ndarray:
    """One class a sample; of a multi-label sample the first positive finding (none: a class of its own)."""
    targets = split.targets.numpy()
    if targets.ndim == 1:
        return targets.astype(np.int64)
    positive = targets > 0
    classes: np.ndarray = np.where(positive.any(1), positive.argmax(1), targets.shape[1])
    return classes


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


def whole_counts(matrix: np.ndarray, allowed: np.ndarray, counts: np.ndarray, min_size: int) -> np.ndarray:
    """Whole numbers close to `matrix` with exact column sums and no row below `min_size`.

    Samples move only to clients that may hold their class, along chains of clients where it takes one: if
    there is a way to honour the minimum, it is found.
    """
    whole = _round_columns(matrix, allowed, counts)
    while True:
        sizes = whole.sum(1)
        poor = int(sizes.argmin())
        if sizes[poor] >= min_size:
            return whole
        chain = _chain_of_gifts(whole, allowed, sizes, poor, min_size)
        if chain is None:
            raise ConfigError(
                f"partition: no way to give every client {min_size} samples of the classes it may hold; "
                "lower partition.min_size or partition.clients"
            )
        spare = sizes[chain[-1][0]] - min_size
        amount = int(min(min_size - sizes[poor], spare, *(whole[giver, label] for giver, label, _ in chain)))
        for giver, label, taker in chain:
            whole[giver, label] -= amount
            whole[taker, label] += amount


def _chain_of_gifts(
    whole: np.ndarray, allowed: np.ndarray, sizes: np.ndarray, poor: int, min_size: int
) -> list[tuple[int, int, int]] | None:
    """(giver, class, taker) from the poor client up to one that can spare a sample; the shortest chain.

    At each step the richest client gives of the class it has most of, among those its taker may hold.
    """
    gift_to: dict[int, tuple[int, int]] = {poor: (-1, -1)}  # client → (taker, class) that it would give
    waiting = [poor]
    for taker in waiting:  # grows while it is walked: breadth first
        givable = np.where(allowed[taker][None, :], whole, 0)
        givers = [g for g in np.argsort(-sizes, kind="stable") if givable[g].any() and g not in gift_to]
        for giver in map(int, givers):
            gift_to[giver] = (taker, int(givable[giver].argmax()))
            waiting.append(giver)
            if sizes[giver] > min_size:
                chain, client = [], giver
                while client != poor:
                    onward, label = gift_to[client]
                    chain.append((client, label, onward))
                    client = onward
                return chain[::-1]
    return None


def shares_of(wanted: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Split other samples of the same classes in the proportions in which `wanted` splits its own."""
    portions = wanted / np.maximum(wanted.sum(0), 1)
    return _round_columns(portions * counts, np.ones_like(portions, dtype=bool), counts)


def deal(
    labels: np.ndarray, wanted: np.ndarray, rng: np.random.Generator, start: float = 0.0
) -> tuple[np.ndarray, ...]:
    """Shuffle each class and cut it into the wanted numbers; rows of each client, sorted.

    The cutting starts at the share `start` of each class and goes round in a circle.
    """
    pieces: list[list[np.ndarray]] = [[] for _ in range(len(wanted))]
    for label in range(wanted.shape[1]):
        rows = rng.permutation(np.flatnonzero(labels == label))
        rows = np.roll(rows, -round(start * len(rows)))
        for client, piece in enumerate(np.split(rows, np.cumsum(wanted[:, label])[:-1])):
            pieces[client].append(piece)
    return tuple(np.sort(np.concatenate(piece)) for piece in pieces)


def _round_columns(matrix: np.ndarray, allowed: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Each entry up or down to a whole number, such that columns sum to `counts` and rows stay close.

    Within a column the largest remainders go up, what a row lost or won in earlier columns included.
    """
    whole = np.zeros(matrix.shape, dtype=int)
    lost = np.zeros(len(matrix))
    for column, total in enumerate(counts):
        if total == 0:
            continue
        may = allowed[:, column]
        values = np.where(may, matrix[:, column], 0.0)
        if values.sum() <= 0:
            values = may.astype(float)
        # Nine digits, so that the last bit of a platform's arithmetic cannot decide a tie.
        values = np.round(values * (total / values.sum()), 9)
        down = np.floor(values)
        urgency = np.where(values > down, np.round(values - down + lost, 9), np.where(may, -1e6, -np.inf))
        up = np.argsort(-urgency, kind="stable")[: int(total - down.sum())]
        whole[:, column] = down
        whole[up, column] += 1
        lost += values - whole[:, column]
    return whole
