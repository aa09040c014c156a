"""Write docs/results.md and its figures from run folders: only `LIMITS` is written by hand.

python docs/tools/write_results.py RUNS…
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from wardround.analysis import load_runs
from wardround.protocols import papers
from wardround.report.contents import Contents, collect
from wardround.report.figures import Figure
from wardround.report.paper import write_figures

DOCS = Path(__file__).parents[1]
COMMANDS = """```sh
wardround matrix caac-core --out runs/results
wardround matrix caac-ablation --out runs/results
wardround matrix caac-drift --out runs/results
wardround analyze runs/results --out runs/results-tables          # the tables below, as Markdown, CSV and LaTeX
wardround report runs/results --out report.html --figures figures  # the figures below, as PNG, SVG and PDF
python docs/tools/write_results.py runs/results                          # this page
```"""
LIMITS = """\
**What these results do not show.** Each figure holds for the data, attacks and optimiser it was measured with, and
for no other. The figures of `caac-guard` do not carry over. On data and attackers that it was not developed on (1,300
runs) it was the worst of thirteen rules. None of these runs is in the tables below:

- Measured on `icu`, 40 % attackers who send the reversed honest mean plus their own residual at their own norm, five
  seeds: `caac-guard` 0.429 / 0.537 (α 0.1 / 1), undefended `fedavg` 0.556 / 0.613, `median` 0.717 / 0.789.
- Measured with SGD in place of Adam and no attack, on a mortality set with 14 % deaths: in three of four seeds
  `caac-guard` excludes hospitals with 46 %, 97 % and 100 % of all deaths (AUROC 0.745, 0.675, 0.484, against 0.81 to
  0.83).
- "At most 0.02 lost in 974 of 1,056 settings" hardly discriminates: 468 of the settings are better than without
  attack, against the best rule without attack 783 hold, and FedAvg without a defence reaches about the same share on
  new data.

Prefer `median`, or `trimmed-mean` with `f` set to the most attackers you expect, until there is a second design; [the
rule's page](caac-guard.md) has the rest of the measurements, and what these two cost.

All runs are older than two changes, so the present version does not repeat every digit:

- Attacks that draw random numbers (`noise`, `additive-noise`, `partial-scaling`, Fang's, `label-flip`, `backdoor`, and
  mixtures of them) draw others with the same seed, and FedBNP practises on some of these.
- The server trains its root update apart from the clients (`fltrust`, `caac-guard (root)`, FedBNP), which rounds
  differently. Of four such runs that were repeated, the AUROC changed by 0.00001 at most; in one the share of honest
  clients flagged changed from 0.373 to 0.369.
"""
KEPT = "<!-- written by "  # what follows is written by other programs, such as write_guard.py
SINGLE = (
    ("caac", "sign-flip"),
    ("fltrust", "sign-flip"),
    ("caac", "slow-drift"),
)  # runs with figures of their own


def chosen(contents: Contents) -> list[Figure]:
    """Figures over all runs, the first picture of a partition, and weights and timelines of three runs."""
    figures = [figure for figure in contents.figures if not figure.key.startswith("partition")]
    figures += [figure for figure in contents.figures if figure.key == "partition-0"]
    for method, attack in SINGLE:
        for run, own in contents.single:
            if (
                run.method == method
                and run.attack.startswith(attack)
                and run.config["dataset"]["name"] == "icu"
            ):
                figures += [figure for figure in own if not figure.key.startswith("anomaly")]
    return figures


def page(contents: Contents, figures: list[Figure]) -> str:
    """The whole page."""
    assert contents.analysis is not None
    first = contents.runs[0].record
    data = Counter(run.config["dataset"]["name"] for run in contents.runs)
    by_data = ", ".join(f"{count} on `{name}`" for name, count in sorted(data.items()))
    pictures = "\n\n".join(
        f"### {figure.title}\n\n![{figure.title}](figures/{figure.key}.png)\n\n{figure.caption}"
        for figure in figures
    )
    return f"""# Results

{LIMITS}
The measurements are the CAAC-FL protocol's core and ablation matrices on the embedded ICU data, and benign drift on
generated data ({by_data}): wardround {first.get("wardround")}, torch {first.get("torch")}, Python
{first.get("python")}, on the CPU. [protocols.md](protocols.md) explains the measures and how verdicts are reached.
Except for the paragraphs above, a program writes this page from the run folders:

{COMMANDS}

## Verdicts and tables

{contents.analysis.markdown()}

## Figures

{pictures}
"""


def main() -> None:
    contents = collect(load_runs([Path(argument) for argument in sys.argv[1:]]), papers())
    figures = chosen(contents)
    for old in (DOCS / "figures").glob("*.png"):
        old.unlink()
    write_figures(figures, DOCS / "figures", ["png"], dpi=110)
    results = DOCS / "results.md"
    kept = KEPT + results.read_text(encoding="utf-8").partition(KEPT)[2] if results.exists() else ""
    written = page(contents, figures) + (f"\n{kept}" if kept != KEPT else "")
    results.write_text(written, encoding="utf-8")
    print(f"{DOCS / 'results.md'}: {len(contents.runs)} runs, {len(figures)} figures")


if __name__ == "__main__":
    main()
