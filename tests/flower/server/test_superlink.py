"""What `serve` asks of its SuperLink, with a SuperLink that only records."""

from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")

from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from wardround.errors import WardroundError
from wardround.flower.certificates import make_node_keys, public_keys
from wardround.flower.scaffold import write_app
from wardround.flower.server import superlink
from wardround.flower.server.superlink import SuperLinkControl


class Recorder:
    """Answers like a SuperLink with these runs (number → status, sub-status, details) and registered keys."""

    def __init__(self):
        self.runs, self.keys, self.calls = {}, {}, []

    def ListRuns(self, request):  # noqa: N802 - Flower's name
        return SimpleNamespace(
            run_dict={
                number: SimpleNamespace(
                    status=SimpleNamespace(status=status, sub_status=sub_status, details=details)
                )
                for number, (status, sub_status, details) in self.runs.items()
            }
        )

    def ListNodes(self, request):  # noqa: N802
        nodes = [SimpleNamespace(public_key=key, node_id=node) for key, node in self.keys.items()]
        return SimpleNamespace(nodes_info=nodes)

    def StopRun(self, request):  # noqa: N802
        self.calls.append(("stop", request.run_id))

    def RegisterNode(self, request):  # noqa: N802
        self.calls.append(("register", request.name, request.public_key))

    def UnregisterNode(self, request):  # noqa: N802
        self.calls.append(("unregister", request.node_id))

    def StartRun(self, request):  # noqa: N802
        self.calls.append(("start", {key: value.string for key, value in request.override_config.items()}))
        return SimpleNamespace(HasField=lambda field: bool(self.runs), run_id=9)

    def close(self):
        self.calls.append(("close",))


@pytest.fixture
def recorder(monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr(superlink.ControlHttpClient, "from_server_address", lambda *args, **named: recorder)
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
    as_bytes = {name: public_key_to_bytes(key) for name, key in keys.items()}
    recorder.keys = {as_bytes["hospital-a"]: 5, as_bytes["former"]: 6}
    del keys["former"]
    control.register_only(keys)
    assert recorder.calls == [("unregister", 6), ("register", "hospital-b", as_bytes["hospital-b"])]


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


def test_a_run_is_started_with_its_options(control, recorder, tmp_path):
    app = write_app(tmp_path / "app")
    with pytest.raises(WardroundError, match="did not start the run"):
        control.start_run(app, {"config": "fed.yaml"})
    recorder.runs = {9: ("pending", "", "")}
    assert control.start_run(app, {"config": "fed.yaml"}) == 9
    assert recorder.calls[-1] == ("start", {"config": "fed.yaml"})
    control.close()
    assert recorder.calls[-1] == ("close",)
