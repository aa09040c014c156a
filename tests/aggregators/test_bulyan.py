import numpy as np
import torch

from wardround import Updates, aggregators


def bulyan_by_definition(matrix, f):
    """Straight from the definition, in float64, one coordinate and one pick at a time."""
    matrix = matrix.double().numpy()
    left, chosen = list(range(len(matrix))), []
    for _ in range(len(matrix) - 2 * f):
        neighbours = max(1, len(left) - f - 2)
        scores = {}
        for i in left:
            to_others = sorted(np.sum((matrix[i] - matrix[j]) ** 2) for j in left if j != i)
            scores[i] = (sum(to_others[:neighbours]), sum(to_others))
        chosen.append(min(left, key=scores.get))
        left.remove(chosen[-1])
    selected = matrix[chosen]
    delta = []
    for values in selected.T:
        nearest = sorted(values, key=lambda v: abs(v - np.median(values)))[: len(chosen) - 2 * f]
        delta.append(np.mean(nearest))
    return np.array(delta), chosen


def test_against_the_definition(make_updates, both_paths):
    for seed, (n, f) in enumerate([(7, 1), (11, 2), (20, 4), (19, 2)]):
        updates = make_updates(n, 40, seed=seed)
        delta, chosen = bulyan_by_definition(updates.matrix, f)
        out = aggregators.create("bulyan", f=f).aggregate(updates)
        assert set(out.columns["selected"].nonzero().flatten().tolist()) == set(chosen)
        np.testing.assert_allclose(out.delta, delta, rtol=1e-5, atol=1e-6)


def test_without_attackers_and_f_zero_it_is_the_mean(make_updates):
    updates = make_updates(6, 30)
    out = aggregators.create("bulyan", f=0).aggregate(updates)
    torch.testing.assert_close(out.delta, updates.matrix.mean(0))


def test_one_hidden_huge_coordinate_is_trimmed():
    """What Krum alone lets through: a row near the others but for a single coordinate."""
    matrix = torch.randn(20, 1000, generator=torch.Generator().manual_seed(0))
    matrix[:4] *= 0.01
    matrix[:4, 7] = 25.0
    krum = aggregators.create("krum", f=4).aggregate(Updates(matrix)).delta
    assert krum[7] == 25
    assert aggregators.create("bulyan", f=4).aggregate(Updates(matrix)).delta[7].abs() < 3
