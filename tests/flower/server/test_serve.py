"""`serve` and `join` before anything is started: what is asked for, what is refused, what is printed."""

import socket
import subprocess
import sys
import urllib.request
from functools import partial

import pytest
import yaml
from typer.testing import CliRunner

pytest.importorskip("flwr")

from wardround.cli.main import app
from wardround.errors import ConfigError
from wardround.flower.certificates import KeyFiles, make_node_keys, make_server_certificate
from wardround.flower.environment import child_environment
from wardround.flower.hospital.join import Joiner
from wardround.flower.processes import Processes, free_port
from wardround.flower.server import serve
from wardround.flower.server.serve import Server

DATA = {"name": "synthetic", "samples": 100, "features": 4}


@pytest.fixture
def keys(tmp_path):
    make_server_certificate(tmp_path / "keys", ["127.0.0.1"])
    make_node_keys(tmp_path / "keys", ["hospital-a", "hospital-b"])
    return KeyFiles(tmp_path / "keys")


@pytest.fixture
def fed(tmp_path, keys):
    def write(**federation):
        tls = {
            "certificate": str(keys.server),
            "certificate_key": str(keys.server_key),
            "root_certificates": str(keys.authority),
            "node_keys": str(keys.nodes),
        }
        section = {"clients": 2, **tls, **federation}
        section = {key: value for key, value in section.items() if value is not None}
        path = tmp_path / "fed.yaml"
        path.write_text(yaml.safe_dump({"aggregator": {"name": "fedavg"}, "federation": section}))
        return path

    return write


@pytest.fixture
def hospital(tmp_path, keys):
    def write(**values):
        own = {"root_certificates": str(keys.authority), "node_key": str(keys.nodes / "hospital-a")}
        values = {"name": "hospital-a", "dataset": DATA, **own, **values}
        path = tmp_path / "hospital.yaml"
        path.write_text(yaml.safe_dump({key: value for key, value in values.items() if value is not None}))
        return path

    return write


@pytest.mark.parametrize(
    ("federation", "words"),
    [
        ({"certificate": None}, "federation.certificate is required"),
        ({"certificate_key": "nowhere.key"}, r"federation.certificate_key: .*nowhere.key cannot be read"),
        ({"node_keys": None}, "federation.node_keys is required"),
        ({"node_keys": "nowhere"}, "nowhere: no such folder"),
        ({"prot": 8000}, "did you mean 'port'"),
        ({"port": 99999}, "port"),
    ],
)
def test_a_server_that_cannot_be(fed, tmp_path, federation, words):
    path = fed(**federation)
    with pytest.raises(ConfigError, match=words):
        Server.load(path, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"root_certificates": None}, "root_certificates is required"),
        ({"node_key": "nowhere"}, "nowhere cannot be read"),
        ({"superlink": "https://fed.example.org"}, "is no address; for example"),
        ({"superlink": "fed.example.org:99999"}, "is no address; for example"),
        ({"dataset": {"name": "synthtic"}}, "did you mean 'synthetic'"),
    ],
)
def test_a_hospital_that_cannot_be(hospital, values, words):
    with pytest.raises(ConfigError, match=words):
        Joiner.load(hospital(**values))


def test_a_private_key_that_others_can_read(hospital, keys):
    (keys.nodes / "hospital-a").chmod(0o644)
    with pytest.raises(ConfigError, match="others may read this private key; run: chmod 600"):
        Joiner.load(hospital())


@pytest.mark.slow
def test_mistakes_on_the_command_line_are_one_line(tmp_path):
    wrong = tmp_path / "nowhere.yaml"
    command = [sys.executable, "-m", "wardround", "serve", "--config", str(wrong)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith(f"wardround: {wrong}")
    assert len(result.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_port_in_use(fed, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=rf"federation.port: cannot listen on 127.0.0.1:{port} \(Address"
        ):
            Server.load(fed(port=port), tmp_path / "runs").serve(print)


@pytest.mark.slow
def test_a_port_that_another_program_takes_in_the_last_moment(fed, tmp_path, monkeypatch):
    server = Server.read(fed(), tmp_path / "runs", insecure=True)
    with socket.socket() as taken, Processes(tmp_path / "logs", child_environment(tmp_path)) as processes:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        lost, free = taken.getsockname()[1], free_port()
        ports = [lost, free]
        monkeypatch.setattr(serve, "free_port", lambda: ports.pop(0))
        monkeypatch.setattr(serve.urllib.request, "urlopen", partial(answer_only_from, free))
        assert server._start_superlink(processes) == free
        processes.check()


def answer_only_from(port, address, **options):
    """What took the other port never answers."""
    if f":{port}/" not in address:
        raise ConnectionRefusedError
    return urllib.request.OpenerDirector.open(urllib.request.build_opener(), address)


def test_a_superlink_that_is_too_busy_to_answer_is_asked_again():
    class Busy:
        answers = [TimeoutError("timed out"), None, ""]

        def outcome(self, run):
            answer = self.answers.pop(0)
            if isinstance(answer, OSError):
                raise answer
            return answer

    assert [serve._ask_outcome(Busy(), 1) for _ in range(3)] == [None, None, ""]


def test_the_superlink_listens_on_loopback_and_the_gateway_on_the_network(fed, tmp_path):
    server = Server.load(fed(host="0.0.0.0", port=8443), tmp_path / "runs")
    superlink, gateway = (
        " ".join(server.superlink(8001)),
        " ".join(server.gateway(8001, tmp_path / "doorbell")),
    )
    assert "-m wardround.flower.server.flower_program flower-superlink --" in superlink
    assert "--host 127.0.0.1 --port 8001" in superlink
    assert "--enable-supernode-auth" in superlink
    assert "--insecure" not in superlink
    assert "--disable-runtime-dependency-installation" in superlink
    assert "--host 0.0.0.0 --port 8443 --to https://127.0.0.1:8001" in gateway
    assert "--node-keys" in gateway


def test_a_run_without_data_at_the_server_is_found_again(fed, tmp_path):
    """Its record says that the hospitals hold the data, not the default dataset."""
    out = tmp_path / "runs"
    server = Server.load(fed(), out)
    server.folder.path.mkdir(parents=True)
    server.folder.write_config(server.config.plain())
    again = Server.load(fed(port=8443, quorum=1, rebind=["hospital-a"]), out)
    assert again.folder.path == server.folder.path


def test_printed_commands_are_a_shell_script(fed, hospital, tmp_path):
    for arguments in (
        ["serve", "--config", str(fed()), "--out", str(tmp_path / "runs"), "--print"],
        ["join", "--config", str(hospital()), "--print"],
    ):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        subprocess.run(["bash", "-n"], input=result.stdout, text=True, check=True)
        assert "export FLWR_TELEMETRY_ENABLED=0" in result.stdout
    assert not (tmp_path / "runs").exists()


def test_insecure_is_announced(fed, hospital, tmp_path):
    assert "--insecure" in Server.load(
        fed(certificate=None, node_keys=None), tmp_path / "runs", True
    ).superlink(1)
    assert "--private-key" in Joiner.load(hospital()).plan().supernode(tmp_path / "trainer")
    alone = Joiner.load(hospital(node_key=None), True).plan().supernode(tmp_path / "trainer")
    assert not {"--private-key", "--root-certificates"} & set(alone)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        path = fed(port=taken.getsockname()[1])
        result = CliRunner().invoke(
            app, ["serve", "--config", str(path), "--out", str(tmp_path / "runs"), "--insecure"]
        )
    assert "INSECURE" in result.stderr


def test_children_are_offline_and_keep_their_files_apart(tmp_path):
    environment = child_environment(tmp_path / "flwr")
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
    assert environment["FLWR_HOME"] == str(tmp_path / "flwr")
    assert (tmp_path / "flwr").is_dir()
