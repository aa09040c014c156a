"""Write docs/results/caac-guard.md, its picture and its tables from run folders: no figure in it is typed by hand.

python docs/tools/write_guard.py RUNS…

Works on whatever is finished of the presets guard-*, and says how many seeds that is.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from result_pages import FIGURES, attach_table, effort, markdown_table, versions, write_page

from wardround.analysis import Measured, load_runs, measure_all
from wardround.analysis.robustness import Standing, robustness_tables, standings
from wardround.analysis.runs import CLEAN
from wardround.report.figures import PALETTE

PRESETS = {
    "guard-rules": "Every rule, three attacks by 30 % (`icu`, SGD)",
    "guard-attacks": "Every attack by 10 and 40 % (`icu`, SGD)",
    "guard-training": "Adam, SGD, SGD with SCAFFOLD; six attacks by 30 % (`icu`)",
    "guard-classes": "Ten classes; four attacks by 30 % (digits, SGD)",
    "guard-faults": "Broken hospitals, 20 % (`icu`, SGD)",
    "guard-many": "120 small hospitals, 14 % positive; four attacks by 30 % (generated table, SGD)",
    "guard-small": "12 hospitals; seven attacks by 25 %, a fault in 20 % (`icu`, α 0.3, SGD and Adam)",
    "guard-held-out": "Heart disease, moles, brain slices; five attacks by 30 % (SGD and Adam)",
    "guard-aside": "Kept aside: four clinical tables; five attacks by 30 %, two faults in 20 % (SGD and Adam)",
}
ABLATION = "guard-ablation"
GUARD = "caac-guard"
PAGE = """# CAAC-Guard

## What was asked

Does [`caac-guard`](../caac-guard.md) lose less than other rules when hospitals attack or are broken, and does it cost
anything when none does? Losses are against the **oracle**: FedAvg over the hospitals that are honest in the round.
That is the best a rule could do that does nothing but leave the right ones out.

**The figures of the first design are gone**: it was the worst of thirteen rules on data and attackers it was not
developed on, and has been replaced.

## What came out

![Mean and worst loss of every rule](../figures/guard-rules.png)

Every rule, `icu`, α 0.1, SGD, no attack and three attacks by 30 %: AUROC lost against the oracle, mean and worst
setting.

{main}

**Verdict.** {verdict}

Held: *harm* is worse than FedAvg without a defence by more than 0.005, *below both* worse than FedAvg and the median.
*Suppressed* is the largest share of the patients of one outcome whose hospitals have less than a tenth of the weight
that FedAvg would give them, mean over rounds and seeds.

## By question

`caac-guard`, FedAvg and the median in each part of the tables:

{parts}

Where `caac-guard` loses more than 0.02 against the oracle:

{worst}

## What each test is worth

`guard-ablation`: the rule, and the rule without one of its tests or its limits of length (`without`), under eleven
attacks by 30 % (one of them tries the rule before it sends) and a fault, `icu`, α 0.1, SGD and Adam.

{ablation}

A rule without one of its tests that is no worse than the whole rule means that the other tests see these attackers,
too, or that this test has not earned its place in these settings. Where runs are missing, means are over the seeds
there are.

## What this does not show

- `icu` was used while the rule was developed, as were digits, the generated table of `guard-many`, a thinned SUPPORT2
  table and breast-cancer (all in the package or made from it), and the data of `guard-held-out`, which an earlier
  version of the third test failed on.
- `guard-aside` was kept aside: deaths of flchain (20 hospitals, α 0.1) and of whas500 (10, α 0.5), recurrences of GBSG2
  (8, α 0.5) and events of actg320 (10, α 0.3), seeds 30 to 32. flchain and GBSG2 had been run once (two seeds) with the
  version before nobody was compared with itself; whas500 and actg320 had never been looked at. Of its attacks and
  faults, label flips and IPM's family were used in development, the others were not.
- Seeds are few; intervals are in the attached tables. An attacker who knows the rule was tried in tests only.

## How it was made

{effort}; {versions}; seeds {seeds}.

```sh
{commands}
python docs/tools/write_guard.py runs/guard    # this page
```

## All tables

{links}
"""


def main(folders: Sequence[str]) -> None:
    """Write the page from the runs in some folders."""
    by_preset = {}
    runs = []
    for preset in (*PRESETS, ABLATION):
        # Each by itself: labels name parameters in which the runs of a rule differ.
        loaded = load_runs([path for folder in folders for path in sorted(Path(folder).glob(f"{preset}-*"))])
        runs += loaded
        if loaded:
            by_preset[preset] = measure_all(loaded)
    ablation = by_preset.pop(ABLATION, [])
    found = {preset: standings(measured) for preset, measured in by_preset.items()}
    links = []
    for preset, measured in by_preset.items():
        links += [attach_table(preset, table) for table in robustness_tables(measured)]
    rules = found["guard-rules"]
    FIGURES.mkdir(exist_ok=True)
    _draw(rules)
    page = PAGE.format(
        main=_main_table(rules),
        verdict=_verdict(found),
        parts=_parts(found),
        worst=_worst(found),
        ablation=_main_table(standings(ablation)) if ablation else "Not run.",
        effort=effort(runs),
        versions=versions(runs),
        seeds=", ".join(map(str, sorted({run.seed for run in runs}))),
        commands="\n".join(_command(preset) for preset in (*by_preset, ABLATION)),
        links="\n".join(
            f"- {PRESETS[preset]}: {link}" for preset, link in zip(_repeat(by_preset), links, strict=True)
        ),
    )
    write_page("caac-guard", page)


def _command(preset: str) -> str:
    """What runs a preset; the tables of one are written first."""
    if preset == "guard-aside":
        return (
            "python docs/tools/guard_aside.py scikit_survival-0.28.0-*.whl runs/aside\n"
            "(cd runs/aside && wardround matrix guard-aside.yaml --out ../guard)"
        )
    return f"wardround matrix {preset} --out runs/guard"


def _repeat(by_preset: dict[str, list[Measured]]) -> list[str]:
    """The preset of each attached table."""
    return [preset for preset, measured in by_preset.items() for _ in robustness_tables(measured)]


def _loss(standing: Standing) -> float | None:
    return None if standing.against_oracle is None else standing.against_oracle.difference


def _losses(found: Sequence[Standing], attacked: bool) -> list[float]:
    return [loss for one in found if (one.attack != CLEAN) == attacked and (loss := _loss(one)) is not None]


def _share(values: Sequence[bool | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{sum(known)} of {len(known)}" if known else "–"


def _line(name: str, found: Sequence[Standing]) -> list[str]:
    attacked = [one for one in found if one.attack != CLEAN]
    losses, clean = _losses(found, attacked=True), _losses(found, attacked=False)
    false_alarms = [value for one in found if (value := one.figures["flag_fpr"]) is not None]
    suppressed = [value for one in found if (value := one.figures["suppressed_outcome"]) is not None]
    return [
        name,
        f"{fmean(clean):.3f}" if clean else "–",
        f"{fmean(losses):.3f}" if losses else "–",
        f"{max(losses):.3f}" if losses else "–",
        _share([one.harms for one in attacked]),
        _share([one.below_both for one in attacked]),
        f"{100 * fmean(false_alarms):.1f} %" if false_alarms else "–",
        f"{100 * max(suppressed):.0f} %" if suppressed else "–",
    ]


HEAD = [
    "rule",
    "loss without attack",
    "mean loss",
    "worst loss",
    "harm",
    "below both",
    "false alarms",
    "suppressed",
]


def _main_table(found: Sequence[Standing]) -> str:
    by_rule = _by_rule(found)
    ordered = sorted(by_rule, key=lambda rule: fmean(_losses(by_rule[rule], attacked=True) or [9.0]))
    return markdown_table(HEAD, [_line(f"`{rule}`", by_rule[rule]) for rule in ordered])


def _by_rule(found: Sequence[Standing]) -> dict[str, list[Standing]]:
    by_rule: dict[str, list[Standing]] = {}
    for one in found:
        by_rule.setdefault(one.method, []).append(one)
    return by_rule


def _parts(found: dict[str, list[Standing]]) -> str:
    blocks = []
    for preset, members in found.items():
        by_rule = _by_rule(members)
        rows = [_line(f"`{rule}`", by_rule[rule]) for rule in (GUARD, "fedavg", "median") if rule in by_rule]
        blocks.append(f"**{PRESETS[preset]}**\n\n{markdown_table(HEAD, rows)}")
    return "\n\n".join(blocks)


def _worst(found: dict[str, list[Standing]]) -> str:
    rows = []
    for preset, members in found.items():
        for one in members:
            loss = _loss(one)
            if one.method == GUARD and loss is not None and loss > 0.02:
                rows.append(
                    (
                        loss,
                        [preset, one.setting, one.attack, f"{fmean(one.auroc.values()):.3f}", f"{loss:.3f}"],
                    )
                )
    rows.sort(key=lambda row: -row[0])
    if not rows:
        return "In none of these settings."
    return markdown_table(
        ["preset", "setting", "attack or fault", "AUROC", "loss"], [row for _, row in rows[:25]], words=3
    )


def _verdict(found: dict[str, list[Standing]]) -> str:
    guard = [one for members in found.values() for one in members if one.method == GUARD]
    losses = _losses(guard, attacked=True)
    by_rule = _by_rule(found["guard-rules"])
    ranks = sorted(by_rule, key=lambda rule: max(_losses(by_rule[rule], attacked=True) or [9.0]))
    place = ranks.index(GUARD) + 1
    harm = _share([one.harms for one in guard if one.attack != CLEAN])
    return (
        f"Over {len(losses)} attacked or broken settings `caac-guard` loses {fmean(losses):.3f} AUROC on average "
        f"against being told who attacks, {max(losses):.3f} in the worst, and at most 0.02 in "
        f"{sum(loss <= 0.02 for loss in losses)}; it does harm in {harm}. "
        f"Of {len(ranks)} rules its worst case in the first table is number {place}."
    )


def _draw(found: Sequence[Standing]) -> None:
    """Each rule's mean and worst loss, the rule with the least worst case on top."""
    from matplotlib.figure import Figure

    losses = {rule: _losses(members, attacked=True) for rule, members in _by_rule(found).items()}
    ordered = sorted((rule for rule in losses if losses[rule]), key=lambda rule: -max(losses[rule]))
    canvas = Figure(figsize=(6.5, 0.22 * len(ordered) + 0.8), layout="constrained")
    axes = canvas.add_subplot()
    for spine in ("top", "right"):
        axes.spines[spine].set_visible(False)
    places = range(len(ordered))
    worst, mean = ([of(losses[rule]) for rule in ordered] for of in (max, fmean))
    axes.hlines(places, mean, worst, color="#c5ced6", linewidth=1.5)
    axes.plot(mean, places, "o", color=PALETTE[0], label="mean of three attacks", markersize=4)
    axes.plot(worst, places, "o", color=PALETTE[1], label="worst attack", markersize=4)
    axes.axvline(0, color="#8a97a3", linewidth=0.8)
    axes.set_yticks(places, ordered, fontsize=7)
    axes.set_xlabel("AUROC lost against being told who attacks")
    axes.legend(frameon=False, fontsize=8)
    canvas.savefig(FIGURES / "guard-rules.png", dpi=130, metadata={"Software": None})


if __name__ == "__main__":
    main(sys.argv[1:])
