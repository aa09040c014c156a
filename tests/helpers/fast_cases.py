"""Some cases of a parametrised test for every day, and all of them for `make test`."""

import pytest


def slow_but(fast, cases):
    """Cases of `pytest.mark.parametrize`, of which those that are not among the fast ones are slow."""
    return [
        case
        if case in fast
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]
