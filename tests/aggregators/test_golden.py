"""One round whose results were computed elsewhere, for every rule that has one."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from wardround import Updates, aggregators

CASES = list(json.loads((Path(__file__).parent / "data" / "one-round.json").read_text())["expect"])
WITH_F = {"krum", "multi-krum", "bulyan", "trimmed-mean"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES)
def test_one_round(case, dtype, golden_round, both_paths):
    name, _, clip = case.partition(":")
    params = {"clip": clip} if clip else {"f": golden_round["f"]} if name in WITH_F else {}
    updates = Updates(
        torch.tensor(golden_round["matrix"], dtype=dtype),
        num_samples=golden_round["num_samples"],
        metrics={"loss": golden_round["loss"]},
    )
    out = aggregators.create(name, **params).aggregate(
        updates,
        global_weights=torch.tensor(golden_round["global_weights"], dtype=dtype),
        root_update=torch.tensor(golden_round["root_update"], dtype=dtype),
    )
    expected = golden_round["expect"][case]
    delta = np.array(expected["delta"])
    tolerance = expected.get("tolerance", 1e-5)
    assert np.linalg.norm(out.delta.double().numpy() - delta) <= tolerance * np.linalg.norm(delta)
    if "weights" in expected:
        np.testing.assert_allclose(out.weights.numpy(), expected["weights"], atol=2e-6)
