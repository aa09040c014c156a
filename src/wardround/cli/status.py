"""`wardround status`: a run on one screen.

Imports of other modules are inside the functions, so that the command line starts fast.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from wardround.runs.overview import ClientOverview, RunOverview

__all__ = ["mount"]

MOST_SHOWN = 40
"""Clients in the table; of more, those to look at first."""


def mount(app: typer.Typer) -> None:
    """Add this command to the command line."""
    app.command()(status)


def status(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a run, or a folder of runs: then its latest.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    watch: Annotated[
        float | None, typer.Option("--every", min=0.5, help="Print it again every this many seconds.")
    ] = None,
) -> None:
    """Show who takes part in a run, who was flagged, left out or quarantined and why, ε spent, and when it ends."""
    from wardround.cli.console import console
    from wardround.runs.overview import RunOverview

    overview = RunOverview.read(_folder(run))
    while True:
        if as_json:
            print(json.dumps(plain(overview)))
        else:
            if watch is not None:
                console.clear()
            for line in headline(overview):
                console.print(line, markup=False, soft_wrap=True)
            console.print(clients_table(overview))
            for line in remarks(overview):
                console.print(line, markup=False, soft_wrap=True)
        if watch is None or (overview.summary is not None and not overview.is_running):
            return
        time.sleep(watch)
        overview.poll()


def _folder(path: Path) -> Path:
    """The run itself, or the one of a folder that was written last."""
    if (path / "config.yaml").exists() or not path.is_dir():
        return path
    from wardround.runs.folder import find_runs

    runs = [found.path for found in find_runs([path])]
    return max(runs, key=lambda one: (one / "config.yaml").stat().st_mtime) if runs else path


def headline(run: RunOverview) -> list[str]:
    """What the run is doing."""
    lines = [f"{run.name}: {run.status}, round {run.round} of {run.rounds}"]
    if run.summary is not None and run.summary.reason and not run.is_running:
        lines[0] += f" ({run.summary.reason})"
    left, per_round = run.seconds_left(), run.seconds_per_round()
    if run.is_running and left is not None and per_round is not None:
        end = time.strftime("%H:%M", time.localtime(time.time() + left))
        lines.append(f"{_duration(per_round)} per round; ends in about {_duration(left)}, at {end}")
    if run.waiting is not None and run.is_running:
        lines.append(f"waiting: {run.waiting}")
    expected = f" of {run.expected} expected" if run.expected else ""
    who = "hospitals" if run.is_federation else "clients"
    lines.append(f"{run.present}{expected} {who} take part; {len(run.quarantined)} quarantined")
    if (record := run.evaluated) is not None and (auroc := (record.metrics or {}).get("auroc")) is not None:
        reporting = sum(own.get("auroc") is not None for own in (record.per_client or {}).values())
        over = f", the median of {reporting} hospitals" if reporting and run.is_federation else ""
        lines.append(f"AUROC {auroc:.3f} (round {record.round}{over})")
    if run.epsilon is not None:
        budget = "" if run.budget is None else f" of {run.budget:g}"
        lines.append(f"ε = {run.epsilon:.3f}{budget}")
    if (refused := run.gateway_counters().get("refused")) is not None:
        lines.append(f"{refused:.0f} requests refused by the gateway (see gateway.log)")
    lines += [f"WARNING: {text}" for text in run.warnings]
    return lines


def clients_table(run: RunOverview) -> Table:
    """One row per client."""
    from rich.table import Table as RichTable

    table = RichTable()
    for name in ("client", "now", "last seen", "samples", "rounds", "flags", "dropped", "absent", "why"):
        right = name in ("samples", "rounds", "flags", "dropped", "absent")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    quarantined = run.quarantined
    ordered = sorted(run.clients.values(), key=lambda one: (not _is_news(one, quarantined), one.name))
    for one in ordered[:MOST_SHOWN]:
        age = run.age_of(one)
        table.add_row(
            one.name,
            _state(one, quarantined),
            "–" if age is None else f"{_duration(age)} ago",
            "–" if one.samples is None else f"{one.samples:.0f}",
            str(one.rounds),
            str(one.flags),
            str(one.dropped),
            str(one.absent),
            _why(one, quarantined),
        )
    if len(ordered) > MOST_SHOWN:
        table.caption = (
            f"{len(ordered) - MOST_SHOWN} more, about whom there is nothing to say; --json has all"
        )
    return table


def remarks(run: RunOverview) -> list[str]:
    """What stands below the table."""
    quarantined = run.quarantined
    lines = [f"refused: {name}: {reason}" for name, reason in sorted(run.refused.items())]
    unseen = sorted(set(quarantined) - set(run.clients))
    lines += [f"quarantined, and never seen: {name}: {quarantined[name]}" for name in unseen]
    return lines


def plain(run: RunOverview) -> dict[str, Any]:
    """The same for programs."""
    quarantined = run.quarantined
    return {
        "run": run.name,
        "folder": str(run.path),
        "status": run.status,
        "reason": run.summary.reason if run.summary is not None and not run.is_running else None,
        "waiting": run.waiting if run.is_running else None,
        "round": run.round,
        "rounds": run.rounds,
        "seconds_per_round": run.seconds_per_round(),
        "seconds_left": run.seconds_left(),
        "expected": run.expected,
        "present": run.present,
        "metrics": dict((run.evaluated.metrics if run.evaluated else None) or {}),
        "epsilon": run.epsilon,
        "budget": run.budget,
        "quarantined": quarantined,
        "refused": run.refused,
        "warnings": run.warnings,
        "gateway": run.gateway_counters(),
        "clients": [
            {
                **vars(one),
                "state": _state(one, quarantined),
                "quarantine": quarantined.get(one.name),
                "seconds_since_seen": run.age_of(one),
            }
            for one in sorted(run.clients.values(), key=lambda one: one.name)
        ],
    }


def _state(one: ClientOverview, quarantined: dict[str, str]) -> str:
    if one.name in quarantined:
        return "quarantined"
    if one.connected is False:
        return "away"
    if one.status in ("dropped", "absent"):
        return one.status
    return "there" if one.connected or one.status == "ok" else "joined"


def _is_news(one: ClientOverview, quarantined: dict[str, str]) -> bool:
    return bool(_why(one, quarantined)) or one.connected is False


def _why(one: ClientOverview, quarantined: dict[str, str]) -> str:
    if one.name in quarantined:
        return quarantined[one.name]
    parts = [one.reason] if one.status != "ok" and one.reason else []
    if one.last_flag is not None:
        parts.append(f"flagged in round {one.last_flag}: {one.flag_reason}")
    if one.has_model is False:
        parts.append("has not got the model yet")
    return "; ".join(parts)


def _duration(seconds: float) -> str:
    """Seconds in the unit that people would use.

    >>> [_duration(value) for value in (0.42, 12, 200, 7300, 200_000)]
    ['0.4 s', '12 s', '3 min', '2.0 h', '2.3 d']
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86400:.1f} d"
