import pytest

from wardround.analysis import load_runs


@pytest.fixture
def three_seeds(make_run):
    """Three methods, clean and attacked, three seeds each."""
    for seed in range(3):
        for method, auroc in (("caac", 0.8), ("krum", 0.7), ("fedavg", 0.75)):
            make_run(method, seed=seed, auroc=auroc + 0.01 * seed, name="caac")
            make_run(method, seed=seed, auroc=auroc - 0.1 + 0.02 * seed, attack="sign-flip", name="caac")
    return load_runs([make_run.root])
