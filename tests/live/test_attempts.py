"""Waits after wrong tokens: they grow, have a limit, and are forgotten."""

import pytest

from wardround.live import attempts as module
from wardround.live.attempts import Attempts


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_waits_grow_up_to_a_minute(clock):
    attempts, waits = Attempts(clock), []
    for _ in range(14):
        attempts.fail("192.0.2.1")
        waits.append(attempts.wait("192.0.2.1"))
        clock.now += waits[-1]
    assert waits == [0, 0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    for _ in range(5000):
        attempts.fail("192.0.2.1")
    assert attempts.wait("192.0.2.1") == 60


def test_mistakes_are_forgotten_after_an_hour(clock):
    attempts = Attempts(clock)
    for _ in range(10):
        attempts.fail("192.0.2.1")
    clock.now += module.FORGET_AFTER + 1
    attempts.fail("192.0.2.1")
    assert attempts.wait("192.0.2.1") == 0


def test_a_network_of_ipv6_is_one_source(clock):
    attempts = Attempts(clock)
    for number in range(8):
        attempts.fail(f"2001:db8::{number}")
    assert attempts.wait("2001:db8::ffff") > 0
    assert attempts.wait("2001:db8:0:1::1") == 0
    for _ in range(8):
        attempts.fail("::ffff:192.0.2.1")
    assert attempts.wait("192.0.2.1") > 0
    assert attempts.wait("::ffff:192.0.2.2") == 0


def test_memory_is_bounded(clock, monkeypatch):
    monkeypatch.setattr(module, "MOST_SOURCES", 3)
    attempts = Attempts(clock)
    for source in "abcabcabcabcabcabcd":
        attempts.fail(source)
    assert [attempts.wait(source) > 0 for source in "abcd"] == [False, True, True, False]
