"""The orphan reaper: ends the marked processes after its parent, and only those."""

import os
import subprocess
import sys

import pytest

from wardround.flower import orphan_reaper

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

SLEEP = [sys.executable, "-c", "print('ready', flush=True); import time; time.sleep(600)"]


@pytest.fixture
def start():
    started = []

    def start(mark):
        environment = {**os.environ, **({} if mark is None else {orphan_reaper.MARK_VARIABLE: mark})}
        started.append(subprocess.Popen(SLEEP, env=environment, stdout=subprocess.PIPE))
        assert started[-1].stdout.readline() == b"ready\n"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_processes_are_found_by_their_mark(start):
    marked, _other, _unmarked = start("one-mark"), start("another-mark"), start(None)
    assert orphan_reaper.marked_processes("one-mark") == [marked.pid]
    assert orphan_reaper.marked_processes("one") == [], "the whole mark counts"
    marked.kill()
    marked.wait()
    assert orphan_reaper.marked_processes("one-mark") == []


def test_it_waits_for_its_parent_and_then_ends_the_marked_ones(start):
    marked, other = start("one-mark"), start("another-mark")
    reaper = subprocess.Popen(
        [sys.executable, "-I", "-S", orphan_reaper.__file__, "one-mark"], stdin=subprocess.PIPE
    )
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            marked.wait(0.5)
        reaper.stdin.close()
        assert marked.wait(60) == -9
        assert reaper.wait(60) == 0
        assert other.poll() is None
    finally:
        reaper.kill()
        reaper.wait()
