"""Write docs/results/dos.md, its tables and its pictures from run folders: no figure in it is typed by hand.

python docs/tools/write_dos.py RUNS…

Works on whatever is finished, and says how many seeds that is.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from dos_figures import draw_figure_3, draw_figure_4
from result_pages import attach_table, effort, markdown_table, versions, write_page

from wardround.analysis import load_runs
from wardround.analysis.measures import Measured, measure_all
from wardround.analysis.rendering import Cell, Table, fixed
from wardround.analysis.runs import Run
from wardround.protocols.dos.published import (
    AVERAGES,
    CLIENTS,
    CRAFTED,
    CRAFTED_FINAL,
    FIGURE_4,
    METHODS,
    PROPORTION,
    RULE,
    SCENARIOS,
    TABLE_1,
    attacker_share,
    dos_tables,
    figure_4_scenario,
    table_1_scenario,
)
from wardround.runs.config import load_config
from wardround.runs.runner import load_dataset

SKIN, LUNGS = "ham10000", "chestxray8"
HOLDS = 0.05
"""AUC that an attack may cost a rule that is said to hold it."""
PAPERS_CLAIM = "The paper's statement, that DOS holds to 50 % and fails at 60 %, {outcome}."
PAGE = """# DOS

## What was asked

Alkhunaizi et al. (MICCAI 2022) weigh clients by how far their models are from the others' (Euclidean and cosine
distance, COPOD, softmax). They claim that this rule, without a parameter, holds noise, scaled models, flipped labels
and a crafted model, up to one half of the clients. Does it on real images, beside FedAvg, median, trimmed mean and
Krum?

## What came out

![AUC and weights over the rounds on HAM10000](../figures/dos-figure-4.svg)

The paper's figure 4 on HAM10000: AUC of DOS on the test images after each round (seed {seed}), and the weight of every
client in its three scenarios, attackers in orange-red. [Figure 3](#chest-x-rays) is below.

DOS on HAM10000 when a growing share of ten clients sends noise, and when 40 % of a growing number of clients do. AUC
(Hand and Till) after the last round, mean over {skin_seeds}{skin_spread}:

{answers}

All rules in the three scenarios of figure 4, AUC after the last round:

{figure_4}

**Verdict.** {verdict}

## Chest X-rays

![AUC of five rules and the weights of DOS in six scenarios](../figures/dos-figure-3.svg)

The paper's figure 3: AUC of all rules in its six scenarios, the clean one first, and the weight that DOS gives every
client (seed {seed}).

Its table 1, AUC averaged over all rounds, mean over {lung_seeds}; in brackets what the paper prints for CheXpert. The
crafted attack's figure is the one after the last round.

{table_1}

{lungs_verdict}

## How it was made

{effort}. {versions}.

```sh
wardround data prepare ham10000 --source DIR size={skin_size}
wardround data prepare chestxray8 --source DIR size={lung_size}
SKIN="{skin_command}"
LUNGS="{lung_command}"
for preset in dos-ham10000 dos-proportion dos-clients; do
  wardround matrix $preset --out runs/dos $SKIN
done
wardround matrix dos-chestxray --out runs/dos $LUNGS
python docs/tools/write_dos.py runs/dos    # this page
```

Without the overrides the presets are the paper's: on skin 128 × 128 pixels, 250 rounds, five local passes in
whole-client batches at a learning rate of 0.01; on X-rays 224 × 224 pixels, ResNet-18, 100 rounds.

## Differences from the paper

In brackets: how to have it as the paper does.

- **Skin images**: {skin_images} of the 10,015, which could be had, at {skin_size} × {skin_size} pixels; the paper has
  128 × 128 (`dataset.size=128`).
- **Split of HAM10000**: 70/10/20 % by lesion, so that no lesion is on both sides; the paper has 8,910 images to train
  on and 1,105 to test on (`dataset.split=image`). A client has about {share} images here, fewer than the batch of 890.
- **How clients differ**: the paper has a picture and no numbers; here Dirichlet with α 0.5 and equal sizes.
- **Training on skin**: {skin_training}; the paper: batches of 890, five passes, learning rate 0.01, 250 rounds
  (the presets). The paper says itself that the size of the batch does not matter to DOS; small batches make as many
  steps in fewer passes, and fewer steps want a higher learning rate.
- **Chest X-rays**: {lung_images} of the NIH's with 14 findings at {lung_size} × {lung_size} pixels; the paper:
  CheXpert, 191,456 images, 13 findings, 224 × 224 (preset `dos-chexpert`).
- **Training on X-rays**: `{lung_model}`, {lung_training}; the paper: ResNet-18, batches of 16, one pass, learning rate
  0.01, 100 rounds (the presets). Learning rate and rounds were chosen by the AUC of one clean run of DOS with seed 0 on
  the test images (0.05 and 20 rounds stalled).
- **Normalisation of X-rays**: ImageNet's mean and deviation as grey; the paper: TorchXRayVision's, −1024 to 1024
  (`dataset.normalise=torchxrayvision`).
- **Dense layers of the CNN**: three, as in the authors' code; two in the paper's text (`model.dense=[120]`).
- **f of Krum and trimmed mean**: the true number of attackers; Krum at most 3, which is the most that it is sound for
  with ten clients (N ≥ 2f + 3). The paper does not say. Its trimmed mean holds noise by two of ten and breaks under
  noise by four. With f = 4 it averages the two middle values, which are among the honest ones; so the paper's f was
  two or three.
- **Noise**: standard deviation 1 in place of the parameters; the paper does not say. Nor does it name the attack by
  share and by number of clients: here noise.
- **Seeds**: {seeds}; the paper does not say.

AUC on other data, at other sizes and after less training cannot be compared as such. What can be compared is which
rule breaks under which attack.

## All tables

{attachments}
"""


def main(folders: Sequence[str]) -> None:
    runs = [run for run in load_runs([Path(folder) for folder in folders]) if run.finished]
    measured = measure_all(runs)
    skin = [m for m in measured if m.run.config["dataset"]["name"] == SKIN]
    lungs = [m for m in measured if m.run.config["dataset"]["name"] == LUNGS]
    if not skin or not lungs:
        raise SystemExit(
            f"finished runs of {SKIN} and of {LUNGS} are needed; got {len(skin)} and {len(lungs)}"
        )
    seed = min(m.run.seed for m in measured)
    draw_figure_4([m.run for m in skin if m.run.seed == seed])
    draw_figure_3([m.run for m in lungs if m.run.seed == seed])
    tables = [*dos_tables(measured), runs_table(measured)]
    text = PAGE.format(
        seed=seed,
        skin_seeds=seeds_of(skin),
        skin_spread=spread_of(skin),
        lung_seeds=seeds_of(lungs),
        answers=answers(skin),
        figure_4=figure_4_table(skin),
        verdict=verdict(skin),
        table_1=table_1(lungs),
        lungs_verdict=lungs_verdict(lungs),
        effort=effort(runs),
        versions=versions(runs),
        skin_command=overrides(skin),
        lung_command=overrides(lungs),
        skin_size=skin[0].run.config["dataset"]["size"],
        lung_size=lungs[0].run.config["dataset"]["size"],
        skin_images=images(skin[0].run),
        lung_images=images(lungs[0].run),
        skin_training=training(skin),
        lung_training=training(lungs),
        lung_model=lungs[0].run.config["model"]["name"],
        share=round(fmean(sum(held) for held in ten_clients(skin).record["clients"].values())),
        seeds=f"{seeds_of(skin)} on skin, {seeds_of(lungs)} on X-rays",
        attachments="\n".join(f"- {attach_table('dos', own_key(table))}" for table in tables),
    )
    print(write_page("dos", text))


def images(run: Run) -> str:
    """How many images its prepared dataset has."""
    return f"{load_dataset(load_config(run.config)).facts['images']:,}"


def seeds_of(measured: Sequence[Measured]) -> str:
    count = len({m.run.seed for m in measured})
    return "one seed" if count == 1 else f"{count} seeds"


def spread_of(measured: Sequence[Measured]) -> str:
    return " (in brackets the lowest and the highest)" if len({m.run.seed for m in measured}) > 1 else ""


def ten_clients(measured: Sequence[Measured]) -> Run:
    return next(m.run for m in measured if len(m.run.record["clients"]) == 10)


def training(measured: Sequence[Measured]) -> str:
    """Batch, passes, learning rate and rounds of these runs."""
    config = measured[0].run.config
    own = config["training"]
    passes = "one pass" if own["epochs"] == 1 else f"{own['epochs']} passes"
    return (
        f"batches of {own['batch_size']}, {passes}, learning rate {own['lr']:g}, {config['rounds']} rounds, "
        f"{own['precision']}"
    )


def overrides(measured: Sequence[Measured]) -> str:
    """What was said behind the preset's name."""
    config = measured[0].run.config
    own = config["training"]
    seeds = sorted({m.run.seed for m in measured})
    model = f"model.name={config['model']['name']} " if config["dataset"]["name"] == LUNGS else ""
    return (
        f"dataset.size={config['dataset']['size']} {model}training.batch_size={own['batch_size']} "
        f"training.epochs={own['epochs']} training.lr={own['lr']:g} training.precision={own['precision']} "
        f"rounds={config['rounds']} seeds=[{','.join(map(str, seeds))}]"
    )


def last_of(measured: Sequence[Measured], method: str, share: int, clients: int) -> list[float]:
    """AUC after the last round where so many per cent of so many clients send noise, one per seed."""
    return [
        value
        for m in measured
        if m.run.config["aggregator"]["name"] == method
        and m.run.config["attack"]["name"] in ("noise", "none")
        and (attacker_share(m.run), len(m.run.record["clients"])) == (share, clients)
        and (value := m["auroc"]) is not None
    ]


def cell(values: Sequence[float]) -> str:
    if not values:
        return "–"
    span = f" ({fixed(min(values))} to {fixed(max(values))})" if len(values) > 1 else ""
    return f"{fixed(fmean(values))}{span}"


def answers(skin: Sequence[Measured]) -> str:
    """The figures that the paper gives in its text, beside ours."""
    points = [(f"{share} % of 10 clients", share, 10, printed) for share, printed in PROPORTION.items()]
    points[0] = ("nobody of 10 clients", *points[0][1:])
    points += [(f"40 % of {count} clients", 40, count, printed) for count, printed in CLIENTS.items()]
    rows = [
        [name, f"{printed:.3f}", *(cell(last_of(skin, method, share, count)) for method in (RULE, "fedavg"))]
        for name, share, count, printed in points
    ]
    return markdown_table(["sending noise", "paper, DOS", "DOS", "FedAvg"], rows)


def figure_4_table(skin: Sequence[Measured]) -> str:
    ten = [m for m in skin if len(m.run.record["clients"]) == 10]
    rows = [
        [
            name,
            *(
                cell(
                    [
                        value
                        for m in ten
                        if m.run.config["aggregator"]["name"] == method
                        and figure_4_scenario(m.run) == scenario
                        and (value := m["auroc"]) is not None
                    ]
                )
                for scenario in FIGURE_4
            ),
        ]
        for method, name in METHODS.items()
    ]
    return markdown_table(["", *FIGURE_4], rows)


def verdict(skin: Sequence[Measured]) -> str:
    """What the table says, in words."""
    means = {share: fmean(values) for share in PROPORTION if (values := last_of(skin, RULE, share, 10))}
    clean = means[0]
    held = [share for share, value in means.items() if share and clean - value <= HOLDS]
    lost = [share for share, value in means.items() if share and clean - value > HOLDS]
    undefended = last_of(skin, "fedavg", 10, 10)
    said = [
        f"Without attack DOS has an AUC of {fixed(clean)} (FedAvg {cell(last_of(skin, 'fedavg', 0, 10))})"
    ]
    if held:
        said.append(f"it loses at most {HOLDS:g} under noise by {_listed(held)} % of the clients")
    if lost:
        said.append(f"more by {_listed(lost)} % ({_listed([fixed(means[share]) for share in lost])})")
    if undefended:
        said.append(f"while FedAvg has {cell(undefended)} with a single sender of noise")
    return (
        "; ".join(said)
        + ". "
        + PAPERS_CLAIM.format(
            outcome="holds here"
            if max(held, default=0) >= 50 and 60 in lost
            else "does not hold in this form here"
        )
    )


def _listed(values: Sequence[object]) -> str:
    *first, last = map(str, values)
    return f"{', '.join(first)} and {last}" if first else last


def by_scenario(lungs: Sequence[Measured]) -> dict[tuple[str, str], list[float]]:
    """Rule and scenario → AUC of every seed: mean over the rounds; of the crafted attack after the last one."""
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    for m in lungs:
        scenario = table_1_scenario(m.run)
        if (
            scenario is not None
            and (value := m["auroc" if scenario == CRAFTED else "mean_auroc"]) is not None
        ):
            values[m.run.config["aggregator"]["name"], scenario].append(value)
    return values


def table_1(lungs: Sequence[Measured]) -> str:
    values = by_scenario(lungs)
    rows = []
    for method, name in METHODS.items():
        ours = [values[method, scenario] for scenario in SCENARIOS]
        average = fmean(fmean(own) for own in ours) if all(ours) else None
        printed = [f"{value:.2f}" for value in TABLE_1[method]]
        crafted = CRAFTED_FINAL.get(method)
        rows.append(
            [
                name,
                *(
                    f"{fixed(fmean(own)) if own else '–'} ({paper})"
                    for own, paper in zip(ours, printed, strict=True)
                ),
                f"{'–' if average is None else fixed(average)} ({AVERAGES[method]:.2f})",
                f"{cell(values[method, CRAFTED])} ({'–' if crafted is None else f'{crafted:.2f}'})",
            ]
        )
    return markdown_table(["", *SCENARIOS, "Avg", CRAFTED], rows)


def lungs_verdict(lungs: Sequence[Measured]) -> str:
    """Who breaks where."""
    values = by_scenario(lungs)
    broken: dict[str, list[str]] = {}
    for method, name in METHODS.items():
        clean = values[method, SCENARIOS[0]]
        losing = [
            scenario
            for scenario in SCENARIOS[1:]
            if clean and values[method, scenario] and fmean(clean) - fmean(values[method, scenario]) > HOLDS
        ]
        if losing:
            broken[name] = losing
    said = [f"{name} under {_listed(scenarios)}" for name, scenarios in broken.items()]
    kept = [name for name in METHODS.values() if name not in broken]
    return (
        f"**Verdict.** More than {HOLDS:g} of AUC against their own clean runs lose: {'; '.join(said) or 'nobody'}. "
        f"{_listed(kept) if kept else 'None'} {'does' if len(kept) < 2 else 'do'} not."
    )


def runs_table(measured: Sequence[Measured]) -> Table:
    """Every run in a row."""
    rows: list[list[Cell]] = [
        [
            m.run.config["dataset"]["name"], len(m.run.record["clients"]), m.run.attack,
            m.run.config["aggregator"]["name"], m.run.config["aggregator"].get("f"), m.run.seed,
            m["auroc"], m["mean_auroc"], _attackers_weight(m),
        ]
        for m in measured
    ]  # fmt: skip
    columns = ["dataset", "clients", "attack", "rule", "f", "seed", "AUC, last round", "AUC, mean over rounds",
               "attackers' weight, mean over rounds"]  # fmt: skip
    return Table("dos-runs", "Every run", columns, sorted(rows, key=str), words=4)


def _attackers_weight(m: Measured) -> float | None:
    """The share of the aggregate that all attackers have together; None where the rule has no shares."""
    weights = [record.weight for record in m.run.clients if record.client in m.run.byzantine]
    if not weights or any(weight is None for weight in weights):
        return None
    return sum(weight for weight in weights if weight is not None) / len(m.run.rounds)


def own_key(table: Table) -> Table:
    """The table under a key without the paper's name, which opens the names of all its files."""
    return replace(table, key=table.key.removeprefix("dos-"))


if __name__ == "__main__":
    main(sys.argv[1:])
