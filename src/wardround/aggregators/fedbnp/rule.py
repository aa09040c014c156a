"""FedBNP: local BatchNorm, proximal training, and weights by trust; and the agent as a rule of its own."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from wardround.aggregators._math.kernels import squared_norms, weighted_sum
from wardround.aggregators.base import Aggregator, ClientPolicy, Context, register
from wardround.aggregators.fedbnp.detector import Detector, DetectorParams, Opinion
from wardround.aggregators.fedbnp.features import FEATURES
from wardround.aggregators.fedbnp.practice import PRACTICE_ATTACKS
from wardround.aggregators.fedbnp.trust import FLAG_BELOW, TrustForm, combined_trust, shares
from wardround.updates import Aggregation, Updates


class TrustWeighted(Aggregator):
    """Base of the three rules: a detector that practises on the server's own data, and weights by trust."""

    needs_global_weights = True
    needs_practice_ground = True
    remembers_clients = True
    practice_attacks = PRACTICE_ATTACKS
    uses_attention = True

    class Params(DetectorParams):
        pass

    params: DetectorParams

    def __init__(self, params: DetectorParams | None = None) -> None:
        super().__init__(params)
        self.detector = Detector(self.params, self.uses_attention)

    @abstractmethod
    def opinions(self, opinion: Opinion) -> tuple[Tensor, Tensor]:
        """Trust as it becomes weight, and trust on the scale of the verdicts (N values each)."""

    def combine(self, updates: Updates, context: Context) -> Aggregation:
        practice_ground, global_weights = context.practice_ground, context.global_weights
        assert (
            practice_ground is not None
        )  # `needs_practice_ground` and `needs_global_weights` have seen to it
        assert global_weights is not None
        local = self._local_coordinates(updates)
        reference = self._reference(practice_ground.reference(context.round), local)
        opinion = self.detector.examine(updates, context.round, global_weights, reference, practice_ground)
        if opinion is None:
            return Aggregation(
                torch.zeros(updates.dimension, dtype=updates.dtype),
                weights=torch.zeros(len(updates), dtype=torch.float64),
                skipped="the server's own training is not finite: there is nothing to practise on",
            )
        trust, verdict = self.opinions(opinion)
        weights = shares(trust)
        delta = context.measurements.weighted_sum(weights)
        if local is not None:
            delta[local] = 0
        columns = dict(zip(FEATURES, opinion.features.T, strict=True))
        if self.uses_attention:
            columns["attention"] = opinion.attention
        columns |= {
            "policy": opinion.policy,
            "trust": trust,
            "evaluations": torch.full_like(trust, opinion.evaluations),
        }
        return Aggregation(
            delta, weights=weights, scores=1 - verdict, flags=verdict < FLAG_BELOW, columns=columns
        )

    def _local_coordinates(self, updates: Updates) -> Tensor | None:
        """D booleans: which coordinates stay with the clients; None where none do."""
        if not self.client_policy.local_batch_norm or updates.layout is None:
            return None
        return updates.layout.batch_norm_mask

    def _reference(self, own: Tensor, local: Tensor | None) -> Tensor | None:
        """g_ref: the server's own update; None (the round's median) where that is not finite."""
        if not bool(torch.isfinite(squared_norms(own[None])).all()):
            return None
        return own if local is None else torch.where(local.to(own.device), 0.0, own)

    def warm_up(self, clients: int, dimension: int, dtype: torch.dtype = torch.float32) -> None:
        """Compile what a round shares with other rules; practice needs a server and is left to the first round."""
        rows = torch.zeros(clients, min(dimension, 1000), dtype=dtype)
        weighted_sum(rows, squared_norms(rows))

    def state_dict(self) -> dict[str, Any]:
        return self.detector.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.detector.load_state_dict(state)


@register("fedbnp")
class FedBnp(TrustWeighted):
    r"""FedBN and FedProx together, the mean weighted by the trust of a detector that practises on the server.

    .. math::
        t_k = \sigma(\alpha\,a_k + (1-\alpha)\,\pi_k), \qquad
        \Delta = \sum_k \frac{t_k}{\sum_j t_j}\,U_k \ \text{outside BatchNorm}

    :math:`a_k` is the dual attention's opinion, :math:`\pi_k` the agent's policy, both from six fingerprints of
    the update: reconstruction error, cosine to the root update, mean cosine to the peers, norm, sign
    consistency, Shapley value. Clients add (μ/2)‖w − w^t‖² to their loss and keep BatchNorm at home. This form
    squeezes all trust into (0.5, 0.73), so that an attacker that is recognised keeps most of its weight;
    `trust: sharp` (the default of `fedbnp-sharp`) uses α·a + (1−α)·π itself. Verdicts are the same for both: a
    client is flagged where α·a + (1−α)·π < 0.5. Scores are one minus that.

    FedBNP document, sections III-C to III-E.

    >>> import torch
    >>> from wardround import Updates, aggregators
    >>> rule = aggregators.create("fedbnp", mu=0.1)
    >>> rule.client_policy
    ClientPolicy(prox_mu=0.1, local_batch_norm=True, by_outcome=False)
    >>> rule.aggregate(Updates(torch.eye(3)), global_weights=torch.zeros(3), root_update=torch.ones(3))
    Traceback (most recent call last):
    wardround.errors.ParameterError: fedbnp needs practice_ground: pass aggregate(updates, practice_ground=…)
    """

    class Params(DetectorParams):
        mu: float = Field(0.01, ge=0)
        """Strength of the proximal term."""
        alpha: float = Field(0.6, ge=0, le=1)
        """Share of the attention in the trust; the rest is the agent's."""
        trust: TrustForm = "document"
        """The document's form, squeezed into (0.5, 0.73), or `sharp`: α·a + (1−α)·π itself."""

    params: Params

    @property
    def client_policy(self) -> ClientPolicy:
        return ClientPolicy(prox_mu=self.params.mu, local_batch_norm=True)

    def opinions(self, opinion: Opinion) -> tuple[Tensor, Tensor]:
        both = opinion.attention, opinion.policy, self.params.alpha
        return combined_trust(*both, self.params.trust), combined_trust(*both, "sharp")


@register("fedbnp-sharp")
class FedBnpSharp(FedBnp):
    """`fedbnp` with trust on its own scale: who is not trusted has no weight.

    >>> from wardround import aggregators
    >>> aggregators.create("fedbnp-sharp").params.trust
    'sharp'
    """

    class Params(FedBnp.Params):
        trust: TrustForm = "sharp"
        """`sharp`: α·a + (1−α)·π itself; `document`: squeezed into (0.5, 0.73)."""

    params: Params


@register("rl")
class ReinforcedTrust(TrustWeighted):
    r"""The mean weighted by the agent's policy alone: :math:`\Delta = \sum_k \pi_k U_k / \sum_j \pi_j`.

    The agent learns from 0.5·ΔAcc + 0.4·F1 − 0.1·FPR in rounds that the server makes itself. A client is
    flagged where π < 0.5.

    FedBNP document, section III-E ("RL-based" aggregation).

    >>> from wardround import aggregators
    >>> aggregators.create("rl").params.rl_gamma
    0.99
    """

    uses_attention = False

    def opinions(self, opinion: Opinion) -> tuple[Tensor, Tensor]:
        return opinion.policy, opinion.policy
