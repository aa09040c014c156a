"""A federation of real processes on one machine under faults, for a bounded time; then it must come to its end, whole.

    python benchmarks/soak_federation.py --seconds 240
    python benchmarks/soak_federation.py --seconds 600 --hospitals 20
    python benchmarks/soak_federation.py --seconds 120 --encrypted     # with a steward, which is away now and then

Four hospitals or more, one of which sends infinities; TLS and registered keys. Every few seconds a fault: a process is
killed or stopped for a while, a stranger knocks, a key is replaced, the disk is full. Server and hospitals are started
again as systemd would. After that time no more faults come, and the run must finish: all its rounds, each once, an
unbroken audit log, the model with every hospital, nothing left running. Exit code 1 and a line for each thing that is
not so.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

from free_ports import free_port
from tests.flower.deployment import Deployment

from wardround.errors import WardroundError
from wardround.files import is_locked
from wardround.flower.certificates import KeyFiles, make_node_keys
from wardround.flower.server.delivery import Deliveries
from wardround.flower.server.key_folder import add_key
from wardround.runs.audit import verify

NAMES = ("north", "south", "east", "west")
LIAR = "west"
ROUND_SECONDS, SECONDS_EACH = 2.1, 0.1
"""What a round takes about, faults included, and what each hospital adds: so many rounds are asked for that faults hit
most of them."""
PAUSES, ABSENCES = (2.0, 6.0), (1.0, 8.0)
"""Seconds between two faults, and of those that last."""
PATIENCE = 900.0
"""Seconds in which a federation without faults must come to its end."""
DISK_MB = 256


class Soak:
    """One federation and what happens to it."""

    def __init__(
        self, folder: Path, seconds: float, seed: int, encrypted: bool, hospitals: int, rounds: int | None
    ) -> None:
        self.folder, self.seconds, self.encrypted = folder, seconds, encrypted
        self.names = (*NAMES, *(f"hospital-{number:02d}" for number in range(len(NAMES), hospitals)))
        self.random, self.faults = random.Random(seed), Counter[str]()
        self.unexpected = Counter[str]()
        """Ends of a command that no fault has caused directly: it was started again."""
        self.rounds = rounds or max(8, int(seconds / (ROUND_SECONDS + SECONDS_EACH * hospitals)))
        self.fed = Deployment(
            folder, self.names, quorum=hospitals // 2, deadline_seconds=15, retries=60, backoff_seconds=1.0
        )
        self.disk = self._small_disk()
        self._configure()

    def _configure(self) -> None:
        run = {
            "name": "soak", "model": {"name": "mlp", "hidden": [16]}, "rounds": self.rounds, "evaluate_every": 5,
            "aggregator": {"name": "fedmed" if self.encrypted else "caac"},
        }  # fmt: skip
        own: dict[str, dict[str, object]] = {name: {} for name in self.names}
        if self.encrypted:
            self.steward_port = free_port()
            self.start_steward(first=True)
            keys = self.folder / "vault" / "keys"
            run["privacy"] = {
                "mode": "encrypted-fedmed", "steward": f"http://127.0.0.1:{self.steward_port}",
                "steward_keys": str(keys),
            }  # fmt: skip
            own = {name: {"steward_key": str(keys / f"client-{name}.key")} for name in self.names}
        else:
            own[LIAR] = {"attack": {"name": "sign-flip", "scale": 1e39}}
        self.fed.configure(**run)
        for part, name in enumerate(self.names):
            self.fed.hospital(
                name, dataset={"name": "synthetic", "samples": 150 * len(self.names), "features": 8},
                partition={"name": "iid", "clients": len(self.names)}, part=part, **own[name],
            )  # fmt: skip

    def start_steward(self, first: bool = False) -> None:
        """The steward of an encrypted federation."""
        more = ["--clients", ",".join(self.names), "--mode", "encrypted-fedmed"] if first else []
        vault = self.folder / "vault"
        self.fed.start("steward", "steward", vault, "--port", self.steward_port, *more)
        if first:
            self._wait(lambda: (vault / "keys" / "server.key").exists(), "the steward's keys")

    def _small_disk(self) -> bool:
        """A file system of its own for the runs, where this user may make one: it can be filled without harm."""
        self.fed.runs.mkdir()
        command = [
            shutil.which("mount") or "mount",
            "-t",
            "tmpfs",
            "-o",
            f"size={DISK_MB}m",
            "tmpfs",
            str(self.fed.runs),
        ]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def run(self) -> list[str]:
        """Faults for the given time, then the end; return what is not as it should be."""
        begin = time.monotonic()
        self.keep_running()
        self._wait(lambda: max(self.fed.rounds(), default=0) >= 1, "the first round", self.keep_running)
        last_fault = time.monotonic() + self.seconds
        while (
            time.monotonic() < last_fault and max(self.fed.rounds()) < self.rounds - 2 and not self.is_over()
        ):
            fault = self.random.choice(self.possible_faults())
            self.faults[fault.__name__] += 1
            before = max(self.fed.rounds())
            fault()
            self.pause(self.random.uniform(*PAUSES))
            if (
                fault in self.server_faults()
            ):  # which cost a whole start: else nothing but starts would be tested
                self._wait_for_round_after(before)
        under_faults = max(self.fed.rounds()), time.monotonic() - begin
        print(
            f"{under_faults[0]} of {self.rounds} rounds under faults in {under_faults[1]:.0f} s", flush=True
        )
        self._wait(self.is_over, "the end of the run", self.keep_running)
        print(f"all after {time.monotonic() - begin:.0f} s", flush=True)
        return self.problems()

    def _wait_for_round_after(self, number: int) -> None:
        self._wait(lambda: self.is_over() or max(self.fed.rounds()) > number, "a round", self.keep_running)

    def is_over(self) -> bool:
        """Has `serve` come to its end, with the model delivered to everyone?"""
        serve = self.fed.started.get("serve")
        return serve is not None and serve.poll() == 0

    def keep_running(self) -> None:
        """Start what has ended, as systemd does."""
        for name in (*(["steward"] if self.encrypted else []), "serve", *self.names):
            process = self.fed.started.get(name)
            if process is not None and process.poll() is None:
                continue
            if process is not None and name == "serve" and process.poll() == 0:
                continue
            if process is not None:
                self.unexpected[name] += 1
                del self.fed.started[name]
            if name == "serve":
                self.fed.serve()
            elif name == "steward":
                self.start_steward()
            else:
                self.fed.join(name)

    def pause(self, seconds: float) -> None:
        """Wait, and keep everything running."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.is_over():
            self.keep_running()
            time.sleep(0.2)

    def _wait(
        self, condition: Callable[[], object], what: str, also: Callable[[], None] = lambda: None
    ) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            also()
            if time.monotonic() > deadline:
                raise RuntimeError(f"waited {PATIENCE:g} s for {what}\n{self.fed.output('serve')[-3000:]}")
            time.sleep(0.2)

    # Faults.

    def possible_faults(self) -> list[Callable[[], None]]:
        """What can happen here."""
        faults = [
            self.hospital_killed, self.hospital_hangs, self.trainer_killed, self.node_killed, self.gateway_hangs,
            self.strangers, self.key_replaced,
        ]  # fmt: skip
        return faults + self.server_faults() + ([self.steward_away] if self.encrypted else [])

    def server_faults(self) -> list[Callable[[], None]]:
        """After these the server is started again."""
        faults = [self.server_killed, self.server_stopped, self.superlink_killed]
        return faults + ([self.disk_full] if self.disk else [])

    def hospital_killed(self) -> None:
        """A hospital's machine fails."""
        self._end(self.random.choice(self.names), signal.SIGKILL)

    def hospital_hangs(self) -> None:
        """All processes of a hospital stand still for a while."""
        self._hang(self._of_hospital(self.random.choice(self.names)))

    def trainer_killed(self) -> None:
        """The kernel ends a trainer, for want of memory."""
        self._kill(
            [
                pid
                for pid in self._of_hospital(self.random.choice(self.names))
                if "trainer_daemon" in _command(pid)
            ]
        )

    def node_killed(self) -> None:
        """A hospital's node ends."""
        self._kill(
            [pid for pid in self._of_hospital(self.random.choice(self.names)) if "supernode" in _command(pid)]
        )

    def server_killed(self) -> None:
        """The server's machine fails."""
        self._end("serve", signal.SIGKILL)

    def server_stopped(self) -> None:
        """`systemctl stop`, and start."""
        self._end("serve", signal.SIGTERM)

    def superlink_killed(self) -> None:
        """A part of the server ends; `serve` gives up and is started again."""
        self._kill([pid for pid in self.fed.server_processes() if "flower-superlink" in _command(pid)])

    def gateway_hangs(self) -> None:
        """Nobody gets through for a while."""
        self._hang([pid for pid in self.fed.server_processes() if "server.gateway" in _command(pid)])

    def steward_away(self) -> None:
        """The steward's machine fails and comes back."""
        self._end("steward", signal.SIGKILL)
        time.sleep(self.random.uniform(*ABSENCES))

    def strangers(self) -> None:
        """Nonsense, half a request, a request that is too large, a request for another interface, an unknown key."""
        large = b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n"
        control = b"POST /v1/control/start-run HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
        for content in (os.urandom(400), b"POST /v1/fleet/pull-mess", large, control):
            self._knock(content)
        make_node_keys(self.folder / "strangers", ["stranger"], force=True)
        self.fed.hospital(
            "stranger", dataset={"name": "synthetic"}, node_key=str(self.folder / "strangers/nodes/stranger")
        )
        self.fed.join("stranger")
        self.stranger = self.fed.started.pop("stranger")

    def key_replaced(self) -> None:
        """A hospital gets another key while the server runs."""
        name = self.random.choice(self.names)
        new = KeyFiles(self.folder / "new")
        make_node_keys(new.folder, [name], force=True)
        self._end(name, signal.SIGTERM)
        add_key(self.fed.keys.nodes, new.nodes / f"{name}.pub", replace=True)
        os.replace(new.nodes / name, self.fed.keys.nodes / name)

    def disk_full(self) -> None:
        """The server's disk is full for a while."""
        filler = self.fed.runs / "filler"
        try:
            with open(filler, "wb") as file:
                while True:
                    file.write(bytes(2**16))
                    file.flush()
        except OSError:
            self.pause(self.random.uniform(*ABSENCES))
        finally:
            filler.unlink()

    def _knock(self, content: bytes) -> None:
        try:
            context = ssl.create_default_context(cafile=str(self.fed.keys.authority))
            with (
                socket.create_connection(("127.0.0.1", self.fed.port), timeout=5) as plain,
                context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
            ):
                secured.sendall(content)
        except OSError:
            pass  # the server is away, too

    def _end(self, name: str, number: int) -> None:
        if (process := self.fed.started.get(name)) is not None and process.poll() is None:
            self.fed.end(name, number)
        else:
            self.fed.started.pop(name, None)

    def _of_hospital(self, name: str) -> list[int]:
        """A hospital's processes: its supervisor is called with all paths, its node and trainer with their own."""
        marks = (self.folder / f"{name}.yaml", self.folder / f".{name}")
        return sorted({pid for mark in marks for pid in self.fed.processes(mark)})

    def _kill(self, pids: list[int]) -> None:
        for pid in pids:
            _signal(pid, signal.SIGKILL)

    def _hang(self, pids: list[int]) -> None:
        for pid in pids:
            _signal(pid, signal.SIGSTOP)
        time.sleep(self.random.uniform(*ABSENCES))
        for pid in pids:
            _signal(pid, signal.SIGCONT)

    # The end.

    def problems(self) -> list[str]:
        """What is not as it should be."""
        run, problems = self.fed.run, []
        summary = run.summary()
        if summary is None or summary.status != "finished":
            problems.append(f"the run is not finished: {summary}")
        if self.fed.rounds() != list(range(1, self.rounds + 1)):
            problems.append(f"not every round is there once: {self.fed.rounds()}")
        for check in (run.verify, lambda: verify(run.path / "audit.jsonl")):
            try:
                check()
            except WardroundError as error:
                problems.append(str(error))
        if not torch.isfinite(run.read_checkpoint()["federation"]["weights"]).all():
            problems.append("the model is not finite")
        if not self.encrypted and any(line.weight for line in run.clients() if line.client == LIAR):
            problems.append(f"{LIAR} had a weight")
        missing = (Deliveries.read(run) or Deliveries()).missing
        if missing:
            problems.append(f"the model is not with {missing}")
        for name in list(self.fed.started):
            self._end(name, signal.SIGTERM)
        self.stranger_ended = getattr(self, "stranger", None) is None or self.stranger.wait(PATIENCE)
        if left := [pid for pid in self.fed.processes() if pid != os.getpid()]:
            problems.append(f"still running: {[_command(pid)[:80] for pid in left]}")
        if is_locked(run.path / ".lock"):
            problems.append("the run folder is still locked")
        return problems

    def report(self) -> None:
        """What happened, in lines for people."""
        run = self.fed.run
        events = Counter(event["event"] for event in self.fed.events())
        statuses = Counter(line.status for line in run.clients())
        faults = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in sorted(self.faults.items()))
        print(f"faults: {sum(self.faults.values())} ({faults})")
        print(f"full disk: {'yes' if self.disk else 'not tried: this user may not mount a file system'}")
        print(
            f"updates: {dict(statuses)}; resumed {events['run-resumed']} times, quorum missed {events['quorum-missed']}"
        )
        print(
            f"audit log: {sum(events.values())} lines, whole; started again by itself: {dict(self.unexpected)}"
        )

    def close(self) -> None:
        """Leave nothing behind."""
        self.fed.clean_up()
        if self.disk:
            subprocess.run([str(shutil.which("umount")), "--lazy", str(self.fed.runs)], check=False)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def main() -> int:
    """Run one soak; 0 if everything held."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--encrypted", action="store_true")
    parser.add_argument("--hospitals", type=int, default=len(NAMES), help="at least four")
    parser.add_argument("--rounds", type=int, help="fewer, where other programs use the machine")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        soak = Soak(Path(folder), given.seconds, given.seed, given.encrypted, given.hospitals, given.rounds)
        try:
            problems = soak.run()
            soak.report()
        finally:
            soak.close()
    for problem in problems:
        print(f"PROBLEM: {problem}")
    print("everything held" if not problems else f"{len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
