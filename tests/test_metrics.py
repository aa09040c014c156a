"""AUROC, against its definition over pairs and against scikit-learn."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wardround.metrics import auroc

VALUES = st.one_of(st.integers(-3, 3).map(float), st.sampled_from([math.inf, -math.inf, math.nan]))


def over_pairs(scores, positive):
    pairs = [
        (high > low) + 0.5 * (high == low)
        for high in (s for s, p in zip(scores, positive, strict=True) if p)
        for low in (s for s, p in zip(scores, positive, strict=True) if not p)
    ]
    return sum(pairs) / len(pairs) if pairs else math.nan


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(VALUES, VALUES, st.booleans()), min_size=1, max_size=12))
def test_it_is_the_share_of_pairs_in_order_to_the_last_bit(samples):
    one, other, positive = (list(column) for column in zip(*samples, strict=True))
    areas = auroc(torch.tensor([one, other], dtype=torch.float64), torch.tensor(positive))
    for area, scores in zip(areas.tolist(), (one, other), strict=True):
        expected = over_pairs(scores, positive)
        assert area == expected or (math.isnan(area) and math.isnan(expected))


def test_it_agrees_with_scikit_learn():
    from sklearn.metrics import roc_auc_score

    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 9, (3, 50), generator=generator).float()
    labels = torch.rand(50, generator=generator) < 0.3
    for row, area in zip(scores, auroc(scores, labels).tolist(), strict=True):
        assert area == pytest.approx(roc_auc_score(labels.numpy(), row.numpy()))


def test_the_order_of_samples_does_not_matter():
    generator = torch.Generator().manual_seed(1)
    scores, labels = torch.randn(500, generator=generator), torch.rand(500, generator=generator) < 0.2
    order = torch.randperm(500, generator=generator)
    assert auroc(scores, labels) == auroc(scores[order], labels[order])
