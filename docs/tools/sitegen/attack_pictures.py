"""How an attack behaves: what it sends beside the honest updates, over rounds and strengths, and what that costs.

All attacks are drawn from the same toy federation through a `Campaign`, the way a run uses them, so that an attack
that poisons data or lies about metrics is drawn like one that crafts updates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache, partial

import torch
from matplotlib.axes import Axes
from torch import Tensor

from sitegen.drawing import BLUE, GREEN, GREY, ORANGE, RED, Panel, picture
from sitegen.toy import BYZANTINE, ONSET, ROUNDS, Seen, federation
from wardround import attacks
from wardround.attacks import Attack
from wardround.errors import ParameterError

RULES = {"fedavg": ORANGE, "median": GREEN, "caac": BLUE}
LIARS_RULE = "fedmed"
LOOKED_AT = 15
PLACES = (-1000, -100, -30, -10, -3, -1, 0, 1, 3, 10, 30, 100, 1000)
STRENGTHS = [2 ** (power / 2) for power in range(-6, 5)]
CAPTION = (
    "Twenty made-up hospitals train a logistic regression; four of them attack from round "
    f"{ONSET} on. Length and cosine are those of what the attackers send (mean over the four, under `fedavg`), "
    "against the mean of the honest clients' updates of the same round."
)


def attack_picture(name: str) -> str:
    """The picture of an attack with its default parameters."""
    rules = dict(RULES)
    if "metrics" in attacks.describe(name)["lies_in"]:
        rules[LIARS_RULE] = RED
    seen = {rule: federation(attacks.create(name), rule) for rule in rules}
    panels: list[Panel] = [_plane(seen["fedavg"][LOOKED_AT - 1]), _over_rounds(seen["fedavg"])]
    if LIARS_RULE in seen:
        panels.append(_claims(seen[LIARS_RULE][LOOKED_AT - 1]))
    else:
        swept = _strengths(name)
        if swept is not None:
            panels.append(swept)
    panels.append(_harm({rule: (rules[rule], rounds) for rule, rounds in seen.items()}))
    return picture(panels, f"How {name} behaves in a federation of twenty")


@cache
def _peace() -> list[Seen]:
    return federation(attacks.create("none"), "fedavg")


def length_and_cosine(seen: Seen) -> tuple[float, float]:
    """Of the attackers' rows, against the honest mean: how long, and in which direction."""
    wanted, rows = seen.honest[BYZANTINE:].mean(0), seen.sent[:BYZANTINE]
    length = float((rows.norm(dim=1) / wanted.norm()).mean())
    return length, float(torch.cosine_similarity(rows, wanted[None], dim=1).mean())


def _plane(seen: Seen) -> Panel:
    """Honest and sent rows seen along the honest mean and along what differs most beside it."""

    def draw(axes: Axes) -> None:
        wanted = seen.honest.mean(0)
        along = wanted / wanted.norm()
        rest = seen.honest - (seen.honest @ along)[:, None] * along
        across = torch.linalg.svd(rest - rest.mean(0))[2][0]
        basis = torch.stack([along, across], 1) / wanted.norm()

        def place(rows: Tensor) -> Sequence[Sequence[float]]:
            return (rows @ basis).T.tolist()

        axes.scatter(*place(seen.honest[BYZANTINE:]), s=14, color=BLUE, label="honest", alpha=0.8)
        axes.scatter(
            *place(seen.honest[:BYZANTINE]),
            s=22,
            facecolors="none",
            edgecolors=GREY,
            label="attackers, honestly",
        )
        axes.scatter(*place(seen.sent[:BYZANTINE]), s=30, marker="x", color=RED, label="sent")
        span = max(1.0, *(abs(value) for axis in place(seen.honest) for value in axis))
        axes.set_xscale("asinh", linear_width=span)  # far away is far enough
        axes.set_yscale("asinh", linear_width=span)
        for axis in (axes.xaxis, axes.yaxis):
            low, high = axis.get_view_interval()
            axis.set_ticks([tick for tick in PLACES if low <= tick <= high], minor=False)
            axis.set_ticks([], minor=True)
            axis.set_major_formatter("{x:g}")
        axes.set(title=f"Round {LOOKED_AT}, in lengths of the honest mean", xlabel="along the honest mean",
                 ylabel="across it")  # fmt: skip
        axes.legend()

    return draw


def _two_lines(axes: Axes, where: Sequence[float], values: Sequence[tuple[float, float]]) -> None:
    axes.axhline(1, color=GREY, linewidth=0.8, linestyle=":")
    axes.plot(where, [cosine for _, cosine in values], color=RED, label="cosine")
    axes.plot(where, [length for length, _ in values], color=BLUE, label="length")
    axes.set_yscale("asinh", linear_width=1.5)
    top = max(length for length, _ in values)
    ticks = [tick for tick in (-1, 0, 1, 3, 10, 30, 100, 1000) if tick <= max(1.0, 1.2 * top)]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
    axes.set_yticks([], minor=True)
    axes.set_ylim(-1.15, max(1.5, 1.15 * top))
    axes.legend()


def _over_rounds(seen: Sequence[Seen]) -> Panel:
    def draw(axes: Axes) -> None:
        _two_lines(axes, range(1, ROUNDS + 1), [length_and_cosine(one) for one in seen])
        axes.axvline(ONSET, color=GREY, linestyle=":")
        axes.set(title="What the attackers send, over rounds", xlabel="round")

    return draw


def _strengths(name: str) -> Panel | None:
    """What is sent as the attack's first number grows; None where it has none, or none that changes anything."""
    for parameter, default in attacks.registry.describe(name).items():
        if isinstance(default, bool) or not isinstance(default, int | float) or not default:
            continue
        sent = dict(_sent_by_variants(name, parameter, default))
        if len({round(number, 6) for one in sent.values() for number in one}) > 2:
            return partial(_draw_strengths, parameter, default, list(sent), list(sent.values()))
    return None


def _sent_by_variants(
    name: str, parameter: str, default: float
) -> Iterator[tuple[float, tuple[float, float]]]:
    """What is sent for each value of the parameter; a value that two classes do not allow is left out."""
    for value, attack in _variants(name, parameter, default):
        with suppress(ParameterError):
            yield value, length_and_cosine(federation(attack, "fedavg", ONSET + 4)[-1])


def _variants(name: str, parameter: str, default: float) -> Iterator[tuple[float, Attack]]:
    """The attack with the parameter from an eighth to four times its default, as far as the attack allows."""
    for factor in STRENGTHS:
        value = type(default)(round(default * factor, 6))
        try:
            yield value, attacks.create(name, **{parameter: value})
        except ParameterError:
            continue


def _draw_strengths(
    parameter: str, default: float, where: Sequence[float], sent: Sequence[tuple[float, float]], axes: Axes
) -> None:
    _two_lines(axes, where, sent)
    axes.axvline(default, color=GREY, linestyle=":")
    axes.set(title=f"Over its parameter {parameter} (dotted: default)", xlabel=parameter)


def _claims(seen: Seen) -> Panel:
    def draw(axes: Axes) -> None:
        where = list(range(len(seen.sent_loss)))
        axes.bar(where, seen.honest_loss.tolist(), color=GREY, label="measured", alpha=0.5)
        axes.scatter(where, seen.sent_loss.tolist(), s=16, zorder=3, label="reported",
                     color=[RED if i < BYZANTINE else BLUE for i in where])  # fmt: skip
        axes.set(
            title=f"Loss of each client, round {LOOKED_AT}",
            xlabel="client (the first four lie)",
            ylabel="loss",
        )
        axes.legend()

    return draw


def _harm(seen: dict[str, tuple[str, list[Seen]]]) -> Panel:
    def draw(axes: Axes) -> None:
        rounds = range(1, ROUNDS + 1)
        axes.plot(rounds, [one.test_loss for one in _peace()], color=GREY, linestyle=":", label="no attack")
        for rule, (colour, one_run) in seen.items():
            axes.plot(rounds, [one.test_loss for one in one_run], color=colour, label=rule)
            if one_run[0].success is not None:
                axes.plot(rounds, [one.success for one in one_run], color=colour, linestyle="--")
        axes.axvline(ONSET, color=GREY, linestyle=":")
        backdoor = any(one_run[0].success is not None for _, one_run in seen.values())
        losses = [one.test_loss for run in (*(run for _, run in seen.values()), _peace()) for one in run]
        low, high = (0.0, 1.0) if backdoor else (0.95 * min(losses), min(1.1, 1.05 * max(losses)))
        title = (
            "Test loss, and success of the backdoor (dashed)" if backdoor else "Test loss (0.69: a coin's)"
        )
        axes.set(title=title, xlabel="round", ylim=(low, high))
        axes.legend(ncols=2)

    return draw
