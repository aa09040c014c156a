"""Write docs/results/fedbnp.md, its picture and its tables from run folders: no figure in it is typed by hand.

python docs/tools/write_fedbnp.py RUNS…

Works on whatever is finished, and says how many seeds that is. The table of the presets `fedbnp-quality-*` is only
written anew where their runs are among the folders.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev

from result_pages import (
    FIGURES,
    TABLES,
    attach_table,
    attach_text,
    effort,
    markdown_table,
    versions,
    write_page,
)

from wardround.analysis import Measured, load_runs, measure_all
from wardround.analysis.rendering import Cell, Table, fixed
from wardround.analysis.runs import Run
from wardround.protocols.fedbnp.statistics import accuracy_table, detection_table
from wardround.report.figures import Figure
from wardround.report.paper import write_figures

RULES = ("fedavg", "fedprox", "fedbn", "rl", "fedbnp", "fedbnp-sharp", "caac-guard")
DETECTORS = ("rl", "fedbnp", "fedbnp-sharp", "caac-guard")
ATTACKS = ("none", "scaling", "partial-scaling", "sign-flip", "additive-noise", "label-flip")
DATA = {"alzheimer-mri": "Alzheimer MRI", "mnist": "MNIST"}
MAIN = "α 0.5"
SHARP = "fedbnp-sharp"
PARTITIONS = ("α 0.1", MAIN, "α 1", "iid", "label-skew", "quantity-skew")
SCALE = [[0.0, "#FFFFFF"], [1.0, "#0072B2"]]
QUALITY = "fedbnp-quality"
QUALITY_TITLE = "Detection on ICU deaths and pneumonia"
SETTINGS = {
    "fedbnp-quality-icu": "`icu`: 20 hospitals, Dirichlet 0.5, MLP, 20 rounds, 6 Byzantine from the first round",
    "fedbnp-quality-pneumonia": "MedMNIST pneumonia: 10 hospitals, Dirichlet 0.5, medical CNN of width 8, 10 rounds, "
    "3 Byzantine from the first round",
}
QUALITY_NOTE = """\
30 % Byzantine clients, each of the FedBNP document's five attacks and none, 200 root samples. Rates are over
client-rounds; AUROC and accuracy are those of the global model on the test split after the last round. All are means
over the finished seeds, which the second column counts. The detector was tuned on seeds from 100 on.

```sh
wardround matrix fedbnp-quality-icu --out runs/fedbnp
wardround matrix fedbnp-quality-pneumonia --out runs/fedbnp    # pneumoniamnist.npz in the working directory
python docs/tools/write_fedbnp.py runs/fedbnp
```
"""
PAGE = """# FedBNP

## What was asked

The FedBNP document's section III-G: with six of twenty clients attacking in one of five ways, does its rule
([how it works](../fedbnp.md)) find the attackers, and is the model's accuracy better than that of FedAvg, FedProx and
FedBN? `fedbnp` is the rule as written, `fedbnp-sharp` the same detector with verdicts that decide, `rl` the agent
alone; `caac-guard` is ours, for comparison.

## What came out

![{figure_title}](../figures/fedbnp.png)

{figure_title}: test accuracy after the last round, mean ± deviation (number of seeds) where
there are several, – where not run. The most frequent class is {majority} of the
slices.

{table}

*Precision / recall* of the flags over client-rounds:

{detection}

The document's authors verified, for Alzheimer's MRI with a ResNet-18 and over all their attacks: precision 43 → 75 %,
recall 100 %, accuracy 97.2 → 96.9 %.

**Verdict.** {verdict}

Other ways to share out the slices: test accuracy after the last round (– where not run), and precision / recall of
`fedbnp-sharp`:

{partitions}

## How it was made

{effort}; {versions}. {seeds}

```sh
wardround data prepare alzheimer-mri --source DIR size=28     # the folder: see datasets.md
wardround data prepare mnist --source DIR
SMALL="dataset.augment=false training.lr=0.05"
wardround matrix fedbnp-alzheimer --out runs/fedbnp $SMALL dataset.size=28 rounds=30 'model={{name: mlp, hidden: [64]}}'
wardround matrix fedbnp-mnist --out runs/fedbnp $SMALL training.epochs=1 rounds=10 'model={{name: mlp, hidden: [64]}}'
python docs/tools/write_fedbnp.py runs/fedbnp    # this page
```

The rules that practise ran with `aggregator.vae_max_dim=1024 aggregator.learn_every=30` (defaults: 4096 and 10), in a
command of their own with `axes.aggregator.name=[fedbnp-sharp]`: a third of the practice.

These commands run every partition, rule and seed; the tables have what was run, with the number of seeds. To run a
part: `partition.name=dirichlet partition.alpha=0.5 partition.sizes=equal`, `seeds=[42]`,
`axes.aggregator.name=[fedavg,fedbnp]`. The partitions other than Dirichlet 0.5 ran with `rounds=10 evaluate_every=5`.

## Differences from the document

- Slices have 28 × 28 pixels (the document: 224 × 224) and no augmentation, the network is dense with 64 hidden units
  (the document: a CNN with BatchNorm, and a ResNet-18), with 30 rounds at a learning rate of 0.05 (100 at 0.01),
  and 10 rounds for the other partitions. So accuracy is far below the document's, for every rule. The comparison of
  rules and the detection are what can be read.
- The network has no BatchNorm: `fedbn` is `fedavg`, and `fedbnp` keeps nothing at home.
- MNIST: one local epoch, 10 rounds.
- The release of the slices has no subject ids: slices of one brain are in training and in test. The figures say nothing
  about new patients.
- CIFAR-10 was not run. The document's 5-fold assignment is the preset `fedbnp-alzheimer-folds`, whose folds are
  pooled in the t-tests; it was not run here.

## All tables

{links}
"""


def main() -> None:
    runs = [run for run in load_runs([Path(argument) for argument in sys.argv[1:]]) if run.finished]
    quality = [run for run in runs if run.config["name"] in SETTINGS]
    if quality:
        attach_text(QUALITY, QUALITY_TITLE, quality_tables(quality))
    measured = measure_all([run for run in runs if run.config["dataset"]["name"] in DATA])
    print(f"{write_page('fedbnp', page(measured))}: {len(measured)} runs")


def page(measured: Sequence[Measured]) -> str:
    runs = [m.run for m in measured]
    figure = picture(measured)
    write_figures([figure], FIGURES, ["png"], dpi=110)
    tables = [
        attach_table("results", accuracy_table(measured, rule)) for rule in (SHARP,)
    ] + [attach_table("results", detection_table(measured)), attach_table("fedbnp", every_run(measured))]  # fmt: skip
    if (TABLES / f"{QUALITY}.md").exists():
        tables.append(f"[{QUALITY_TITLE}](tables/{QUALITY}.md): other data, five seeds")
    return PAGE.format(
        figure_title=figure.title,
        majority=_percent(_majority(runs)),
        table=accuracy_by_attack(measured),
        detection=rates_by_attack(measured),
        verdict=verdict(measured),
        partitions=accuracy_by_partition(measured),
        effort=effort(runs),
        versions=versions(runs),
        seeds=_seeds(measured),
        links="\n".join(f"- {link}" for link in tables),
    )


def picture(measured: Sequence[Measured]) -> Figure:
    """Accuracy of each rule under each attack, on the slices at Dirichlet 0.5."""
    cells = _cells(measured, "accuracy")
    first = next(iter(DATA))
    rules = [rule for rule in RULES if any((first, MAIN, attack, rule) in cells for attack in ATTACKS)][::-1]
    z = [[_mean(cells.get((first, MAIN, attack, rule), [])) for attack in ATTACKS] for rule in rules]
    known = [value for row in z for value in row if value is not None]
    trace = {
        "type": "heatmap", "x": list(ATTACKS), "y": rules, "z": z, "zmin": 0.0, "zmax": max(known),
        "colorscale": SCALE, "text": [["" if v is None else fixed(v) for v in row] for row in z],
        "colorbar": {"title": {"text": "accuracy"}},
    }  # fmt: skip
    return Figure("fedbnp", f"{DATA[first]}, Dirichlet 0.5, 6 of 20 clients attack", "", [trace], {})


def accuracy_by_attack(measured: Sequence[Measured]) -> str:
    cells = _cells(measured, "accuracy")
    rows = []
    for data, title in DATA.items():
        for attack in ATTACKS:
            values = [cells.get((data, MAIN, attack, rule), []) for rule in RULES]
            if any(values):
                rows.append([title, attack, *map(_spread, values)])
    return markdown_table(["data", "attack", *(f"`{rule}`" for rule in RULES)], rows, words=2)


def rates_by_attack(measured: Sequence[Measured]) -> str:
    precision, recall = _cells(measured, "flag_precision"), _cells(measured, "flag_tpr")
    false_alarms = _cells(measured, "flag_fpr")
    rows = []
    for data, title in DATA.items():
        for attack in ATTACKS:
            keys = [(data, MAIN, attack, rule) for rule in DETECTORS]
            if not any(false_alarms.get(key) for key in keys):
                continue
            if attack == "none":
                rates = [_mean(false_alarms.get(key, [])) for key in keys]
                cells = ["–" if rate is None else f"FPR {_two(rate)}" for rate in rates]
            else:
                pairs = [(_mean(precision.get(key, [])), _mean(recall.get(key, []))) for key in keys]
                cells = ["–" if found is None else f"{_two(hit)} / {_two(found)}" for hit, found in pairs]
            rows.append([title, attack, *cells])
    return markdown_table(["data", "attack", *(f"`{rule}`" for rule in DETECTORS)], rows, words=2)


def accuracy_by_partition(measured: Sequence[Measured]) -> str:
    """Accuracy of every rule that ran on another partition, and what the document's rule found there."""
    others = [m for m in measured if _data(m.run) == next(iter(DATA)) and _partition(m.run) != MAIN]
    cells, precision, recall = (_cells(others, name) for name in ("accuracy", "flag_precision", "flag_tpr"))
    data = next(iter(DATA))
    rules = [rule for rule in RULES if any(_rule(m) == rule for m in others)]
    rows = []
    for partition in PARTITIONS:
        for attack in ATTACKS:
            if any(cells.get((data, partition, attack, rule)) for rule in rules):
                found = (data, partition, attack, SHARP)
                rates = [_two(_mean(rate.get(found, []))) for rate in (precision, recall)]
                rows.append(
                    [partition, attack, *(_spread(cells.get((data, partition, attack, rule), [])) for rule in rules),
                     "–" if attack == "none" or found not in cells else " / ".join(rates)]
                )  # fmt: skip
    if not rows:
        return "None was run."
    return markdown_table(
        ["partition", "attack", *(f"`{rule}`" for rule in rules), "it finds"], rows, words=2
    )


def verdict(measured: Sequence[Measured]) -> str:
    """How often rules are more accurate than FedAvg under attack, where they are worst, and how well they detect."""
    cells = _cells(measured, "accuracy")
    sentences = []
    for rule in DETECTORS:
        gains = {
            f"{partition}, {attack}" + ("" if data == next(iter(DATA)) else f", {DATA[data]}"): ours - theirs
            for (data, partition, attack, name) in list(cells)
            if name == rule and attack != "none"
            and (ours := _mean(cells[data, partition, attack, rule])) is not None
            and (theirs := _mean(cells.get((data, partition, attack, "fedavg"), []))) is not None
        }  # fmt: skip
        if gains:
            better = sum(gain > 0 for gain in gains.values())
            worst = min(gains, key=gains.__getitem__)
            attacked = [m for m in measured if _rule(m) == rule and m.run.config["attack"]["name"] != "none"]
            rates = [_two(_mean([m[name] for m in attacked])) for name in ("flag_precision", "flag_tpr")]
            sentences.append(
                f"`{rule}` is more accurate than FedAvg in {better} of {len(gains)} attacked settings "
                f"({100 * fmean(gains.values()):+.1f} points on average, {100 * gains[worst]:+.1f} at the least: "
                f"{worst}), with precision {rates[0]} and recall {rates[1]} over all of them."
            )
    if not sentences:
        return "Open: none of the runs is of a rule that flags, under attack."
    if all(len(values) < 2 for values in cells.values()):
        sentences.append("All of this is one seed: no difference is tested.")
    return " ".join(sentences)


def every_run(measured: Sequence[Measured]) -> Table:
    names = ("accuracy", "auroc", "flag_precision", "flag_tpr", "flag_fpr", "aggregate_vs_fedavg")
    rows: list[list[Cell]] = [
        [_data(m.run), _partition(m.run), m.run.config["attack"]["name"], _rule(m), m.run.seed, m.run.config["rounds"],
         *(m[name] for name in names)]
        for m in sorted(measured, key=lambda m: (_data(m.run), _partition(m.run), m.run.attack, _rule(m), m.run.seed))
    ]  # fmt: skip
    columns = ["data", "partition", "attack", "rule", "seed", "rounds", "accuracy", "AUROC", "precision", "recall",
               "FPR", "server time × FedAvg"]  # fmt: skip
    return Table("runs", "Every run", columns, rows, words=4)


def quality_tables(runs: Sequence[Run]) -> str:
    results: dict[tuple[str, str, str], list[Run]] = defaultdict(list)
    for run in runs:
        results[run.config["name"], run.config["aggregator"]["name"], run.config["attack"]["name"]].append(
            run
        )
    parts = [QUALITY_NOTE]
    for preset, description in SETTINGS.items():
        for rule in ("fedbnp-sharp", "fedbnp"):
            rows = []
            for attack in (*ATTACKS[1:], "none"):
                if members := results.get((preset, rule, attack)):
                    rates = [
                        _two(_mean([run.detection[rate] for run in members]))
                        for rate in ("precision", "recall", "f1", "fpr")
                    ]
                    final = [_mean([run.final(name) for run in members]) for name in ("auroc", "accuracy")]
                    shown = ["–" if value is None else fixed(value) for value in final]
                    rows.append([attack, str(len(members)), *rates, *shown])
            if rows:
                head = ["attack", "seeds", "precision", "recall", "F1", "FPR", "AUROC", "accuracy"]
                parts.append(f"## {rule} on {description}\n\n{markdown_table(head, rows)}\n")
    return "\n".join(parts)


Cells = dict[tuple[str, str, str, str], list[float | None]]


def _cells(measured: Iterable[Measured], name: str) -> Cells:
    """A measure by data, partition, attack and rule; one value per seed."""
    cells: Cells = defaultdict(list)
    for m in measured:
        cells[_data(m.run), _partition(m.run), m.run.config["attack"]["name"], _rule(m)].append(m[name])
    return cells


def _seeds(measured: Sequence[Measured]) -> str:
    """Seeds and rounds of each way to share out each data set."""
    seeds: dict[tuple[str, int], set[int]] = defaultdict(set)
    for m in measured:
        seeds[f"{DATA[_data(m.run)]} {_partition(m.run)}", m.run.config["rounds"]].add(m.run.seed)
    said = [
        f"{where}: {rounds} rounds, {', '.join(map(str, sorted(s)))}" for (where, rounds), s in seeds.items()
    ]
    return f"Rounds and seeds: {'; '.join(sorted(said))}."


def _majority(runs: Sequence[Run]) -> float | None:
    """The share of the most frequent class among the clients' samples of the first data set."""
    first = next(iter(DATA))
    for run in runs:
        if _data(run) == first and (held := run.record.get("clients")):
            by_class = [sum(column) for column in zip(*held.values(), strict=True)]
            return max(by_class) / sum(by_class)
    return None


def _partition(run: Run) -> str:
    partition = run.config["partition"]
    return f"α {partition['alpha']:g}" if partition["name"] == "dirichlet" else str(partition["name"])


def _data(run: Run) -> str:
    return str(run.config["dataset"]["name"])


def _rule(m: Measured) -> str:
    return str(m.run.config["aggregator"]["name"])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _spread(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    return fixed(fmean(known)) + (f" ± {fixed(stdev(known))} ({len(known)})" if len(known) > 1 else "")


def _two(value: float | None) -> str:
    return "–" if value is None else fixed(value, 2)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


if __name__ == "__main__":
    main()
