import numpy as np
import pytest
import torch

from wardround import Updates, aggregators
from wardround.errors import ParameterError

COPOD = pytest.importorskip("pyod.models.copod").COPOD


def dos_by_definition(matrix, weights):
    """On the parameters themselves, in float64, with PyOD's COPOD."""
    theta = weights.double().numpy() + matrix.double().numpy()
    euclidean = np.array([[np.linalg.norm(a - b) for b in theta] for a in theta])
    unit = theta / np.linalg.norm(theta, axis=1, keepdims=True)
    # 1 − cos = ‖a − b‖²/2 for unit vectors: exact where the vectors are nearly equal
    cosine = np.array([[np.sum((a - b) ** 2) / 2 for b in unit] for a in unit])
    scores = (COPOD().fit(euclidean).decision_scores_ + COPOD().fit(cosine).decision_scores_) / 2
    shares = np.exp(-(scores - scores.min()))
    return scores, shares / shares.sum()


@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e4])
def test_against_the_definition(scale, make_updates, both_paths):
    weights = torch.randn(3000, generator=torch.Generator().manual_seed(1))
    updates = make_updates(12, 3000, seed=4)
    updates = make_updates(12, 3000, matrix=updates.matrix * scale)
    scores, shares = dos_by_definition(updates.matrix, weights)
    out = aggregators.create("dos").aggregate(updates, global_weights=weights)
    np.testing.assert_allclose(out.scores, scores, rtol=1e-9)
    np.testing.assert_allclose(out.weights, shares, rtol=1e-9)
    np.testing.assert_allclose(out.delta, shares @ updates.matrix.double().numpy(), atol=1e-5 * scale)


def test_a_client_that_zeroes_the_model_is_at_distance_one(both_paths):
    weights = torch.linspace(1, 2, 40)
    rows = torch.randn(8, 40, generator=torch.Generator().manual_seed(0)) * 0.01
    rows[3] = -weights
    out = aggregators.create("dos").aggregate(Updates(rows), global_weights=weights)
    assert torch.isfinite(out.scores).all()
    assert out.scores.argmax() == 3


def test_global_weights_are_asked_for():
    with pytest.raises(ParameterError, match="dos needs global_weights"):
        aggregators.create("dos").aggregate(Updates(torch.ones(3, 2)))
