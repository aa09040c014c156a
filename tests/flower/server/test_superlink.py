"""What `serve` asks of its SuperLink, with a SuperLink that only records."""

import hashlib
import io
import zipfile

import pytest

pytest.importorskip("flwr")


from wardround.errors import WardroundError
from wardround.flower.certificates import make_node_keys, public_keys
from wardround.flower.scaffold import write_app
from wardround.flower.server import superlink
from wardround.flower.server.superlink import SuperLinkControl
from wardround.flower.wire import RefusedRequest, key_bytes


class Recorder:
    """A connection to a SuperLink with these runs (number → status, sub-status, details) and registered keys."""

    def __init__(self):
        self.runs, self.keys, self.calls = {}, {}, []

    def call(self, path, request, response_type):
        return getattr(self, path.removeprefix("/v1/control/").replace("-", "_"))(request, response_type())

    def list_runs(self, request, response):
        for number, (status, sub_status, details) in self.runs.items():
            run = response.run_dict[number].status
            run.status, run.sub_status, run.details = status, sub_status, details
        return response

    def list_nodes(self, request, response):
        for key, node in self.keys.items():
            response.nodes_info.add(public_key=key, node_id=node)
        return response

    def stop_run(self, request, response):
        self.calls.append(("stop", request.run_id))

    def register_node(self, request, response):
        self.calls.append(("register", request.name, request.public_key))

    def unregister_node(self, request, response):
        self.calls.append(("unregister", request.node_id))

    def start_run(self, request, response):
        assert hashlib.sha256(request.fab.content).hexdigest() == request.fab.hash_str
        names = zipfile.ZipFile(io.BytesIO(request.fab.content)).namelist()
        assert {"pyproject.toml", "federation/server.py", "federation/client.py"} <= set(names)
        self.calls.append(("start", {key: value.string for key, value in request.override_config.items()}))
        if self.runs:
            response.run_id = 9
        return response

    def close(self):
        self.calls.append(("close",))


@pytest.fixture
def recorder(monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr(superlink, "Connection", lambda *args, **named: recorder)
    return recorder


@pytest.fixture
def control(recorder):
    return SuperLinkControl("127.0.0.1:8001", None)


def test_only_runs_that_have_not_finished_are_stopped(control, recorder):
    recorder.runs = {
        1: ("finished", "completed", ""), 2: ("running", "", ""), 3: ("pending", "", ""),
    }  # fmt: skip
    control.stop_stale_runs()
    assert recorder.calls == [("stop", 2), ("stop", 3)]


def test_exactly_the_given_keys_are_registered(control, recorder, tmp_path):
    make_node_keys(tmp_path, ["hospital-a", "hospital-b", "former"])
    keys = public_keys(tmp_path / "nodes")
    as_bytes = {name: key_bytes(key) for name, key in keys.items()}
    recorder.keys = {as_bytes["hospital-a"]: 5, as_bytes["former"]: 6}
    del keys["former"]
    control.register_only(keys)
    assert recorder.calls == [("unregister", 6), ("register", "hospital-b", as_bytes["hospital-b"])]


def test_a_key_that_is_not_taken_back_keeps_no_other_out(control, recorder, tmp_path):
    make_node_keys(tmp_path, ["back-again", "new"])
    keys = public_keys(tmp_path / "nodes")
    register = recorder.register_node

    def refuse(request, response):
        if request.name == "back-again":
            raise RefusedRequest(400, "Public key already in use")
        register(request, response)

    recorder.register_node = refuse
    with pytest.raises(WardroundError, match="back-again: Public key already in use"):
        control.register_only(keys)
    assert [call[:2] for call in recorder.calls] == [("register", "new")]


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (("running", "", ""), None),
        (("finished", "completed", ""), ""),
        (("finished", "failed", "no quorum"), "no quorum"),
        (("finished", "stopped", ""), "stopped"),
    ],
)
def test_the_outcome_of_a_run(control, recorder, status, outcome):
    recorder.runs = {9: status}
    assert control.outcome(9) == outcome


@pytest.mark.slow
def test_a_run_is_started_with_its_options(control, recorder, tmp_path):
    app = write_app(tmp_path / "app")
    with pytest.raises(WardroundError, match="did not start the run"):
        control.start_run(app, {"config": "fed.yaml"})
    recorder.runs = {9: ("pending", "", "")}
    assert control.start_run(app, {"config": "fed.yaml"}) == 9
    assert recorder.calls[-1] == ("start", {"config": "fed.yaml"})
    control.close()
    assert recorder.calls[-1] == ("close",)


@pytest.mark.slow
def test_an_app_that_flower_cannot_build_is_one_line(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    with pytest.raises(WardroundError, match=r"^flwr build: "):
        superlink.build_app(tmp_path)
