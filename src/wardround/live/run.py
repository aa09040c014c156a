"""One run as browsers see it: an append-only log of small JSON records, and what is true right now.

A record is made once, from the lines that are new, and kept as text: telling one more browser, or telling
all of them one more round, costs nothing but the bytes.
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
from wardround.live.happenings import Happening, of_audit, of_clients, of_round, of_summary
from wardround.live.lines import LONGEST_NAME, read_client, read_round, read_summary
from wardround.live.reasons import Peers, columns_of, number, why
from wardround.live.tail import News, Tail
from wardround.records import ClientRecord, Summary, check_schema

__all__ = ["LONGEST_NAME", "MARKS", "Record", "RunFeed", "Told"]

RECENT = 12  # rounds that the time a round takes is estimated from
MARKS = {"fine": "0", "flagged": "1", "dropped": "2", "set aside": "3", "no verdict": "-"}


class Record(NamedTuple):
    """A piece of the log: its kind, and its JSON text."""

    kind: str
    text: str


class Row(NamedTuple):
    """What is known of a client now, and in which turn that was learnt."""

    turn: int
    text: str


class Told:
    """What was told of a run since it was last started: replaced as a whole when it starts again."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.log: list[Record] = []
        self.rows: dict[int, Row] = {}
        self.turn = 0
        self.ready = (0, 0)
        """Records and turns that are complete: readers in other threads go no further than this."""


class RunFeed:
    """Reads one run folder. `look` belongs to one thread; `told` and `info` may be read by any."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.id = hashlib.sha256(str(path).encode()).hexdigest()[:12]
        self.label = name
        self.config: dict[str, Any] = {}
        self.detailed = False
        """Are the clients' lines wanted? Those of hundreds of runs that nobody looks at are not read."""
        self.info = ""
        """The run in a line, as JSON text; `version` is the feed's when it last changed."""
        self.version = 0
        self.told = Told(0)
        self._rounds, self._clients, self._audit = (
            Tail(path / file) for file in ("rounds.jsonl", "clients.jsonl", "audit.jsonl")
        )
        self._stats: dict[str, tuple[int, int, int]] = {}
        self._begin()

    def _begin(self) -> None:
        """Everything that came from lines."""
        self.names: dict[str, int] = {}
        self.quarantined: dict[str, str] = {}
        self.seen: dict[str, float] = {}
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
        """Of updates, as the audit log tells them: not every rule does."""
        self._received: dict[str, int] = {}
        """The last round in which a federation's client sent something: silent ones have a line, too."""
        self._counts: dict[int, list[int]] = {}
        self._latest: dict[int, tuple[ClientRecord, str, Peers]] = {}
        self._stats = {}

    @property
    def bytes_read(self) -> int:
        """How much of the line files was read so far."""
        return self._rounds.bytes_read + self._clients.bytes_read + self._audit.bytes_read

    def look(self) -> tuple[bool, bool]:
        """Read what is new. Returns whether anything was, and whether there is more to read at once."""
        news = [self._rounds.look(), self._audit.look(), self._clients.look() if self.detailed else News()]
        if any(part.restarted for part in news):
            self._start_over()
            return True, True
        self.told.turn += 1
        changed = self._take_files()
        rounds, audit, clients = news
        self.unreadable += sum(part.unreadable for part in news)
        self._take_rounds(rounds.lines)
        self._take_audit(audit.lines)
        self._take_clients(clients.lines)
        self._emit_clients(all_there=not clients.more and not rounds.more)
        self._emit_rows()
        self.told.ready = (len(self.told.log), self.told.turn)
        more = any(part.more for part in news)
        return changed or more or any(part.lines or part.unreadable for part in news), more

    def _start_over(self) -> None:
        """The run was started anew, or went on from an earlier round: what was told no longer holds."""
        before = self.round
        for tail in (self._rounds, self._clients, self._audit):
            tail.begin_again()
        self._begin()
        self.told = Told(self.told.generation + 1)
        if before:
            self._tell([Happening("resumed", "the run's files were cut or replaced: it was started again")])

    def _take_files(self) -> bool:
        """The two files that are replaced whole."""
        changed = False
        if self._replaced("config.yaml"):
            changed = True
            try:
                loaded = yaml.load((self.path / "config.yaml").read_bytes(), _Loader)
            except (OSError, yaml.YAMLError):
                loaded = None
            self.config = loaded if isinstance(loaded, dict) else {}
            record = _mapping(self.config.get("record"))
            try:
                check_schema(record, self.path / "config.yaml")
            except DataError as error:  # show what can be read of it, and say why it may be wrong
                self._tell([Happening("schema", str(error))])
            self._name(_mapping(record.get("clients")))
        if self._replaced("summary.json"):
            changed = True
            try:
                loaded = json.loads((self.path / "summary.json").read_bytes())
            except (OSError, ValueError):
                loaded = None
            self.summary = read_summary(loaded)
            self._tell(of_summary(self.summary))
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

    def _take_rounds(self, lines: Sequence[dict[str, Any]]) -> None:
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
            self._tell(of_round(record, self.config))

    def _take_audit(self, lines: Sequence[dict[str, Any]]) -> None:
        for line in lines:
            self.federation = True
            client, event, time = line.get("client"), line.get("event"), number(line.get("time"))
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
            # An operator's action names no round: it belongs to the one that the log had come to.
            if isinstance(line.get("round"), int):
                self._audited = line["round"]
            self._tell(of_audit(line, self._audited))

    def _take_clients(self, lines: Sequence[dict[str, Any]]) -> None:
        for line in lines:
            record = read_client(line)
            if record is None:
                self.unreadable += 1
            else:
                self._waiting.setdefault(record.round, []).append(record)

    def _emit_clients(self, all_there: bool) -> None:
        """Tell the rounds whose lines are complete: a later round has begun, or the round has its own line."""
        if not self._waiting:
            return
        last = max(self._waiting)
        for number_ in sorted(self._waiting):
            if number_ < last or (all_there and number_ <= self.round):
                self._emit_round(number_, self._waiting.pop(number_))

    def _emit_round(self, round_: int, clients: list[ClientRecord]) -> None:
        self._name([record.client for record in clients])
        places = [self.names[record.client] for record in clients]
        peers = Peers([record for record in clients if not record.flag and record.status == "ok"])
        whole = places == list(range(len(self.names)))
        scores = ",".join(_digits(record.score) for record in clients)
        weights = ",".join(_digits(record.weight) for record in clients)
        marks = "".join(_mark(record) for record in clients)
        self.told.log.append(
            Record(
                "cells",
                f'{{"kind":"cells","round":{round_},"clients":{"null" if whole else json.dumps(places)},'
                f'"scores":[{scores}],"weights":[{weights}],"marks":"{marks}"}}',
            )
        )
        told, self._flagged = of_clients(round_, clients, self._flagged)
        self._tell(told)
        for place, record, mark in zip(places, clients, marks, strict=True):
            counts = self._counts.setdefault(place, [0, 0])
            counts[0] += 1
            counts[1] += mark in "12"
            self._latest[place] = (record, mark, peers)

    def _emit_rows(self) -> None:
        """Of the rounds that were read in this turn, each client's last: the table shows no other."""
        for place, (record, mark, peers) in self._latest.items():
            if "norm" not in record.columns:
                norm = self._norms.get(record.client)
                record = replace(record, columns={**record.columns, "norm": norm})
            last = self._received.get(record.client, record.round)
            row = _row(place, record, last, mark, why(record, peers), self._counts[place])
            self.told.rows[place] = Row(self.told.turn, row)
        self._latest.clear()

    def _name(self, clients: Sequence[str] | Mapping[str, Any]) -> None:
        """Number the clients that are new, in the order in which they turn up."""
        new = [name for name in map(str, clients) if name not in self.names]
        if new:
            self._append({"kind": "names", "from": len(self.names), "names": new})
            self.names |= {name: len(self.names) + place for place, name in enumerate(new)}

    def _append(self, record: dict[str, Any]) -> None:
        self.told.log.append(Record(record["kind"], json.dumps(record, separators=(",", ":"))))

    def _tell(self, happenings: Sequence[Happening]) -> None:
        for happening in happenings:
            self._append({"kind": "event", **happening.plain()})

    def describe(self) -> dict[str, Any]:
        """The run in a line: what the list of runs shows."""
        attack = _mapping(_mapping(self.config.get("record")).get("attack"))
        dp = _mapping(_mapping(self.config.get("privacy")).get("dp"))
        section = _mapping(self.config.get("attack"))
        return {
            "id": self.id,
            "name": self.name,
            "label": self.label,
            "rule": _mapping(self.config.get("aggregator")).get("name"),
            "attack": section.get("name", "none"),
            "onset": section.get("start") if attack.get("byzantine") else None,
            "attackers": attack.get("byzantine") or [],
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
            "unreadable": self.unreadable,
        }

    def _seconds_per_round(self) -> float | None:
        """By the clock between rounds where some were watched, else by what the rounds say of themselves."""
        told = self._waits if len(self._waits) >= 3 else self._seconds
        return round(median(told), 4) if told else None


_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _digits(value: Any) -> str:
    """Four digits are more than a colour shows."""
    known = number(value)
    return "null" if known is None else f"{known:.4g}"


def _mark(record: ClientRecord) -> str:
    if record.status != "ok":
        return MARKS["set aside" if record.status == "quarantined" else "dropped"]
    if record.flag is None:
        return MARKS["no verdict"]
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
        "taken_part": counts[0],
        "flagged": counts[1],
        "columns": columns,
    }
    return json.dumps(row, separators=(",", ":"))
