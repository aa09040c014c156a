"""A server and a hospital with keys of their own."""

import pytest
import yaml
from free_ports import free_port

pytest.importorskip("flwr")

from wardround.flower.certificates import KeyFiles, make_node_keys, make_server_certificate


@pytest.fixture(scope="session")
def made_keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    make_server_certificate(folder / "certs", ["127.0.0.1"])
    make_node_keys(folder / "certs", ["a", "b"])
    return folder / "certs"


@pytest.fixture
def keys(made_keys, tmp_path):
    import shutil

    shutil.copytree(made_keys, tmp_path / "certs")
    return KeyFiles(tmp_path / "certs")


@pytest.fixture
def fed(tmp_path, keys):
    """Write fed.yaml: `fed(run={…}, federation keys…)`."""

    def write(run=None, **federation):
        section = {
            "clients": 2, "quorum": 2, "port": free_port(), "certificate": "certs/server.pem",
            "certificate_key": "certs/server.key", "root_certificates": "certs/ca.crt", "node_keys": "certs/nodes",
        }  # fmt: skip
        values = {"name": "t", "rounds": 2, "model": {"name": "logistic"}, **(run or {})}
        path = tmp_path / "fed.yaml"
        path.write_text(yaml.safe_dump({**values, "federation": section | federation}))
        return path

    return write


@pytest.fixture
def hospital(tmp_path, keys):
    def write(**values):
        rows = "\n".join(f"{40 + i},{i % 3},{i % 2}" for i in range(40))
        (tmp_path / "stays.csv").write_text(f"age,score,died\n{rows}\n")
        own = {
            "name": "a", "dataset": {"name": "csv", "file": "stays.csv", "label": "died"},
            "superlink": "127.0.0.1:1", "root_certificates": "certs/ca.crt", "node_key": "certs/nodes/a",
        }  # fmt: skip
        path = tmp_path / "hospital.yaml"
        path.write_text(yaml.safe_dump(own | values))
        return path

    return write


def by_check(findings):
    return {finding.check: finding for finding in findings}
