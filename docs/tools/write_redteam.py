"""Search every rule with the red team, and write the leaderboard of docs/redteam.md from what was found.

    python docs/tools/write_redteam.py search FOLDER [--trials 50] [--minutes 10] [--only NAME …]
    python docs/tools/write_redteam.py page FOLDER

`search` is `wardround redteam --aggregator NAME` for one rule after the other, in the preset's setting; run it again to
resume. `page` replaces what stands between the two marks in the page. It keeps the table as
docs/results/tables/redteam-leaderboard.csv, so that a folder with one rule renews the line of this rule alone.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from result_pages import DOCS

from wardround import aggregators
from wardround.errors import WardroundError
from wardround.experiments.presets import load_matrix
from wardround.experiments.redteam import Findings, Plan, read_findings, search
from wardround.experiments.redteam.page import leaderboard, write

BEGIN, END = "<!-- leaderboard: docs/tools/write_redteam.py -->", "<!-- end of leaderboard -->"
TABLE = DOCS / "results" / "tables" / "redteam-leaderboard.csv"
REASON = "not-searched.txt"
SAME = {"fedbn": "is `fedavg` here: the network has no BatchNorm layer"}
"""Rules that another line stands for."""


def search_all(
    folder: Path, trials: int, minutes: float | None, only: list[str], without: tuple[str, ...]
) -> None:
    """Search every rule that can be searched; of the others the reason is kept."""
    values, _ = load_matrix("redteam")
    for rule in only or [name for name in aggregators.available() if name not in SAME]:
        own = folder / rule
        own.mkdir(parents=True, exist_ok=True)
        try:
            plan = Plan(
                aggregator=rule, base=values["base"], seeds=values["seeds"], f=values["f"], without=without
            )
            findings = search(plan, own, trials, jobs=1, minutes=minutes)
        except WardroundError as error:
            (own / REASON).write_text(f"{error}\n", encoding="utf-8")
            print(f"{rule}: {error}", flush=True)
            continue
        write(findings, own)
        print(f"{rule}: {len(findings.trials)} attacks, worst loss {findings.worst[0].loss:.3f}", flush=True)


def text_of(folder: Path) -> str:
    """The leaderboard with its budget, and the rules that have no line in it."""
    teams = read_findings([folder])
    heading, lines, footnote = _renewed(leaderboard(teams))
    plan = teams[0].plan
    seeds = " and ".join(map(str, plan.seeds))
    longest = max((findings.trials for findings in teams), key=len)
    most, names = len(longest), {tried.attack["name"] for tried in longest}
    keeping = sum(tried.attack.get("keep", "nothing") != "nothing" for tried in longest[len(names) :])
    proposed = most - len(names) - keeping
    budget = (
        f"{len(lines)} of {len(aggregators.available())} rules, **{most} attacks each**: each of "
        f"{len(names)} attacks with its defaults, by {100 * plan.max_fraction:.0f} % from round 1, and the "
        f"{keeping} variants whose rows keep the honest norm or residual"
        + (f", then {proposed} proposals of the sampler" if proposed else "; no proposals of the sampler")
        + f". Seeds {seeds}: the worst third is judged on both, and only what was run on both is in the table. "
        "Rules with an `f` are told the true number of attackers, or the most that they withstand."
    )
    rows = [f"| {place} | {' | '.join(line)} |" for place, line in enumerate(lines, start=1)]
    parts = (
        budget,
        "\n".join([*heading, *rows]),
        footnote,
        _shorter(lines, most),
        _kept(teams, lines),
        _missing(folder, lines),
    )
    return "\n\n".join(part for part in parts if part)


def _renewed(text: str) -> tuple[list[str], list[list[str]], str]:
    """The lines of the table that is kept, with those of a new leaderboard in their place; they are kept in turn.

    Returns:
        The heading's two lines, the cells of every rule but its place, the best first, and the footnote.
    """
    table, _, footnote = text.strip().partition("\n\n")
    names, rule, *new = table.splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")][1:] for line in (names, *new)]
    with TABLE.open(newline="", encoding="utf-8") as file:
        lines = {line[0]: line for line in list(csv.reader(file))[1:]} | {line[0]: line for line in cells[1:]}
    # Ranked by what is left of the metric in the worst case, as `leaderboard` does.
    ranked = sorted(lines.values(), key=lambda line: (float(line[2].split()[0]) - float(line[1]), line[0]))
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([cells[0], *ranked])
    return [names, rule], ranked, footnote


def _shorter(lines: list[list[str]], most: int) -> str:
    """The rules whose search was cut short."""
    tried = sorted((line[0], line[-1]) for line in lines)
    named = ", ".join(f"{rule} ({count})" for rule, count in tried if int(count.split(",")[0]) < most)
    return (
        f"Searched for a shorter time, so that their lines look better than they should: {named}."
        if named
        else ""
    )


def _kept(teams: list[Findings], lines: list[list[str]]) -> str:
    """The rules whose lines are those of another search than the rest."""
    new = {findings.plan.aggregator for findings in teams}
    old = [line[0] for line in lines if line[0].strip("`") not in new]
    return f"From an earlier search, with the attacks of its time: {', '.join(sorted(old))}." if old else ""


def _missing(folder: Path, lines: list[list[str]]) -> str:
    """The rules without a line, each with its reason."""
    searched = {line[0].strip("`") for line in lines}
    missing = []
    for rule in aggregators.available():
        if rule not in searched:
            file = folder / rule / REASON
            why = file.read_text(encoding="utf-8").strip() if file.exists() else "not searched"
            missing.append(f"- `{rule}`: {SAME.get(rule, why)}")
    return "Not in the table:\n\n" + "\n".join(missing) if missing else ""


def write_leaderboard(folder: Path) -> Path:
    """Replace the leaderboard in docs/redteam.md."""
    page = DOCS / "redteam.md"
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    page.write_text(f"{before}{BEGIN}\n\n{text_of(folder)}\n\n{END}{after}", encoding="utf-8")
    return page


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("search", "page"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--minutes", type=float, help="per rule, after which no new attack is started")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--without", nargs="+", default=[], metavar="ATTACK")
    asked = parser.parse_args()
    if asked.what == "search":
        search_all(asked.folder, asked.trials, asked.minutes, asked.only, tuple(asked.without))
    else:
        print(write_leaderboard(asked.folder))


if __name__ == "__main__":
    main()
