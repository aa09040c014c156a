"""Write how `caac-guard` does now into docs/results/caac-guard.md, from its own runs of the presets guard-*.

python docs/tools/write_guard_rule.py RUNS…

What other rules reach does not depend on this one, so their figures are those of the attached tables, which
`write_guard.py` makes from all runs. Only settings count in which all seeds of these tables were run again.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from result_pages import markdown_table
from write_guard import GUARD, PRESETS

from wardround.analysis import load_runs, measure_all
from wardround.analysis.robustness import MARGIN, standings

PAGE = Path(__file__).parents[1] / "results" / "caac-guard.md"
TABLES = PAGE.parent / "tables"
OPENING, CLOSING = (
    "<!-- the rule as it is: docs/tools/write_guard_rule.py -->",
    "<!-- end of the rule as it is -->",
)
COLUMNS = [
    "preset",
    "setting",
    "attack",
    "seeds",
    "oracle",
    "caac-guard",
    "earlier",
    "fedavg",
    "median",
    "FPR",
    "suppressed",
]


def main(folders: Sequence[str]) -> None:
    """Replace the section between the marks, and write the table of all settings."""
    rows = [row for preset in PRESETS for row in _rows(preset, folders)]
    with (TABLES / "guard-rule.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    before, _, rest = PAGE.read_text().partition(OPENING)
    after = rest.partition(CLOSING)[2]
    PAGE.write_text(f"{before}{OPENING}\n\n{_section(rows)}\n\n{CLOSING}{after}")


def _rows(preset: str, folders: Sequence[str]) -> list[dict[str, str | float]]:
    """The settings of a preset in which every seed of its attached table was run again."""
    with (TABLES / f"{preset}-robustness-settings.csv").open() as file:
        known = {(line["setting"], line["attack"], line["method"]): line for line in csv.DictReader(file)}
    runs = load_runs([path for folder in folders for path in sorted(Path(folder).glob(f"{preset}-*"))])
    rows: list[dict[str, str | float]] = []
    for one in standings(measure_all([run for run in runs if run.config["aggregator"]["name"] == GUARD])):
        lines = [known.get((one.setting, one.attack, name)) for name in (GUARD, "fedavg", "median")]
        if None in lines or len(one.auroc) != int(lines[0]["seeds"]):
            continue
        earlier, fedavg, median = (float(line["AUROC"]) for line in lines)
        oracle = fedavg + float(lines[1]["loss against oracle"])
        seeds, own = " ".join(map(str, sorted(one.auroc))), fmean(one.auroc.values())
        false, suppressed = one.figures["flag_fpr"], one.figures["suppressed_outcome"]
        values = (
            preset,
            one.setting,
            one.attack,
            seeds,
            oracle,
            own,
            earlier,
            fedavg,
            median,
            false,
            suppressed,
        )
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


def _section(rows: Sequence[dict[str, str | float]]) -> str:
    lines = []
    for preset, title in PRESETS.items():
        own = [row for row in rows if row["preset"] == preset]
        clean, attacked = (
            [row for row in own if (row["attack"] == "clean") == is_clean] for is_clean in (True, False)
        )
        if not attacked:
            continue
        lines.append(
            [
                title,
                str(len(attacked)),
                f"{fmean(_losses(clean)):.3f}" if clean else "–",
                *(
                    f"{fmean(of):.3f} / {max(of):.3f}"
                    for of in (_losses(attacked, name) for name in COLUMNS[5:9])
                ),
                f"{sum(_harms(row) for row in attacked)}",
                f"{100 * fmean(float(row['FPR']) for row in own):.1f} %",
            ]
        )
    head = [
        "runs of",
        "settings",
        "no attack",
        "`caac-guard`",
        "earlier",
        "FedAvg",
        "median",
        "harm",
        "false alarms",
    ]
    worst = sorted((row for row in rows if row["attack"] != "clean"), key=lambda row: -_loss(row, GUARD))[:12]
    worst = [row for row in worst if _loss(row, GUARD) > 0.02]
    return "\n\n".join(
        [
            markdown_table(head, lines, words=1),
            "Where it loses more than 0.02 now (all settings: [table](tables/guard-rule.csv)):",
            markdown_table(
                ["preset", "setting", "attack or fault", "loss", "earlier", "FedAvg"],
                [
                    [str(row[name]) for name in COLUMNS[:3]]
                    + [f"{_loss(row, name):.3f}" for name in (GUARD, "earlier", "fedavg")]
                    for row in worst
                ],
                words=3,
            ),
        ]
    )


def _loss(row: dict[str, str | float], name: str) -> float:
    return float(row["oracle"]) - float(row[name])


def _losses(rows: Sequence[dict[str, str | float]], name: str = GUARD) -> list[float]:
    return [_loss(row, name) for row in rows]


def _harms(row: dict[str, str | float]) -> bool:
    return _loss(row, GUARD) - _loss(row, "fedavg") > MARGIN


if __name__ == "__main__":
    main(sys.argv[1:])
