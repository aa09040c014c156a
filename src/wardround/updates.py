"""The data that flows: what clients sent, what a rule made of it, and dropping what is malformed in between."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["Aggregation", "Layout", "Parts", "Updates", "WellFormed", "drop_malformed", "row_squared_norms"]

PARAMETER, BATCH_NORM = "parameter", "batch-norm"
MOST_SAMPLES = 2**53
"""No count beyond this is a count: floats cannot tell it from its neighbour, and two of them would leave nothing to the
others."""
PART_TOLERANCE = 1e-3
"""How far parts may be from adding up, relative to the longest: rounding of float32 over thousands of steps."""
GAP_COLUMNS = 65_536
"""Columns that are compared at a time."""


@dataclass(frozen=True)
class Layout:
    """Names, shapes and kinds of the D parameters, in the order in which they are laid end to end.

    >>> layout = Layout(("fc.weight", "fc.bias"), ((2, 3), (2,)))
    >>> layout.size, layout.slices["fc.bias"]
    (8, slice(6, 8, None))
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    kinds: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.kinds:
            object.__setattr__(self, "kinds", (PARAMETER,) * len(self.names))
        if not len(self.names) == len(self.shapes) == len(self.kinds):
            raise ValueError("a layout needs as many shapes and kinds as names")

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """The layout of a network: every parameter and every floating-point buffer.

        Running statistics of normalisation layers are part of the model that travels; everything a
        BatchNorm layer owns is marked, because FedBN keeps it at home.
        """
        normalised = {
            f"{name}.{entry}" if name else entry
            for name, layer in module.named_modules()
            if isinstance(layer, nn.modules.batchnorm._BatchNorm)
            for entry in layer.state_dict()
        }
        entries = [(name, value) for name, value in module.state_dict().items() if value.is_floating_point()]
        return cls(
            tuple(name for name, _ in entries),
            tuple(tuple(value.shape) for _, value in entries),
            tuple(BATCH_NORM if name in normalised else PARAMETER for name, _ in entries),
        )

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Where each named tensor lies in the flat vector."""
        ends = np.cumsum([math.prod(shape) for shape in self.shapes], dtype=int).tolist()
        starts = [0, *ends[:-1]]
        return {name: slice(a, b) for name, a, b in zip(self.names, starts, ends, strict=True)}

    @cached_property
    def size(self) -> int:
        """D, the length of the flat vector."""
        return sum(math.prod(shape) for shape in self.shapes)

    @cached_property
    def batch_norm_mask(self) -> Tensor:
        """D booleans: which coordinates belong to BatchNorm layers."""
        mask = torch.zeros(self.size, dtype=torch.bool)
        for name, kind in zip(self.names, self.kinds, strict=True):
            mask[self.slices[name]] = kind == BATCH_NORM
        return mask

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """A state dict as one vector."""
        return torch.cat([tensors[name].detach().reshape(-1) for name in self.names])

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """Views into the vector, shaped and named as in a state dict."""
        return {
            name: vector[self.slices[name]].view(shape)
            for name, shape in zip(self.names, self.shapes, strict=True)
        }


@dataclass(frozen=True, eq=False)
class Parts:
    """Updates split by outcome: what each client's patients of each outcome contributed to its update."""

    rows: Tensor
    """N × C × D; a client's parts add up to its update, together with what belongs to no patient."""
    counts: Tensor
    """N × C: patients that the client says it has of each outcome, float64. NaN: fewer than it tells, and what they
    contributed is in the largest of its parts."""
    reach: Tensor | None = None
    """N × C: how far training on the patients of an outcome can move the bias of their logit at most, where the server
    knows that."""
    correction: Tensor | None = None
    """N × D: what belongs to no patient, where there is something: SCAFFOLD's correction of the steps."""

    def select(self, index: Tensor) -> Parts:
        """The parts of some clients only."""
        reach = None if self.reach is None else self.reach[index]
        correction = None if self.correction is None else self.correction[index]
        return Parts(self.rows[index], self.counts[index], reach, correction)

    def sums(self) -> Tensor:
        """N × D: what all patients of each client contributed."""
        return self.rows.sum(1)


@dataclass(frozen=True, eq=False)
class Updates:
    """What the clients of one round sent. Row i of `matrix` is client i's update, untrusted like the rest.

    The matrix may be a torch tensor or a numpy array (taken without a copy), or a list of vectors, which
    may then differ in length: `drop_malformed` drops those that do not fit.

    >>> updates = Updates(np.eye(3, dtype="float32"), num_samples=[10, 20, 30])
    >>> updates.clients
    ('client-00', 'client-01', 'client-02')
    """

    matrix: Any
    clients: Sequence[str] = ()
    num_samples: Any = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    layout: Layout | None = None
    parts: Parts | None = None
    """The updates split by outcome, where the rule asked clients for that."""

    def __post_init__(self) -> None:
        matrix = _as_matrix(self.matrix)
        n = len(matrix)
        clients = tuple(self.clients) or tuple(f"client-{i:02d}" for i in range(n))
        num_samples = self.num_samples
        if num_samples is None:
            num_samples = torch.ones(n) if self.parts is None else self.parts.counts.nansum(1)
        put = object.__setattr__
        put(self, "matrix", matrix)
        put(self, "clients", clients)
        put(self, "num_samples", torch.as_tensor(num_samples, dtype=torch.float64))
        put(self, "metrics", {k: torch.as_tensor(v, dtype=torch.float64) for k, v in self.metrics.items()})
        if len(set(clients)) != len(clients):
            twice = [client for client, count in Counter(clients).items() if count > 1]
            raise ValueError(f"every client may send one update a round; twice: {', '.join(twice)}")
        columns = {"clients": clients, "num_samples": self.num_samples, **self.metrics}
        if self.parts is not None:
            columns |= {"parts": self.parts.rows, "counts of parts": self.parts.counts}
        for name, values in columns.items():
            if len(values) != n:
                raise ValueError(f"{name} has {len(values)} entries for {n} updates")

    def __len__(self) -> int:
        return len(self.matrix)

    @property
    def dimension(self) -> int:
        """D, the length of an update."""
        return int(self.matrix.shape[1])

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the updates."""
        dtype: torch.dtype = self.matrix.dtype
        return dtype

    @cached_property
    def squared_norms(self) -> Tensor:
        """‖U_i‖² in float64, on the CPU: computed once (`drop_malformed` needs them anyway), shared by all who ask."""
        return row_squared_norms(self.matrix).cpu()

    @property
    def norms(self) -> Tensor:
        """‖U_i‖ in float64."""
        return self.squared_norms.sqrt()

    def select(self, rows: Sequence[int]) -> Updates:
        """The updates of some clients only, by their indices.

        Neighbouring rows are a view of the matrix; others have to be copied.
        """
        index = torch.tensor(rows, dtype=torch.long)
        if isinstance(self.matrix, list):
            matrix: Any = [self.matrix[i] for i in rows]
        elif len(rows) and list(rows) == list(range(rows[0], rows[0] + len(rows))):
            matrix = self.matrix[rows[0] : rows[0] + len(rows)]
        else:
            matrix = self.matrix[index]
        return replace(
            self,
            matrix=matrix,
            clients=tuple(self.clients[i] for i in rows),
            num_samples=self.num_samples[index],
            metrics={name: values[index] for name, values in self.metrics.items()},
            parts=None if self.parts is None else self.parts.select(index),
        )


@dataclass
class Aggregation:
    """What a rule made of one round."""

    delta: Tensor
    """The aggregated update, of length D."""
    weights: Tensor | None = None
    """Each client's share (sums to 1), 0 for a dropped client; None for rules with no per-client share."""
    scores: Tensor | None = None
    """Higher is more suspicious; None where the rule has no score; NaN for a dropped client."""
    flags: Tensor | None = None
    """The verdict per client; None where the rule gives none. A dropped client counts as flagged."""
    columns: dict[str, Tensor] = field(default_factory=dict)
    """The rule's own diagnostics, one value per client (NaN for a dropped one)."""
    dropped: dict[str, str] = field(default_factory=dict)
    """Client → why its update was dropped."""
    estimated_f: int | None = None
    """How many Byzantine clients the rule counted on, where it estimated that from the round (f is `auto`)."""
    skipped: str | None = None
    """Why the round had to be skipped (`delta` is then zero), None where all went well."""
    warning: str | None = None
    """What people should know of the round: that the rule could not do what it is for."""

    def problem(self, clients: int, dimension: int) -> str | None:
        """What is wrong with the shape of a result for so many clients and parameters, and what would be right.

        >>> Aggregation(torch.zeros(3), weights=torch.ones(2) / 2).problem(clients=4, dimension=3)
        'weights of shape (2,), expected a tensor of 4 values, one per client'
        """
        per_client = {"weights": self.weights, "scores": self.scores, "flags": self.flags}
        per_client |= {f"columns[{name!r}]": values for name, values in self.columns.items()}
        expected = {
            "delta": (self.delta, dimension, "parameter"),
            **{
                name: (values, clients, "client") for name, values in per_client.items() if values is not None
            },
        }
        for name, (values, size, unit) in expected.items():
            if not isinstance(values, Tensor) or values.shape != (size,):
                got = (
                    f"shape {tuple(values.shape)}"
                    if isinstance(values, Tensor)
                    else f"type {type(values).__name__}"
                )
                return f"{name} of {got}, expected a tensor of {size} values, one per {unit}"
        if not self.delta.is_floating_point():
            return f"delta of {self.delta.dtype}, expected floating-point numbers"
        return None

    def spread(self, rows: Tensor, n: int) -> Aggregation:
        """The same result for all `n` clients, where it was computed for those in `rows` only."""
        if len(rows) == n:
            return replace(self, columns={k: v.to(torch.float64) for k, v in self.columns.items()})

        def scatter(values: Tensor, fill: float) -> Tensor:
            full = torch.full((n,), fill, dtype=values.dtype, device=values.device)
            full[rows] = values
            return full

        return replace(
            self,
            weights=None if self.weights is None else scatter(self.weights, 0.0),
            scores=None if self.scores is None else scatter(self.scores, math.nan),
            flags=None if self.flags is None else scatter(self.flags, True),
            columns={k: scatter(v.to(torch.float64), math.nan) for k, v in self.columns.items()},
        )


@dataclass(frozen=True)
class WellFormed:
    """The updates that are fit for a rule."""

    updates: Updates
    rows: Tensor
    """Their rows among all that were sent."""
    dropped: dict[str, str]
    """Client → why its update is not among them."""


def drop_malformed(
    updates: Updates,
    dimension: int | None = None,
    measure: Callable[[Tensor], Tensor] | None = None,
    measure_parts: Callable[[Tensor, Parts], tuple[Tensor, Tensor]] | None = None,
) -> WellFormed:
    """Drop every row that is not finite, has the wrong length or an impossible sample count.

    A row whose norm is beyond float64 counts as not finite: no rule could do anything with it.

    Args:
        updates: What N clients sent.
        dimension: The right length; None: the layout's, or else the one most clients sent.
        measure: N × D rows → N squared norms, where there is a faster way than `row_squared_norms`.
        measure_parts: N × D rows and their parts → N × C norms of the parts, and N norms of what they do not add up to.

    Returns:
        The well-formed updates, their places among the N, and the reasons of the others.

    >>> sent = Updates([torch.ones(3), torch.tensor([1.0, torch.nan, 0.0]), torch.ones(2), torch.zeros(3)])
    >>> drop_malformed(sent).dropped
    {'client-01': 'not finite', 'client-02': 'length 2 instead of 3'}
    """
    if dimension is None and updates.layout is not None:
        dimension = updates.layout.size
    if isinstance(updates.matrix, list):
        lengths = [len(row) for row in updates.matrix]
        dimension = dimension if dimension is not None else Counter(lengths).most_common(1)[0][0]
    else:
        lengths = [updates.dimension] * len(updates)
        dimension = dimension if dimension is not None else updates.dimension
    dropped = {
        client: f"length {length} instead of {dimension}"
        for client, length in zip(updates.clients, lengths, strict=True)
        if length != dimension
    }
    counts = updates.num_samples
    for i in (~((counts >= 0) & (counts <= MOST_SAMPLES))).nonzero().flatten().tolist():
        dropped.setdefault(updates.clients[i], f"sample count {counts[i].item():g}")
    if updates.parts is not None:
        dropped = _part_problems(updates, updates.parts, measure_parts or _measure_parts) | dropped
    kept = [i for i, client in enumerate(updates.clients) if client not in dropped]
    fit = updates.select(kept) if dropped else updates
    if not kept:
        fit = replace(fit, matrix=torch.empty(0, dimension))
    if measure is not None and kept and "squared_norms" not in fit.__dict__:
        _remember_norms(fit, measure(fit.matrix))
    fit = _without_denormals(fit)
    finite = torch.isfinite(fit.squared_norms)
    if not bool(finite.all()):
        dropped |= {fit.clients[i]: "not finite" for i in (~finite).nonzero().flatten().tolist()}
        fine = finite.nonzero().flatten().tolist()
        norms = fit.squared_norms[finite]
        fit, kept = fit.select(fine), [kept[i] for i in fine]
        _remember_norms(fit, norms)  # what has been measured need not be measured again
    order = {client: place for place, client in enumerate(updates.clients)}
    dropped = dict(sorted(dropped.items(), key=lambda item: order[item[0]]))
    return WellFormed(fit, torch.tensor(kept, dtype=torch.long), dropped)


def _part_problems(
    updates: Updates, parts: Parts, measure: Callable[[Tensor, Parts], tuple[Tensor, Tensor]]
) -> dict[str, str]:
    """Client → what is wrong with the parts of its update."""
    counts = parts.counts
    impossible = ~(counts.isnan() | (counts >= 0) & (counts <= MOST_SAMPLES)).all(1) | counts.isnan().all(1)
    norms, gap = measure(updates.matrix, parts)
    finite = torch.isfinite(norms).all(1)
    # Parts may be far longer than their sum: what rounding leaves is measured against them.
    apart = finite & ~(gap <= PART_TOLERANCE * norms.max(1).values)
    empty = finite & (updates.num_samples > 0) & ((norms > 0) & ~(counts > 0)).any(1)
    # Who does not tell the count of some outcome may have more patients than it tells.
    known, is_complete = counts.nan_to_num(0.0).sum(1), ~counts.isnan().any(1)
    wrong_sum = ((known - updates.num_samples).abs() > 0.5) & (is_complete | (known > updates.num_samples))
    reasons = (
        (impossible, "impossible counts of outcomes"),
        (wrong_sum & ~impossible, "its counts of outcomes do not add up to its sample count"),
        (~finite, "not finite"),
        (apart, "its parts do not add up to the update"),
        (empty, "a part of an outcome that it has no patient of"),
    )
    problems: dict[str, str] = {}
    for wrong, reason in reasons:
        for i in wrong.nonzero().flatten().tolist():
            problems.setdefault(updates.clients[i], reason)
    return problems


def _measure_parts(matrix: Tensor, parts: Parts) -> tuple[Tensor, Tensor]:
    """The norms of parts (N × C), and how far each client's are from adding up to its update (N norms)."""
    return torch.linalg.vector_norm(parts.rows, dim=2).double(), _gaps(matrix, parts)


def _gaps(matrix: Tensor, parts: Parts) -> Tensor:
    """How far each client's parts are from adding up to its update (N norms), without another matrix in memory."""
    squares = torch.zeros(len(matrix), dtype=torch.float64)
    for first in range(0, matrix.shape[1], GAP_COLUMNS):
        columns = slice(first, first + GAP_COLUMNS)
        gap = parts.rows[:, 0, columns] - matrix[:, columns]
        for outcome in range(1, parts.rows.shape[1]):
            gap.add_(parts.rows[:, outcome, columns])
        if parts.correction is not None:
            gap.add_(parts.correction[:, columns])
        squares += torch.linalg.vector_norm(gap, dim=1, dtype=torch.float64).square().cpu()
    return squares.sqrt()


def _without_denormals(updates: Updates) -> Updates:
    """Count norms below the smallest normal number as zero: a quotient by one of them is not finite."""
    smallest = torch.finfo(updates.matrix.dtype).tiny
    denormal = (updates.squared_norms > 0) & (updates.squared_norms < smallest**2)
    if not bool(denormal.any()):
        return updates
    rows = updates.matrix.clone()
    rows[denormal] = 0
    squared = updates.squared_norms.masked_fill(denormal, 0.0)
    result = replace(updates, matrix=rows)
    _remember_norms(result, squared)
    return result


def _remember_norms(updates: Updates, squared_norms: Tensor) -> None:
    """Save `updates.squared_norms` the measuring; it is a cached property of a frozen object."""
    object.__setattr__(updates, "squared_norms", squared_norms)


def row_squared_norms(matrix: Tensor, chunk: int = 16_384) -> Tensor:
    """Σ_j U_ij² with float64 accumulation, at the speed of float32.

    Within a chunk float32 is exact enough; the chunks are summed in float64. Rows so small or large that
    float32 squares would underflow or overflow are done again wholly in float64.
    """
    n, d = matrix.shape
    if matrix.dtype == torch.float64:
        squared: Tensor = torch.linalg.vector_norm(matrix, dim=1).square()
        return squared
    whole = d - d % chunk
    parts = (
        torch.linalg.vector_norm(matrix[:, :whole].reshape(n, whole // chunk, chunk), dim=2)
        .double()
        .square()
        .sum(1)
    )
    rest = torch.linalg.vector_norm(matrix[:, whole:], dim=1).double().square()
    total: Tensor = parts + rest
    odd = ~((total > 1e-24 * max(d, 1)) & (total < 1e36)) & ~torch.isnan(total)
    for i in odd.nonzero().flatten().tolist():
        total[i] = torch.linalg.vector_norm(matrix[i].double()).square()
    return total


def _as_matrix(rows: Any) -> Tensor | list[Tensor]:
    if isinstance(rows, np.ndarray):
        rows = torch.from_numpy(rows)
    if not isinstance(rows, Tensor):
        vectors = [torch.as_tensor(row) for row in rows]
        for row in vectors:
            if row.ndim != 1:
                raise ValueError(f"an update is a vector, got one of shape {tuple(row.shape)}")
        vectors = [row if row.dtype in (torch.float32, torch.float64) else row.float() for row in vectors]
        if not vectors or len({len(row) for row in vectors}) > 1:
            return vectors
        rows = torch.stack(vectors)
    if rows.ndim != 2:
        raise ValueError(f"updates form a matrix of clients × parameters, got shape {tuple(rows.shape)}")
    rows = rows.detach()
    assert isinstance(rows, Tensor)
    return rows if rows.dtype in (torch.float32, torch.float64) else rows.float()
