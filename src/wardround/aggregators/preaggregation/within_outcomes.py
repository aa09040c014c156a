"""Any rule within each outcome: hospitals are compared with hospitals on patients of the same outcome."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from wardround.aggregators._math.outcome_counts import capped_counts
from wardround.aggregators.base import Aggregator, ClientPolicy, Context, sample_weights
from wardround.errors import ParameterError
from wardround.registry import Parameters
from wardround.updates import Aggregation, Updates

__all__ = ["WithinOutcomes", "within_outcomes_class"]

DECLARED = ("name", "is_robust", "remembers_clients", "needs_global_weights", "uses_predictions")


class WithinOutcomes(Aggregator):
    r"""A rule on the parts of each outcome. Built by `aggregators.create(name, strata=True)`.

    With :math:`U_i^c` the part of outcome c in client i's update, :math:`n_i^c` its patients of that outcome and
    :math:`n_i` all of them, the rule combines the rows :math:`(n_i/n_i^c)\,U_i^c` of those who hold the outcome, as if
    each had patients of that outcome only. The results are added up by the outcomes' shares of all patients, for which
    no client counts more than the median holder does. An outcome that fewer clients hold than the rule needs is
    averaged by their patients.
    """

    needs_parts = True

    def __init__(self, params: Parameters, rule: Aggregator) -> None:
        """Put it together.

        Args:
            params: The rule's parameters, and `strata`.
            rule: The rule, which is copied for each outcome.
        """
        super().__init__(params)
        for needed, what in (
            (rule.needs_root_update, "a root update"),
            (rule.needs_practice_ground, "a practice ground"),
            (rule.client_policy.by_outcome, "updates split by outcome, which it takes apart itself"),
        ):
            if needed:
                raise ParameterError(f"aggregator '{rule.name}' with strata: the rule needs {what}")
        self.rule = rule
        self.of_outcome: list[Aggregator] = []

    @property
    def client_policy(self) -> ClientPolicy:
        own = self.rule.client_policy
        return ClientPolicy(own.prox_mu, own.local_batch_norm, by_outcome=True)

    def fresh_copy(self) -> WithinOutcomes:
        return type(self)(self.params, self.rule.fresh_copy())

    def assumed_byzantine(self, clients: int) -> int:
        return self.rule.assumed_byzantine(clients)

    def resolved(self, clients: int) -> dict[str, Any]:
        return {**self.rule.resolved(clients), "strata": True}

    def warm_up(self, clients: int, dimension: int, dtype: torch.dtype = torch.float32) -> None:
        self.rule.warm_up(clients, dimension, dtype)

    def combine(self, updates: Updates, context: Context) -> Aggregation:
        parts = updates.parts
        if parts is None:
            raise ParameterError(
                f"{self.name} with strata needs updates that are split by outcome (Updates.parts)"
            )
        counts = parts.counts.nan_to_num(0.0)
        outcomes = counts.shape[1]
        self._copies(outcomes)
        held = counts > 0
        capped = capped_counts(counts, held)
        shares = capped.sum(0) / capped.sum().clamp_min(1)
        samples = counts.sum(1)
        delta = torch.zeros(updates.dimension, dtype=updates.dtype)
        weights = torch.zeros(len(updates), dtype=torch.float64)
        flags = torch.zeros(len(updates), dtype=torch.bool)
        for outcome, rule in enumerate(self.of_outcome):
            holders = held[:, outcome].nonzero().flatten()
            if not len(holders):
                continue
            per_patient = (samples / counts[:, outcome].clamp_min(1))[holders].to(updates.dtype)
            own = Updates(
                parts.rows[holders, outcome] * per_patient[:, None],
                [updates.clients[i] for i in holders.tolist()],
                counts[holders, outcome],
                {name: values[holders] for name, values in updates.metrics.items()},
                updates.layout,
            )
            if len(holders) < max(1, rule.minimum_clients(len(holders))):
                even = sample_weights(own, None)
                result = Aggregation((even.to(own.dtype)[None] @ own.matrix)[0], weights=even)
            else:
                result = rule.aggregate(own, context.round, context.global_weights, predict=context.predict)
            delta += float(shares[outcome]) * result.delta
            if result.weights is not None:
                weights[holders] += float(shares[outcome]) * result.weights
            if result.flags is not None:
                flags[holders] |= result.flags
        return Aggregation(delta, weights, flags=flags)

    def _copies(self, outcomes: int) -> None:
        """A rule with a memory of its own for every outcome."""
        while len(self.of_outcome) < outcomes:
            self.of_outcome.append(self.rule.fresh_copy())

    def state_dict(self) -> dict[str, Any]:
        return {"of_outcome": [rule.state_dict() for rule in self.of_outcome]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.of_outcome = []
        self._copies(len(state["of_outcome"]))
        for rule, saved in zip(self.of_outcome, state["of_outcome"], strict=True):
            rule.load_state_dict(saved)


@cache
def within_outcomes_class(rule: type[Aggregator]) -> type[WithinOutcomes]:
    """The class of rules that work within outcomes by this one: it declares what the rule does."""
    return type(rule.__name__, (WithinOutcomes,), {name: getattr(rule, name) for name in DECLARED})
