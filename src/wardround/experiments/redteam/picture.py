"""A red team's search as one small SVG: what each trial cost the rule, in order and by attack."""

from __future__ import annotations

import math
from collections import defaultdict
from html import escape

from wardround.experiments.redteam.results import Findings, Tried

__all__ = ["picture"]

WIDTH, LEFT, RIGHT = 720, 130, 20
UPPER, LINE, GAP = 200, 16, 56  # height of the upper panel, of an attack's line, and between the panels
HALVED, COMPLETE, WORST = "#56B4E9", "#0072B2", "#D55E00"
STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#24313b}"
    ".grid{stroke:#8a99a5;stroke-opacity:.35}"
    f".halved{{fill:none;stroke:{HALVED};stroke-width:1.5}}"
    f".complete{{fill:{COMPLETE};fill-opacity:.8}}"
    f".worst{{fill:none;stroke:{WORST};stroke-width:2}}"
    "@media(prefers-color-scheme:dark){svg{background:#12181d}text{fill:#dde5ea}}"
)


def picture(findings: Findings) -> str:
    """The whole file."""
    shown = [tried for tried in findings.trials if tried.outcomes]
    losses = [tried.loss for tried in shown] or [0.0]
    scale = _Scale(min(0.0, *losses), max(0.05, *losses))
    by_attack: dict[str, list[Tried]] = defaultdict(list)
    for tried in shown:
        by_attack[tried.attack["name"]].append(tried)
    order = sorted(by_attack, key=lambda name: -max(tried.loss for tried in by_attack[name]))
    height = 30 + UPPER + GAP + LINE * len(order) + 40
    metric, rule = findings.plan.metric, findings.plan.rule
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
        f"<title>{escape(f'Red team against {rule}')}</title><style>{STYLE}</style>"
        f'<text x="10" y="16">{escape(f"{rule}: {metric} lost by trial (line: the worst so far) and by attack")}'
        " — ● all seeds, ○ given up early</text>"
        + _by_trial(findings, scale)
        + _by_attack(by_attack, order, scale, 30 + UPPER + GAP)
        + "</svg>\n"
    )


class _Scale:
    """Losses → places, with ticks at round numbers."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high

    def share(self, loss: float) -> float:
        return (loss - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """
        >>> _Scale(0.0, 0.5).ticks()
        [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
        """
        rough = (self.high - self.low) / 5
        power = 10 ** math.floor(math.log10(rough))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(step * i, 10) for i in range(first, last + 1)]


def _by_trial(findings: Findings, scale: _Scale) -> str:
    top, width = 30, WIDTH - LEFT - RIGHT
    step = width / max(1, len(findings.trials) - 1)

    def y(loss: float) -> float:
        return top + UPPER * (1 - scale.share(loss))

    drawn = [
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
        f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>'
        for tick in scale.ticks()
    ]
    curve = [(i, worst) for i, worst in enumerate(findings.worst_so_far()) if worst is not None]
    if curve:
        path = f"M{LEFT + step * curve[0][0]:.1f},{y(curve[0][1]):.1f}" + "".join(
            f"H{LEFT + step * i:.1f}V{y(worst):.1f}" for i, worst in curve[1:]
        )
        drawn.append(f'<path class="worst" d="{path}"/>')
    drawn += [
        _dot(tried, LEFT + step * tried.number, y(tried.loss)) for tried in findings.trials if tried.outcomes
    ]
    drawn.append(
        f'<text x="{WIDTH - RIGHT}" y="{top + UPPER + 18}" text-anchor="end">'
        f"trial {len(findings.trials)}</text>"
    )
    return "".join(drawn)


def _by_attack(by_attack: dict[str, list[Tried]], order: list[str], scale: _Scale, top: int) -> str:
    bottom = top + LINE * len(order)

    def x(loss: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * scale.share(loss)

    drawn = [
        f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{top - 8}" y2="{bottom}"/>'
        f'<text x="{x(tick):.1f}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>'
        for tick in scale.ticks()
    ]
    for place, name in enumerate(order):
        y = top + LINE * place + LINE / 2 - 4
        drawn.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(name)}</text>')
        drawn += [_dot(tried, x(tried.loss), y) for tried in by_attack[name]]
    return "".join(drawn)


def _dot(tried: Tried, x: float, y: float) -> str:
    title = escape(f"trial {tried.number + 1}: {tried.name}, lost {tried.loss:.3f}")
    kind = "complete" if tried.state == "complete" else "halved"
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"><title>{title}</title></circle>'
