"""Updates far smaller than the weights they change: where float32 on raw weights picks the wrong client."""

import numpy as np
import pytest
import torch

from wardround import Updates, aggregators

pytest.importorskip("pyod.models.copod")
pytest.importorskip("numba")
N, D, F = 20, 1_200_000, 4


@pytest.fixture(scope="module")
def sent():
    generator = torch.Generator().manual_seed(11)
    weights = 0.05 * torch.randn(D, generator=generator)
    # Clients send parameters; the update is the difference, exactly representable as such.
    return weights, 1e-4 * torch.randn(N, D, generator=generator)


@pytest.fixture(scope="module")
def exact_distances(sent):
    matrix = sent[1].double().numpy()
    squared = np.zeros((N, N))
    for i in range(N):
        for j in range(i):
            squared[i, j] = squared[j, i] = np.sum((matrix[i] - matrix[j]) ** 2)
    return squared


def exact_krum_order(squared, f):
    nearest = np.sort(squared + np.diag(np.full(len(squared), np.inf)), axis=1)[:, : len(squared) - f - 2]
    return np.argsort(nearest.sum(axis=1))


@pytest.mark.slow
def test_krum_and_multi_krum(sent, exact_distances):
    order = exact_krum_order(exact_distances, F)
    updates = Updates(sent[1])
    krum = aggregators.create("krum", f=F).aggregate(updates)
    assert krum.weights.argmax() == order[0]
    assert krum.scores.argsort().tolist() == order.tolist()
    multi = aggregators.create("multi-krum", f=F).aggregate(updates)
    assert set(multi.weights.nonzero().flatten().tolist()) == set(order[: N - F].tolist())


@pytest.mark.slow
def test_the_gram_trick_in_float32_on_raw_weights_would_fail(sent, exact_distances):
    """The trap itself: without it the tests above would prove nothing."""
    theta = sent[0] + sent[1]
    gram = theta @ theta.T
    naive = (gram.diagonal()[:, None] + gram.diagonal()[None] - 2 * gram).double().numpy()
    assert exact_krum_order(naive, F).tolist() != exact_krum_order(exact_distances, F).tolist()


def test_bulyan(sent, exact_distances):
    left, chosen = list(range(N)), []
    for _ in range(N - 2 * F):
        neighbours = len(left) - F - 2
        part = exact_distances[np.ix_(left, left)] + np.diag(np.full(len(left), np.inf))
        chosen.append(left.pop(int(np.sort(part, axis=1)[:, :neighbours].sum(axis=1).argmin())))
    out = aggregators.create("bulyan", f=F).aggregate(Updates(sent[1]))
    assert set(out.columns["selected"].nonzero().flatten().tolist()) == set(chosen)
    some = slice(0, 2000)
    values = np.sort(sent[1][chosen][:, some].double().numpy(), axis=0)
    distances = np.abs(values - np.median(values, axis=0))
    nearest = np.argsort(distances, axis=0)[: N - 4 * F]
    expected = np.take_along_axis(values, nearest, axis=0).mean(axis=0)
    np.testing.assert_allclose(out.delta[some], expected, rtol=1e-4, atol=1e-9)


@pytest.mark.slow
def test_dos(sent, exact_distances):
    from pyod.models.copod import COPOD

    weights, matrix = sent
    theta = weights.double().numpy() + matrix.double().numpy()
    unit = theta / np.linalg.norm(theta, axis=1, keepdims=True)
    cosine = np.zeros((N, N))
    for i in range(N):
        for j in range(i):
            cosine[i, j] = cosine[j, i] = np.sum((unit[i] - unit[j]) ** 2) / 2
    euclidean = np.sqrt(exact_distances)
    scores = (COPOD().fit(euclidean).decision_scores_ + COPOD().fit(cosine).decision_scores_) / 2
    out = aggregators.create("dos").aggregate(Updates(matrix), global_weights=weights)
    np.testing.assert_allclose(out.scores, scores, rtol=1e-9)
