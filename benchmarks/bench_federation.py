"""A federation of real processes on one machine: the server's memory, seconds a round, and what of it is training.

    python benchmarks/bench_federation.py            # 12 SuperNodes, 1.2 million parameters, 10 rounds
    python benchmarks/bench_federation.py --quick    # 4 SuperNodes, 3 rounds

Training is the slowest hospital's; the rest of a round is messages: Flower's polling, its database, TLS, and
on one machine all hospitals wait for the same cores.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from wardround.flower.certificates import KeyFiles, make_node_keys, make_server_certificate
from wardround.flower.processes import free_port
from wardround.records import RoundRecord
from wardround.runs.folder import RunFolder

DATA = {"name": "synthetic", "samples": 6000, "features": 64}
MODEL = {"name": "mlp", "hidden": [1080, 1040]}
PARTS = {
    "server app": b"flwr-serverapp",
    "SuperLink": b"flower-superlink",
    "gateway": b"wardround.flower.server.gateway",
}
PROGRAM = str(Path(sys.executable).parent / "wardround")
PATIENCE = 3600.0


def main() -> int:
    """Run it, print the table, leave nothing running."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    nodes, rounds = (4, 3) if given.quick else (12, 10)
    with tempfile.TemporaryDirectory() as folder:
        return run(Path(folder), nodes, rounds)


def run(folder: Path, nodes: int, rounds: int) -> int:
    """One federation from its keys to its table."""
    server, hospitals = configure(folder, nodes, rounds)
    started = []
    begin = time.monotonic()
    try:
        for name, command in [("serve", server), *hospitals.items()]:
            with open(folder / f"{name}.out", "wb") as out:
                started.append(subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True))
        memory = follow(folder, started[0], rounds)
    finally:
        for process in started:
            process.send_signal(signal.SIGTERM)
        for process in started:
            process.wait()
    print_table(folder, nodes, memory, time.monotonic() - begin)
    flat = {round: figures for round, figures in memory.items() if round >= 3}
    growth = {part: max(f[part] for f in flat.values()) / flat[min(flat)][part] - 1 for part in PARTS if flat}
    print("\ngrowth after round 3: " + ", ".join(f"{part} {grown:+.1%}" for part, grown in growth.items()))
    return 0


def configure(folder: Path, nodes: int, rounds: int) -> tuple[list[str], dict[str, list[str]]]:
    """Keys and configurations; gives the commands."""
    keys = KeyFiles(folder / "keys")
    names = [f"hospital-{number:02d}" for number in range(nodes)]
    make_server_certificate(keys.folder, ["127.0.0.1"])
    make_node_keys(keys.folder, names)
    port = free_port()
    federation = {
        "clients": nodes, "port": port, "quorum": nodes, "deadline_seconds": 900.0,
        "certificate": str(keys.server), "certificate_key": str(keys.server_key),
        "root_certificates": str(keys.authority), "node_keys": str(keys.nodes),
    }  # fmt: skip
    write(
        folder / "fed.yaml",
        {
            "name": "load", "model": MODEL, "aggregator": {"name": "caac"}, "rounds": rounds,
            "evaluate_every": 10 * rounds, "federation": federation,
        },
    )  # fmt: skip
    commands = {}
    for part, name in enumerate(names):
        hospital = {
            "name": name, "dataset": DATA, "partition": {"name": "iid", "clients": nodes}, "part": part,
            "superlink": f"127.0.0.1:{port}", "runtime_port": free_port(),
            "root_certificates": str(keys.authority), "node_key": str(keys.nodes / name),
        }  # fmt: skip
        path = write(folder / f"{name}.yaml", hospital)
        commands[name] = [PROGRAM, "join", "--config", str(path)]
    serve = [PROGRAM, "serve", "--config", str(folder / "fed.yaml"), "--out", str(folder / "runs")]
    return serve, commands


def write(path: Path, values: dict) -> Path:
    """A YAML file."""
    path.write_text(yaml.safe_dump(values))
    return path


def follow(folder: Path, server: subprocess.Popen, rounds: int) -> dict[int, dict[str, float]]:
    """The memory of the server's parts after each round, in MB."""
    memory: dict[int, dict[str, float]] = {}
    deadline = time.monotonic() + PATIENCE
    while len(memory) < rounds and server.poll() is None:
        if time.monotonic() > deadline:
            raise TimeoutError((folder / "serve.out").read_text())
        done = max((record.round for record in finished(folder)), default=0)
        if done and done not in memory:
            memory[done] = {part: resident_mb(folder, mark) for part, mark in PARTS.items()}
        time.sleep(0.1)
    if len(memory) < rounds - 1:
        raise RuntimeError((folder / "serve.out").read_text())
    return memory


def finished(folder: Path) -> list[RoundRecord]:
    """The records of finished rounds."""
    configs = list((folder / "runs").glob("*/config.yaml"))
    return RunFolder(configs[0].parent).rounds() if configs else []


def resident_mb(folder: Path, mark: bytes) -> float:
    """Memory of this federation's process with the mark in its command line."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
                if mark in command and os.fsencode(str(folder)) in command:
                    return float(re.search(r"VmRSS:\s+(\d+)", (entry / "status").read_text())[1]) / 1024
            except OSError:
                continue
    return float("nan")


def print_table(folder: Path, nodes: int, memory: dict[int, dict[str, float]], seconds: float) -> None:
    """One line per round."""
    records = finished(folder)
    config = yaml.safe_load(next((folder / "runs").glob("*/config.yaml")).read_text())
    parameters = next(
        v["model_parameters"] for v in config.values() if isinstance(v, dict) and "model_parameters" in v
    )
    said = [path.read_text() for path in folder.glob("hospital-*.out")]
    print(
        f"{nodes} SuperNodes, {parameters:,} parameters, {len(records)} rounds, {seconds:.0f} s with start and stop\n"
    )
    print(
        "| round | seconds | slowest training | not training | "
        + " | ".join(f"{part} MB" for part in PARTS)
        + " |"
    )
    print("|---" * (4 + len(PARTS)) + "|")
    for record in records:
        pattern = rf"train for round {record.round}: done \(([\d.]+) s\)"
        training = max((float(found) for text in said for found in re.findall(pattern, text)), default=0.0)
        whole = sum(
            value for key, value in record.seconds.items() if key in ("train", "aggregate", "evaluate")
        )
        figures = memory.get(record.round, dict.fromkeys(PARTS, float("nan")))
        print(
            f"| {record.round} | {whole:.1f} | {training:.1f} | {1 - training / whole:.0%} | "
            + " | ".join(f"{figures[part]:.0f}" for part in PARTS)
            + " |"
        )


if __name__ == "__main__":
    sys.exit(main())
