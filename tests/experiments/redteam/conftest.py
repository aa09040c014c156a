import pytest

from wardround.experiments.redteam import Plan, Tried
from wardround.experiments.redteam.results import Outcome


@pytest.fixture
def plan():
    """A search against the plain mean."""
    return lambda base, **changes: Plan(
        **{"aggregator": "mean", "base": base, "seeds": (200, 201, 202), **changes}
    )


@pytest.fixture
def tried():
    """An attack that was tried, by what it cost on each seed."""

    def make(number, losses, state="complete", **attack):
        outcomes = tuple(
            Outcome(seed=200 + i, value=0.9 - loss, loss=loss, tpr=0.5, fpr=0.0, verdict="flags")
            for i, loss in enumerate(losses)
        )
        section = {"name": "sign-flip", "fraction": 0.4, "start": 1, "scale": 10.0, **attack}
        return Tried(number=number, attack=section, outcomes=outcomes, state=state)

    return make
