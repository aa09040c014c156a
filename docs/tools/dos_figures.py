"""The DOS paper's figures 3 and 4 from runs: AUC over the rounds, and the weight of every client."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from result_pages import FIGURES

from wardround.analysis.runs import Run
from wardround.protocols.dos.published import (
    CRAFTED,
    FIGURE_4,
    METHODS,
    RULE,
    SCENARIOS,
    figure_4_scenario,
    table_1_scenario,
)
from wardround.report.figures import ATTACKER, BENIGN, PALETTE

GREY, BLACK = "#e3e8ec", "#222222"


def draw_figure_3(runs: Sequence[Run]) -> None:
    """Six panels of AUC with all rules, and six of the weights that DOS gives."""
    scenarios = (*SCENARIOS, CRAFTED)
    figure, rows = plt.subplots(4, 3, figsize=(9.5, 9.5), sharex=True, layout="constrained")
    curves, weights = rows[:2].ravel(), rows[2:].ravel()
    for scenario, above, below in zip(scenarios, curves, weights, strict=True):
        own = {run.config["aggregator"]["name"]: run for run in runs if table_1_scenario(run) == scenario}
        for number, (method, name) in enumerate(METHODS.items()):
            if method in own:
                ours = method == RULE
                colour = BLACK if ours else PALETTE[number]
                above.plot(*_curve(own[method]), color=colour, linewidth=1.8 if ours else 1.2, label=name)
        above.set_title(scenario, fontsize=9)
        _draw_weights(below, own.get(RULE), f"weights, {scenario}")
    _share_scale(curves, "AUC (test)")
    _share_scale(weights, "weight")
    handles, labels = curves[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False, fontsize=9)
    _save(figure, "dos-figure-3")


def draw_figure_4(runs: Sequence[Run]) -> None:
    """AUC of DOS in three scenarios, and its weights in each."""
    figure, rows = plt.subplots(2, 2, figsize=(9.5, 5.4), sharex=True, layout="constrained")
    above, *weights = rows.ravel()
    for number, (scenario, below) in enumerate(zip(FIGURE_4, weights, strict=True)):
        own = [
            run
            for run in runs
            if figure_4_scenario(run) == scenario
            and run.config["aggregator"]["name"] == RULE
            and len(run.record["clients"]) == 10
        ]
        run = own[0] if own else None
        if run is not None:
            above.plot(*_curve(run), color=PALETTE[number], linewidth=1.5, label=scenario)
        _draw_weights(below, run, f"weights, {scenario}")
    above.legend(frameon=False, fontsize=8, loc="lower right")
    above.set_title("DOS", fontsize=9)
    _share_scale([above], "AUC (test)")
    _share_scale(weights, "weight")
    _save(figure, "dos-figure-4")


def _curve(run: Run) -> tuple[list[int], list[float]]:
    return [number for number, _ in run.curve], [value for _, value in run.curve]


def _draw_weights(axes: Axes, run: Run | None, title: str) -> None:
    """One line per client, attackers on top."""
    axes.set_title(title, fontsize=9)
    if run is None:
        axes.text(0.5, 0.5, "not run", transform=axes.transAxes, ha="center")
        return
    records = run.clients
    for client in sorted({record.client for record in records}, key=lambda name: name in run.byzantine):
        own = [record for record in records if record.client == client and record.weight is not None]
        attacks = client in run.byzantine
        axes.plot(
            [record.round for record in own],
            [record.weight for record in own],
            color=ATTACKER if attacks else BENIGN,
            linewidth=1.4 if attacks else 0.8,
        )


def _share_scale(panels: Sequence[Axes], label: str) -> None:
    """The same range for all of these panels, so that they can be compared."""
    limits = [panel.get_ylim() for panel in panels]
    for panel in panels:
        panel.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
        panel.grid(color=GREY, linewidth=0.6)
        panel.tick_params(labelsize=8)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.set_xlabel("round", fontsize=8)
        panel.set_ylabel(label, fontsize=8)
        for spine in ("top", "right"):
            panel.spines[spine].set_visible(False)


def _save(figure: Figure, name: str) -> None:
    FIGURES.mkdir(exist_ok=True)
    matplotlib.rcParams["svg.hashsalt"] = "wardround"  # the same bytes for the same runs
    figure.savefig(FIGURES / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)
