"""The results of a red team as text: the page on one rule, and the leaderboard of worst cases over rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from wardround.errors import ConfigError
from wardround.experiments.redteam.picture import picture
from wardround.experiments.redteam.results import Findings, Tried
from wardround.files import replace_file

__all__ = ["leaderboard", "page", "words", "worst_table", "write"]

PAGE, PICTURE = "redteam.md", "redteam.svg"
WINDOW = ("name", "fraction", "start")


def write(findings: Findings, folder: Path) -> None:
    """Write all files of a red team: findings, configurations to replay, page and picture."""
    findings.write(folder)
    replace_file(folder / PAGE, page(findings).encode())
    replace_file(folder / PICTURE, picture(findings).encode())


def page(findings: Findings) -> str:
    """The ten worst attacks on one rule, as Markdown."""
    plan, count = findings.plan, Counter(tried.state for tried in findings.trials)
    seeds = ", ".join(map(str, plan.seeds))
    lines = [
        f"| {place + 1} | {_with_setting(findings, tried)} | {tried.attack['fraction']:g} | {tried.attack['start']} "
        f"| {tried.value:.3f} | {_lost(tried)} | {_rates(tried)} | `{findings.replay_name(place)}` |"
        for place, tried in enumerate(findings.worst)
    ]
    failed = Counter(tried.reason for tried in findings.trials if tried.state == "failed")
    failures = "".join(f"- {number} × {reason}\n" for reason, number in failed.most_common())
    return (
        f"# Red team against `{plan.rule}`\n\n"
        f"{len(findings.trials)} attacks tried on seeds {seeds}: {count['complete']} on every seed, "
        f"{count['halved']} given up early for doing less harm, {count['failed']} impossible. "
        f"{_clean_sentence(findings)}\n\n"
        f"| | attack | Byzantine | from round | {plan.metric} | lost | detected / false alarms | replay |\n"
        f"|---|---|---|---|---|---|---|---|\n" + "\n".join(lines) + "\n\n"
        f"`wardround run` with a file of the last column repeats the run on seed {plan.seeds[0]}.\n\n"
        f"![Loss against trials, and by attack]({PICTURE})\n"
        + (f"\nImpossible:\n\n{failures}" if failures else "")
        + _footnote(findings.worst)
    )


def worst_table(findings: Findings) -> Table:
    """The same for a terminal."""
    plan = findings.plan
    table = Table(
        title=f"{plan.rule}: {plan.metric} {findings.clean_value:.3f} without attack; the worst of "
        f"{len(findings.trials)} attacks",
        title_justify="left",
    )
    for name in ("", "attack", "Byzantine", "from round", plan.metric, "lost", "detected / false alarms"):
        table.add_column(name, justify="left" if name in ("", "attack") else "right")
    for place, tried in enumerate(findings.worst, start=1):
        table.add_row(
            str(place), _with_setting(findings, tried), f"{tried.attack['fraction']:g}", str(tried.attack["start"]),
            f"{tried.value:.3f}", _lost(tried), _rates(tried),
        )  # fmt: skip
    return table


def leaderboard(teams: Sequence[Findings]) -> str:
    """The worst case of every rule, the best of them first, as Markdown.

    An attack's loss is what it takes from the metric or what its backdoor gains. Both worst cases are shown.
    """
    first = teams[0].plan
    for findings in teams:
        theirs = findings.plan.setting
        if other := [key for key, value in first.setting.items() if theirs[key] != value]:
            raise ConfigError(
                f"the red team of {findings.plan.rule} cannot be compared with that of {first.rule}: "
                f"another {', '.join(other)}"
            )
    ranked = sorted(
        (f for f in teams if f.worst),
        key=lambda f: (f.worst[0].loss - f.clean_value_in(f.worst[0].setting), f.plan.rule),
    )
    lines = [
        f"| {place} | `{f.plan.rule}` | {f.clean_value_in(f.worst[0].setting):.3f} | {_lost(f.worst[0])} "
        f"| {_lowest(f)} | {_without_the_rule(f)} | {_best_backdoor(f)} | {len(f.harmful)} | {_tried(f)} |"
        for place, f in enumerate(ranked, start=1)
    ]
    lowest = [tried for f in ranked if (tried := f.lowest()) is not None]
    return (
        f"| | rule | {first.metric} clean | lost in the worst case | lowest {first.metric}; the attack; detected / "
        f"false alarms | lowest without a copy of the rule | most gained by a backdoor | harmful | tried |\n"
        f"|---|---|---|---|---|---|---|---|---|\n" + "\n".join(lines) + "\n" + _footnote(lowest)
    )


def _where(findings: Findings, tried: Tried) -> str:
    setting = findings.plan.setting_words(tried.setting)
    return f"; in {setting}" if setting else ""


def _with_setting(findings: Findings, tried: Tried) -> str:
    return words(tried.attack) + _where(findings, tried)


def _clean_sentence(findings: Findings) -> str:
    """What the rule reaches without attack, in each setting."""
    plan = findings.plan
    if plan.count_settings == 1:
        return f"Without attack the {plan.metric} is {findings.clean_value:.3f}."
    each = [
        f"{findings.clean_value_in(setting):.3f} ({plan.setting_words(setting)})"
        for setting in range(plan.count_settings)
    ]
    return f"Without attack the {plan.metric} is {', '.join(each)}."


def _lost(tried: Tried) -> str:
    """What an attack cost; said where that is not the metric but what its backdoor gained."""
    by_backdoor = any(outcome.backdoor == outcome.loss for outcome in tried.outcomes)
    return f"{tried.loss:.3f}{' (backdoor)' if by_backdoor else ''}"


def words(attack: Mapping[str, Any]) -> str:
    """An attack with its parameters on one line.

    >>> words({"name": "alie", "fraction": 0.4, "start": 1, "k": -3.0, "match_norm": True})
    'alie k -3, match_norm'
    >>> words({"name": "ipm", "fraction": 0.4, "start": 1, "eps": 0.5, "keep": "residual"})
    'ipm eps 0.5, keeps its residual'
    """
    if attack["name"] == "mix":
        parts = [f"{_percent(part['share'])} {words({**part, 'share': None})}" for part in attack["parts"]]
        return " and ".join(parts)
    parameters = [_parameter(key, value) for key, value in attack.items() if key not in WINDOW]
    return " ".join([attack["name"], ", ".join(filter(None, parameters))]).strip()


def _parameter(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return key if value else ""
    if key == "keep":
        return "" if value == "nothing" else f"keeps its {value}"
    if isinstance(value, str):
        return value
    return "" if value is None else f"{key} {value:g}"


def _in_full(attack: Mapping[str, Any]) -> str:
    return f"{words(attack)}; {_percent(attack['fraction'])} from round {attack['start']}"


def _lowest(findings: Findings) -> str:
    tried = findings.lowest()
    if tried is None:
        return "–"
    return f"{tried.value:.3f}; {_in_full(tried.attack)}{_where(findings, tried)}; {_rates(tried)}"


def _without_the_rule(findings: Findings) -> str:
    tried = findings.lowest(with_copy=False)
    return "–" if tried is None else f"{tried.value:.3f}, {tried.name}{_kept(tried)}"


def _best_backdoor(findings: Findings) -> str:
    tried = findings.best_backdoor()
    return "–" if tried is None else f"{tried.backdoor:.3f}, {tried.name}{_kept(tried)}"


def _kept(tried: Tried) -> str:
    """What crafted rows keep of the honest ones, if anything."""
    keeps = _parameter("keep", tried.attack.get("keep", "nothing"))
    return f" ({keeps})" if keeps else ""


def _tried(findings: Findings) -> str:
    without = ", ".join(findings.plan.without)
    return f"{len(findings.trials)}, without {without}" if without else str(len(findings.trials))


def _rates(tried: Tried) -> str:
    tpr, fpr = tried.rate("tpr"), tried.rate("fpr")
    mark = "*" if any(outcome.verdict == "weights" for outcome in tried.outcomes) else ""
    return " / ".join("–" if rate is None else f"{_percent(rate)}{mark}" for rate in (tpr, fpr))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _footnote(shown: Sequence[Tried]) -> str:
    by_weight = any(outcome.verdict == "weights" for tried in shown for outcome in tried.outcomes)
    return "\n\\* no flags: clients given less than a tenth of an equal share\n" if by_weight else ""
