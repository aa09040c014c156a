"""CAAC-Guard: profiles that learn from accepted updates only, comparison with peers, and tests for collusion."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from wardround.aggregators._math.columns import column_ranges
from wardround.aggregators._math.kernels import weighted_sum
from wardround.aggregators._math.order_statistics import mean_of_middle
from wardround.aggregators._math.projection import Projection
from wardround.aggregators.base import Aggregator, Context, MeasurementPlan, Parameters, register
from wardround.aggregators.caac_guard.contradiction import FEW_ACCUSED, find_contradicting, output_bias_steps
from wardround.aggregators.caac_guard.profiles import (
    CONTRADICTION_RATE,
    HEADING,
    HEADING_SPREAD,
    LEVEL,
    LEVEL_SPREAD,
    Past,
    Profiles,
)
from wardround.aggregators.caac_guard.statistics import (
    cosine_gaps,
    excess_norms,
    in_step,
    isolation,
    same_norm_neighbours,
    twins,
    usual_log_norms,
)
from wardround.aggregators.fltrust import root_length, scale_to, skipped_without_root
from wardround.updates import Aggregation, Updates

TESTS = ("excess", "jump", "isolation", "twin", "reversal", "drift", "contradiction")
"""The tests in the order of their codes in the column `why`: 1, 2, …; 0 is nothing, 8 probation."""
PROBATION = len(TESTS) + 1
EXCESS_FACTORS = (2.5, 4.0)
"""Bounds on the limit of `excess`: a norm less than 2.5 times that of peers never is, more than 4 times always."""
JUMP_LIMITS = (math.log(2.0), math.log(5.0))
"""Bounds on the limit of `jump`: the rise of the log norm above the client's own level."""
REVERSAL_LIMITS = (0.5, 1.2)
"""Bounds on the limit of `reversal`: the fall of the cosine to the client's own past."""
BACKWARDS = -0.15
"""Only a cosine below this is a reversal: a client that has nothing left to learn points anywhere, weakly."""
FALL_LIMIT, FALL_TOLERANCE = 0.15, 0.1
"""Mean fall of the log norm from which falling in step is flagged, and how much two falls may differ, relatively."""
MOST_NAMED = 0.3
"""The largest share of clients that is named when they contradict the others; with more the round is contested."""
MOST_ROUNDS = 0.5
"""Share of rounds above which a client that contradicts is flagged, and above which updates count as contested."""
CLIP_DECAY = 0.98
"""How the clipping norm may fall from round to round: slower than the norms of clients that have converged."""

FORMER_STATE = {"heard": "compared_rounds", "division": "contested"}
"""Keys of states that were saved before they were renamed."""


@register("caac-guard")
class CaacGuard(Aggregator):
    r"""Judge clients by their peers, their own accepted past and signs of collusion; average the rest.

    Do not rely on it yet: on data and attackers that it was not developed on, it was the worst of thirteen rules
    (docs/caac-guard.md).

    Seven tests, each a score with limit 1, give a verdict in every round, from the first on:

    1. `excess`: the norm is far above that of clients of its size (log scale; only without a past that vouches).
    2. `jump`: the norm is far above the client's own past norms, beyond what all clients do.
    3. `isolation`: the row is as unrelated to all others as noise is.
    4. `twin`: the row is far closer to another than clients of this round ever are, or is close to several others of
       almost the same norm: collusion. Of twins, the one that fits its own past best is spared if it fits it well.
    5. `reversal`: the row points against the client's own past, and did not before.
    6. `drift`: the client turns away from its own past, or its norm falls, in step with another client.
    7. `contradiction`: in the first rounds the client contradicted the others, whatever its case mix
       (:func:`~wardround.aggregators.caac_guard.contradiction.find_contradicting`), and no more than 30 % did.

    A client flagged three times is on probation, and flagged, until it has been unsuspicious for as long.
    Profiles (log-norm, direction, their spreads) learn from accepted rows only. With A the accepted clients,

    .. math::
        \Delta = \sum_{i\in A} \frac{m_i}{\sum_{j\in A} m_j} \min\Big(1, \frac{B_i}{\|U_i\|}\Big) U_i

    - Calm, while nobody is flagged: :math:`m_i` are the sample counts capped at `calm_cap` times their median and
      :math:`B_i` is four times the norm that is usual for the client's size: FedAvg, as long as nobody is far out.
    - Cautious, when someone is: the cap is `sample_cap`, and :math:`B_i = B_t = \max(\mathrm{median}\,\|U\|,
      0.98\,B_{t-1})`, the median over all or over the accepted clients, whichever is less.
    - Contested, when more than 30 % contradict the others, or more than a fifth and it is not clear who: the
      coordinate-wise median of A's rows, clipped to :math:`B_t`. Nobody is flagged for it then.

    With `root: true` the server's own update :math:`g_0` votes too, and directions are trusted as far as they agree
    with it, with :math:`m_i` capped at `sample_cap` and relative to its mean and :math:`B_i` as in a calm round. When
    the updates are contested, all clients count equally and every update is scaled to norm :math:`B_t`:

    .. math::
        \Delta = \frac{g_0 + \sum_{i\in A} \mathrm{TS}_i m_i \min(1, B_i/\|U_i\|)\, U_i}
        {1 + \sum_{i\in A} \mathrm{TS}_i m_i}, \qquad \mathrm{TS}_i = \max(0, \cos(U_i, g_0))

    The tests' limits follow from `target_fpr` by the Vysochanskij–Petunin inequality, which holds for every
    unimodal distribution: :math:`z = 2 / (3\sqrt{\mathrm{target\_fpr}})` standard deviations.

    >>> import torch
    >>> from wardround import Updates, aggregators
    >>> rows = torch.randn(8, 500, generator=torch.Generator().manual_seed(0)) + 1
    >>> rows[0] *= -10
    >>> rows[1] = rows[2] + 1e-3
    >>> out = aggregators.create("caac-guard").aggregate(Updates(rows))
    >>> out.flags.tolist(), out.columns["why"].int().tolist()
    ([True, True, True, False, False, False, False, False], [1, 4, 4, 0, 0, 0, 0, 0])
    """

    remembers_clients = True
    reasons: ClassVar[Mapping[int, str]] = {
        1: "norm far above that of clients of its size",
        2: "norm far above its own past",
        3: "as unrelated to the others as noise",
        4: "too close to another client's update",
        5: "points against its own past",
        6: "turns away from its past or falls silent in step with another client",
        7: "contradicted the others in the first rounds",
        8: "on probation after several flagged rounds",
    }

    class Params(Parameters):
        renamed: ClassVar[Mapping[str, str]] = {"hearings": "contradiction_rounds"}

        root: bool = False
        """The server has trusted samples: its own update (`root_update`) votes and weighs the others."""
        target_fpr: float = Field(0.02, gt=0, lt=1)
        """Share of honest verdicts that may be wrong; sets how many standard deviations are too many."""
        sample_cap: float = Field(2.0, ge=1)
        """While someone is flagged, and always with root data, sample counts above this multiple of their median
        count as that multiple."""
        calm_cap: float = Field(10.0, ge=1)
        """The same while nobody is, without root data."""
        twin_ratio: float = Field(0.1, gt=0, lt=1)
        """Closer than this share of the usual distance to the nearest peer is too close."""
        drift_limit: float = Field(0.25, gt=0)
        """Mean loss of cosine to the own past, over five rounds, from which turning away in step is flagged."""
        drift_tolerance: float = Field(0.06, gt=0, lt=1)
        """How much two such losses may differ, relatively, to be called in step."""
        contradiction_rounds: int = Field(3, ge=0)
        """First rounds in which clients are tested for contradicting each other; 0 where the model is not new
        (`initial_model` sets it): once it has learnt, honest rows contradict each other too."""
        projection: int = Field(512, ge=16)
        """Length at which past directions are kept."""

    params: Params

    def __init__(self, params: Params | None = None) -> None:
        super().__init__(params)
        self.z = 2 / (3 * math.sqrt(self.params.target_fpr))
        """Standard deviations that are too many (Vysochanskij–Petunin)."""
        self.profiles = Profiles()
        self.clip = 0.0
        """B of the last round."""
        self.compared_rounds, self.contested = 0, 0.0

    @property
    def needs_root_update(self) -> bool:  # type: ignore[override]
        """Only with `root: true`."""
        return bool(self.params.root)

    def expect_trained_model(self) -> None:
        """Nobody is tested for contradicting the others: once a model has learnt, honest rows do that too."""
        self.params = self.params.model_copy(update={"contradiction_rounds": 0})

    def plan_measurements(self, context: Context) -> MeasurementPlan:
        return MeasurementPlan(gram=True, dots_with=context.root_update if self.params.root else None)

    def combine(self, updates: Updates, context: Context) -> Aggregation:
        norms = updates.norms
        present = norms > 0
        smallest = norms[present].min() if bool(present.any()) else 1.0
        log_norms = torch.where(present, norms, smallest).log()
        projected = Projection(updates.dimension, self.params.projection, seed=0).apply(updates.matrix)
        past = self.profiles.of(updates.clients, projected.shape[1])
        headings = past.headings(projected)

        gaps = cosine_gaps(context.measurements.squared_distances, norms)
        usual = usual_log_norms(log_norms, updates.num_samples)
        scores = self._scores(updates, past, log_norms, usual, headings, gaps)
        unsuspicious = present & (scores <= 1).all(0)
        scores = torch.cat([scores, self._contradictions(updates, past, gaps, unsuspicious)[None]])
        worst, which = scores.max(0)
        suspicious = worst > 1
        flags = suspicious | self.profiles.count_offences(past, suspicious)
        if bool(flags.all()):  # nobody is left to compare with, so nobody stands out
            flags = torch.zeros_like(flags)
        why = torch.where(suspicious, which + 1, PROBATION) * flags
        self.profiles.learn(past, ~flags & present, log_norms, headings, projected)

        bound = min(float(norms.quantile(0.5)), float(norms[~flags].quantile(0.5)))
        self.clip = max(bound, CLIP_DECAY * self.clip)
        columns = {
            "norm": norms,
            "past_cosine": headings,
            "why": why.double(),
            **dict(zip(TESTS, scores, strict=True)),
            "contested": torch.full_like(norms, self.contested),
        }
        if self.params.root:
            result = self._mean_by_root(updates, flags, usual, context)
        elif self.contested > MOST_ROUNDS:
            result = self._median(updates, flags)
        else:
            result = self._clipped_mean(updates, flags, usual)
        result.columns = {**columns, **result.columns}
        result.scores, result.flags = worst, flags
        return result

    def _scores(
        self,
        updates: Updates,
        past: Past,
        log_norms: Tensor,
        usual: Tensor,
        headings: Tensor,
        gaps: Tensor,
    ) -> Tensor:
        """The first six tests.

        Args:
            updates: The N updates of the round.
            past: What is remembered of their clients.
            log_norms: N log norms; of a row of zeros that of the smallest other.
            usual: N log norms that are usual for the clients' sizes.
            headings: N cosines to the clients' own past.
            gaps: N × N, 1 − cosine of all pairs.

        Returns:
            6 × N scores with limit 1, in the order of `TESTS`.
        """
        known, none = past.known, torch.zeros(len(updates), dtype=torch.float64)
        level, level_spread = past.scalars[:, LEVEL], past.scalars[:, LEVEL_SPREAD]
        heading, heading_spread = past.scalars[:, HEADING], past.scalars[:, HEADING_SPREAD]

        rise = torch.where(known & (updates.norms > 0), log_norms - level, none)
        trend = float(rise[known].quantile(0.5)) if bool(known.any()) else 0.0
        jump = (rise - max(0.0, trend)) / (self.z * level_spread).clamp(*JUMP_LIMITS)
        jump = torch.where(known, jump, none)
        vouched = known & (jump < 0.5)
        excess = excess_norms(log_norms - usual, self.z, EXCESS_FACTORS)
        excess = torch.where(vouched, none, excess)

        lost = heading - headings
        reversal = lost / (self.z * heading_spread).clamp(*REVERSAL_LIMITS)
        reversal = torch.where(known & (headings < BACKWARDS), reversal, none)

        common = float(headings[known].quantile(0.5)) if bool(known.any()) else 1.0
        shortfall = torch.where(known, 1 - headings / max(common, 0.2), none).clamp(-1, 2)
        turned = self.profiles.extend_window(past, "turned", shortfall)
        fallen = self.profiles.extend_window(past, "fallen", torch.where(known, min(0.0, trend) - rise, none))
        drift = torch.maximum(
            in_step(turned, self.params.drift_limit, self.params.drift_tolerance),
            in_step(fallen, FALL_LIMIT, FALL_TOLERANCE),
        )

        noise = isolation(gaps, updates.norms, updates.dimension)
        pairs = twins(gaps, self.params.twin_ratio, noise > 1)
        misfit = torch.maximum(lost.abs() / heading_spread, (log_norms - level).abs() / level_spread)
        fits = known & (misfit < 2)
        best = misfit <= torch.where(pairs > 1, misfit[None, :], torch.inf).min(1).values
        collusion = torch.maximum(pairs.max(1).values, same_norm_neighbours(gaps, log_norms, noise > 1))
        twin = torch.where(fits & best, none, collusion)
        return torch.stack([excess, jump, noise, twin, reversal, drift])

    def _contradictions(self, updates: Updates, past: Past, gaps: Tensor, compared: Tensor) -> Tensor:
        """The seventh test; also decides whether the updates are contested.

        Args:
            updates: The N updates of the round.
            past: What is remembered of their clients.
            gaps: N × N, 1 − cosine of all pairs.
            compared: N booleans, the clients that no other test found suspicious.

        Returns:
            N scores with limit 1: how often each client contradicted the others.
        """
        steps = output_bias_steps(updates)
        among = compared.nonzero().flatten()
        rounds = self.params.contradiction_rounds * math.ceil(len(self.profiles.index) / len(updates))
        contradiction = None
        if steps is not None and self.compared_rounds < rounds:
            contradiction = find_contradicting(1 - gaps[among][:, among], steps[among])
        contradicts, named = torch.zeros(len(updates), dtype=torch.float64), False
        if contradiction is not None:
            share = int(contradiction.accused.sum()) / len(among)
            named = contradiction.clear and share <= MOST_NAMED
            contested = share > (MOST_NAMED if contradiction.clear else FEW_ACCUSED)
            self.compared_rounds += 1
            rate = max(1 / self.compared_rounds, CONTRADICTION_RATE)
            self.contested += rate * (contested - self.contested)
            contradicts[among] = contradiction.accused.double()
        return self.profiles.count_contradictions(past, compared & named, contradicts) / MOST_ROUNDS

    def _bounds(self, norms: Tensor, usual: Tensor, calm: bool) -> Tensor:
        """N norms that rows are clipped to: B, or in calm rounds four times what is usual for the client's size."""
        bounds = torch.full_like(norms, self.clip)
        return torch.maximum(bounds, EXCESS_FACTORS[1] * usual.exp()) if calm else bounds

    def _counts(self, updates: Updates, flags: Tensor, calm: bool) -> Tensor:
        """N sample counts, none above the cap; 0 for who is flagged. All count the same where nobody has a sample."""
        counts, accepted = updates.num_samples, ~flags
        cap = self.params.calm_cap if calm else self.params.sample_cap
        capped: Tensor = counts.clamp(max=cap * float(counts[accepted].quantile(0.5))) * accepted
        return capped if bool(capped.sum() > 0) else accepted.to(capped.dtype)

    def _clipped_mean(self, updates: Updates, flags: Tensor, usual: Tensor) -> Aggregation:
        """The mean of the accepted rows by sample counts, with lower caps where someone is flagged."""
        calm, norms = not bool(flags.any()), updates.norms
        counts = self._counts(updates, flags, calm)
        weights = counts / counts.sum()
        scale = _clipping(norms, self._bounds(norms, usual, calm))
        delta = weighted_sum(updates.matrix, weights * scale)
        return Aggregation(delta, weights=weights, columns={"clip_scale": scale})

    def _median(self, updates: Updates, flags: Tensor) -> Aggregation:
        """The coordinate-wise median of the accepted rows, for contested updates."""
        accepted, norms = ~flags, updates.norms
        scale = _clipping(norms, torch.full_like(norms, self.clip))
        kept, factors = accepted.nonzero().flatten(), scale[accepted, None].to(updates.matrix)
        delta = torch.empty_like(updates.matrix[0])
        for start, stop in column_ranges(updates.dimension):  # no second matrix
            rows = updates.matrix[kept, start:stop] * factors
            delta[start:stop] = mean_of_middle(rows, (len(kept) - 1) // 2)
        return Aggregation(delta, weights=accepted / accepted.sum(), columns={"clip_scale": scale})

    def _mean_by_root(self, updates: Updates, flags: Tensor, usual: Tensor, context: Context) -> Aggregation:
        """The mean of the accepted rows and the server's own update, weighted by cosines to the latter."""
        if not math.isfinite(root_length(self.name, updates, context)):
            return skipped_without_root(updates)
        root, norms = context.root_update, updates.norms
        assert root is not None  # or it would have no length
        cosines = context.measurements.cosines(otherwise=0.0)
        trust = cosines.clamp(min=0) * ~flags
        if self.contested <= MOST_ROUNDS:
            counts = self._counts(updates, flags, calm=False)
            trust = trust * counts / counts[~flags].mean().clamp(min=1e-300)
            scale = _clipping(norms, self._bounds(norms, usual, calm=True))
        else:
            scale = scale_to(self.clip, norms)
        total = 1 + float(trust.sum())
        delta = weighted_sum(updates.matrix, trust * scale / total)
        delta += root.to(delta.dtype) / total
        weights = trust / trust.sum() if bool(trust.sum() > 0) else trust
        return Aggregation(delta, weights=weights, columns={"root_cosine": cosines, "clip_scale": scale})

    def on_dropped(self, dropped: dict[str, str]) -> None:
        """Sending something malformed is an offence."""
        self.profiles.add_offence([client for client in dropped if client in self.profiles.index])

    def profile_table(self) -> dict[str, dict[str, float]]:
        return self.profiles.table()

    def state_dict(self) -> dict[str, Any]:
        own = {"clip": self.clip, "compared_rounds": self.compared_rounds, "contested": self.contested}
        return {**own, **self.profiles.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        state = {FORMER_STATE.get(key, key): value for key, value in state.items()}
        self.clip, self.contested = state["clip"], state["contested"]
        self.compared_rounds = state["compared_rounds"]
        self.profiles.load_state_dict(state)


def _clipping(norms: Tensor, bounds: Tensor) -> Tensor:
    """N factors that bring every row down to its bound."""
    return torch.where(norms > bounds, bounds / norms.clamp(min=1e-300), 1.0)
