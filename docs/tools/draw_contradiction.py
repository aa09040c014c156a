"""Draw docs/figures/caac-guard-contradiction.svg: a first round's rows in their plane, honest and with six reversed.

python docs/tools/draw_contradiction.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from torch import Tensor

from wardround.aggregators.caac_guard.contradiction import find_contradicting, output_bias_steps
from wardround.experiments import load_config
from wardround.runs.runner import build
from wardround.threads import one_thread
from wardround.updates import Updates

PICTURE = Path(__file__).parents[1] / "figures" / "caac-guard-contradiction.svg"
CONFIG = {
    "dataset": {"name": "synthetic", "samples": 6000},
    "partition": {"name": "dirichlet", "clients": 20, "alpha": 0.3, "sizes": "power-law"},
    "model": {"name": "mlp", "hidden": [64, 32]},
    "training": {"optimizer": "adam", "lr": 0.001, "batch_size": 32, "epochs": 1},
    "aggregator": {"name": "fedavg"},
    "rounds": 1,
    "seed": 113,
}
ATTACK = {"name": "sign-flip", "scale": 1, "fraction": 0.3}
BLUE, ORANGE, RED, GREY = "#2b6cb0", "#c05621", "#c53030", "#718096"


def first_round(attack: dict[str, object]) -> tuple[Updates, set[str]]:
    """What the clients sent in the first round, and who of them attacks."""
    with one_thread():
        federation = build(load_config({**CONFIG, "attack": attack}, "picture"), workers=1)
        sent: list[Updates] = []
        combine = federation.rule.combine
        federation.rule.combine = lambda updates, context: (sent.append(updates), combine(updates, context))[
            1
        ]
        federation.step(1)
    return sent[0], set(federation.campaign.byzantine)


def draw(axes: Axes, updates: Updates, attackers: set[str], title: str, basis: Tensor | None) -> Tensor:
    """Arrows in the plane of the two leading eigenvectors; returns the plane, so that both pictures share it."""
    rows = updates.matrix.double() / updates.norms[:, None]
    if basis is None:
        basis = torch.linalg.svd(rows, full_matrices=False).Vh[:2]
    bias_steps = output_bias_steps(updates)
    assert bias_steps is not None
    contradiction = find_contradicting(rows @ rows.T, bias_steps)
    assert contradiction is not None
    columns = (rows @ basis.T).tolist(), bias_steps.tolist(), contradiction.accused.tolist()
    for client, (x, y), bias_step, accused in zip(updates.clients, *columns, strict=True):
        colour = BLUE if bias_step < 0 else ORANGE
        axes.annotate("", (x, y), (0, 0), arrowprops={"arrowstyle": "->", "color": colour, "lw": 1.4})
        if accused:
            axes.plot(x, y, "o", mfc="none", mec=RED, ms=11, mew=1.6)
        if client in attackers:
            axes.plot(x, y, "x", color=RED, ms=6, mew=1.6)
    axes.add_patch(plt.Circle((0, 0), 1, fill=False, color=GREY, lw=0.6, ls=":"))
    axes.set(xlim=(-1.15, 1.15), ylim=(-1.15, 1.15), aspect="equal", title=title, xticks=[], yticks=[])
    return basis


def main() -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4.9))
    basis = draw(left, *first_round({"name": "none"}), "all honest: the rows share a half-plane", None)
    draw(right, *first_round(ATTACK), "six reversed: they are on the other side", basis)
    handles = [
        plt.Line2D([], [], color=BLUE, label="pulls the output bias down"),
        plt.Line2D([], [], color=ORANGE, label="pulls it up"),
        plt.Line2D([], [], ls="", marker="x", color=RED, label="reversed"),
        plt.Line2D([], [], ls="", marker="o", mfc="none", mec=RED, ms=9, label="named"),
    ]
    figure.legend(handles=handles, loc="lower center", ncols=4, frameon=False)
    figure.subplots_adjust(left=0.02, right=0.98, top=0.92, bottom=0.1, wspace=0.05)
    figure.savefig(PICTURE, metadata={"Date": None})
    print(PICTURE)


if __name__ == "__main__":
    main()
