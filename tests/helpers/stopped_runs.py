"""Runs that are stopped on the way and resumed."""

import pytest

from wardround.runs.runner import run


class Stop(Exception):
    """What a run is stopped with."""


def run_stopped_after_three(config, out):
    """The folder of a run that was stopped after its third round, and resumed."""

    def stop_after_three(record):
        if record.round == 3:
            raise Stop

    with pytest.raises(Stop):
        run(config, out, stop_after_three)
    return run(config, out)
