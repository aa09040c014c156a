"""Write docs/results/caac-fl.md, its picture and its tables from run folders: no figure in it is typed by hand.

python docs/tools/write_caac_fl.py RUNS…

Works on whatever is finished, and says how many seeds that is.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

from result_pages import FIGURES, attach_table, effort, markdown_table, versions, write_page

from wardround.analysis import Analysis, Measured, analyze, load_runs
from wardround.analysis.rendering import fixed, plus_minus
from wardround.analysis.runs import CLEAN, Run
from wardround.protocols import papers
from wardround.report.comparison_figures import loss_by_attack
from wardround.report.figures import Figure
from wardround.report.paper import write_figures

RULE, BASELINE = "caac", "fedavg"
METHODS = (BASELINE, "krum", "fltrust", RULE)
PARTS = ("caac-mag", "caac-dir", "caac-temp", "caac-mag+dir")
DATA = {"icu": "ICU deaths", "isic2019": "skin lesions"}
"""What the matrices were run on; `synthetic` is benign drift, which belongs to the first."""
PAGE = """# CAAC-FL

## What was asked

The CAAC-FL protocol claims three things of its rule `caac`, beside FedAvg, Krum and FLTrust: it spares honest clients
that are merely different (H1), it loses less under attack and misses fewer attackers (H2), and it finds abrupt attacks
soon without taking benign drift for one (H3). Its core matrix (four rules, two attacks and slow drift by four of twenty
clients from round 15, Dirichlet 0.1 and 1) and its ablation were run on two kinds of data: deaths in intensive care
(`icu`, embedded) and melanoma against other skin lesions (`isic2019`).

## What came out

![{caption}](../figures/caac-fl.png)

{figure_caption}

AUROC on the test split after the last round, mean ± standard deviation over seeds:

{table}

`caac` as a detector, and what it costs the server. FPR and TPR are shares of client-rounds that it flags; the bootstrap
rounds, in which it can flag nobody, are left out. *Found after*: rounds until four of five attackers are flagged three
times in a row.

{detection}

**Verdict.** {verdict}

{verdicts}

What each part of the anomaly does (the ablation), as AUROC:

{ablation}

## How it was made

{effort}; {versions}. Seeds: {seeds}. ISIC 2019 is prepared once (the folder: see [datasets](../datasets.md)):

```sh
wardround matrix caac-core --out runs/caac
wardround matrix caac-ablation --out runs/caac
wardround matrix caac-drift --out runs/caac
wardround data prepare isic2019 --source DIR size=32
SMALL="dataset.size=32 dataset.augment=false rounds=60"
for preset in caac-core-isic2019 caac-ablation-isic2019; do
  wardround matrix $preset --out runs/caac $SMALL 'model={{name: mlp, hidden: [32]}}'
done
python docs/tools/write_caac_fl.py runs/caac    # this page
```

## Differences from the protocol

- Its tables are MIMIC-III. `icu` is SUPPORT2, which may be embedded; the presets `caac-core-mimic3` and
  `caac-core-mimic3-series` are for those who hold MIMIC-III.
- ISIC 2019 here is the 7,017 images of it that come from HAM10000 (the split is stratified by class and keeps a
  lesion's images together), at 32 × 32 pixels without augmentation, with a dense network of 32 hidden units for 60
  rounds. The protocol has 25,331 images at 224 × 224, a ResNet-18 and 100 rounds. So the figures say how the rules
  compare, not how well melanoma can be told.
- The column of memory is of runs in reused worker processes, before freed memory was given back between runs: it can
  contain what the run before left. Ratios within a tenth of 1 say nothing.
- Three seeds, as the protocol has it, give no Wilcoxon test below p = 0.25: no claim can be *supported* by them, only
  contradicted or left open. A verdict on `isic2019` says nothing about drift, which was run on tables only.

## All tables

{links}
"""


def auroc_table(measured: Sequence[Measured]) -> str:
    """One row per data set, heterogeneity and attack; one column per rule of the core matrix."""
    rows = []
    for (setting, attack), members in _grouped(measured).items():
        cells = [_spread([m["auroc"] for m in members if _name(m) == method]) for method in METHODS]
        if sum(cell != "–" for cell in cells) > 1:
            seeds = len({m.run.seed for m in members})
            rows.append([setting, attack, str(seeds), *cells])
    return markdown_table(["data", "attack", "seeds", *(f"`{name}`" for name in METHODS)], rows, words=2)


def ablation_table(measured: Sequence[Measured]) -> str:
    """One column per part of CAAC-FL's anomaly."""
    rows = []
    for (setting, attack), members in _grouped(measured).items():
        cells = [_spread([m["auroc"] for m in members if _name(m) == method]) for method in (*PARTS, RULE)]
        if "–" not in cells:
            rows.append([setting, attack, *cells])
    return markdown_table(["data", "attack", *(f"`{name}`" for name in (*PARTS, RULE))], rows, words=2)


def detection_table(measured: Sequence[Measured]) -> str:
    """CAAC-FL's flags, and its time and memory as multiples of FedAvg's."""
    rows = []
    for (setting, attack), members in _grouped([m for m in measured if _name(m) == RULE]).items():
        found = [m["flag_latency"] for m in members]
        ended = [value for value in found if value is not None]
        latency = "–" if attack == CLEAN else f"{fmean(ended):.1f}" if ended else "never"
        if ended and len(ended) < len(found):
            latency += f" ({len(ended)} of {len(found)} seeds)"
        rates = [_share([m[name] for m in members]) for name in ("flag_tpr", "flag_fpr")]
        costs = [_ratio([m[name] for m in members]) for name in ("aggregate_vs_fedavg", "memory_vs_fedavg")]
        rows.append([setting, attack, *rates, latency, *costs])
    head = ["data", "attack", "TPR", "benign FPR", "found after", "server time × FedAvg", "memory × FedAvg"]
    return markdown_table(head, rows, words=2)


def verdict_lines(analyses: dict[str, Analysis]) -> str:
    lines = []
    for name, analysis in analyses.items():
        for verdict in analysis.verdicts:
            reason = verdict.reason[:1].upper() + verdict.reason[1:]
            lines.append(f"- **{verdict.key} on `{name}`: {verdict.verdict}.** {reason}.")
    return "\n".join(lines)


def verdict_in_a_sentence(analyses: dict[str, Analysis]) -> str:
    """How many of the hypotheses are supported, and which are contradicted."""
    verdicts = [(name, verdict) for name, analysis in analyses.items() for verdict in analysis.verdicts]
    by_word: dict[str, list[str]] = defaultdict(list)
    for name, verdict in verdicts:
        by_word[verdict.verdict].append(f"{verdict.key} on `{name}`")
    said = "; ".join(f"{word}: {', '.join(cases)}" for word, cases in sorted(by_word.items()))
    supported = len(by_word.get("supported", ()))
    return f"{supported or 'None'} of the {len(verdicts)} answers supports its hypothesis ({said})."


def picture(measured: Sequence[Measured]) -> Figure:
    """What each attack costs each rule, on the first data set at its hardest heterogeneity."""
    first = next(iter(DATA))
    core = [m for m in measured if _data(m.run) == first]
    return replace(next(iter(loss_by_attack(core))), key="caac-fl")


def page(runs: Sequence[Run]) -> str:
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.finished:
            groups[_data(run)].append(run)
    groups[next(iter(DATA))] += groups.pop("synthetic", [])
    analyses = {name: analyze(groups[name], papers=papers()) for name in DATA if groups[name]}
    measured = [m for analysis in analyses.values() for m in analysis.measured if _data(m.run) in DATA]
    figure = picture(measured)
    write_figures([figure], FIGURES, ["png"], dpi=110)
    links = [
        attach_table(f"caac-fl-{name}", table)
        + f" ({DATA[name]})"
        for name, analysis in analyses.items()
        for table in [*analysis.tables, *analysis.data]
    ]  # fmt: skip
    finished = [run for members in groups.values() for run in members]
    seeds = {name: sorted({run.seed for run in groups[name]}) for name in analyses}
    return PAGE.format(
        caption=figure.title,
        figure_caption=f"{figure.title}. {figure.caption}",
        table=auroc_table(measured),
        detection=detection_table(measured),
        verdict=verdict_in_a_sentence(analyses),
        verdicts=verdict_lines(analyses),
        ablation=ablation_table(measured),
        effort=effort(finished),
        versions=versions(finished),
        seeds="; ".join(f"`{name}` {', '.join(map(str, some))}" for name, some in seeds.items()),
        links="\n".join(f"- {link}" for link in links),
    )


def _grouped(measured: Sequence[Measured]) -> dict[tuple[str, str], list[Measured]]:
    """By data with heterogeneity and by attack, clean first."""
    groups: dict[tuple[str, str], list[Measured]] = defaultdict(list)
    for m in sorted(
        measured, key=lambda m: (list(DATA).index(_data(m.run)), -m.run.config["partition"]["alpha"])
    ):
        where = f"`{_data(m.run)}`, α {m.run.config['partition']['alpha']:g}"
        groups[where, m.run.config["attack"]["name"] if m.run.attack != CLEAN else CLEAN].append(m)
    order = {where: number for number, (where, _) in enumerate(groups)}
    return dict(sorted(groups.items(), key=lambda item: (order[item[0][0]], item[0][1] != CLEAN, item[0][1])))


def _data(run: Run) -> str:
    return str(run.config["dataset"]["name"])


def _name(m: Measured) -> str:
    return str(m.run.config["aggregator"]["name"])


def _spread(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    return plus_minus(fmean(known), stdev(known) if len(known) > 1 else None) or "–"


def _share(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{100 * fmean(known):.1f} %" if known else "–"


def _ratio(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return fixed(fmean(known), 2) if known else "–"


def main() -> None:
    runs = load_runs([Path(argument) for argument in sys.argv[1:]])
    print(f"{write_page('caac-fl', page(runs))}: {len(runs)} runs")


if __name__ == "__main__":
    main()
