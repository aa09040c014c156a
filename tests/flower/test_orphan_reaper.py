"""The orphan reaper: ends the marked processes after its parent, and only those."""

import os
import signal
import subprocess
import sys

import pytest

from wardround.flower import orphan_reaper

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")]

MARKS = ("one-mark", "another-mark")
SLEEP = [sys.executable, "-c", "print('ready', flush=True); import time; time.sleep(600)"]


@pytest.fixture
def start():
    started = []

    def start(mark, command=SLEEP):
        environment = {**os.environ, **({} if mark is None else {orphan_reaper.MARK_VARIABLE: mark})}
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE))
        assert started[-1].stdout.readline() == b"ready\n"
        return started[-1]

    yield start
    for pid in set().union(*map(orphan_reaper.marked_processes, MARKS)):
        os.kill(pid, signal.SIGKILL)
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_processes_are_found_by_their_mark(start):
    marked, _other, _unmarked = start("one-mark"), start("another-mark"), start(None)
    assert orphan_reaper.marked_processes("one-mark") == {marked.pid}
    assert orphan_reaper.marked_processes("one") == set(), "the whole mark counts"
    marked.kill()
    marked.wait()
    assert orphan_reaper.marked_processes("one-mark") == set()


def test_descendants_without_a_mark_belong_to_it(start):
    """Ray's workers overwrite their environment; a process that was adopted is known by its number."""
    forker = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:], env={}); time.sleep(600)"
    marked = start("one-mark", [sys.executable, "-c", forker, *SLEEP])
    unmarked = start(None)
    pids = orphan_reaper.marked_processes("one-mark")
    assert len(pids) == 2
    assert marked.pid in pids
    assert orphan_reaper.marked_processes("no-mark", [unmarked.pid, 1]) == {unmarked.pid}


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
