"""A federation of real processes on one machine: processor seconds per round, by process, and memory per hospital.

    python benchmarks/bench_federation.py                 # 4, 12, 20 and 50 hospitals, and plain Flower with 4
    python benchmarks/bench_federation.py --hospitals 12 --model large --plain 0
    python benchmarks/bench_federation.py --quick         # 4 hospitals, 3 rounds
    python benchmarks/bench_federation.py --hospitals 12 --plain 0 --training-seconds 10

With `--training-seconds` the hospitals' training waits that long in each round, without work for the processor. What a
round takes beyond it is the federation's own (the column "overhead"): in seconds, and in processor seconds as a share
of those and of all hospitals' training, which does not depend on what else the machine does.

Processor seconds (user and system, of all processes of a federation) do not depend on what else the machine does.
They are counted from the end of the second round to the end of the last. Plain Flower is a ServerApp with FedAvg and a
ClientApp that trains the same network, with TLS, registered keys and Flower's own defaults.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml
from plain_flower import PlainFlower

from wardround.flower.certificates import KeyFiles, make_node_keys, make_server_certificate
from wardround.flower.processes import free_port
from wardround.runs.folder import RunFolder

DATA = {"name": "synthetic", "samples": 6000, "features": 64}
MODELS = {"small": {"name": "mlp", "hidden": [16]}, "large": {"name": "mlp", "hidden": [1080, 1040]}}
BATCH = 32
SLOW = "slow_model.py"
SLOW_MODEL = """\
import time

from pydantic import Field
from torch import nn

from wardround.models.base import register
from wardround.models.mlp import Mlp


class Waits(nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def forward(self, inputs):
        if self.training:
            time.sleep(self.seconds)
        return inputs


@register("slow-mlp")
class SlowMlp(Mlp):
    class Params(Mlp.Params):
        seconds: float = Field(0.0, ge=0)

    def build(self, input_shape, outputs):
        return nn.Sequential(Waits(self.params.seconds), super().build(input_shape, outputs))
"""
PARTS = {
    "server app": b"flwr-serverapp",
    "SuperLink": b"flower-superlink",
    "SuperExec": b"flower-superexec",
    "gateway": b"wardround.flower.server.gateway",
    "serve": b"\0serve\0",
    "trainer": b"hospital.trainer_daemon",
    "node": b"hospital.supernode",
    "SuperNode": b"flower-supernode",
    "client app": b"flwr-clientapp",
    "join": b"hospital.supervisor",
}
HOSPITAL = ("trainer", "node", "join", "SuperNode", "client app")
PROGRAM = str(Path(sys.executable).parent / "wardround")
TICKS = os.sysconf("SC_CLK_TCK")
CHILD_SUBREAPER = 36
PATIENCE = 3600.0
IDLE_SECONDS = 15.0
"""After the last round: a hospital without orders for 10 s gives up what it can build anew."""


@dataclass
class Cost:
    """What a federation used."""

    system: str
    hospitals: int
    parameters: int
    rounds: int
    processor: dict[str, float]
    """Seconds per round, by part."""
    seconds: float
    """Per round."""
    memory: dict[str, float]
    """MB of one hospital that waits for orders, by part, its share of common pages counted in."""
    training: float = 0.0
    """Seconds of a round in which the hospitals only wait, as if they trained."""


def main() -> int:
    """Run all, print the table, leave nothing running."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--hospitals", type=int, nargs="*", default=[4, 12, 20, 50])
    parser.add_argument("--model", choices=MODELS, default="small")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument(
        "--plain", type=int, nargs="*", default=[4], help="numbers of plain Flower's SuperNodes"
    )
    parser.add_argument("--evaluate", action="store_true", help="hospitals evaluate every round's model")
    parser.add_argument(
        "--training-seconds", type=float, default=0.0, help="a round's training waits so long"
    )
    parser.add_argument("--engine", default="auto", help="of the hospitals (docs/engines.md)")
    given = parser.parse_args()
    if given.quick:
        given.hospitals, given.plain, given.rounds = [4], [], 3
    ctypes.CDLL(None).prctl(
        CHILD_SUBREAPER, 1, 0, 0, 0
    )  # whatever is left behind is ours to count and to end
    columns = ("system", "hospitals", "parameters", "processor s / round", "seconds / round", "overhead")
    print(f"| {' | '.join((*columns, 'MB / hospital', 'by part'))} |")
    print("|---" * 8 + "|")
    for count in given.hospitals:
        with tempfile.TemporaryDirectory() as folder:
            show(measure_wardround(Path(folder), count, given))
    for count in filter(None, given.plain):
        with tempfile.TemporaryDirectory() as folder:
            show(measure_plain(Path(folder), count, given.model, min(given.rounds, 4)))
    return 0


def show(cost: Cost) -> None:
    """One line of the table."""
    parts = ", ".join(f"{part} {value:.2f}" for part, value in cost.processor.items() if value >= 0.005)
    memory = " + ".join(f"{part} {value:.0f}" for part, value in cost.memory.items() if value)
    beyond = cost.seconds - cost.training
    used, trained = sum(cost.processor.values()), cost.hospitals * cost.training
    shares = f"{beyond:.2f} s, {beyond / cost.seconds:.1%}; processor {used / (used + trained or 1.0):.1%}"
    overhead = shares if cost.training else "–"
    print(
        f"| {cost.system} | {cost.hospitals} | {cost.parameters:,} | {used:.2f} | "
        f"{cost.seconds:.2f} | {overhead} | {sum(cost.memory.values()):.0f} ({memory}) | {parts} |",
        flush=True,
    )


def measure_wardround(folder: Path, count: int, given: argparse.Namespace) -> Cost:
    """A federation from its keys to its cost."""
    network, rounds, training = MODELS[given.model], given.rounds, given.training_seconds
    if training:
        (folder / SLOW).write_text(SLOW_MODEL)
        steps = -(-samples_for_training(count) // BATCH)
        network = {**network, "name": "slow-mlp", "seconds": training / steps}
    server, hospitals = configure(folder, count, network, given)

    def finished() -> int:
        configs = list((folder / "runs").glob("*/config.yaml"))
        return max((r.round for r in RunFolder(configs[0].parent).rounds()), default=0) if configs else 0

    processor, seconds, memory = follow(folder, {"serve": server, **hospitals}, finished, rounds, count)
    config = yaml.safe_load(next((folder / "runs").glob("*/config.yaml")).read_text())
    values = (value for value in config.values() if isinstance(value, dict))
    parameters = next(value["model_parameters"] for value in values if "model_parameters" in value)
    return Cost("wardround", count, parameters, rounds, processor, seconds, memory, training)


def samples_for_training(count: int) -> int:
    """Of one hospital: what its share of the data leaves for training."""
    from wardround.flower.config import hospital_from
    from wardround.flower.hospital.data import HospitalData

    partition = {"name": "iid", "clients": count}
    config = hospital_from({"name": "one", "dataset": DATA, "partition": partition, "part": 0})
    return len(HospitalData(config.dataset, config.seed, config.partition, config.part).share.train_rows)


def measure_plain(folder: Path, count: int, model: str, rounds: int) -> Cost:
    """The same network in an app of plain Flower."""
    keys, names = make_keys(folder, count)
    plain = PlainFlower(
        folder, keys, names, MODELS[model]["hidden"], DATA["features"], DATA["samples"], rounds
    )
    processor, seconds, memory = follow(folder, plain.commands(), plain.finished, rounds, count, plain.submit)
    return Cost("plain Flower", count, plain.parameters, rounds, processor, seconds, memory)


def make_keys(folder: Path, count: int) -> tuple[KeyFiles, list[str]]:
    """Certificates and keys of a federation."""
    keys, names = KeyFiles(folder / "keys"), [f"hospital-{number:02d}" for number in range(count)]
    make_server_certificate(keys.folder, ["127.0.0.1"])
    make_node_keys(keys.folder, names)
    return keys, names


def configure(
    folder: Path, count: int, model: dict, given: argparse.Namespace
) -> tuple[list[str], dict[str, list[str]]]:
    """Keys and configurations; gives the commands."""
    keys, names = make_keys(folder, count)
    port = free_port()
    federation = {
        "clients": count, "port": port, "quorum": count, "deadline_seconds": 900.0, "deliver": False,
        "certificate": str(keys.server), "certificate_key": str(keys.server_key),
        "root_certificates": str(keys.authority), "node_keys": str(keys.nodes),
    }  # fmt: skip
    run = {
        "name": "load", "model": model, "aggregator": {"name": "caac"}, "rounds": given.rounds,
        "training": {"batch_size": BATCH},
        "evaluate_every": 1 if given.evaluate else 10 * given.rounds, "federation": federation,
    }  # fmt: skip
    plugins = {"plugins": [SLOW]} if (folder / SLOW).exists() else {}
    write(folder / "fed.yaml", {**plugins, **run})
    commands = {}
    for part, name in enumerate(names):
        hospital = {
            "name": name, "dataset": DATA, "partition": {"name": "iid", "clients": count}, "part": part,
            "superlink": f"127.0.0.1:{port}", "engine": given.engine,
            "root_certificates": str(keys.authority), "node_key": str(keys.nodes / name),
        }  # fmt: skip
        path = write(folder / f"{name}.yaml", {**plugins, **hospital})
        commands[name] = [PROGRAM, "join", "--config", str(path)]
    serve = [PROGRAM, "serve", "--config", str(folder / "fed.yaml"), "--out", str(folder / "runs")]
    return serve, commands


def write(path: Path, values: dict) -> Path:
    """A YAML file."""
    path.write_text(yaml.safe_dump(values))
    return path


def follow(
    folder: Path,
    commands: dict[str, list[str]],
    finished: Callable[[], int],
    rounds: int,
    hospitals: int,
    submit: Callable[[], None] = lambda: None,
) -> tuple[dict[str, float], float, dict[str, float]]:
    """Processor seconds and seconds per round, and the memory of a hospital, of what the commands start."""
    started = []
    try:
        for name, command in commands.items():
            with open(folder / f"{name}.out", "wb") as out:
                started.append(subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True))
        submit()
        begin = wait_for_round(folder, finished, 2, started[0])
        from_time, from_processor = time.monotonic(), processor_seconds()
        done = wait_for_round(folder, finished, rounds, started[0]) - begin
        seconds, processor = time.monotonic() - from_time, processor_seconds()
        time.sleep(IDLE_SECONDS)
        memory = memory_of_parts(hospitals)
    finally:
        end_all(started)
    spent = {part: (used - from_processor.get(part, 0.0)) / done for part, used in processor.items()}
    return spent, seconds / done, memory


def wait_for_round(folder: Path, finished: Callable[[], int], wanted: int, server: subprocess.Popen) -> int:
    """Wait until a round is done; gives the number of the last one that is."""
    deadline = time.monotonic() + PATIENCE
    while (done := finished()) < wanted:
        if time.monotonic() > deadline or (server.poll() is not None and finished() < wanted):
            raise RuntimeError("\n".join(path.read_text()[-2000:] for path in folder.glob("*.out")))
        time.sleep(0.05)
    return done


def end_all(started: list[subprocess.Popen]) -> None:
    """End the commands and whatever they have left behind."""
    for process in started:
        process.send_signal(signal.SIGTERM)
    for process in started:
        process.wait()
    while left := descendants():
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        while True:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    break
            except ChildProcessError:
                return
        time.sleep(0.05)


def descendants() -> list[int]:
    """All processes below this one."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, pending = [], [os.getpid()]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found


def processor_seconds() -> dict[str, float]:
    """User and system time so far by part, with that of children that have ended."""
    spent: dict[str, float] = {}
    for pid in descendants():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            part = part_of(pid)
        except OSError:
            continue
        spent[part] = spent.get(part, 0.0) + sum(map(int, fields[11:15])) / TICKS
    own = os.times()
    spent["ended"] = own.children_user + own.children_system
    return spent


def part_of(pid: int) -> str:
    """Which part of a federation a process is."""
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    return next((part for part, mark in PARTS.items() if mark in command), "other")


def memory_of_parts(hospitals: int) -> dict[str, float]:
    """Proportional memory of one hospital by part, in MB: the mean over hospitals."""
    memory = dict.fromkeys(HOSPITAL, 0.0)
    for pid in descendants():
        try:
            part = part_of(pid)
            if part in memory:
                rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
                memory[part] += int(re.search(r"Pss:\s+(\d+)", rollup)[1]) / 1024 / hospitals
        except OSError:
            continue
    return memory


if __name__ == "__main__":
    sys.exit(main())
