"""`wardround trial`: a federation to try out, each party with a folder of its own and nothing that is another's.

The tables are the bundled ICU data (SUPPORT2), dealt out among the hospitals with different case mixes.
"""

from __future__ import annotations

import csv
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wardround import datasets
from wardround.datasets import partition
from wardround.datasets.base import Dataset
from wardround.datasets.table import Table
from wardround.errors import ConfigError
from wardround.files import make_private_folder
from wardround.flower.certificates import KeyFiles, make_node_keys, make_server_certificate

__all__ = ["NAMES", "Trial"]

NAMES = ("north", "south", "east", "west")
LABEL, SEED = "died", 0
STEWARD_PORT = 8471

SERVER = """\
# The server's configuration: the keys of any run, without data, and the section `federation`.
name: trial
model: {{name: mlp, hidden: [16]}}
training: {{optimizer: adam, lr: 0.01, batch_size: 32}}
aggregator: {{name: {rule}}}
preprocessing: {{scale: federation, impute: median}}
rounds: {rounds}
{privacy}federation:
  schema: schema.yaml                 # what the columns of all tables mean
  clients: {clients}                          # hospitals that are expected
  quorum: {quorum}                           # usable updates that a round needs
  deadline_seconds: 120               # the longest time that a round waits for anyone
  host: {listen}
  port: {port}
  metrics_host: {listen}
  metrics_port: {metrics_port}                  # /metrics for Prometheus, /health for service managers
  certificate: certs/server.pem
  certificate_key: certs/server.key
  root_certificates: certs/ca.crt
  node_keys: certs/nodes              # NAME.pub of every hospital; nobody else may join
"""
HOSPITAL = """\
# One hospital: its name, its table, its way to the server.
name: {name}
dataset: {{name: csv, file: stays.csv}}   # seen from this file's folder; the federation's schema says the rest
superlink: {superlink}
root_certificates: certs/ca.crt
node_key: certs/nodes/{name}
{steward}"""
STEWARD = """\
privacy:
  mode: encrypted-fedmed
  steward: {address}
  steward_keys: steward               # the folder with server.key
"""


@dataclass(frozen=True)
class Trial:
    """What a trial looks like.

    Args:
        folder: Where the parties' folders go.
        names: The hospitals.
        rounds: Rounds of training.
        server: Name or address under which hospitals reach the server.
        port: The gateway's port; the one after it has the metrics.
        listen: The address that the server listens on.
        steward: Name or address of a steward; None: no encryption and no steward.
    """

    folder: Path
    names: Sequence[str] = NAMES
    rounds: int = 5
    server: str = "127.0.0.1"
    port: int = 8000
    listen: str = "127.0.0.1"
    steward: str | None = None

    def write(self) -> list[Path]:
        """Write everything and return the parties' folders.

        Raises:
            ConfigError: The folder is there already, and not empty.
        """
        if self.folder.exists() and any(self.folder.iterdir()):
            raise ConfigError(f"{self.folder}: is not empty; name a new folder")
        if len(set(self.names)) < 3 or len(set(self.names)) < len(self.names):
            raise ConfigError(
                f"a trial needs three hospitals or more with different names, got {', '.join(self.names)}"
            )
        server = self.folder / "server"
        hosts = [self.server, *(["localhost"] if self.server == "127.0.0.1" else [])]
        make_server_certificate(server / "certs", hosts)
        self._write_steward(server)
        tables, schema = _tables(len(self.names))
        (server / "schema.yaml").write_text(schema, encoding="utf-8")
        (server / "fed.yaml").write_text(self._server_text(), encoding="utf-8")
        for name, table in zip(self.names, tables, strict=True):
            self._write_hospital(name, table, KeyFiles(server / "certs"))
        parties = [server, *(self.folder / name for name in self.names)]
        return parties if self.steward is None else [*parties, self.folder / "steward"]

    def _server_text(self) -> str:
        privacy = ""
        if self.steward is not None:
            scheme = "http" if self.steward in ("127.0.0.1", "localhost") else "https"
            privacy = STEWARD.format(address=f"{scheme}://{self.steward}:{STEWARD_PORT}")
        return SERVER.format(
            rule="caac" if self.steward is None else "fedmed",
            rounds=self.rounds,
            privacy=privacy,
            clients=len(self.names),
            quorum=len(self.names) - 1,
            listen=self.listen,
            port=self.port,
            metrics_port=self.port + 1,
        )

    def _write_hospital(self, name: str, rows: list[list[str]], server: KeyFiles) -> None:
        own = self.folder / name
        make_node_keys(own / "certs", [name])
        shutil.copy(server.authority, own / "certs" / "ca.crt")
        shutil.copy(own / "certs" / "nodes" / f"{name}.pub", server.nodes)
        steward = ""
        if self.steward is not None:
            shutil.copy(
                self.folder / "steward" / "vault" / "keys" / f"client-{name}.key", own / "steward.key"
            )
            shutil.copy(self.folder / "steward" / "vault" / "keys" / "public.key", own / "public.key")
            steward = "steward_key: steward.key\n"
        with open(own / "stays.csv", "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(rows)
        text = HOSPITAL.format(
            name=name,
            superlink=f"{self.server}:{self.port}",
            steward=steward,
        )
        (own / "hospital.yaml").write_text(text, encoding="utf-8")

    def _write_steward(self, server: Path) -> None:
        """The steward's folder, with a certificate of the same authority where it is on another machine."""
        if self.steward is None:
            return
        from wardround.privacy.encryption.steward import Policy
        from wardround.privacy.encryption.vault import Vault

        place = self.folder / "steward"
        make_private_folder(place)
        vault = Vault(place / "vault")
        vault.make(list(self.names), "encrypted-fedmed", "ckks", Policy(min_cohort=3), None)
        make_private_folder(server / "steward")
        shutil.copy(vault.keys / "server.key", server / "steward" / "server.key")
        new_certificates = self.folder / "steward-certs"
        make_private_folder(new_certificates)
        for name in ("ca.crt", "ca.key"):
            shutil.copy(server / "certs" / name, new_certificates / name)
        make_server_certificate(new_certificates, [self.steward])
        for name in ("server.pem", "server.key"):
            shutil.move(new_certificates / name, place / name.replace("server", "steward"))
        shutil.rmtree(new_certificates)


def _tables(count: int) -> tuple[list[list[list[str]]], str]:
    """The rows of each hospital, header first, and the schema of all."""
    dataset: Dataset = datasets.create("icu").load(SEED)
    raw = dataset.raw
    assert raw is not None  # it is a table
    assert dataset.schema is not None
    schema = dataset.schema.model_copy(
        update={"label": dataset.schema.label.model_copy(update={"name": LABEL})}
    )
    dealt = partition.create("dirichlet", clients=count, alpha=1.0).assign(dataset.train, dataset.test, SEED)
    tables = []
    for train, test in zip(dealt.train, dealt.test, strict=True):
        rows = np.sort(np.concatenate([raw.parts[0][train], raw.parts[2][test]]))
        tables.append(_rows(raw.table.select(rows), dataset.class_names))
    return tables, schema.dump()


def _rows(table: Table, classes: Sequence[str]) -> list[list[str]]:
    columns = {
        name: ["" if np.isnan(v) else f"{v:g}" for v in values] for name, values in table.numeric.items()
    }
    columns |= {name: [str(word) for word in words] for name, words in table.categorical.items()}
    columns[LABEL] = [classes[int(target)] for target in table.targets]
    return [list(columns), *(list(row) for row in zip(*columns.values(), strict=True))]
