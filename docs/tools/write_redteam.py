"""Search every rule with the red team, and write the leaderboard of docs/redteam.md from what was found.

    python docs/tools/write_redteam.py search FOLDER [--trials 50] [--minutes 10] [--only NAME …]
    python docs/tools/write_redteam.py page FOLDER

`search` is `wardround redteam --aggregator NAME` for one rule after the other, in the preset's setting; run it again to
resume. `page` replaces what stands between the two marks in the page.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from result_pages import DOCS

from wardround import aggregators
from wardround.errors import WardroundError
from wardround.experiments.presets import load_matrix
from wardround.experiments.redteam import Findings, Plan, read_findings, search
from wardround.experiments.redteam.page import leaderboard, write

BEGIN, END = "<!-- leaderboard: docs/tools/write_redteam.py -->", "<!-- end of leaderboard -->"
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
    plan = teams[0].plan
    seeds = " and ".join(map(str, plan.seeds))
    longest = max((findings.trials for findings in teams), key=len)
    most, names = len(longest), {tried.attack["name"] for tried in longest}
    keeping = sum(tried.attack.get("keep", "nothing") != "nothing" for tried in longest[len(names) :])
    proposed = most - len(names) - keeping
    budget = (
        f"{len(teams)} of {len(aggregators.available())} rules, **{most} attacks each**: each of "
        f"{len(names)} attacks with its defaults, by {100 * plan.max_fraction:.0f} % from round 1, and the "
        f"{keeping} variants whose rows keep the honest norm or residual"
        + (f", then {proposed} proposals of the sampler" if proposed else "; no proposals of the sampler")
        + f". Seeds {seeds}: the worst third is judged on both, and only what was run on both is in the table. "
        "Rules with an `f` are told the true number of attackers, or the most that they withstand."
    )
    parts = (budget, leaderboard(teams).strip(), _shorter(teams, most), _missing(folder, teams))
    return "\n\n".join(part for part in parts if part)


def _shorter(teams: list[Findings], most: int) -> str:
    """The rules whose search was cut short."""
    short = sorted((f for f in teams if len(f.trials) < most), key=lambda f: f.plan.rule)
    if not short:
        return ""
    named = ", ".join(f"`{f.plan.rule}` ({len(f.trials)})" for f in short)
    return f"Searched for a shorter time, so that their lines look better than they should: {named}."


def _missing(folder: Path, teams: list[Findings]) -> str:
    """The rules without a line, each with its reason."""
    searched = {findings.plan.aggregator for findings in teams}
    lines = []
    for rule in aggregators.available():
        if rule not in searched:
            file = folder / rule / REASON
            why = file.read_text(encoding="utf-8").strip() if file.exists() else "not searched"
            lines.append(f"- `{rule}`: {SAME.get(rule, why)}")
    return "Not in the table:\n\n" + "\n".join(lines) if lines else ""


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
