"""What the gateway has counted."""

import json

from wardround.flower.server.gateway_counters import GatewayCounters


def test_the_file_is_written_now_and_then_and_at_the_end(tmp_path):
    now = [0.0]
    counters = GatewayCounters(tmp_path / "gateway.json", lambda: now[0])

    def written():
        return json.loads((tmp_path / "gateway.json").read_text())

    counters.write(0)
    assert written() == {"requests": 0, "refused": 0, "bytes_in": 0, "bytes_out": 0, "clocks": {}}
    counters.add(100, 2000)
    counters.add(1, 2)
    counters.clocks.note("north", 6.123)
    counters.write(3)
    assert written()["requests"] == 0, "not yet"
    now[0] = 2.0
    counters.write(3)
    assert written() == {
        "requests": 2,
        "refused": 3,
        "bytes_in": 101,
        "bytes_out": 2002,
        "clocks": {"north": 6.1},
    }
    counters.write(4, now=True)
    assert written()["refused"] == 4


def test_no_file_and_a_file_that_cannot_be_written(tmp_path):
    GatewayCounters(None).write(1, now=True)
    GatewayCounters(tmp_path / "no" / "gateway.json").write(1, now=True)
