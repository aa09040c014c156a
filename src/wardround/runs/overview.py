"""A run at a glance, read while it goes: who takes part, who was flagged or left out, what it costs, when it ends.

`wardround status`, the metrics for Prometheus and the console of `wardround serve` are made of this.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from wardround.errors import ConfigError, WardroundError
from wardround.files import is_locked
from wardround.records import CLOCKS, ClientRecord, RoundRecord, Summary
from wardround.runs.lines import LONGEST_NAME, read_client, read_round, read_summary
from wardround.runs.open_warnings import OpenWarnings
from wardround.runs.quarantine import AUDIT_LOG, quarantined
from wardround.runs.reasons import Peers, explain, number, reason_code, rule_reasons
from wardround.runs.tail import Tail
from wardround.yaml_text import parse_own_yaml

__all__ = ["GATEWAY_COUNTERS", "ClientOverview", "RunOverview"]

RECENT = 12
"""Rounds from which the time per round is estimated."""
GATEWAY_COUNTERS = "gateway.json"
"""In the server's state folder: what its gateway has counted."""


@dataclass
class ClientOverview:
    """One client of a run, as its records show it up to now."""

    name: str
    samples: float | None = None
    last_seen: float | None = None
    """When it joined or last sent something (seconds since 1970); None in simulations."""
    connected: bool | None = None
    """Is it connected, as far as the server has said? None: nobody has said."""
    rounds: int = 0
    """In which its update was used."""
    status: str | None = None
    """In its last round: ok, dropped, absent or quarantined."""
    reason: str = ""
    """Why it was left out of, or flagged in, its last round."""
    flags: int = 0
    last_flag: int | None = None
    """The last round in which it was flagged."""
    flag_reason: str = ""
    dropped: int = 0
    absent: int = 0
    norm: float | None = None
    """Of its last update, where updates are not hidden."""
    has_model: bool | None = None
    """Was the finished model brought to it? None: there is none yet."""


class RunOverview:
    """One run folder; `poll` reads what is new."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.config: dict[str, Any] = {}
        self.summary: Summary | None = None
        self.is_running = False
        names = ("rounds.jsonl", "clients.jsonl", AUDIT_LOG)
        self._rounds, self._clients, self._audit = (Tail(self.path / name) for name in names)
        self._reasons: Mapping[int, str] | None = None
        self._clear()

    def _clear(self) -> None:
        """Forget what was read of rounds, clients and events."""
        self.clients: dict[str, ClientOverview] = {}
        self.last: RoundRecord | None = None
        """The last round."""
        self.evaluated: RoundRecord | None = None
        """The last round with an evaluation."""
        self.skipped = 0
        self.retries = 0
        """Attempts at a round that missed the quorum."""
        self.waiting: str | None = None
        """What a round waits for, since the last attempt missed the quorum."""
        self.refused: dict[str, str] = {}
        """Hospital → why it was refused when it introduced itself, and has not joined since."""
        self.open_warnings = OpenWarnings()
        self.seconds: dict[str, float] = {}
        """Phase → seconds in it so far."""
        self.epsilon: float | None = None
        self._pending: dict[int, list[ClientRecord]] = {}
        """Round → records of its clients, until the round's own line is there."""
        self._ends: deque[float] = deque(maxlen=RECENT + 1)
        self._durations: deque[float] = deque(maxlen=RECENT)
        for tail in (self._rounds, self._clients, self._audit):
            tail.reset()

    @classmethod
    def read(cls, path: Path) -> RunOverview:
        """The run in a folder, read to its end.

        Raises:
            ConfigError: The folder is no run.
        """
        overview = cls(path)
        overview.poll()
        if not overview.config:
            raise ConfigError(f"{path}: no run is here (it has no config.yaml); name the folder of a run")
        return overview

    def poll(self) -> list[RoundRecord]:
        """Read what is new and return the new rounds, each with its clients' records.

        A run that is resumed cuts its files back to the last checkpoint: then everything is read again, and all rounds
        are new.
        """
        self._read_config()
        self.is_running = is_locked(self.path / ".lock")
        try:
            events, rounds, clients = self._new_lines()
        except _Restarted:
            self._clear()
            return self.poll()
        for event in events:
            self._note_event(event)
        for line in clients:
            if (client := read_client(line)) is not None:
                self._pending.setdefault(client.round, []).append(client)
        new = []
        for line in rounds:
            if (record := read_round(line)) is not None:
                own = self._pending.pop(record.round, [])
                self._note_clients(own)
                self._note_round(record)
                new.append(replace(record, clients=tuple(own)))
        self.summary = self._read_summary()
        return new

    def _new_lines(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
        """New lines of the audit log, of rounds and of clients.

        A round's clients are written before the round itself: whoever reads the rounds first finds the clients of all.
        """
        rounds = _read_all(self._rounds)
        return _read_all(self._audit), rounds, _read_all(self._clients)

    def _read_config(self) -> None:
        try:
            loaded = parse_own_yaml((self.path / "config.yaml").read_bytes())
        except (OSError, yaml.YAMLError):
            return
        if isinstance(loaded, dict) and loaded != self.config:
            self.config, self._reasons = loaded, None

    def _read_summary(self) -> Summary | None:
        try:
            return read_summary(json.loads((self.path / "summary.json").read_bytes()))
        except (OSError, ValueError):
            return None

    def client(self, name: str) -> ClientOverview:
        """A client by its name; made where it is new."""
        return self.clients.setdefault(name[:LONGEST_NAME], ClientOverview(name[:LONGEST_NAME]))

    def _note_event(self, line: Mapping[str, Any]) -> None:
        event, name, when = line.get("event"), line.get("client"), number(line.get("time"))
        self.open_warnings.note(line)
        sent = line.get("clients")
        if event == "received" and isinstance(sent, dict):
            self.waiting = None
            for client, own in sent.items():
                known = self.client(client)
                known.last_seen, known.connected = when, True
                if isinstance(own, dict):
                    known.norm, known.samples = number(own.get("norm")), number(own.get("samples"))
        elif event == "quorum-missed":
            self.retries += 1
            self.waiting = str(line.get("reason", ""))
        elif event == "weights" and when is not None:
            self._ends.append(when)
        elif event in ("run-started", "run-resumed"):
            self._ends.clear()  # what lies between is no round
            self.waiting = None
            for known in self.clients.values():
                known.connected = None
        elif isinstance(name, str):
            self._note_client_event(str(event), name, when, line)

    def _note_client_event(self, event: str, name: str, when: float | None, line: Mapping[str, Any]) -> None:
        if event == "refused":
            self.refused[name] = str(line.get("reason", ""))
        elif event in ("joined", "connected"):
            known = self.client(name)
            known.last_seen, known.connected = when, True
            known.samples = number(line.get("samples")) or known.samples
            self.refused.pop(name, None)
        elif event == "disconnected":
            self.client(name).connected = False
        elif event in ("delivered", "not-delivered"):
            self.client(name).has_model = event == "delivered"

    def _note_round(self, record: RoundRecord) -> None:
        self.last = record
        self.skipped += record.skipped is not None
        self._durations.append(sum(number(value) or 0.0 for value in record.seconds.values()))
        for phase, value in record.seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + (number(value) or 0.0)
        if record.metrics:
            self.evaluated = record
        spent = number((record.privacy or {}).get("epsilon"))
        self.epsilon = self.epsilon if spent is None else spent

    def _note_clients(self, records: Sequence[ClientRecord]) -> None:
        peers = Peers([record for record in records if not record.flag and record.status == "ok"])
        for record in records:
            known = self.client(record.client)
            known.status, known.reason = record.status, record.reason or ""
            known.samples = number(record.num_samples) or known.samples
            known.rounds += record.status == "ok"
            known.dropped += record.status == "dropped"
            known.absent += record.status == "absent"
            if (norm := number(record.get("norm"))) is not None:
                known.norm = norm
            if record.flag:
                known.flags += 1
                known.last_flag, known.flag_reason = record.round, self.explain(record, peers)

    def explain(self, record: ClientRecord, peers: Peers) -> str:
        """Why a client was flagged or left out, in a sentence."""
        if self._reasons is None and record.flag and reason_code(record):
            self._reasons = rule_reasons(self.config)
        return explain(record, peers, self._reasons or {})

    @property
    def name(self) -> str:
        """The run's name: that of its folder."""
        return self.path.resolve().name

    @property
    def round(self) -> int:
        """The last finished round; 0 before the first."""
        return 0 if self.last is None else self.last.round

    @property
    def rounds(self) -> int:
        """Rounds in all."""
        return int(number(self.config.get("rounds")) or 0)

    @property
    def is_federation(self) -> bool:
        """Is this the run of a federation, not a simulation?"""
        return "federation" in self.config

    @property
    def expected(self) -> int:
        """Clients that are expected."""
        section = self.config.get("partition")
        return int(number(section.get("clients")) or 0) if isinstance(section, dict) else 0

    @property
    def budget(self) -> float | None:
        """The ε at which the run stops; None where there is no such limit."""
        privacy = self.config.get("privacy")
        dp = privacy.get("dp") if isinstance(privacy, dict) else None
        return number(dp.get("budget")) if isinstance(dp, dict) else None

    @property
    def status(self) -> str:
        """running, waiting (no round yet), finished, diverged, stopped, failed, or killed."""
        if self.is_running:
            return "running" if self.round else "waiting"
        return self.summary.status if self.summary is not None else "killed" if self.round else "not started"

    @property
    def warnings(self) -> list[str]:
        """What the operator of a federation that runs should do something about, one line each."""
        return self.open_warnings.texts() if self.is_running else []

    @property
    def quarantined(self) -> dict[str, str]:
        """Client → why it is in quarantine."""
        try:
            return quarantined(self.path)
        except (
            WardroundError
        ):  # another program writes it at this moment, or it is damaged: the server will say so
            return {}

    @property
    def present(self) -> int:
        """Clients that take part now: connected, or part of the last round."""
        return sum(
            one.status in ("ok", "dropped") if one.connected is None else one.connected
            for one in self.clients.values()
        )

    def seconds_per_round(self) -> float | None:
        """The median of the last rounds, with waiting between them where it is known."""
        ends = list(self._ends)
        gaps = [after - before for before, after in pairwise(ends)]
        seconds = gaps or list(self._durations)
        return median(seconds) if seconds else None

    def seconds_left(self) -> float | None:
        """How long it will still take; None where that cannot be said, 0 where it has ended."""
        if self.summary is not None and not self.is_running:
            return 0.0
        per_round = self.seconds_per_round()
        if per_round is None or not self.rounds:
            return None
        return max(0, self.rounds - self.round) * per_round

    def gateway_counters(self) -> dict[str, float]:
        """What the server's gateway has counted since it was started; empty where there is none to be found."""
        return _numbers(self._gateway_values())

    def clocks(self) -> dict[str, float]:
        """Hospital → seconds that its clock is ahead of the server's, as the gateway has measured it."""
        return _numbers(self._gateway_values().get(CLOCKS))

    def _gateway_values(self) -> dict[str, Any]:
        federation = self.config.get("federation")
        own = federation.get("state") if isinstance(federation, dict) else None
        place = Path(own) if own else self.path.parent / ".federation" / self.name
        try:
            values = json.loads((place / GATEWAY_COUNTERS).read_bytes())
        except (OSError, ValueError):
            return {}
        return values if isinstance(values, dict) else {}

    def age_of(self, client: ClientOverview, now: float | None = None) -> float | None:
        """Seconds since a client was last seen."""
        now = time.time() if now is None else now
        return None if client.last_seen is None else max(0.0, now - client.last_seen)


def _numbers(values: Any) -> dict[str, float]:
    """The entries that are numbers."""
    pairs = values.items() if isinstance(values, dict) else ()
    return {str(key): known for key, value in pairs if (known := number(value)) is not None}


class _Restarted(Exception):
    """A file was cut or replaced."""


def _read_all(tail: Tail) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    while True:
        part = tail.poll()
        if part.restarted:
            raise _Restarted
        lines += part.lines
        if not part.more:
            return lines
