"""How a rule behaves: one made-up federation, the same for every rule, with stronger and more attackers.

Twenty clients share a direction and differ from each other; four of them send the honest mean reversed. A rule that
remembers has seen clean rounds before. Only the contract of a rule is used, so a new rule is drawn like the others.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from matplotlib.axes import Axes
from torch import Tensor

from sitegen.drawing import BLUE, GREEN, GREY, ORANGE, RED, Panel, picture
from wardround import Aggregation, Layout, Updates, aggregators
from wardround.aggregators import Aggregator
from wardround.randomness import seed_for

CLIENTS, BYZANTINE, SIDE = 20, 4, 10
SIZE = SIDE * SIDE
PAST = 15
SHORT_PAST = 1  # for rules that practise on the server: a round can take them seconds
MAGNITUDES = [10 ** (power / 4) for power in range(-4, 9)]
STRUCK = PAST + 1  # the draw of the round that is looked at
CLAIMS = [10 ** (power / 2) for power in range(7)]
LAYOUT = Layout(("layer.weight",), ((SIDE, SIDE),))
CAPTION = (
    "Twenty made-up clients, four of which send the mean of the honest updates reversed, after {past}. "
    "Distances are from the mean of the honest clients' updates, in lengths of that mean; the grey line is `fedavg`."
)


def noise(*name: int, rows: int = CLIENTS) -> Tensor:
    return torch.randn(rows, SIZE, generator=torch.Generator().manual_seed(seed_for(*name)))


@cache
def direction() -> Tensor:
    shared = noise(1, rows=1)[0]
    return shared / shared.norm()


@cache
def habits() -> Tensor:
    """What makes each client different for good."""
    return 0.5 * noise(2) / SIDE


def honest(round: int) -> Tensor:
    return direction() + habits() + 0.5 * noise(3, round) / SIDE


class MadeUpGround:
    """A `PracticeGround`: honest training like the clients', attacks to practise on, and a value of weights."""

    seed, rounds, attacks = 0, PAST, ("sign-flip", "noise", "scaling")

    def reference(self, round: int, group: int | None = None, draw: int = 0) -> Tensor:
        return direction() + 0.1 * noise(8, round, -1 if group is None else group, draw, rows=1)[0] / SIDE

    def root_updates(
        self, round: int, count: int, group: int = 0, draw: int = 0, sizes: Sequence[int] | None = None
    ) -> Tensor:
        lasting, passing = noise(4, group, rows=count), noise(5, round, group, draw, rows=count)
        return direction() + 0.5 * (lasting + passing) / SIDE

    def plant(
        self,
        honest: Tensor,
        attack: str,
        round: int,
        group: int = 0,
        draw: int = 0,
        sizes: Sequence[int] | None = None,
    ) -> tuple[Tensor, Tensor]:
        byzantine = torch.arange(len(honest)) < max(1, len(honest) // 4)
        own = honest[byzantine]
        random = noise(6, round, group, draw, rows=len(own)) / SIDE
        return byzantine, {"sign-flip": -own, "scaling": 10 * own, "noise": random}[attack]

    def value(self, weights: Tensor) -> Tensor:
        return torch.sigmoid(4 * weights.to(torch.float64) @ direction().to(torch.float64))


@dataclass(frozen=True)
class Round:
    """What attackers do in the round that is looked at."""

    magnitude: float = 10.0
    attackers: int = BYZANTINE
    claimed_samples: float = 1.0
    claimed_quality: float = 1.0

    def updates(self, draw: int = STRUCK) -> Updates:
        rows = honest(draw)
        k = self.attackers
        rows[:k] = -self.magnitude * rows[k:].mean(0)
        samples, loss = torch.full((CLIENTS,), 100.0), torch.linspace(0.4, 0.6, CLIENTS)
        samples[:k] *= self.claimed_samples
        loss[:k] = 0.5 / self.claimed_quality
        return Updates(rows, num_samples=samples, metrics={"loss": loss}, layout=LAYOUT)


@dataclass
class Study:
    """A rule after clean rounds, and its results for different rounds of attack."""

    rule: Aggregator
    _results: dict[Round, Aggregation] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.past = SHORT_PAST if self.rule.needs_practice_ground else PAST
        for round in range(1, self.past + 1):
            loss = torch.linspace(0.4, 0.6, CLIENTS)
            sent = Updates(honest(round), num_samples=[100] * CLIENTS, metrics={"loss": loss}, layout=LAYOUT)
            self._aggregate(self.rule, sent, round)

    def result(self, round: Round) -> Aggregation:
        if round not in self._results:
            self._results[round] = self._aggregate(copy.deepcopy(self.rule), round.updates(), self.past + 1)
        return self._results[round]

    def distance(self, round: Round) -> float:
        wanted = honest(STRUCK)[round.attackers :].mean(0)
        return float((self.result(round).delta - wanted).norm() / wanted.norm())

    def continued(self, rounds: int) -> list[Aggregation]:
        """The results when the same attack continues: interesting for a rule that remembers."""
        rule = copy.deepcopy(self.rule)
        return [self._aggregate(rule, Round().updates(STRUCK + i), self.past + 1 + i) for i in range(rounds)]

    def _aggregate(self, rule: Aggregator, sent: Updates, round: int) -> Aggregation:
        ground = MadeUpGround()
        return rule.aggregate(
            sent,
            round=round,
            global_weights=0.1 * noise(7, rows=1)[0],
            root_update=ground.reference(round),
            practice_ground=ground,
        )

    def depends_on(self, **claim: float) -> bool:
        """Does the rule's result change with what clients claim?"""
        return not torch.equal(self.result(Round(**claim)).delta, self.result(Round()).delta)


@cache
def _fedavg() -> Study:
    return Study(aggregators.create("fedavg"))


def rule_picture(name: str) -> tuple[str, Study]:
    """The picture of a rule with its default parameters, and the study that it shows."""
    study = Study(aggregators.create(name))
    longer = [Round(magnitude=magnitude) for magnitude in MAGNITUDES]
    more = [Round(attackers=attackers) for attackers in range(10)]
    lengths = [round.magnitude for round in longer]
    panels: list[Panel] = [
        _distances("When they send larger updates", "their length, honest mean = 1", study, lengths, longer),
        _distances(
            "When more of them attack",
            "attackers of 20, ten times the mean",
            study,
            [round.attackers for round in more],
            more,
        ),
    ]
    if study.result(Round()).weights is not None:
        results = [study.result(round) for round in longer]
        panels.append(_shares("The attackers' weight", "their length, honest mean = 1", lengths, results))
        if study.rule.state_dict() and not study.rule.needs_practice_ground:
            results = study.continued(PAST)
            rounds = list(range(1, len(results) + 1))
            panels.append(
                _shares("When the attack continues", "rounds of attack, ten times the mean", rounds, results)
            )
    if study.depends_on(claimed_samples=10.0):
        lies = [Round(1.0, claimed_samples=claim) for claim in CLAIMS]
        panels.append(
            _distances("When they claim more samples", "claimed samples / true samples", study, CLAIMS, lies)
        )
    if study.depends_on(claimed_quality=10.0):
        lies = [Round(1.0, claimed_quality=claim) for claim in CLAIMS]
        panels.append(
            _distances("When they claim a better model", "true loss / claimed loss", study, CLAIMS, lies)
        )
    return picture(panels, f"How {name} behaves when four of twenty clients attack"), study


def _distances(
    title: str, label: str, study: Study, where: Sequence[float], rounds: Sequence[Round]
) -> Panel:
    def draw(axes: Axes) -> None:
        plain = [_fedavg().distance(round) for round in rounds]
        axes.plot(where, plain, color=GREY, label="fedavg")
        own = [study.distance(round) for round in rounds]
        axes.plot(where, own, color=BLUE, marker="o", label=study.rule.name)
        if _spans_decades(where):
            axes.set_xscale("log")
        # Below 0.1 nothing is worth a decade; above it, one more decade is one more disaster.
        axes.set_yscale("asinh", linear_width=0.3)
        top = max(1.0, *plain, *own)
        ticks = [tick for tick in (0, 0.3, 1, 3, 10, 30, 100) if tick <= 1.2 * top]
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
        axes.set_yticks([], minor=True)
        axes.set_ylim(0, 1.15 * top)
        axes.set(title=title, xlabel=label, ylabel="distance from honest mean")
        axes.legend()

    return draw


def _shares(title: str, label: str, where: Sequence[float], results: Sequence[Aggregation]) -> Panel:
    def draw(axes: Axes) -> None:
        weights = [float(result.weights[:BYZANTINE].sum()) for result in results]
        axes.axhline(BYZANTINE / CLIENTS, color=GREY, linestyle=":", label="an equal share")
        axes.plot(where, weights, color=BLUE, marker="o", label="attackers' weight")
        if results[0].flags is not None:
            flagged = [float(result.flags[:BYZANTINE].float().mean()) for result in results]
            blamed = [float(result.flags[BYZANTINE:].float().mean()) for result in results]
            axes.plot(where, flagged, color=GREEN, linestyle="--", label="attackers flagged")
            axes.plot(where, blamed, color=RED, linestyle="--", label="honest flagged")
        elif results[0].scores is not None:
            ranked = [_ranked(result.scores) for result in results]
            axes.plot(where, ranked, color=ORANGE, linestyle="--", label="scored above honest")
        axes.set_ylim(-0.03, 1.05)
        axes.set(title=title, xlabel=label, ylabel="share")
        if _spans_decades(where):
            axes.set_xscale("log")
        else:
            axes.locator_params(axis="x", integer=True)
        axes.legend()

    return draw


def _spans_decades(where: Sequence[float]) -> bool:
    return where[0] > 0 and where[-1] / where[0] >= 100


def _ranked(scores: Tensor) -> float:
    """Share of pairs in which the attacker has the higher score: the area under the ROC curve."""
    attackers, rest = scores[:BYZANTINE, None], scores[None, BYZANTINE:]
    return float(((attackers > rest).float() + 0.5 * (attackers == rest).float()).mean())
