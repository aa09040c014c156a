"""One run as browsers see it: an append-only log of small JSON entries, and its present state.

An entry is made once, from new lines, and kept as text: one more browser, or one more round for all of them,
costs nothing but the bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import yaml

from wardround.errors import DataError
from wardround.live.events import Event, audit_events, client_events, round_events, summary_events
from wardround.records import ClientRecord, Summary, check_schema, pipeline_name
from wardround.runs.lines import LONGEST_NAME, read_client, read_round, read_summary
from wardround.runs.open_warnings import OpenWarnings
from wardround.runs.reasons import Peers, columns_of, explain, number, reason_code, rule_reasons
from wardround.runs.tail import NewLines, Tail
from wardround.yaml_text import parse_own_yaml

__all__ = ["LONGEST_NAME", "MARKS", "Entry", "RunFeed", "RunLog"]

RECENT = 12  # rounds from which the time per round is estimated
MARKS = {"fine": "0", "flagged": "1", "dropped": "2", "quarantined": "3", "no flags": "-"}
OPERATOR = ("quarantined", "released")  # audit events that a simulation has, too


class Entry(NamedTuple):
    """An entry of the log: its kind, and its JSON text."""

    kind: str
    text: str


class Row(NamedTuple):
    """The present state of a client, and in which poll it changed."""

    turn: int
    text: str


class RunLog:
    """What browsers can read of a run since it was last started: replaced as a whole when it starts again."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.entries: list[Entry] = []
        self.rows: dict[int, Row] = {}
        self.turn = 0
        """Grows by 1 with every poll."""
        self.ready = (0, 0)
        """Entries and turns that are complete: readers in other threads read no further than this."""


class RunFeed:
    """Reads one run folder. `poll` belongs to one thread; `log` and `info` may be read by any."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.id = hashlib.sha256(str(path).encode()).hexdigest()[:12]
        self.label = name
        self.group = name
        """The label without the seed: seeds of one experiment share it."""
        self.config: dict[str, Any] = {}
        self.detailed = False
        """Whether the clients' lines are read, too: not for the hundreds of runs that nobody looks at."""
        self.info = ""
        """The run's line in the list of runs, as JSON text; `version` is the feed's when it last changed."""
        self.version = 0
        self.log = RunLog(0)
        self._rounds, self._clients, self._audit = (
            Tail(path / file) for file in ("rounds.jsonl", "clients.jsonl", "audit.jsonl")
        )
        self._stats: dict[str, tuple[int, int, int]] = {}
        self._clear()

    def _clear(self) -> None:
        """Forget everything that was read from the folder."""
        self.names: dict[str, int] = {}
        self.quarantined: dict[str, str] = {}
        self.seen: dict[str, float] = {}
        self.warnings = OpenWarnings()
        self.round = 0
        self.metrics: dict[str, float] = {}
        self.epsilon: float | None = None
        self.federation = False
        self.summary: Summary | None = None
        self.unreadable = 0
        self._seconds: deque[float] = deque(maxlen=RECENT)
        self._waits: deque[float] = deque(maxlen=RECENT)
        self._written = 0.0
        self._waiting: dict[int, list[ClientRecord]] = {}
        self._flagged: set[str] = set()
        self._audited: int | None = None
        self._norms: dict[str, float | None] = {}
        """Of updates, from the audit log: not every rule has them among its columns."""
        self._received: dict[str, int] = {}
        """The last round in which a client of a federation sent something: silent ones have a line, too."""
        self._counts: dict[int, list[int]] = {}
        self._latest: dict[int, tuple[ClientRecord, str, Peers]] = {}
        self._reasons: Mapping[int, str] | None = None
        self._stats = {}

    @property
    def bytes_read(self) -> int:
        """How many bytes of the line files were read so far."""
        return self._rounds.bytes_read + self._clients.bytes_read + self._audit.bytes_read

    def poll(self) -> tuple[bool, bool]:
        """Read what is new.

        Returns:
            Whether anything was new, and whether there is more to read right now.
        """
        new = [self._rounds.poll(), self._audit.poll(), self._clients.poll() if self.detailed else NewLines()]
        if any(part.restarted for part in new):
            self._restart()
            return True, True
        self.log.turn += 1
        changed = self._read_files()
        rounds, audit, clients = new
        self.unreadable += sum(part.unreadable for part in new)
        self._read_rounds(rounds.lines)
        self._read_audit(audit.lines)
        self._read_clients(clients.lines)
        self._emit_clients(all_there=not clients.more and not rounds.more)
        self._emit_rows()
        self.log.ready = (len(self.log.entries), self.log.turn)
        more = any(part.more for part in new)
        return changed or more or any(part.lines or part.unreadable for part in new), more

    def _restart(self) -> None:
        """The run was started again or resumed from an earlier round: what was read no longer holds."""
        before = self.round
        for tail in (self._rounds, self._clients, self._audit):
            tail.reset()
        self._clear()
        self.log = RunLog(self.log.generation + 1)
        if before:
            self._add_events([Event("resumed", "the run's files were cut or replaced: it was started again")])

    def _read_files(self) -> bool:
        """Read config.yaml and summary.json, which are replaced as a whole."""
        changed = False
        if self._replaced("config.yaml"):
            changed = True
            try:
                loaded = parse_own_yaml((self.path / "config.yaml").read_bytes())
            except (OSError, yaml.YAMLError):
                loaded = None
            self.config = loaded if isinstance(loaded, dict) else {}
            self.federation = self.federation or "federation" in self.config
            self._reasons = None
            record = _mapping(self.config.get("record"))
            try:
                check_schema(record, self.path / "config.yaml")
            except DataError as error:  # show what can be read of it, and say why it may be wrong
                self._add_events([Event("schema", str(error))])
            self._add_names(_mapping(record.get("clients")))
        if self._replaced("summary.json"):
            changed = True
            try:
                loaded = json.loads((self.path / "summary.json").read_bytes())
            except (OSError, ValueError):
                loaded = None
            self.summary = read_summary(loaded)
            self._add_events(summary_events(self.summary))
        return changed

    def _replaced(self, file: str) -> bool:
        try:
            stat = (self.path / file).stat()
            now = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        except OSError:
            now = (0, 0, 0)
        before = self._stats.get(file, (0, 0, 0))
        self._stats[file] = now
        return now != before

    def _read_rounds(self, lines: Sequence[dict[str, Any]]) -> None:
        if not lines:
            return
        if self._written and self._rounds.modified > self._written:
            self._waits.append((self._rounds.modified - self._written) / len(lines))
        self._written = self._rounds.modified
        for line in lines:
            record = read_round(line)
            if record is None:
                self.unreadable += 1
                continue
            self.round = max(self.round, record.round)
            metrics = {
                str(name): known
                for name, value in (record.metrics or {}).items()
                if (known := number(value)) is not None
            }
            self.metrics = metrics or self.metrics
            spent = number((record.privacy or {}).get("epsilon"))
            self.epsilon = self.epsilon if spent is None else spent
            seconds = sum(number(value) or 0.0 for value in record.seconds.values())
            self._seconds.append(seconds)
            entry = {
                "kind": "round",
                "round": record.round,
                "metrics": metrics,
                "seconds": round(seconds, 4),
            }
            self._append(entry | ({} if spent is None else {"epsilon": spent}))
            self._add_events(round_events(record, self.config))

    def _read_audit(self, lines: Sequence[dict[str, Any]]) -> None:
        for line in lines:
            client, event, time = line.get("client"), line.get("event"), number(line.get("time"))
            self.federation = self.federation or event not in OPERATOR
            self.warnings.note(line)
            if event == "received":
                for name, sent in _mapping(line.get("clients")).items():
                    self.seen[name[:LONGEST_NAME]] = time or 0.0
                    self._norms[name[:LONGEST_NAME]] = number(_mapping(sent).get("norm"))
                    if isinstance(line.get("round"), int):
                        self._received[name[:LONGEST_NAME]] = line["round"]
            elif isinstance(client, str):
                client = client[:LONGEST_NAME]
                if event == "quarantined":
                    self.quarantined[client] = str(line.get("reason", ""))
                elif event == "released":
                    self.quarantined.pop(client, None)
                elif time is not None and event == "joined":
                    self.seen[client] = time
            # An operator's action names no round: it belongs to the last round in the log.
            if isinstance(line.get("round"), int):
                self._audited = line["round"]
            self._add_events(audit_events(line, self._audited))

    def _read_clients(self, lines: Sequence[dict[str, Any]]) -> None:
        for line in lines:
            record = read_client(line)
            if record is None:
                self.unreadable += 1
            else:
                self._waiting.setdefault(record.round, []).append(record)

    def _emit_clients(self, all_there: bool) -> None:
        """Publish the rounds whose lines are complete: a later round has begun, or the round has its own line."""
        if not self._waiting:
            return
        last = max(self._waiting)
        for number_ in sorted(self._waiting):
            if number_ < last or (all_there and number_ <= self.round):
                self._emit_round(number_, self._waiting.pop(number_))

    def _emit_round(self, round_: int, clients: list[ClientRecord]) -> None:
        self._add_names([record.client for record in clients])
        places = [self.names[record.client] for record in clients]
        peers = Peers([record for record in clients if not record.flag and record.status == "ok"])
        whole = places == list(range(len(self.names)))
        scores = ",".join(_digits(record.score) for record in clients)
        weights = ",".join(_digits(record.weight) for record in clients)
        marks = "".join(_mark(record) for record in clients)
        self.log.entries.append(
            Entry(
                "cells",
                f'{{"kind":"cells","round":{round_},"clients":{"null" if whole else json.dumps(places)},'
                f'"scores":[{scores}],"weights":[{weights}],"marks":"{marks}"}}',
            )
        )
        events, self._flagged = client_events(round_, clients, self._flagged)
        self._add_events(events)
        for place, record, mark in zip(places, clients, marks, strict=True):
            counts = self._counts.setdefault(place, [0, 0])
            counts[0] += 1
            counts[1] += mark in "12"
            self._latest[place] = (record, mark, peers)

    def _emit_rows(self) -> None:
        """Publish each client's last record of this turn: the table shows no other."""
        for place, (record, mark, peers) in self._latest.items():
            if "norm" not in record.columns:
                norm = self._norms.get(record.client)
                record = replace(record, columns={**record.columns, "norm": norm})
            last = self._received.get(record.client, record.round)
            row = _row(place, record, last, mark, self._explain(record, peers), self._counts[place])
            self.log.rows[place] = Row(self.log.turn, row)
        self._latest.clear()

    def _explain(self, record: ClientRecord, peers: Peers) -> str:
        if self._reasons is None and record.flag and reason_code(record):
            self._reasons = rule_reasons(self.config)
        return explain(record, peers, self._reasons or {})

    def _add_names(self, clients: Sequence[str] | Mapping[str, Any]) -> None:
        """Number new clients in the order in which they appear."""
        new = [name for name in map(str, clients) if name not in self.names]
        if new:
            self._append({"kind": "names", "from": len(self.names), "names": new})
            self.names |= {name: len(self.names) + place for place, name in enumerate(new)}

    def _append(self, entry: dict[str, Any]) -> None:
        self.log.entries.append(Entry(entry["kind"], json.dumps(entry, separators=(",", ":"))))

    def _add_events(self, events: Sequence[Event]) -> None:
        for event in events:
            self._append({"kind": "event", **event.plain()})

    def describe(self) -> dict[str, Any]:
        """What the list of runs shows of the run."""
        attack = _mapping(_mapping(self.config.get("record")).get("attack"))
        dp = _mapping(_mapping(self.config.get("privacy")).get("dp"))
        section = _mapping(self.config.get("attack"))
        return {
            "id": self.id,
            "name": self.name,
            "label": self.label,
            "group": self.group,
            "seed": self.config.get("seed"),
            "rule": _rule_name(self.config),
            "attack": section.get("name", "none"),
            "onset": section.get("start") if attack.get("byzantine") else None,
            "attackers": attack.get("byzantine") or [],
            "broken": _mapping(_mapping(self.config.get("record")).get("fault")).get("broken") or [],
            "clients": len(self.names),
            "round": self.round,
            "rounds": self.config.get("rounds"),
            "status": self.summary.status if self.summary else "running" if self.round else "waiting",
            "reason": self.summary.reason if self.summary else None,
            "written": self._written or None,
            "seconds_per_round": self._seconds_per_round(),
            "metrics": self.metrics,
            "epsilon": self.epsilon,
            "budget": number(dp.get("budget")),
            "federation": self.federation,
            "quarantined": self.quarantined,
            "seen": self.seen,
            "warnings": [] if self.summary else self.warnings.texts(),
            "unreadable": self.unreadable,
        }

    def _seconds_per_round(self) -> float | None:
        """Measured between rounds where some were watched, otherwise from the seconds in their lines."""
        seconds = self._waits if len(self._waits) >= 3 else self._seconds
        return round(median(seconds), 4) if seconds else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _digits(value: Any) -> str:
    """Four digits: more than a colour can show."""
    known = number(value)
    return "null" if known is None else f"{known:.4g}"


def _mark(record: ClientRecord) -> str:
    if record.status != "ok":
        return MARKS["quarantined" if record.status == "quarantined" else "dropped"]
    if record.flag is None:
        return MARKS["no flags"]
    return MARKS["flagged" if record.flag else "fine"]


def _row(place: int, record: ClientRecord, last: int, mark: str, reason: str, counts: Sequence[int]) -> str:
    columns = columns_of(record)
    row = {
        "place": place,
        "round": last,
        "samples": number(record.num_samples),
        "norm": columns.get("norm"),
        "score": number(record.score),
        "weight": number(record.weight),
        "mark": mark,
        "why": reason[:500],
        "attacking": bool(record.attacking),
        "failing": bool(record.failing),
        "taken_part": counts[0],
        "flagged": counts[1],
        "columns": columns,
    }
    return json.dumps(row, separators=(",", ":"))


def _rule_name(config: Mapping[str, Any]) -> str | None:
    """The rule with its pre-aggregations; None where the configuration is not there yet."""
    section = _mapping(config.get("aggregator"))
    return pipeline_name(section) if "name" in section else None
