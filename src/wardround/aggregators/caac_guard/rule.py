"""CAAC-Guard: clients are compared within each outcome, by direction, so that case mix is not mistaken for malice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from wardround.aggregators._math.kernels import weighted_sum
from wardround.aggregators._math.outcome_counts import capped_counts
from wardround.aggregators.base import (
    Aggregator,
    ClientPolicy,
    Context,
    MeasurementPlan,
    Parameters,
    register,
    sample_weights,
)
from wardround.aggregators.caac_guard.evidence import (
    compare_directions,
    compare_discrimination,
    compare_residuals,
    excess_lengths,
    find_impossible,
    has_positive_features,
)
from wardround.aggregators.caac_guard.geometry import TINY, PartAngles, output_layer_of
from wardround.aggregators.caac_guard.profiles import Profiles, direction_limits, weigh_evidence
from wardround.aggregators.caac_guard.statistics import excess_factors
from wardround.updates import Aggregation, Parts, Updates

IMPOSSIBLE, DIRECTION, DISCRIMINATION = 1, 2, 3
"""Codes of the column `why`."""
CONTESTED = (
    "contested: caac-guard would have to leave out more clients, or more patients of an outcome, than it may, so it "
    "averaged all; look at who disagrees before you rely on this model"
)


@dataclass(eq=False)
class _Round:
    """What the rule knows of N clients in a round."""

    parts: Parts
    angles: PartAngles
    """Of the parts as they are."""
    directions: PartAngles
    """Of the parts with compressed coordinates."""
    counts: Tensor
    """N × C patients; 0 where a client does not tell."""
    holders: Tensor
    """N × C: who has enough patients of an outcome to be compared in it?"""
    pure: Tensor
    """N × C: the same without parts that hold patients of other outcomes, too."""
    capped: Tensor
    """N × C: how much each part counts, at most as much as that of the median holder."""
    places: Tensor
    """Where the clients' profiles lie."""

    @property
    def patients(self) -> Tensor:
        """N: how much each client counts."""
        return self.capped.sum(1)


@register("caac-guard")
class CaacGuard(Aggregator):
    r"""Compare the parts of updates within each outcome; average all whose parts are possible and agree.

    Under label skew honest updates differ mostly by which outcomes a hospital has. The rule therefore asks clients to
    split their updates by outcome (`ClientPolicy.by_outcome`): :math:`U_i = \sum_c U_i^c`, where :math:`U_i^c` is what
    the patients of outcome c contributed. With :math:`g_c` the geometric median of the directions of the parts of
    outcome c (a client weighs at most as much as the median holder), a client is flagged for

    1. a part that lowers the logit of its own outcome, which no training on such patients can do;
    2. a part that points against its peers: the mean over rounds, 0.8 old and 0.2 new, of :math:`\cos(U_i^c, g_c)` is
       not positive for some c. With two outcomes and features that are never negative (a network whose last layer
       follows a ReLU), of :math:`\min(\cos(U_i^c, g_c), -\cos(U_i^c, g_{1-c}))`: such outcomes push against each other;
    3. outcomes that differ the wrong way round: the fading sum over rounds of how far what distinguishes its outcomes
       is what distinguishes them for all (:func:`~wardround.aggregators.caac_guard.evidence.compare_discrimination`),
       times how far clients agree on that in the round, is negative.

    All limits are 0. Everybody is compared in every round, so a verdict passes when the evidence does. With A the
    clients that are not flagged and :math:`n_i` the sample counts,

    .. math::
        \Delta = \sum_{i\in A} \frac{n_i}{\sum_{j\in A} n_j} \min(1, B_i / \|U_i\|)\, U_i

    where :math:`B_i` is the norm that is usual for the client's size if its own is far above it, and else its own, so
    that a calm round is FedAvg to the last bit. Comparison has limits. No more than `most_left_out` of the clients and
    of their patients, for (3) of those who can be compared, and no more than `most_of_outcome` of the patients of any
    one outcome are ever left out. A test that would leave out more is not obeyed in that round. The round is contested
    then, and its result is the mean of all that are left, in which nobody counts for more than the median client.

    Where updates are not split (multi-label tasks, survival, many classes, differential privacy, calls without
    `Updates.parts`) nobody is judged: the rule is FedAvg with clipped norms.

    >>> import torch
    >>> from wardround import Updates, aggregators
    >>> from wardround.updates import Parts
    >>> rows = torch.randn(8, 2, 500, generator=torch.Generator().manual_seed(0)) * 0.1
    >>> rows += torch.tensor([-1.0, 1.0])[:, None]
    >>> rows[0] *= -1
    >>> parts = Parts(rows, torch.full((8, 2), 50.0, dtype=torch.float64))
    >>> out = aggregators.create("caac-guard").aggregate(Updates(rows.sum(1), parts=parts))
    >>> out.flags.tolist()
    [True, False, False, False, False, False, False, False]
    """

    remembers_clients = True
    reasons: ClassVar[Mapping[int, str]] = {
        IMPOSSIBLE: "a part that no training on patients of that outcome can give",
        DIRECTION: "points against its peers of the same outcome",
        DISCRIMINATION: "its outcomes differ the wrong way round (labels, features or signs exchanged)",
    }

    class Params(Parameters):
        min_patients: int = Field(5, ge=1)
        """Parts of fewer patients than this are not compared: they are noise, and weigh as little."""
        memory: float = Field(0.8, ge=0, lt=1)
        """Share of the past in the mean cosine of a client."""
        discrimination_memory: float = Field(0.95, ge=0, lt=1)
        """How much of the evidence on a client's outcomes is left after a round: half of it after 14."""
        most_left_out: float = Field(0.5, gt=0, lt=1)
        """Largest share of clients, and of their patients, that is ever left out. No client counts for more patients
        than the median one."""
        most_of_outcome: float = Field(0.75, gt=0, lt=1)
        """Largest share of the patients of any one outcome that is ever left out."""
        without: tuple[Literal["impossible", "direction", "discrimination", "length"], ...] = ()
        """Tests that are not made and limits that are not set, to see what they are worth."""

    params: Params

    def __init__(self, params: Params | None = None) -> None:
        super().__init__(params)
        self.profiles = Profiles()

    @property
    def client_policy(self) -> ClientPolicy:
        return ClientPolicy(by_outcome=True)

    def plan_measurements(self, context: Context) -> MeasurementPlan:
        return MeasurementPlan(parts=True)

    def combine(self, updates: Updates, context: Context) -> Aggregation:
        nothing = torch.zeros(len(updates), dtype=torch.float64)
        if updates.parts is None:
            why, contested = nothing.long(), False
            columns = {"direction": nothing + 1, "discrimination": nothing}
        else:
            why, contested, columns = self._judge(updates, self._look_at(updates, updates.parts, context))
        flags = why > 0
        weights = sample_weights(updates, None)
        if contested:  # nobody counts for more than the median client
            weights = capped_counts(weights[:, None], (weights > 0)[:, None]).flatten()
        weights = weights * ~flags
        weights = weights / weights.sum() if bool(weights.sum() > 0) else ~flags / (~flags).sum()
        excess = excess_factors(updates.norms, updates.num_samples, ~flags)
        scale = 1 / torch.maximum(excess, columns.pop("excess", excess))
        if "length" in self.params.without:
            scale = torch.ones_like(scale)
        delta = weighted_sum(updates.matrix, weights * scale)
        columns |= {
            "norm": updates.norms,
            "why": why.double(),
            "clip_scale": scale,
            "contested": torch.full_like(updates.norms, float(contested)),
        }
        warning = CONTESTED if contested else None
        return Aggregation(delta, weights, -columns["direction"], flags, columns, warning=warning)

    def _look_at(self, updates: Updates, parts: Parts, context: Context) -> _Round:
        """Everything that tests need to know."""
        counts = parts.counts.nan_to_num(0.0)
        products = context.measurements.part_products
        angles = PartAngles(products.gram, counts.shape[1])
        holders = (counts >= self.params.min_patients) & (angles.lengths > 0)
        mixed = parts.counts.isnan().any(1)
        pure = holders.clone()
        pure[mixed, counts.argmax(1)[mixed]] = False
        return _Round(
            parts,
            angles,
            PartAngles(products.compressed, counts.shape[1]),
            counts,
            holders,
            pure,
            capped_counts(counts, holders),
            self.profiles.places(updates.clients, counts.shape[1]),
        )

    def _judge(self, updates: Updates, now: _Round) -> tuple[Tensor, bool, dict[str, Tensor]]:
        """Why each client is left out (N codes, 0 for nothing), whether that is contested, and what was measured."""
        p = self.params
        layer = output_layer_of(updates.layout, now.counts.shape[1])
        nobody = torch.zeros(len(updates), dtype=torch.bool)
        impossible = nobody
        if layer is not None:
            own_weights, bias = layer.own_logit(now.parts.rows)
        if layer is not None and "impossible" not in p.without:
            impossible = find_impossible(bias, now.angles.lengths, now.pure, now.parts.reach)
        # Half of them do not lie in such a way: this network has no such logits.
        too_many = float(impossible.sum()) > p.most_left_out * len(updates)
        impossible = nobody if too_many else impossible
        possible = ~impossible
        trusted = possible & ~self.profiles.flagged[now.places]
        trusted = trusted if bool((now.pure & trusted[:, None]).any()) else possible
        counting = now.capped * now.pure * trusted[:, None]
        balanced = layer is not None and layer.outputs == 1 and has_positive_features(own_weights, counting)
        cosines = compare_directions(now.directions, counting, now.pure & possible[:, None], balanced)
        directions = self.profiles.remember_directions(now.places, cosines, p.memory)
        limits = direction_limits(directions, now.counts)
        against = ((directions <= limits) & now.pure).any(1) & possible
        if "direction" in p.without:
            against = nobody
        direction = (directions - limits).nan_to_num(nan=1.0).amin(1)
        contested = too_many or not self._may_leave_out(now, against, possible)
        left_out = nobody if contested else against
        counted = torch.full_like(direction, torch.nan)
        if layer is not None and layer.outputs == 1 and "discrimination" not in p.without:
            fit = (possible & ~against)[:, None]
            seen = compare_discrimination(now.angles, bias, counting * fit, now.pure & fit)
            counted = weigh_evidence(seen, now.patients)
            counted = torch.where(seen.isnan(), self._residual_evidence(now, counting * fit), counted)
        discrimination = self.profiles.remember_evidence(now.places, counted, p.discrimination_memory)
        comparable = ~counted.isnan() & possible & ~against
        exchanged = comparable & (discrimination < 0)
        many = _share(exchanged, comparable, now.patients) > p.most_left_out
        if too_many or many or not self._may_leave_out(now, left_out | exchanged, possible):
            exchanged, contested = nobody, True
        why = torch.zeros(len(updates), dtype=torch.long)
        for code, clients in ((DISCRIMINATION, exchanged), (DIRECTION, left_out), (IMPOSSIBLE, impossible)):
            why[clients] = code
        self.profiles.flagged[now.places] = why > 0
        columns = {
            "direction": torch.where(impossible, -1.0, direction),
            "discrimination": discrimination,
        }
        if layer is not None:
            columns["excess"] = excess_lengths(bias, now.angles.lengths, now.pure & possible[:, None])
        return why, contested, columns

    def _residual_evidence(self, now: _Round, counting: Tensor) -> Tensor:
        """What is seen of clients whose only part holds a few patients of the other outcome, too (N; NaN of others)."""
        mixed = now.holders & ~now.pure
        counted = torch.full((len(mixed),), torch.nan, dtype=torch.float64)
        if bool(mixed.any()):
            residuals = compare_residuals(now.angles, counting, now.holders)
            for outcome in range(2):
                own = weigh_evidence(residuals[:, outcome], now.capped[:, outcome])
                counted[mixed[:, outcome]] = own[mixed[:, outcome]]
        return counted

    def _may_leave_out(self, now: _Round, clients: Tensor, among: Tensor) -> bool:
        """Are these few enough of some clients, by heads, by patients and by the patients of every outcome?"""
        p = self.params
        if _share(clients, among, now.patients) > p.most_left_out:
            return False
        all_of_outcomes = (now.capped * among[:, None]).sum(0)
        of_outcomes = (now.capped * clients[:, None]).sum(0) / all_of_outcomes.clamp_min(TINY)
        return bool((of_outcomes <= p.most_of_outcome).all())

    def profile_table(self) -> dict[str, dict[str, float]]:
        return self.profiles.table()

    def state_dict(self) -> dict[str, Any]:
        return self.profiles.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.profiles.load_state_dict(state)


def _share(some: Tensor, among: Tensor, patients: Tensor) -> float:
    """The share of some clients among others, by heads or by patients, whichever is larger."""
    if not bool(among.any()):
        return 0.0
    heads = float(some.sum() / among.sum())
    return max(heads, float((patients * some).sum() / (patients * among).sum().clamp_min(TINY)))
