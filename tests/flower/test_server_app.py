"""The server app stops on signals so that its run is recorded as stopped, not as failed."""

import os
import signal
import threading

import pytest

pytest.importorskip("flwr")

from wardround.flower.server_app import STOPPING, stop_on_signals


@pytest.fixture
def handlers():
    before = {number: signal.getsignal(number) for number in STOPPING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOPPING)
def test_the_first_signal_stops_and_later_ones_are_ignored(handlers, number):
    stop_on_signals()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)
    for one in STOPPING:  # while the summary is being written
        os.kill(os.getpid(), one)


def test_in_another_thread_signals_are_left_alone(handlers):
    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=stop_on_signals)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_a_run_that_is_ended_from_outside_is_stopped(town, end):
    federation = town()

    def stop(record):
        raise end

    with pytest.raises(end):
        federation.run(stop)
    assert federation.folder.summary().status == "stopped"
    assert federation.audit()[-1]["event"] == "run-stopped"
    assert federation.run().summary().status == "finished"
