"""A rule behind pre-aggregations, which is a rule again."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from wardround.aggregators._math.mixing import MixedMeasurements, MixedUpdates
from wardround.aggregators.base import (
    Aggregator,
    ByzantineBound,
    ClientPolicy,
    Context,
    MeasurementPlan,
    Measurements,
)
from wardround.aggregators.preaggregation.base import Mixer, PreAggregator, PreContext, RowStep
from wardround.errors import ParameterError
from wardround.registry import Parameters
from wardround.updates import Aggregation, Updates

__all__ = ["Pipeline", "pipeline_class"]

DECLARED = (
    "name",
    "needs_global_weights",
    "needs_root_update",
    "needs_practice_ground",
    "needs_attackers",
    "uses_predictions",
    "is_robust",
    "remembers_clients",
    "reasons",
    "practice_attacks",
)
"""What a rule declares that pre-aggregations do not change. (It sees rows then, whatever it would see without.)"""


class Pipeline(Aggregator):
    """Pre-aggregations in their order, then a rule. Built by `aggregators.create(name, pre=[…])`.

    Everything that the rule says of the rows it has seen is traced back to clients: weights by the share that a client
    has in each row; scores, flags and columns where row i is still client i's. Otherwise there are none.
    """

    def __init__(self, params: Parameters, rule: Aggregator, steps: Sequence[PreAggregator]) -> None:
        """Put a pipeline together.

        Args:
            params: The rule's parameters, and `pre`.
            rule: The rule behind.
            steps: What comes before it, in order.
        """
        super().__init__(params)
        self.rule, self.steps = rule, tuple(steps)
        self.keeps_clients = all(step.keeps_clients for step in steps)
        self.rows_per_client = rule.rows_per_client + sum(step.rows_per_client for step in steps)
        for place, step in enumerate(steps):
            behind = [later.name for later in steps[place + 1 :] if later.remembers_clients]
            behind += [f"aggregator '{rule.name}'"] if rule.remembers_clients else []
            if behind and not step.keeps_clients:
                raise ParameterError(
                    f"{behind[0]} remembers clients, and {step.name} before it makes rows that belong to no client"
                )

    @property
    def client_policy(self) -> ClientPolicy:
        return self.rule.client_policy

    def profile_table(self) -> dict[str, dict[str, float]] | None:
        return self.rule.profile_table()

    def fresh_copy(self) -> Pipeline:
        steps = [type(step)(step.params) for step in self.steps]
        return type(self)(self.params, self.rule.fresh_copy(), steps)

    def assumed_byzantine(self, clients: int) -> int:
        return self.rule.assumed_byzantine(clients)

    @property
    def estimates_byzantine(self) -> bool:
        return self.rule.estimates_byzantine

    def for_round(self, context: Context) -> Pipeline:
        """The same steps, with their state, before the rule as it is settled by the rows that clients sent.

        Where steps leave fewer rows, the rule is settled for no more Byzantine clients than it withstands among these.
        """
        if not self.estimates_byzantine:
            return self
        rows, settled = len(context.measurements.updates), copy.copy(self)
        rule = self.rule.for_round(context)
        assert isinstance(rule, ByzantineBound)
        settled.rule = rule
        while settled.minimum_clients(rows) > rows and (f := rule.byzantine(rows)):
            settled.rule = rule = rule.with_byzantine(f - 1)
        return settled

    def _pre_context(self, round: int, clients: int) -> PreContext:
        return PreContext(round, clients, self.assumed_byzantine(clients))

    def proven_kappa(self, clients: int) -> float | None:
        """Behind nearest-neighbour mixing alone: 8f/(N−f)·(κ+1) (Allouah et al., AISTATS 2023)."""
        own, f = self.rule.proven_kappa(clients), self.assumed_byzantine(clients)
        mixing = [step.resolved(self._pre_context(1, clients)) for step in self.steps]
        alone = len(mixing) == 1 and mixing[0]["name"] == "nnm" and mixing[0]["f"] == f
        return 8 * f / (clients - f) * (own + 1) if alone and own is not None else None

    def minimum_clients(self, clients: int) -> int:
        context, needed = self._pre_context(1, clients), max(1, self.rule.minimum_clients(clients))
        for step in reversed(self.steps):
            needed = step.rows_needed(needed, context)
        return needed

    def requirement(self, clients: int) -> str:
        names = ", ".join(step.name for step in self.steps)
        return f"{self.rule.requirement(clients)} behind {names}, that is {self.minimum_clients(clients)} clients"

    def resolved(self, clients: int) -> dict[str, Any]:
        context = self._pre_context(1, clients)
        return {**self.rule.resolved(clients), "pre": [step.resolved(context) for step in self.steps]}

    def plan_measurements(self, context: Context) -> MeasurementPlan:
        """What the first read measures: what the rule asks, and distances where a step needs them."""
        planned = self.rule.plan_measurements(context)
        before_rows = self.steps[: self._first_row_step]
        if self._first_row_step < len(self.steps):  # the rule sees other rows than these
            planned = MeasurementPlan()
        if not planned.gram and not any(step.needs_distances for step in before_rows):
            return replace(planned, trim=None)  # nobody asks for the middle of rows that are mixed
        # Of averages, a rule that looks at coordinates needs no norms, which projections on the centre would give.
        averages = all(isinstance(step, Mixer) and step.averages for step in before_rows)
        on_centre = planned.anchor is None and not (averages and planned.trim is not None)
        return replace(planned, gram=True, on_centre=on_centre, trim=None)

    @property
    def _first_row_step(self) -> int:
        places = (i for i, step in enumerate(self.steps) if isinstance(step, RowStep))
        return next(places, len(self.steps))

    def combine(self, updates: Updates, context: Context) -> Aggregation:
        pre = self._pre_context(context.round, context.clients)
        wanted = self.rule.plan_measurements(context)
        rows, measurements, columns = updates, context.measurements, dict[str, Tensor]()
        shares, belongs_to_clients = torch.eye(len(updates), dtype=torch.float64), True
        for step in self.steps:
            if isinstance(step, RowStep):
                rows = _with_rows(rows, step.transform(rows, pre))
                measurements = Measurements(replace(wanted, on_centre=wanted.anchor is None))
                squared = measurements.read(rows.matrix)
                if not bool(squared.isfinite().all()):
                    return _skipped(updates, f"the rows that {step.name} makes are not finite")
                object.__setattr__(rows, "squared_norms", squared)
                measurements = measurements.of(rows)
                continue
            assert isinstance(step, Mixer)
            mixture = step.mix(rows, measurements, pre)
            if belongs_to_clients:
                columns |= mixture.columns
            belongs_to_clients &= step.keeps_clients
            shares = mixture.shares @ shares
            rows, measurements = _mixed(rows, measurements, mixture.coefficients, step.keeps_clients, wanted)
        result = self.rule._checked(
            self.rule.combine(rows, replace(context, measurements=measurements)), rows
        )
        return self._traced(result, shares, columns)

    def _traced(self, result: Aggregation, shares: Tensor, columns: dict[str, Tensor]) -> Aggregation:
        """The result of the rule on its rows as one on clients."""
        if result.weights is not None:
            result.weights = result.weights.double() @ shares
        if not self.keeps_clients:
            result.scores = result.flags = None
            result.columns = {}
        result.columns = {**columns, **result.columns}
        return result

    def on_dropped(self, dropped: dict[str, str]) -> None:
        self.rule.on_dropped(dropped)

    def state_dict(self) -> dict[str, Any]:
        return {"rule": self.rule.state_dict(), "pre": [step.state_dict() for step in self.steps]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if set(state) != {"rule", "pre"} or len(state["pre"]) != len(self.steps):
            raise ParameterError(
                f"{self.name}: the saved state is not one of this rule behind "
                + ", ".join(step.name for step in self.steps)
            )
        self.rule.load_state_dict(state["rule"])
        for step, saved in zip(self.steps, state["pre"], strict=True):
            step.load_state_dict(saved)


@cache
def pipeline_class(rule: type[Aggregator]) -> type[Pipeline]:
    """The class of pipelines that end in this rule: it declares what the rule does."""
    return type(rule.__name__, (Pipeline,), {name: getattr(rule, name) for name in DECLARED})


def _with_rows(updates: Updates, rows: Tensor) -> Updates:
    """The same clients with other rows."""
    return Updates(rows, updates.clients, updates.num_samples, updates.metrics, updates.layout)


def _skipped(updates: Updates, reason: str) -> Aggregation:
    weights = torch.zeros(len(updates), dtype=torch.float64)
    return Aggregation(torch.zeros(updates.dimension, dtype=updates.dtype), weights=weights, skipped=reason)


def _mixed(
    rows: Updates,
    measurements: Measurements,
    coefficients: Tensor,
    keeps_clients: bool,
    plan: MeasurementPlan,
) -> tuple[MixedUpdates, MixedMeasurements]:
    """Mixtures of the rows. Where they are no client's, they count with the mean of what the mixed clients say."""
    clients, samples, metrics = rows.clients, rows.num_samples, dict(rows.metrics)
    if not keeps_clients:
        clients = [f"row-{i:02d}" for i in range(len(coefficients))]
        samples = coefficients @ samples
        metrics = {name: coefficients @ values for name, values in metrics.items()}
    mixed = MixedUpdates(rows, coefficients, clients, samples, metrics)
    return mixed, MixedMeasurements(measurements, coefficients, mixed, plan)
