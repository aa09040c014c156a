"""CAAC-Guard: clients are compared within each outcome, by direction, so that case mix is not mistaken for malice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
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
    Nearness,
    compare_directions,
    compare_outcomes,
    excess_lengths,
    find_impossible,
    has_positive_features,
    nearness_of_many,
    nearness_of_two,
    takes_plain_gradients,
)
from wardround.aggregators.caac_guard.geometry import OutputLayer, PartAngles, output_layer_of
from wardround.aggregators.caac_guard.profiles import Profiles, direction_limits
from wardround.aggregators.caac_guard.statistics import excess_factors
from wardround.updates import Aggregation, Parts, Updates

IMPOSSIBLE, DIRECTION, DISCRIMINATION = 1, 2, 3
"""Codes of the column `why`."""
CONTESTED = (
    "contested: caac-guard would have to leave out more clients, or more patients of an outcome, than it may, so those "
    "it suspects keep a part of their weight; look at who disagrees before you rely on this model"
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
    outcome c (a client weighs at most as much as the median holder, and is compared with what the others contribute), a
    client is flagged for

    1. a part that lowers the logit of its own outcome, which no training on such patients can do;
    2. a part that points against its peers: the mean over rounds, 0.8 old and 0.2 new, of :math:`\cos(U_i^c, g_c)` is
       not positive for some c. With two outcomes and features that are never negative (a network whose last layer
       follows a ReLU), of :math:`\min(\cos(U_i^c, g_c), -\cos(U_i^c, g_{1-c}))`: such outcomes push against each other;
    3. outcomes that all lie on the wrong side: the mean over rounds of how much nearer its best part is to the centre
       of its own outcome than to that of another
       (:func:`~wardround.aggregators.caac_guard.evidence.nearness`) is negative, by centres for which clients count for
       their patients or by centres for which all count alike. Only rounds that show exchanged outcomes count
       (:func:`~wardround.aggregators.caac_guard.evidence.compare_outcomes`).

    All limits are 0, and lower where noise explains more. Everybody is compared in every round, so a verdict passes
    when the evidence does. With :math:`n_i` the sample counts and :math:`r_i` the share of its weight that a client
    loses,

    .. math::
        \Delta = \sum_i \frac{(1 - r_i)\, n_i}{\sum_j (1 - r_j)\, n_j} \min(1, B_i / \|U_i\|)\, U_i

    where :math:`B_i` is the norm that is usual for the client's size if its own is far above it, and else its own, so
    that a calm round is FedAvg to the last bit. A client that no test can judge is no further above what is usual than
    those who passed. :math:`r_i` is 1 for who is flagged. But no more than `most_left_out`
    of the clients and of their patients, for (3) of those who can be compared too, and no more than `most_of_outcome`
    of the patients of any one outcome are ever taken out. A test that asks for more is obeyed as far as that: all whom
    it accuses lose the same share, so that together they lose just that much. Nobody is flagged for it then, and the
    round is contested. None of these suspects counts for more patients than the median client.

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
        """Share of the past in what is remembered of a client."""
        most_left_out: float = Field(0.5, gt=0, lt=1)
        """Largest share of the weight of clients, and of their patients, that is ever taken away. No client counts for
        more patients than the median one."""
        most_of_outcome: float = Field(0.75, gt=0, lt=1)
        """Largest share of the weight of the patients of any one outcome that is ever taken away."""
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
        judged = nothing.bool()
        if updates.parts is None:
            why, removed, suspects = nothing.long(), nothing, nothing.bool()
            columns = {"direction": nothing + 1, "discrimination": nothing + 1}
        else:
            now = self._look_at(updates, updates.parts, context)
            judged = now.pure.any(1)
            why, removed, suspects, columns = self._judge(updates, now)
        flags, contested = why > 0, bool(suspects.any())
        weights = sample_weights(updates, None)
        # What suspects say of their size is not relied on: they count for no more than the median client.
        weights = torch.where(suspects, weights.clamp(max=float(weights.quantile(0.5))), weights) * (
            1 - removed
        )
        weights = weights / weights.sum() if bool(weights.sum() > 0) else ~flags / (~flags).sum()
        excess = excess_factors(updates.norms, updates.num_samples, ~flags, judged)
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

    def _judge(self, updates: Updates, now: _Round) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """Look for clients to leave out.

        Returns:
            Why each client is left out (N codes, 0 for nothing), how much of its weight it loses (N, from 0 to 1), who
            loses less than the tests ask for (N booleans), and what was measured.
        """
        p = self.params
        layer = output_layer_of(updates.layout, now.counts.shape[1])
        nobody = torch.zeros(len(updates), dtype=torch.bool)
        impossible = nobody
        own_weights = bias = None
        if layer is not None:
            own_weights, bias = layer.own_logit(now.parts.rows)
        if bias is not None and "impossible" not in p.without:
            impossible = find_impossible(bias, now.angles.lengths, now.pure, now.parts.reach)
        # Half of them do not lie in such a way: this network has no such logits.
        too_many = float(impossible.sum()) > p.most_left_out * len(updates)
        suspects = impossible if too_many else nobody
        impossible = nobody if too_many else impossible
        possible = ~impossible
        trusted = possible & ~self.profiles.flagged[now.places]
        trusted = trusted if bool((now.pure & trusted[:, None]).any()) else possible
        counting = now.capped * now.pure * trusted[:, None]
        balanced = (
            layer is not None
            and layer.outputs == 1
            and own_weights is not None
            and has_positive_features(own_weights, counting)
        )
        cosines = compare_directions(now.directions, counting, now.pure & possible[:, None], balanced)
        directions = self.profiles.remember_directions(now.places, cosines, p.memory)
        limits = direction_limits(directions, now.counts)
        against = ((directions <= limits) & now.pure).any(1) & possible
        if "direction" in p.without:
            against = nobody
        direction = (directions - limits).nan_to_num(nan=1.0).amin(1)
        discrimination = self._discrimination(now, layer, own_weights, counting, possible & ~against)
        comparable = ~discrimination.isnan()
        exchanged = discrimination < 0
        removed = impossible.double()
        why = IMPOSSIBLE * impossible.long()
        for code, accused, among in (
            (DIRECTION, against, possible),
            (DISCRIMINATION, exchanged, comparable),
        ):
            if bool(accused.any()) and not too_many:
                share = min(self._removable(now, accused, removed, which) for which in (among, possible))
                removed[accused] = share
                why[accused] = code if share == 1 else 0
                suspects = suspects | accused if share < 1 else suspects
        self.profiles.flagged[now.places] = why > 0
        columns = {
            "direction": torch.where(impossible, -1.0, direction),
            "discrimination": discrimination.nan_to_num(nan=1.0),
        }
        if bias is not None:
            columns["excess"] = excess_lengths(bias, now.angles.lengths, now.pure & possible[:, None])
        return why, removed, suspects, columns

    def _discrimination(
        self,
        now: _Round,
        layer: OutputLayer | None,
        own_weights: Tensor | None,
        counting: Tensor,
        fit: Tensor,
    ) -> Tensor:
        """How far above its limit the mean side of each client lies that passed the other tests (N; NaN: no side).

        Centres are asked for twice, and the worse answer counts: where each client counts for its patients, the large
        ones that have much of an outcome decide; where all count alike, the many. Who claims a rare outcome for many
        patients may win one of the two.
        """
        holders, weights = now.holders & fit[:, None], counting * fit[:, None]
        measure: Callable[[Tensor], Nearness] | None = None
        if "discrimination" in self.params.without:
            pass
        elif now.counts.shape[1] == 2:
            measure = partial(nearness_of_two, now.directions)
        elif (
            own_weights is not None
            and layer is not None
            and takes_plain_gradients(now.parts.rows, layer, weights)
        ):
            measure = partial(nearness_of_many, own_weights)
        least = torch.full((len(fit),), torch.nan, dtype=torch.float64)
        if measure is None:
            return least
        covered = holders | (now.holders & ~now.pure).any(1, keepdim=True)
        for way, counted in enumerate((weights, (weights > 0).double())):
            follow = partial(self.profiles.follow_sides, now.places, memory=self.params.memory, way=way)
            sides = compare_outcomes(measure, counted, holders, now.counts, covered, follow)
            means = self.profiles.remember_sides(
                now.places, sides.values, sides.apart, self.params.memory, way, sides.is_evidence
            )
            means = torch.where(sides.values.isnan(), torch.nan, means)
            limits = direction_limits(means[:, None], sides.patients[:, None]).flatten()
            least = torch.fmin(least, means - limits)
        return least

    def _removable(self, now: _Round, accused: Tensor, removed: Tensor, among: Tensor) -> float:
        """The largest share of the weight of some clients that may be taken from them, from 0 to 1.

        Args:
            now: The round.
            accused: N booleans: these clients, not none.
            removed: N: the shares that others have lost already.
            among: N booleans: of which clients no more than the stated shares may be left out.
        """
        p = self.params
        heads = torch.ones_like(now.patients)
        limits = [(heads, p.most_left_out), (now.patients, p.most_left_out)]
        limits += [(of_outcome, p.most_of_outcome) for of_outcome in now.capped.T]
        share = 1.0
        for counts, most in limits:
            left = most * float(counts[among].sum()) - float((counts * removed)[among].sum())
            asked = float(counts[accused & among].sum())
            if asked > left:
                share = min(share, max(0.0, left / asked))
        return share

    def profile_table(self) -> dict[str, dict[str, float]]:
        return self.profiles.table()

    def state_dict(self) -> dict[str, Any]:
        return self.profiles.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.profiles.load_state_dict(state)
