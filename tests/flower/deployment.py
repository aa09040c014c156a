"""A server and hospitals as real processes on loopback, for tests."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import yaml
from free_ports import free_port

from wardround.flower.certificates import KeyFiles, make_node_keys, make_server_certificate
from wardround.runs.folder import RunFolder

PATIENCE = 240.0
"""Seconds for anything to happen, on a machine that has other things to do."""


def wait_for(condition, what, patience=PATIENCE, also=lambda: None):
    """Wait until `condition()` is true and return its value; `what` is a text, or gives one when it is too late."""
    deadline = time.monotonic() + patience
    while not (result := condition()):
        also()
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {patience:g} s for {what() if callable(what) else what}")
        time.sleep(0.1)
    return result


def restore_interrupts():
    """React to Ctrl-C: a shell that runs the tests in the background makes all their children ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Deployment:
    """A server and hospitals in a folder. Everything they start has the folder's name in its command line."""

    def __init__(self, folder, names, insecure=False, **federation):
        self.folder, self.insecure, self.started = folder, insecure, {}
        self.port = free_port()
        self.keys = KeyFiles(folder / "keys")
        if not insecure:
            make_server_certificate(self.keys.folder, ["127.0.0.1"])
            make_node_keys(self.keys.folder, names)
        tls = {
            "certificate": str(self.keys.server),
            "certificate_key": str(self.keys.server_key),
            "root_certificates": str(self.keys.authority),
            "node_keys": str(self.keys.nodes),
        }
        self.federation = {
            "clients": len(names), "port": self.port, "poll_seconds": 0.2, **({} if insecure else tls), **federation,
        }  # fmt: skip
        self.hospitals = list(names)

    def write(self, name, values):
        path = self.folder / name
        path.write_text(yaml.safe_dump(values))
        return path

    def configure(self, **run):
        return self.write("fed.yaml", {**run, "federation": self.federation})

    def hospital(self, name, **values):
        own = {} if self.insecure else {
            "root_certificates": str(self.keys.authority), "node_key": str(self.keys.nodes / name),
        }  # fmt: skip
        values = {"name": name, "superlink": f"127.0.0.1:{self.port}", **own, **values}
        return self.write(f"{name}.yaml", values)

    def start(self, name, *arguments):
        """Start a wardround command; its output goes to a file."""
        command = [sys.executable, "-m", "wardround", *map(str, arguments)]
        with open(self.folder / f"{name}.out", "ab") as out:
            process = subprocess.Popen(
                command,
                stdout=out,
                stderr=out,
                start_new_session=True,
                cwd=self.folder,
                preexec_fn=restore_interrupts,
            )
        self.started[name] = process
        return process

    def serve(self):
        more = ["--insecure"] if self.insecure else []
        return self.start("serve", "serve", "--config", self.folder / "fed.yaml", "--out", self.runs, *more)

    def join(self, name):
        more = ["--insecure"] if self.insecure else []
        return self.start(name, "join", "--config", self.folder / f"{name}.yaml", *more)

    @property
    def runs(self):
        return self.folder / "runs"

    @property
    def run(self):
        folders = [path.parent for path in self.runs.glob("*/config.yaml")]
        return RunFolder(folders[0]) if folders else None

    def rounds(self):
        return [] if self.run is None else [line.round for line in self.run.rounds()]

    def events(self):
        path = self.run.path / "audit.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def wait_for_round(self, number):
        def healthy():
            for name, process in self.started.items():
                assert process.poll() is None, (
                    f"{name} ended ({process.returncode}):\n{self.last_words(name)}"
                )

        wait_for(
            lambda: max(self.rounds(), default=0) >= number,
            lambda: f"round {number}\n{self.last_words('serve')}",
            also=healthy,
        )

    def output(self, name):
        path = self.folder / f"{name}.out"
        return path.read_text() if path.exists() else ""

    def last_words(self, name):
        """The end of a command's output, and of the logs of its processes: the reason why something went wrong."""
        own = self.runs / ".federation" if name == "serve" else self.folder / f".{name}"
        ends = [f"{path.name}:\n{path.read_text(errors='replace')[-2000:]}" for path in own.rglob("*.log")]
        return "\n".join([self.output(name)[-2000:], *ends])

    def processes(self, mark=None):
        """Return all processes with this folder (or the mark) in their command line."""
        wanted, pids = os.fsencode(str(mark or self.folder)), []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    command = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                if wanted in command:
                    pids.append(int(entry.name))
        return pids

    def server_processes(self):
        """Return what `serve` has started: the files of Flower are in the folder of the runs."""
        wanted, pids = f"FLWR_HOME={self.runs}".encode(), []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    environment, state = (entry / "environ").read_bytes(), (entry / "stat").read_text()
                except OSError:
                    continue
                if wanted in environment and state.rpartition(")")[2].split()[0] != "Z":
                    pids.append(int(entry.name))
        return pids

    def end(self, name, number):
        """Send a signal to one of our commands, wait for its end and return its exit code."""
        process = self.started.pop(name)
        process.send_signal(number)
        return process.wait(PATIENCE)

    def clean_up(self):
        for process in self.started.values():
            process.kill()
        for process in self.started.values():
            process.wait()
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
