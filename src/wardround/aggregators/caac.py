"""CAAC-FL: client-adaptive anomaly-aware clipping, canonical form, and its four ablations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from wardround.aggregators._math.order_statistics import GAUSSIAN_MAD
from wardround.aggregators.base import Parameters, ScalarRule, register, sample_weights
from wardround.updates import Aggregation, Updates

MU, SIGMA, RHO, RELIABILITY, SEEN = range(5)
PROFILE_COLUMNS = ("mean norm", "spread", "mean cosine", "reliability", "rounds")
"""What the columns of a profile hold, in the order of the indices above."""


@register("caac")
class Caac(ScalarRule):
    r"""Clip and weight each client by how far it departs from its own past.

    Every client has a profile: averages of its norm (μ, σ), of its cosine to the last aggregate (ρ), and
    a reliability R. With norm :math:`n_i`, cosine :math:`c_i` and the round's median norm M:

    .. math::
        A_i &= \sqrt{\lambda_{mag}\Big(\frac{|n_i-\mu_i|}{\sigma_i+\epsilon}\Big)^2
               + \lambda_{dir}\max(0,\rho_i-c_i)^2
               + \lambda_{temp}\Big(\frac{|\mu_i'-\mu_i|}{\mu_i+\epsilon}\Big)^2} \\
        \tau_i &= M\,\mathrm{clamp}(e^{-\alpha A_i}(1+\delta R_i), f_{min}, f_{max}), \qquad
        \omega_i = R_i\,e^{-\beta_w A_i} \\
        \Delta &= \sum_i \frac{\omega_i}{\sum_j\omega_j+\epsilon}\,\min(1, \tau_i/n_i)\,U_i

    The first `t_boot` rounds only fill the profiles: rows are clipped to one fixed norm and averaged by
    sample counts. Two facts follow from the formulas. With the canonical constants direction alone can
    never raise a flag: :math:`\sqrt{0.4}\cdot 2 < 2`. And a persistent attacker inflates its own μ and σ,
    so it is flagged for a round or two and is "normal for this client" from then on. In the bootstrap nobody is
    flagged and every norm is learned as it is: after one update of 3e38 a client's μ and σ are beyond all measure,
    and a later row a million times too long scores below honest ones. `robust_bootstrap` prevents that; federations
    have it by default.

    CAAC-FL experimental protocol, section 8 (canonical algorithm).

    >>> import torch
    >>> from wardround import Updates, aggregators
    >>> rule = aggregators.create("caac", t_boot=2)
    >>> honest = torch.ones(4, 8) + 0.1 * torch.eye(4, 8)
    >>> for t in (1, 2):
    ...     _ = rule.aggregate(Updates(honest), round=t)
    >>> attacked = honest.clone(); attacked[3] *= -10
    >>> out = rule.aggregate(Updates(attacked), round=3)
    >>> out.flags.tolist(), bool(out.weights[3] < 1e-6)
    ([False, False, False, True], True)
    """

    remembers_clients = True
    components: ClassVar[frozenset[str]] = frozenset({"mag", "dir", "temp"})
    federation_defaults: ClassVar[Mapping[str, Any]] = {"robust_bootstrap": True}

    class Params(Parameters):
        beta: float = Field(0.9, ge=0, le=1)
        """Decay of the running averages μ, σ, ρ."""
        gamma: float = Field(0.1, ge=0, le=1)
        """How fast reliability moves."""
        lambda_mag: float = Field(0.4, ge=0)
        """Weight of the norm's departure in the anomaly."""
        lambda_dir: float = Field(0.4, ge=0)
        """Weight of the direction's."""
        lambda_temp: float = Field(0.2, ge=0)
        """Weight of the running average's movement."""
        tau_anom: float = Field(2.0, gt=0)
        """Anomaly from which a client is flagged."""
        f_min: float = Field(0.25, ge=0)
        """Least multiple of the median norm that a row is clipped to."""
        f_max: float = Field(2.0, gt=0)
        """Greatest multiple."""
        alpha: float = Field(0.5, ge=0)
        """How fast the clipping threshold falls with the anomaly."""
        delta: float = Field(0.5, ge=0)
        """How much reliability raises the threshold."""
        beta_w: float = Field(0.5, ge=0)
        """How fast the weight falls with the anomaly."""
        t_boot: int = Field(10, ge=0)
        """Bootstrap rounds (up to twice as many where clients are seen rarely)."""
        bootstrap_clip: float | None = Field(None, gt=0)
        """Clipping norm of the bootstrap; None: the median norm of round 1."""
        epsilon: float = Field(1e-8, gt=0)
        """Keeps quotients finite."""
        robust_bootstrap: bool = False
        """In the bootstrap, profiles learn from norms of at most `f_max` times the round's median norm. False is the
        rule as the protocol has it: one huge update in the bootstrap spoils its client's profile for good."""
        sample_cap: float | None = Field(None, ge=1)
        """Bound on reported sample counts in the bootstrap, as a multiple of their median."""

        @model_validator(mode="after")
        def _bounds_in_order(self) -> Caac.Params:
            if self.f_min > self.f_max:
                raise ValueError(f"f_min must not exceed f_max, got {self.f_min} > {self.f_max}")
            return self

    params: Params

    def __init__(self, params: Params | None = None) -> None:
        super().__init__(params)
        p = self.params
        lambdas = {"mag": p.lambda_mag, "dir": p.lambda_dir, "temp": p.lambda_temp}
        active = {name: value for name, value in lambdas.items() if name in self.components}
        # An ablation keeps its components' proportions and lets them sum to 1; the whole rule takes them as they are.
        total = sum(active.values()) if len(active) < len(lambdas) else 1.0
        self.lambdas = {name: active.get(name, 0.0) / total if total else 0.0 for name in lambdas}
        self.rounds = 0
        self.bootstrapping = p.t_boot > 0
        self.bootstrap_clip: float | None = p.bootstrap_clip
        self.index: dict[str, int] = {}
        self.profiles = torch.empty(0, 5, dtype=torch.float64)

    def weigh(self, reports: Updates, norms: Tensor, cosines: Tensor) -> Aggregation:
        """Profiles, anomalies, clip scales and weights from norms and cosines alone (see `ScalarRule.weigh`)."""
        p, eps = self.params, self.params.epsilon
        self.rounds += 1
        median = _median(norms)
        rows = self._rows_of(reports.clients, norms, median)

        old = self.profiles[rows]
        mu, sigma, rho = old[:, MU], old[:, SIGMA], old[:, RHO]
        # What profiles learn from: of a peer that shouts in the bootstrap, no more than others could have said.
        learned = norms.clamp(max=p.f_max * median.item()) if self._robust else norms
        new_mu = p.beta * mu + (1 - p.beta) * learned
        a_mag = (norms - mu).abs() / (sigma + eps)
        a_dir = (rho - cosines).clamp(min=0)
        a_temp = torch.where(mu == 0, 0.0, (new_mu - mu).abs() / (mu + eps))
        weighted = self.lambdas
        anomaly = torch.sqrt(
            weighted["mag"] * a_mag**2 + weighted["dir"] * a_dir**2 + weighted["temp"] * a_temp**2
        )

        new = old.clone()
        new[:, MU] = new_mu
        new[:, SIGMA] = torch.sqrt(p.beta * sigma**2 + (1 - p.beta) * (learned - new_mu) ** 2)
        new[:, RHO] = p.beta * rho + (1 - p.beta) * cosines
        new[:, SEEN] += 1
        if self.bootstrapping:
            threshold, scale, weights = self._bootstrap_clip_and_weight(reports, norms, median)
            flags = None  # nobody can be flagged yet, which is not the same as nobody being suspicious
        else:
            flags = suspicious = anomaly >= p.tau_anom
            new[:, RELIABILITY] = ((1 - p.gamma) * old[:, RELIABILITY] + p.gamma * ~suspicious).clamp(0, 1)
            shape = torch.exp(-p.alpha * anomaly) * (1 + p.delta * new[:, RELIABILITY])
            threshold = median * shape.clamp(p.f_min, p.f_max)
            scale = torch.where(norms > threshold, threshold / (norms + eps), 1.0)
            weights = new[:, RELIABILITY] * torch.exp(-p.beta_w * anomaly)
            weights = weights / (weights.sum() + eps)
        self.profiles[rows] = new
        if self.bootstrapping:
            self._maybe_end_bootstrap()
        columns = {
            "norm": norms,
            "cosine": cosines,
            "a_mag": a_mag,
            "a_dir": a_dir,
            "a_temp": a_temp,
            "anomaly": anomaly,
            "threshold": threshold,
            "clip_scale": scale,
            "reliability": new[:, RELIABILITY],
        }
        return Aggregation(torch.empty(0), weights=weights, scores=anomaly, flags=flags, columns=columns)

    @property
    def _robust(self) -> bool:
        return self.bootstrapping and self.params.robust_bootstrap

    def coefficients(self, result: Aggregation) -> Tensor:
        """What each row counts in the sum: its weight times its clip scale."""
        assert result.weights is not None
        return result.weights * result.columns["clip_scale"]

    def profile_table(self) -> dict[str, dict[str, float]]:
        values = self.profiles.tolist()
        return {
            client: dict(zip(PROFILE_COLUMNS, values[row], strict=True)) for client, row in self.index.items()
        }

    def _rows_of(self, clients: Sequence[str], norms: Tensor, median: Tensor) -> Tensor:
        """Each client's line in the table of profiles; newcomers get one that fits this round."""
        newcomers = [client for client in clients if client not in self.index]
        if newcomers:
            spread = _median((norms - median).abs()) / GAUSSIAN_MAD
            sigma = max(spread.item(), 0.1 * median.item(), self.params.epsilon)
            profile = torch.tensor([median.item(), sigma, 0.0, 0.5, 0.0], dtype=torch.float64)
            for client in newcomers:
                self.index[client] = len(self.index)
            self.profiles = torch.cat([self.profiles, profile.repeat(len(newcomers), 1)])
        return torch.tensor([self.index[client] for client in clients])

    def _bootstrap_clip_and_weight(
        self, updates: Updates, norms: Tensor, median: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        if self.bootstrap_clip is None:
            self.bootstrap_clip = median.item()
        threshold = torch.full_like(norms, self.bootstrap_clip)
        scale = torch.where(norms > threshold, threshold / norms, 1.0)
        return threshold, scale, sample_weights(updates, self.params.sample_cap)

    def _maybe_end_bootstrap(self) -> None:
        t, t_boot = self.rounds, self.params.t_boot
        everyone_known = bool((self.profiles[:, SEEN] >= t / 2).all())
        self.bootstrapping = not ((t >= t_boot and everyone_known) or t >= 2 * t_boot)

    def on_dropped(self, dropped: dict[str, str]) -> None:
        """Sending something malformed counts as one unreliable round; the rest of the profile stays."""
        if not self.bootstrapping:
            rows = [self.index[client] for client in dropped if client in self.index]
            self.profiles[rows, RELIABILITY] *= 1 - self.params.gamma

    def state_dict(self) -> dict[str, Any]:
        return {
            "rounds": self.rounds,
            "bootstrapping": self.bootstrapping,
            "bootstrap_clip": self.bootstrap_clip,
            "last": None if self.last is None else self.last.clone(),
            "clients": list(self.index),
            "profiles": self.profiles.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rounds = state["rounds"]
        self.bootstrapping = state["bootstrapping"]
        self.bootstrap_clip = state["bootstrap_clip"]
        self.last = None if state["last"] is None else state["last"].clone()
        self.index = {client: row for row, client in enumerate(state["clients"])}
        self.profiles = state["profiles"].clone()


@register("caac-mag")
class CaacMag(Caac):
    r"""`caac` with the magnitude anomaly only: :math:`A = A_{mag} = |n-\mu|/(\sigma+\epsilon)`.

    >>> from wardround import aggregators
    >>> aggregators.create("caac-mag").lambdas
    {'mag': 1.0, 'dir': 0.0, 'temp': 0.0}
    """

    components = frozenset({"mag"})


@register("caac-dir")
class CaacDir(Caac):
    r"""`caac` with the direction anomaly only: :math:`A = A_{dir} = \max(0, \rho-c)`.

    >>> from wardround import aggregators
    >>> aggregators.create("caac-dir").lambdas
    {'mag': 0.0, 'dir': 1.0, 'temp': 0.0}
    """

    components = frozenset({"dir"})


@register("caac-temp")
class CaacTemp(Caac):
    r"""`caac` with the temporal anomaly only: :math:`A = A_{temp} = |\mu'-\mu|/(\mu+\epsilon)`.

    >>> from wardround import aggregators
    >>> aggregators.create("caac-temp").lambdas
    {'mag': 0.0, 'dir': 0.0, 'temp': 1.0}
    """

    components = frozenset({"temp"})


@register("caac-mag+dir")
class CaacMagDir(Caac):
    r"""`caac` without the temporal anomaly: :math:`A = \sqrt{\tfrac12 A_{mag}^2 + \tfrac12 A_{dir}^2}`.

    >>> from wardround import aggregators
    >>> aggregators.create("caac-mag+dir").lambdas
    {'mag': 0.5, 'dir': 0.5, 'temp': 0.0}
    """

    components = frozenset({"mag", "dir"})


def _median(values: Tensor) -> Tensor:
    """The mean of the two middle values for an even count (torch.median takes the lower one)."""
    return values.quantile(0.5)
