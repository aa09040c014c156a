"""How samples are shared out among clients: the contract of a partition, and the partitions by name.

A partition says which classes its clients prefer; `allocation` turns that into rows for each client.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from wardround.datasets.allocation import deal, fit, shares_of, whole_counts
from wardround.datasets.base import Split
from wardround.datasets.targets import classes_of
from wardround.errors import ConfigError
from wardround.randomness import numpy_generator
from wardround.registry import Configurable, Parameters, Registry

__all__ = [
    "Assignment", "Partition", "PartitionParams", "PreferencePartition", "Sizes", "available", "class_of", "create",
    "register", "registry",
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

    new: ClassVar[frozenset[str]] = frozenset({"copies"})

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
    copies: int = Field(0, ge=0)
    """The last so many clients get no part of the data. Each holds copies of samples of the others, drawn from all of
    them alike, as many as the others hold on average. For attackers, in experiments where the honest clients share out
    all data."""

    @model_validator(mode="after")
    def _somebody_holds_the_data(self) -> PartitionParams:
        if self.clients is not None and self.copies >= self.clients:
            raise ValueError(
                "copies must be below clients, or nobody holds the data; "
                f"got copies={self.copies}, clients={self.clients}"
            )
        return self

    @model_validator(mode="after")
    def _fold_exists(self) -> PartitionParams:
        if self.fold >= (self.cross_validation or 1):
            raise ValueError(
                f"fold must be below cross_validation, got fold={self.fold}, "
                f"cross_validation={self.cross_validation}"
            )
        return self


class Partition(Configurable):
    """Base of all partitions: who holds which samples."""

    summary: ClassVar[str] = ""

    class Params(PartitionParams):
        """What all partitions have in common."""

    params: PartitionParams

    @abstractmethod
    def assign(self, train: Split, test: Split, seed: int) -> Assignment:
        """Deal out both splits, the same for the same seed."""

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


class PreferencePartition(Partition):
    """A partition that says which classes its clients prefer."""

    @abstractmethod
    def preferences(self, classes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        """In what proportions each client would like the classes.

        Args:
            classes: Samples of each class in the training split.
            clients: Number of clients.
            rng: For whatever is drawn.

        Returns:
            clients × classes, not negative; a zero means never.
        """

    def assign(self, train: Split, test: Split, seed: int) -> Assignment:
        p = self.params
        labels, test_labels = class_of(train), class_of(test)
        holders = p.clients - p.copies
        if len(labels) < holders * p.min_size:
            raise ConfigError(
                f"partition: {holders} clients × min_size {p.min_size} need {holders * p.min_size} "
                f"training samples, the dataset has {len(labels)}"
            )
        counts = np.bincount(labels, minlength=int(max(labels.max(), test_labels.max(initial=0))) + 1)
        rng = numpy_generator(seed, "partition")
        sizes = self.wanted_sizes(len(labels), holders, rng)
        preferences = self.preferences(counts, holders, rng)
        wanted = whole_counts(fit(preferences, sizes, counts), preferences > 0, counts, p.min_size)
        dealt = deal(labels, wanted, rng, p.fold / p.cross_validation if p.cross_validation else 0.0)
        like = deal(test_labels, shares_of(wanted, np.bincount(test_labels, minlength=len(counts))), rng)
        copied = [
            (self._copied(len(labels), rng), self._copied(len(test_labels), rng)) for _ in range(p.copies)
        ]
        return Assignment(
            client_names(p.clients),
            (*dealt, *(rows for rows, _ in copied)),
            (*like, *(rows for _, rows in copied)),
        )

    def _copied(self, total: int, rng: np.random.Generator) -> np.ndarray:
        """Rows of a client that holds copies: as many as the others hold on average."""
        return np.sort(rng.permutation(total)[: total // (self.params.clients - self.params.copies)])


registry: Registry[Partition] = Registry("partition", "wardround.datasets", base=Partition)
register = registry.register
available = registry.available
create = registry.create


@register("iid")
class Iid(PreferencePartition):
    """Every client draws from the same distribution."""

    summary = "every client has the classes in the same proportions"

    def preferences(self, classes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        return np.tile(classes / classes.sum(), (clients, 1))


@register("dirichlet")
class Dirichlet(PreferencePartition):
    r"""Class proportions of client k drawn from :math:`p_k \sim \mathrm{Dir}(\alpha \cdot \mathbf{1}_C)`.

    A small α gives few classes per client; α = ∞ is the limit, all classes wanted alike. Hsu, Qi and Brown,
    "Measuring the effects of non-identical data distribution", 2019.
    """

    summary = "class proportions of each client ~ Dirichlet(α)"

    class Params(PartitionParams):
        alpha: Annotated[float, Field(gt=0, allow_inf_nan=True)] = 0.1
        sizes: Sizes = "power-law"

    params: Params

    def preferences(self, classes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        if np.isinf(self.params.alpha):
            return np.ones((clients, len(classes)))
        drawn = rng.dirichlet(np.full(len(classes), self.params.alpha), size=clients)
        # Tiny α underflows to exact zeros, which would forbid a class for ever; keep them merely tiny.
        return np.maximum(drawn, 1e-12)


@register("label-skew")
class LabelSkew(PreferencePartition):
    """Every client holds samples of at most Q classes.

    Classes get their holders in proportion to their samples (one at least, by highest averages), so that a
    rare class does not leave its holders empty-handed.
    """

    summary = "at most Q classes per client"

    class Params(PartitionParams):
        classes: int = Field(2, ge=1)
        """Q."""

    params: Params

    def preferences(self, classes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        q, present = self.params.classes, np.flatnonzero(classes)
        if q > len(present):
            raise ConfigError(
                f"partition 'label-skew': classes={q}, but training has only {len(present)} classes"
            )
        if clients * q < len(present):
            raise ConfigError(
                f"partition 'label-skew': {clients} clients × {q} classes cannot hold all {len(present)} classes; "
                "raise partition.clients or partition.classes"
            )
        holders = _holders(classes[present], clients, q)
        likes = np.zeros((clients, len(classes)))
        free = np.full(clients, q)
        for place in np.argsort(-holders, kind="stable"):
            # Those with most room first, by lot among equals: then nobody is asked for one class twice.
            order = np.lexsort((rng.permutation(clients), -free))[: holders[place]]
            likes[order, present[place]] = classes[present[place]] / holders[place]
            free[order] -= 1
        return likes


@register("similarity")
class Similarity(PreferencePartition):
    r"""A share γ of every client's samples is drawn like everyone's, the rest comes from the data sorted by class.

    γ = 1 is `iid`; with γ = 0 client k holds the k-th of equal pieces of the sorted data, one or two classes each.
    Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020.
    """

    summary = "a share γ iid, the rest sorted by class"

    class Params(PartitionParams):
        gamma: float = Field(0.5, ge=0, le=1)
        """γ: the share of samples that is the same everywhere."""

    params: Params

    def preferences(self, classes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        alike = classes / classes.sum()
        ends = np.cumsum(alike)
        pieces = np.arange(clients + 1) / clients
        overlap = np.minimum(ends, pieces[1:, None]) - np.maximum(ends - alike, pieces[:-1, None])
        sorted_share = np.maximum(overlap, 0) * clients
        likes: np.ndarray = self.params.gamma * alike + (1 - self.params.gamma) * sorted_share
        return likes


def _holders(counts: np.ndarray, clients: int, q: int) -> np.ndarray:
    """How many clients hold each class: clients·q in all, at least 1 and at most all a class."""
    holders = np.ones(len(counts), dtype=int)
    for _ in range(clients * q - len(counts)):
        holders[np.where(holders < clients, counts / (holders + 1), -1.0).argmax()] += 1
    return holders


@register("quantity-skew")
class QuantitySkew(Iid):
    r"""The same distribution everywhere, in very different amounts.

    :math:`|D_k| \sim \mathrm{LogNormal}(\mu, \sigma^2)`: μ is what makes the sizes add up to
    the data; σ is `size_sigma`.
    """

    summary = "log-normal client sizes, classes in the same proportions"

    class Params(PartitionParams):
        sizes: Literal["lognormal", "power-law"] = "lognormal"

    params: Params


@register("natural")
class Natural(Partition):
    """Clients as they are in the data: one per hospital, named after it (or several that share it out).

    With `clients_per_group` above 1 each hospital's samples are dealt to that many clients, in the sizes
    that `sizes` says.
    """

    summary = "the data's own hospitals or sources as clients"

    class Params(PartitionParams):
        clients: int | None = Field(None, ge=1)  # type: ignore[assignment]
        """How many clients there will be: the data says it. A number given here is only checked."""
        clients_per_group: int = Field(1, ge=1)

        @model_validator(mode="after")
        def _hospitals_hold_their_own(self) -> Natural.Params:
            if self.copies:
                raise ValueError(
                    f"copies={self.copies}, but the data says who holds what; use another partition"
                )
            return self

    params: Params

    def assign(self, train: Split, test: Split, seed: int) -> Assignment:
        p = self.params
        if train.groups is None or test.groups is None:
            raise ConfigError(
                "partition 'natural': this dataset has no natural clients; use a dataset that has "
                "(heart; csv with `client`; mimic3; ham10000 with a source column) or another partition"
            )
        groups, test_groups = np.asarray(train.groups, dtype=str), np.asarray(test.groups, dtype=str)
        names = sorted({*groups.tolist(), *test_groups.tolist()})
        number = len(names) * p.clients_per_group
        if p.clients is not None and p.clients != number:
            raise ConfigError(
                f"partition 'natural': clients={p.clients}, but the data has {len(names)} groups × "
                f"clients_per_group {p.clients_per_group} = {number}; leave `clients` out"
            )
        clients: list[str] = []
        rows: list[np.ndarray] = []
        test_rows: list[np.ndarray] = []
        for name in names:
            own, own_test = np.flatnonzero(groups == name), np.flatnonzero(test_groups == name)
            if len(own) < p.clients_per_group * p.min_size:
                raise ConfigError(
                    f"partition 'natural': {name!r} has {len(own)} training samples for {p.clients_per_group} "
                    f"client(s) of at least {p.min_size}; lower partition.min_size or clients_per_group, or "
                    "leave the group out of the data"
                )
            rng = numpy_generator(seed, "partition", name)
            pieces, test_pieces = self._share_out(class_of(train)[own], class_of(test)[own_test], rng)
            clients += (
                [name] if p.clients_per_group == 1 else [f"{name}-{i}" for i in range(p.clients_per_group)]
            )
            rows += [own[piece] for piece in pieces]
            test_rows += [own_test[piece] for piece in test_pieces]
        return Assignment(tuple(clients), tuple(rows), tuple(test_rows))

    def _share_out(
        self, labels: np.ndarray, test_labels: np.ndarray, rng: np.random.Generator
    ) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
        """One group's samples to its clients, classes in like proportions."""
        p = self.params
        counts = np.bincount(labels, minlength=int(max(labels.max(), test_labels.max(initial=0))) + 1)
        sizes = self.wanted_sizes(len(labels), p.clients_per_group, rng)
        likes = np.ones((p.clients_per_group, len(counts)))
        wanted = whole_counts(fit(likes, sizes, counts), likes > 0, counts, p.min_size)
        start = p.fold / p.cross_validation if p.cross_validation else 0.0
        like = shares_of(wanted, np.bincount(test_labels, minlength=len(counts)))
        return deal(labels, wanted, rng, start), deal(test_labels, like, rng)


def class_of(split: Split) -> np.ndarray:
    """One class a sample; of a multi-label sample the first positive finding (none: a class of its own)."""
    return classes_of(split.targets.numpy())


def client_names(count: int) -> tuple[str, ...]:
    """hospital-00 … with as many digits as needed."""
    digits = max(2, len(str(count - 1)))
    return tuple(f"hospital-{i:0{digits}d}" for i in range(count))
