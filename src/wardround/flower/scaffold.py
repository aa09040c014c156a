"""Write a plain Flower app folder, for `flwr run` and for our own SuperLink.

The app only imports the apps of the installed package.
"""

from __future__ import annotations

import json
from pathlib import Path

from wardround import __version__
from wardround.errors import ConfigError

__all__ = ["write_app"]

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "wardround-federation"
version = "{version}"
description = "Byzantine-robust federated learning with wardround"
license = "Apache-2.0"
# Flower would install what stands here anew for each run; wardround itself is there already, since it wrote this.
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["federation"]

[tool.flwr.app]
publisher = "wardround"

[tool.flwr.app.components]
serverapp = "federation.server:app"
clientapp = "federation.client:app"

# All keys that `flwr run --run-config` may change.
[tool.flwr.app.config]
config = {config}
out = {out}
"""

APP_MODULE = '''\
"""The {half} app, from the installed package."""

from wardround.flower import {half}_app

app = {half}_app.app  # Flower looks for an assignment
'''

FEDERATION = """\
# One experiment with the keys of any wardround run, and a section for the federation.
# With `partition`, the server's dataset is divided among the nodes of a simulation. For a real federation remove
# `partition` and give every hospital its own hospital.yaml (docs/federation.md).
name: federation
dataset: {name: synthetic, samples: 600, features: 8}
partition: {name: dirichlet, clients: 4, alpha: 1.0}
model: {name: mlp, hidden: [8]}
training: {optimizer: adam, lr: 0.01, batch_size: 32}
aggregator: {name: caac}
rounds: 3
federation:
  quorum: 0.5
  identity: name # the nodes of a simulation have no keys
"""

README = """\
# A wardround federation as a Flower app

    flwr run . local --federation-config 'num-supernodes=4'

runs `fed.yaml` on this machine, in Flower's simulation; the run folder is under `runs/`. Flower looks for its own
programs on the PATH, so activate the environment in which wardround is installed (`source .venv/bin/activate`), with
`pip install 'wardround[flower,ray]'`. The SuperLink that `flwr run` starts keeps running; `flwr` says how to stop it.
`--run-config 'config="/path/to/fed.yaml" out="/path/to/runs"'` uses other paths.
"""


def write_app(folder: Path, force: bool = False, config: Path | None = None) -> Path:
    """Write the app and return its folder.

    Args:
        folder: Must be empty or missing, unless `force` is set.
        force: Write into a folder that is not empty; an existing `fed.yaml` is kept.
        config: A `fed.yaml` to use; None writes an example into the folder.
    """
    folder = folder.resolve()
    if not force and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: is there already and not empty; --force writes into it")
    federation = folder / "fed.yaml" if config is None else config.resolve()
    project = PROJECT.format(
        version=__version__, config=json.dumps(str(federation)), out=json.dumps(str(folder / "runs"))
    )
    files = {
        "pyproject.toml": project,
        "README.md": README,
        "federation/__init__.py": "",
        "federation/server.py": APP_MODULE.format(half="server"),
        "federation/client.py": APP_MODULE.format(half="client"),
    }
    if config is None and not federation.exists():
        files["fed.yaml"] = FEDERATION
    try:
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror})") from None
    return folder
