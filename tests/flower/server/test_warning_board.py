"""Warnings of a running server: begun, renewed and ended in its audit log."""

import json

import pytest

from wardround.flower.preflight.findings import Finding
from wardround.flower.server.warning_board import INTERVAL, WarningBoard
from wardround.runs.audit import AuditLog
from wardround.runs.overview import RunOverview


class Server:
    """What a board looks at, changed by the test; `look` lets time pass."""

    def __init__(self, folder):
        self.path, self.time, self.findings, self.clocks = folder, 0.0, [], {}
        self.board = self.start()

    def start(self):
        overview = RunOverview(self.path)
        overview.poll()
        overview.clocks = lambda: self.clocks
        log = AuditLog(self.path / "audit.jsonl")
        return WarningBoard(lambda: self.findings, log, overview, lambda: self.time)

    def look(self):
        before = self.lines()
        self.time += INTERVAL
        self.board.update()
        new = self.lines()[len(before) :]
        return [(line["event"], line["topic"], line.get("client"), line.get("reason")) for line in new]

    def lines(self):
        log = self.path / "audit.jsonl"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.fixture
def server(tmp_path):
    return Server(tmp_path)


def expiring(days):
    return Finding("certificate", "warning", f"server.pem: expires in {days} days", "renew it")


def test_a_certificate_is_said_once_a_day_and_until_it_is_renewed(server):
    server.findings = [Finding("certificate", "ok", "server.pem: valid until 2030")]
    assert server.look() == []
    server.findings = [expiring(29)]
    text = "server.pem: expires in {} days; renew it"
    assert server.look() == [("warning", "certificate", None, text.format(29))]
    assert server.look() == []
    server.findings = [expiring(28)]
    assert server.look() == [("warning", "certificate", None, text.format(28))]
    server.findings = []
    assert server.look() == [("warning-over", "certificate", None, None)]


def test_what_was_open_when_the_last_server_ended_is_known(server):
    server.findings = [expiring(5)]
    server.look()
    server.board = server.start()
    assert server.look() == []
    server.board, server.findings = server.start(), []
    assert server.look() == [("warning-over", "certificate", None, None)]


def test_a_hospitals_clock(server):
    server.clocks = {"north": 3.9, "south": -61.0}
    assert server.look() == [
        ("warning", "clock", "south", "61 s behind the server's; set it right there (NTP)")
    ]
    server.clocks = {"north": 3.9, "south": -58.0}
    assert server.look() == [], "its figures are no news"
    server.clocks = {"north": 3.9, "south": -3.0}
    assert server.look() == [], "not over before it is clearly right"
    server.clocks = {"north": 3.9, "south": -0.1}
    assert server.look() == [("warning-over", "clock", "south", None)]


def test_it_does_not_look_all_the_time(server):
    server.findings = [expiring(5)]
    server.look()
    server.findings = []
    server.time += INTERVAL / 2
    server.board.update()
    assert [line["event"] for line in server.lines()] == ["warning"]


def test_versions_are_the_rosters(server):
    AuditLog(server.path / "audit.jsonl").append("version-differs", client="north", reason="it runs 0.0.9")
    server.board = server.start()
    assert server.look() == []
