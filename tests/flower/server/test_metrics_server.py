"""`/metrics` and `/health` of `serve`."""

import socket
import urllib.error
import urllib.request

import pytest

pytest.importorskip("flwr")

from wardround.errors import ConfigError
from wardround.flower.server.metrics_server import serve_metrics
from wardround.records import RoundRecord
from wardround.runs.folder import RunFolder

parser = pytest.importorskip("prometheus_client.parser")


def get(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        return answer.status, answer.headers["Content-Type"], answer.read().decode()


@pytest.mark.slow
def test_metrics_follow_the_run(tmp_path):
    folder = RunFolder(tmp_path / "x")
    with serve_metrics(folder.path, "127.0.0.1", 0) as port:
        assert get(port, "/health") == (200, "text/plain; charset=utf-8", "ok\n")
        assert get(port, "/metrics")[0] == 200, "before there is a run"
        folder.path.mkdir()
        folder.write_config({"rounds": 3})
        folder.append(RoundRecord(1))
        status, kind, text = get(port, "/metrics")
        assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
        values = {
            family.name: family.samples[0].value for family in parser.text_string_to_metric_families(text)
        }
        assert values["wardround_round"] == 1
        folder.append(RoundRecord(2))
        assert 'wardround_round{run="x"} 2' in get(port, "/metrics")[2]
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(port, "/")


def test_no_port_no_server(tmp_path):
    with serve_metrics(tmp_path, "127.0.0.1", None) as port:
        assert port is None


def test_a_port_in_use(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with (
            pytest.raises(ConfigError, match=r"federation\.metrics_port: cannot listen on 127"),
            serve_metrics(tmp_path, "127.0.0.1", taken.getsockname()[1]),
        ):
            pass
