"""Secure aggregation over messages: the server has reports, masked updates and their sum, and nothing else."""

import pytest

from wardround.runs.config import load_config
from wardround.runs.runner import run

MASKED = {"mode": "secure-aggregation"}
STAGES = ["share-keys", "mask", "confirm", "reveal"]


def small(town, rule="fedavg", clients=5, **values):
    partition = {"name": "iid", "clients": clients}
    return town(
        **{"privacy": MASKED, "aggregator": {"name": rule}, "rounds": 2, "partition": partition} | values
    )


@pytest.mark.parametrize("rule", ["fedavg", "fedmed"])
def test_the_result_is_that_of_a_run_in_the_clear(town, tmp_path, rule):
    federation = small(town, rule)
    folder = federation.run()
    assert folder.summary().status == "finished"
    clear = {**federation.config.run.plain(), "privacy": {"mode": "plaintext"}}
    plain = run(load_config(clear), tmp_path / "clear")
    for here, there in zip(folder.rounds(), plain.rounds(), strict=True):
        assert here.skipped is None
        assert here.metrics == pytest.approx(there.metrics, abs=1e-6)
