"""Plain Flower beside wardround in `bench_federation`: FedAvg, the same network and data, Flower's own defaults.

One SuperLink with TLS and registered keys; one SuperNode per hospital, which starts a process for each message.
"""

from __future__ import annotations

import os
import ssl
import sys
import time
import urllib.request
from itertools import pairwise
from pathlib import Path

from wardround.flower import OFFLINE
from wardround.flower.certificates import KeyFiles, public_keys
from wardround.flower.processes import console_script, free_port
from wardround.flower.server.superlink import SuperLinkControl

PROJECT = """\
[project]
name = "plain"
version = "1.0.0"
description = "plain Flower"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "bench"
[tool.flwr.app.components]
serverapp = "plain.server:app"
clientapp = "plain.client:app"
[tool.flwr.app.config]
rounds = {rounds}
done = "{done}"
"""
NETWORK = """\
from torch import nn

def network():
    sizes = {sizes}
    layers = []
    for first, second in zip(sizes, sizes[1:]):
        layers += [nn.Linear(first, second), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
"""
SERVER = """\
from pathlib import Path
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from plain.network import network

app = ServerApp()

@app.main()
def main(grid: Grid, context: Context) -> None:
    done = Path(str(context.run_config["done"]))
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes={count}, min_train_nodes={count})

    def count_round(number, arrays):
        done.write_text(str(number))

    strategy.start(grid, ArrayRecord(network().state_dict()), num_rounds=int(context.run_config["rounds"]),
                   evaluate_fn=count_round)
"""
CLIENT = """\
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from plain.network import network

app = ClientApp()

@app.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn({samples}, {features}, generator=generator)
    targets = (inputs[:, 0] > 0).float()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for batch in torch.arange({samples}).split(32):
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(inputs[batch])[:, 0], targets[batch])
        loss.backward()
        optimizer.step()
    content = RecordDict({{"arrays": ArrayRecord(model.state_dict()),
                          "metrics": MetricRecord({{"num-examples": {samples}}})}})
    return Message(content, reply_to=message)
"""


class PlainFlower:
    """An app of plain Flower, its SuperLink and its SuperNodes."""

    def __init__(
        self,
        folder: Path,
        keys: KeyFiles,
        names: list[str],
        hidden: list[int],
        features: int,
        samples: int,
        rounds: int,
    ) -> None:
        self.folder, self.keys, self.names, self.rounds = folder, keys, names, rounds
        self.port, self.done = free_port(), folder / "done"
        sizes = [features, *hidden, 1]
        self.parameters = sum(a * b + b for a, b in pairwise(sizes))
        own = int(0.7 * samples / len(names))
        files = {
            "pyproject.toml": PROJECT.format(rounds=rounds, done=self.done),
            "plain/__init__.py": "",
            "plain/network.py": NETWORK.format(sizes=sizes),
            "plain/server.py": SERVER.replace("{count}", str(len(names))),
            "plain/client.py": CLIENT.format(samples=own, features=features),
        }
        for name, content in files.items():
            path = folder / "app" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        os.environ.update({**OFFLINE, "FLWR_HOME": str(folder / "flwr"), "OMP_NUM_THREADS": "1"})
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    def commands(self) -> dict[str, list[str]]:
        """The SuperLink first."""
        keys, address = self.keys, f"127.0.0.1:{self.port}"
        link = [
            console_script("flower-superlink"), "--ssl-certfile", str(keys.server), "--ssl-keyfile",
            str(keys.server_key), "--ssl-ca-certfile", str(keys.authority), "--enable-supernode-auth",
            "--host", "127.0.0.1", "--port", str(self.port), "--disable-runtime-dependency-installation",
        ]  # fmt: skip
        nodes = {
            name: [
                "bash", "-c",
                # A SuperNode ends if its key is not registered yet.
                f"until test -e {self.folder}/registered; do sleep 0.5; done; "
                f"exec {console_script('flower-supernode')} "
                f"--root-certificates {keys.authority} --superlink {address} --port {free_port()} "
                f"--auth-supernode-private-key {keys.nodes / name}",
            ]
            for name in self.names
        }  # fmt: skip
        return {"superlink": link, **nodes}

    def submit(self) -> None:
        """Register the keys and start the run."""
        context = ssl.create_default_context(cafile=str(self.keys.authority))
        while True:
            try:
                urllib.request.urlopen(
                    f"https://127.0.0.1:{self.port}/health", timeout=5, context=context
                ).close()
                break
            except OSError:
                time.sleep(0.3)
        control = SuperLinkControl(f"127.0.0.1:{self.port}", self.keys.authority)
        control.register_only(public_keys(self.keys.nodes))
        (self.folder / "registered").touch()
        control.start_run(self.folder / "app", {})
        control.close()

    def finished(self) -> int:
        """Rounds that are done."""
        try:
            return int(self.done.read_text() or 0)
        except (FileNotFoundError, ValueError):
            return 0
