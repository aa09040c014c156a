"""What a hospital remembers by itself: which orders it has answered, what privacy it has spent, what has left it.

The server cannot reset any of it. Rounds of a run only go forward, across restarts of either side; a round is answered
once, for one order; the same order asked again (a server that was killed and resumes) gets the same bytes again. A
model is evaluated for one round in the same way. Under masks, where no steward counts, a model that updates were
summed from is not trained from again: two sums of the same updates could be subtracted.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from wardround.errors import ConfigError
from wardround.files import append_text, make_private_folder
from wardround.flower.hospital.policy import DpFloor, HospitalPolicy, OrderRefused
from wardround.flower.messages import EVALUATE, TRAIN
from wardround.privacy.accounting import Ledger, Release
from wardround.privacy.encryption.refusals import BudgetSpent
from wardround.privacy.order_names import start_of

__all__ = ["LOG_FILE", "HospitalMemory", "last_answered", "read_log"]

Value = TypeVar("Value")

LOG_FILE = "outgoing.jsonl"
"""The log's name in the hospital's state folder."""
REMEMBERED_RUNS = 1000
REMEMBERED_STARTS = 100_000
LOG_TAIL_BYTES = 2**20
SELF = "this hospital"


@dataclass
class HospitalMemory:
    """A hospital's memory. `state_dict` goes to disk before a reply leaves."""

    policy: HospitalPolicy
    folder: Path | None = None
    """Where the log is written; None: nowhere."""
    clock: Callable[[], float] = time.time
    answered: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Run → the last round answered, and the hash of the order it answered."""
    last_reply: tuple[str, bytes] = ("", b"")
    """Hash of the order that was answered last, and the reply."""
    evaluated: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Run → the last round whose model was evaluated, and the hash of that order."""
    opened: dict[str, None] = field(default_factory=dict)
    """Models from which this hospital trained for a masked sum that it helped to open (`order_names.start_of`)."""
    schemas: dict[str, None] = field(default_factory=dict)
    """Hashes of the schemas that its table was checked against."""
    audit: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Run → number and hash of the last line of the server's audit log, as the last order had it."""
    orders: tuple[str, int] = ("", 0)
    """A day (UTC) and how many orders came on it."""

    def __post_init__(self) -> None:
        floor = self.policy.dp or DpFloor()
        self.ledger = Ledger(floor.delta, budget=floor.budget)
        """ε of everything that was sent under differential privacy, over all runs."""
        self._unwritten: list[dict[str, Any]] = []

    def repeated(self, run: str, round: int, order: str) -> bytes | None:
        """The reply that this order got before; None for a new one. Another order for the round is refused."""
        last_round, last_order = self.answered.get(run, (0, ""))
        if round > last_round:
            return None
        if (round, order) == (last_round, last_order) and self.last_reply[0] == order:
            return self.last_reply[1] or None  # begun and not finished: the same work may be tried again
        raise OrderRefused(
            f"round {round} of this run: round {last_round} is answered already, and a round is answered for one order"
        )

    def check_evaluation(self, run: str, round: int, order: str) -> None:
        """Raise `OrderRefused` where another model was evaluated for this round or a later one."""
        last_round, last_order = self.evaluated.get(run, (0, ""))
        if round < last_round or (round == last_round and order != last_order):
            raise OrderRefused(
                f"round {round} of this run: round {last_round} is evaluated already, and a round has one model"
            )
        self.evaluated = _with_last(self.evaluated, run, (round, order))

    def shown_model(self, run: str, round: int) -> str | None:
        """How the hash of the model after a round begins, by the orders that had it; None where none had.

        The model after a round is the one that is evaluated for it, and the one that the next round starts from.
        """
        for orders, number in ((self.evaluated, round), (self.answered, round + 1)):
            last_round, order = orders.get(run, (0, ""))
            if last_round == number:
                return start_of(order)
        shown = None
        for line in [] if self.folder is None else read_log(self.folder):
            number = round if line["kind"] == EVALUATE else round + 1 if line["kind"] == TRAIN else 0
            if line.get("run") == run and line.get("round") == number and isinstance(line.get("order"), str):
                shown = start_of(line["order"])
        return shown

    def check_schema(self, schema: str) -> None:
        """Book a schema before the table is checked against it.

        Whether a table fits, and its statistics, say something of single patients if a server may ask with one schema
        after the other: whose range begins a little higher each time, or that leaves out one more level.
        """
        if schema in self.schemas:
            return
        if len(self.schemas) >= self.policy.max_schemas:
            raise OrderRefused(
                f"one more schema than the {len(self.schemas)} that its table was checked against; policy.max_schemas "
                f"is {self.policy.max_schemas}"
            )
        self.schemas = {**self.schemas, schema: None}

    def check_start(self, start: str) -> None:
        """Raise `OrderRefused` for a model from which updates were summed already, under masks."""
        if start in self.opened:
            raise OrderRefused("a masked sum from this model was opened: another could be subtracted from it")

    def close_start(self, start: str) -> None:
        """Remember that this hospital helped to open a masked sum of updates from a model."""
        self.opened = _with_last(self.opened, start, None, REMEMBERED_STARTS)

    def follow_audit(self, run: str, head: Any) -> tuple[int, str]:
        """Keep the head of the server's audit log; refuse one that became shorter or has another line there."""
        wrong = not isinstance(head, list | tuple) or len(head) != 2 or not isinstance(head[0], int)
        if wrong or not isinstance(head[1], str) or len(head[1]) != 64:
            raise OrderRefused("the order does not say where the server's audit log stands")
        line, seal = head
        if not 0 <= line <= 2**53:
            raise OrderRefused("the server's audit log has an absurd number of lines")
        last_line, last_seal = self.audit.get(run, (0, ""))
        if line < last_line or (line == last_line and seal != last_seal):
            raise OrderRefused(
                f"the server's audit log has {line} lines, where it had {last_line}: it was cut or written anew"
            )
        self.audit = _with_last(self.audit, run, (line, seal))
        return line, seal

    def count_order(self) -> None:
        """Raise `OrderRefused` where the day has had its orders."""
        today = time.strftime("%Y-%m-%d", time.gmtime(self.clock()))
        day, count = self.orders
        count = count + 1 if day == today else 1
        self.orders = (today, count)
        if count > self.policy.max_orders_per_day:
            raise OrderRefused(
                f"{count} orders today; policy.max_orders_per_day is {self.policy.max_orders_per_day}"
            )

    def check_budget(self, round: int, release: Release | None) -> None:
        """Raise `OrderRefused` where one more release would overspend the hospital's own budget."""
        if release is not None:
            try:
                self.ledger.check({SELF: release}, round)
            except BudgetSpent as spent:
                raise OrderRefused(f"policy.dp.budget: {spent}") from None

    def begin(self, run: str, round: int, order: str) -> None:
        """Book a round for an order before the work is done.

        Whether it can be done (an update that is not finite cannot be encrypted) depends on the hospital's data. A
        server that could go on asking with other weights would learn one bit with each order, instead of one per round.
        """
        self.answered = _with_last(self.answered, run, (round, order))
        self.last_reply = (order, b"")

    def remember(self, run: str, round: int, order: str, reply: bytes, release: Release | None) -> None:
        """Book an answer, before it leaves."""
        self.begin(run, round, order)
        self.last_reply = (order, reply)
        if release is not None:
            self.ledger.spend({SELF: release})

    def log(self, kind: str, reply: bytes | None, **facts: Any) -> None:
        """One line on what leaves the hospital (hash and size of the reply), or on what was refused.

        It is written by `write_log`, after the memory is on disk: the log never knows more than the memory.
        """
        if self.orders[1] > self.policy.max_orders_per_day + 1:
            return  # one line says that the day has had its orders
        line: dict[str, Any] = {"time": self.clock(), "kind": kind, **facts}
        if reply is not None:
            line |= {"bytes": len(reply), "sha256": hashlib.sha256(reply).hexdigest()}
        self._unwritten.append(line)

    def write_log(self) -> None:
        """Bring the lines that were logged onto the disk, before what they are about leaves."""
        lines, self._unwritten = self._unwritten, []
        if self.folder is None or not lines:
            return
        make_private_folder(self.folder)
        _cut_half_line(self.folder)
        append_text(self.folder / LOG_FILE, "".join(json.dumps(line) + "\n" for line in lines), 0o600)

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and bytes."""
        return {
            "answered": {run: list(pair) for run, pair in self.answered.items()},
            "last_reply": list(self.last_reply),
            "evaluated": {run: list(pair) for run, pair in self.evaluated.items()},
            "opened": list(self.opened),
            "schemas": list(self.schemas),
            "orders": list(self.orders),
            "audit": {run: list(pair) for run, pair in self.audit.items()},
            "ledger": self.ledger.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.answered = {run: (int(pair[0]), str(pair[1])) for run, pair in state["answered"].items()}
        self.last_reply = (state["last_reply"][0], state["last_reply"][1])
        self.evaluated = {run: (int(pair[0]), str(pair[1])) for run, pair in state["evaluated"].items()}
        self.opened = dict.fromkeys(state["opened"])
        self.schemas = dict.fromkeys(state.get("schemas", ()))
        self.orders = (state["orders"][0], int(state["orders"][1]))
        self.audit = {run: (int(pair[0]), str(pair[1])) for run, pair in state["audit"].items()}
        self.ledger.load_state_dict(state["ledger"])


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The lines of a hospital's log, oldest first; a last line that was cut off is left out."""
    lines = _log_bytes(folder).decode(errors="replace").splitlines(keepends=True)
    path = folder / LOG_FILE
    return [_parse(path, i, line) for i, line in enumerate(lines, start=1) if line.endswith("\n")]


def last_answered(folder: Path) -> dict[str, int]:
    """Run → the last round that was answered, by the end of the log."""
    last: dict[str, int] = {}
    for line in _log_bytes(folder, LOG_TAIL_BYTES).decode(errors="replace").splitlines():
        try:
            entry = _parse(folder / LOG_FILE, 0, line)
        except ConfigError:  # the first one is cut where the reading began
            continue
        if entry["kind"] == TRAIN and "refused" not in entry and isinstance(entry.get("round"), int):
            last[str(entry.get("run"))] = entry["round"]
    return last


def _log_bytes(folder: Path, most: int | None = None) -> bytes:
    """The log, or no more than its last `most` bytes."""
    path = folder / LOG_FILE
    try:
        with open(path, "rb") as file:
            if most is not None:
                file.seek(max(0, path.stat().st_size - most))
            return file.read()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None


def _cut_half_line(folder: Path) -> None:
    """Take off what a process that was killed left of a line: what it was about has not left the hospital."""
    end = _log_bytes(folder, LOG_TAIL_BYTES)
    if end and not end.endswith(b"\n"):
        path = folder / LOG_FILE
        os.truncate(path, path.stat().st_size - len(end) + end.rfind(b"\n") + 1)


def _parse(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        values: dict[str, Any] = json.loads(line)
        left = "refused" in values or (isinstance(values["bytes"], int) and isinstance(values["sha256"], str))
        if left and isinstance(values["time"], int | float) and isinstance(values["kind"], str):
            return values
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise ConfigError(f"{path}: line {number} is no line of a hospital's log")


def _with_last(
    values: Mapping[str, Value], key: str, value: Value, most: int = REMEMBERED_RUNS
) -> dict[str, Value]:
    """The mapping with this entry at its end, and no more than `most` entries."""
    kept = {name: own for name, own in values.items() if name != key}
    return dict([*kept.items(), (key, value)][-most:])
