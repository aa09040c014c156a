import pytest


@pytest.fixture
def tiny():
    """A configuration that runs in a blink: 6 clients of a generated table."""
    return {
        "name": "tiny",
        "dataset": {"name": "synthetic", "samples": 400, "features": 6},
        "partition": {"name": "dirichlet", "clients": 6, "alpha": 0.5},
        "model": {"name": "mlp", "hidden": [8]},
        "rounds": 6,
    }
