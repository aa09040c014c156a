"""The partitions by name: what each client would like to hold."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from wardround.datasets.base import Split
from wardround.datasets.partition import (
    Assignment,
    Partition,
    PartitionParams,
    Sizes,
    class_of,
    deal,
    fit,
    register,
    shares_of,
    whole_counts,
)
from wardround.errors import ConfigError
from wardround.randomness import numpy_generator


@register("iid")
class Iid(Partition):
    """Every client draws from the same distribution."""

    summary = "every client has the classes in the same proportions"

    def preferences(self, classes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        return np.tile(classes / classes.sum(), (clients, 1))


@register("dirichlet")
class Dirichlet(Partition):
    r"""Class proportions of client k drawn from :math:`p_k \sim \mathrm{Dir}(\alpha \cdot \mathbf{1}_C)`.

    A small α gives few classes a client; α = ∞ is the limit, all classes wanted alike. Hsu, Qi and Brown,
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
class LabelSkew(Partition):
    """Every client holds samples of at most Q classes.

    Classes get their holders in proportion to their samples (one at least, by highest averages), so that a
    rare class does not leave its holders empty-handed.
    """

    summary = "at most Q classes a client"

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
    """Clients as they are in the data: one a hospital, named after it (or several that share it out).

    With `clients_per_group` above 1 each hospital's samples are dealt to that many clients, in the sizes
    that `sizes` says.
    """

    summary = "the data's own hospitals or sources as clients"

    class Params(PartitionParams):
        clients: int | None = Field(None, ge=1)  # type: ignore[assignment]
        """How many clients there will be: the data says it. A number given here is only checked."""
        clients_per_group: int = Field(1, ge=1)

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
        found = len(names) * p.clients_per_group
        if p.clients is not None and p.clients != found:
            raise ConfigError(
                f"partition 'natural': clients={p.clients}, but the data has {len(names)} groups × "
                f"clients_per_group {p.clients_per_group} = {found}; leave `clients` out"
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
