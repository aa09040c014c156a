"""Write docs/results/fedmed.md, its picture and its tables from run folders: no figure in it is typed by hand.

python docs/tools/write_fedmed.py RUNS…

Works on whatever is finished, and says how many seeds that is.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

from result_pages import FIGURES, attach_table, effort, markdown_table, versions, write_page

from wardround.analysis import Measured, load_runs, measure_all
from wardround.analysis.rendering import Cell, Table, fixed
from wardround.analysis.runs import Run
from wardround.report.figures import PALETTE, Figure
from wardround.report.paper import write_figures

CLIPS = ("none", "percentile", "mad")
HONEST = "nobody lies"
PRESETS = ("fedmed-icu", "fedmed-k-mad")
K_MAD = 3.0
"""The document's choice, which both presets run."""
PAGE = """# FEDMED

## What was asked

FEDMED weighs hospitals by a quality score that they report themselves, q = 1/(loss + ε). What does a hospital gain that
lies about it, and does clipping of the scores take it away? The document claims that clipping by the median absolute
deviation (MAD) works where clipping by percentiles fails, and takes k_mad = 3.

## What came out

![{figure_title}](../figures/fedmed.png)

{figure_title}: the share of all weight that the liars have together, minus what the same hospitals have without lying,
mean over seeds and rounds.

By kind of clipping (k_mad = 3): the share of all weight that the liars have without lying → with it, mean over seeds
and rounds; in brackets the AUROC after the last round, mean ± standard deviation over seeds.

{table}

The same by k_mad:

{sweep}

**Verdict.** {verdict}

## How it was made

{effort}; {versions}. Embedded data (`icu`, 9,105 patients), 20 hospitals, Dirichlet 0.5, power-law sizes, MLP 64–32,
Adam, 50 rounds, seeds {seeds}. Liars train honestly and only lie about their loss: a single one reports a tenth of it,
colluders all report the score at the 95 % quantile of the honest scores.

```sh
wardround matrix fedmed-icu --out runs/fedmed
wardround matrix fedmed-k-mad --out runs/fedmed
python docs/tools/write_fedmed.py runs/fedmed    # this page
```

## Differences from the document

- Updates are in the clear here. Encryption changes no figure but by its rounding (`fedmed-icu-encrypted` runs the same
  with CKKS; a test compares them).
- The document's data and its own figures are not published; there is nothing to put beside ours.
- `k_mad`, `p_lower`, `p_upper` and `epsilon` are parameters of the rule; the percentiles are the document's 5 and 95.

## All tables

{links}
"""


class Weights:
    """The liars' share of all weight, in per cent: with their lies, and in the same run in which nobody lies."""

    def __init__(self, measured: Sequence[Measured]) -> None:
        self.honest = {(_rule(m.run), m.run.seed): m.shares for m in measured if not m.run.byzantine}

    def before(self, m: Measured) -> float | None:
        honest = self.honest.get((_rule(m.run), m.run.seed))
        return None if honest is None or not m.run.byzantine else _together(honest, m.run)

    def lying(self, m: Measured) -> float | None:
        return _together(m.shares, m.run) if m.run.byzantine else None

    def gain(self, m: Measured) -> float | None:
        """In percentage points."""
        before, lying = self.before(m), self.lying(m)
        return None if before is None or lying is None else lying - before


def cell(members: Sequence[Measured], weights: Weights) -> str:
    """The liars' weight without and with their lies, and the AUROC."""
    if not members:
        return "–"
    auroc = _spread([m["auroc"] for m in members], 3)
    before, lying = (_mean([of(m) for m in members]) for of in (weights.before, weights.lying))
    return auroc if before is None or lying is None else f"{before:.0f} → {lying:.0f} % ({auroc})"


def clipping_table(measured: Sequence[Measured], weights: Weights) -> str:
    groups = _by_attack([m for m in measured if _k_mad(m.run) == K_MAD])
    rows = [
        [attack, *(cell([m for m in members if m.run.config["aggregator"]["clip"] == clip], weights) for clip in CLIPS)]
        for attack, members in groups.items()
    ]  # fmt: skip
    return markdown_table(["liars", "no clipping", "percentiles 5–95", "MAD"], rows)


def sweep_table(measured: Sequence[Measured], weights: Weights) -> str:
    swept = _swept(measured)
    values = sorted({_k_mad(m.run) for m in swept})
    rows = [
        [attack, *(cell([m for m in members if _k_mad(m.run) == k], weights) for k in values)]
        for attack, members in _by_attack(swept).items()
    ]
    return markdown_table(["liars", *(f"k_mad {k:g}" for k in values)], rows)


def picture(measured: Sequence[Measured], weights: Weights) -> Figure:
    """Gain in weight against k_mad, one line per kind of liars."""
    swept = [m for m in _swept(measured) if m.run.byzantine]
    traces = []
    for number, (attack, members) in enumerate(_by_attack(swept).items()):
        x = sorted({_k_mad(m.run) for m in members})
        y = [_mean([weights.gain(m) for m in members if _k_mad(m.run) == k]) for k in x]
        colour = PALETTE[number]
        traces.append(
            {"type": "scatter", "mode": "lines", "name": attack, "x": x, "y": y, "line": {"color": colour}}
        )
    axes = {
        "xaxis": {"title": {"text": "k_mad"}},
        "yaxis": {"title": {"text": "gain in weight (percentage points)"}},
    }
    return Figure("fedmed", "What liars gain, by k_mad", "", traces, axes)


def verdict(measured: Sequence[Measured], weights: Weights) -> str:
    """The gains of a single liar and of colluders under each clipping, and where the sweep is lowest."""
    scores = [m for m in measured if _k_mad(m.run) == K_MAD and m.run.byzantine]
    parts = []
    for colludes, who in (
        (False, "liars who inflate their scores"),
        (True, "colluders inside the honest range"),
    ):
        chosen = [m for m in scores if bool(m.run.config["attack"]["collude"]) == colludes]
        gained = {
            clip: _mean([weights.gain(m) for m in chosen if m.run.config["aggregator"]["clip"] == clip])
            for clip in CLIPS
        }
        said = ", ".join(f"{_points(value)} with {clip}" for clip, value in gained.items() if clip != "none")
        parts.append(f"{who} gain {_points(gained['none'])} points of weight without clipping, {said}")
    honest = {
        clip: _spread(
            [m["auroc"] for m in measured if not m.run.byzantine and _rule(m.run) == (clip, K_MAD)], 3
        )
        for clip in CLIPS
    }
    return (
        f"Averaged over the shares of liars, {parts[0]}; {parts[1]}. So no clipping takes the gain away. What MAD "
        f"clipping is good for is the model: where nobody lies, the AUROC is {honest['mad']} with it, "
        f"{honest['percentile']} with percentiles and {honest['none']} without, because a hospital with patients of "
        "one class has a loss near zero and would outweigh all others."
    )


def gain_of_runs(measured: Sequence[Measured], weights: Weights) -> Table:
    rows: list[list[Cell]] = [
        [_attack(m.run), m.run.config["aggregator"]["clip"], _k_mad(m.run), m.run.seed,
         weights.lying(m), weights.gain(m), m["auroc"], m["accuracy"]]
        for m in sorted(measured, key=lambda m: (_attack(m.run), m.run.method, m.run.seed))
    ]  # fmt: skip
    columns = ["liars", "clip", "k_mad", "seed", "liars' weight, %", "gain, points", "AUROC", "accuracy"]
    return Table("runs", "Every run", columns, rows, words=2)


def page(measured: Sequence[Measured]) -> str:
    weights = Weights(measured)
    figure = picture(measured, weights)
    write_figures([figure], FIGURES, ["png"], dpi=110)
    runs = [m.run for m in measured]
    return PAGE.format(
        figure_title=figure.title,
        table=clipping_table(measured, weights),
        sweep=sweep_table(measured, weights),
        verdict=verdict(measured, weights),
        effort=effort(runs),
        versions=versions(runs),
        seeds=", ".join(map(str, sorted({run.seed for run in runs}))),
        links=f"- {attach_table('fedmed', gain_of_runs(measured, weights))}",
    )


def _by_attack(measured: Sequence[Measured]) -> dict[str, list[Measured]]:
    """By kind of liars, the honest runs first."""
    groups: dict[str, list[Measured]] = defaultdict(list)
    for m in sorted(measured, key=lambda m: (_colludes(m.run), len(m.run.byzantine))):
        groups[_attack(m.run)].append(m)
    return dict(groups)


def _attack(run: Run) -> str:
    if not run.byzantine:
        return HONEST
    share = round(100 * len(run.byzantine) / len(run.record["clients"]))
    return f"{share} % collude" if _colludes(run) else f"{share} % inflate"


def _colludes(run: Run) -> bool:
    return bool(run.byzantine) and bool(run.config["attack"]["collude"])


def _swept(measured: Sequence[Measured]) -> list[Measured]:
    """Runs with MAD clipping against the liars that several values of k_mad met."""
    clipped = [m for m in measured if m.run.config["aggregator"]["clip"] == "mad"]
    met = {(_attack(m.run), _k_mad(m.run)) for m in clipped}
    return [m for m in clipped if sum(attack == _attack(m.run) for attack, _ in met) > 1]


def _rule(run: Run) -> tuple[str, float]:
    return run.config["aggregator"]["clip"], _k_mad(run)


def _k_mad(run: Run) -> float:
    return float(run.config["aggregator"]["k_mad"])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _spread(values: Sequence[float | None], digits: int) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    return fixed(fmean(known), digits) + (f" ± {fixed(stdev(known), digits)}" if len(known) > 1 else "")


def _points(value: float | None) -> str:
    return "–" if value is None else fixed(value, 1)


def _together(shares: Mapping[str, float], run: Run) -> float:
    """The weight of a run's Byzantine clients in per cent, from multiples of an equal share."""
    return 100 * sum(shares[name] for name in run.byzantine) / len(run.record["clients"])


def main() -> None:
    runs = load_runs([Path(argument) for argument in sys.argv[1:]])
    measured = measure_all([run for run in runs if run.config["name"] in PRESETS])
    print(f"{write_page('fedmed', page(measured))}: {len(measured)} runs")


if __name__ == "__main__":
    main()
