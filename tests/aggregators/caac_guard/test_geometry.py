"""Centres and angles from inner products, beside the vectors themselves."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import nn

from wardround.aggregators._math.outcome_products import measure_parts
from wardround.aggregators.caac_guard.geometry import PartAngles, geometric_median, output_layer_of
from wardround.updates import Layout, Parts

N, C, D = 6, 2, 40


@pytest.fixture
def parts():
    rows = torch.randn(N, C, D, generator=torch.Generator().manual_seed(0))
    return Parts(rows, torch.full((N, C), 10.0).double())


def test_what_is_said_of_vectors_is_what_they_are(parts):
    angles = PartAngles(measure_parts(parts.sums(), parts).gram, C)
    rows = parts.rows.double()
    torch.testing.assert_close(angles.lengths, rows.norm(dim=2), rtol=1e-5, atol=1e-6)
    scale = torch.linspace(0.5, 2, N).double()
    centre = angles.centre(0, scale, torch.ones(N).double())
    contributions = (centre[:, :, None] * rows).sum(1)
    others = contributions.sum(0) - contributions
    expected = torch.cosine_similarity(rows, others[:, None], dim=2)
    torch.testing.assert_close(angles.cosines_to_others(centre), expected, rtol=1e-4, atol=1e-5)


def test_a_client_without_whom_there_is_no_centre_is_compared_with_nobody(parts):
    angles = PartAngles(measure_parts(parts.sums(), parts).gram, C)
    centre = angles.centre(0, torch.ones(N).double(), torch.tensor([0.0, 1, 0, 0, 0, 0]).double())
    cosines = angles.cosines_to_others(centre)
    assert cosines.isnan().all(1).tolist() == [False, True, False, False, False, False]


def test_compressed_directions_do_not_depend_much_on_the_scale_of_coordinates(parts):
    preconditioned = Parts(parts.rows * torch.logspace(-1, 1, D), parts.counts)

    def cosine(these, compress):
        products = measure_parts(these.sums(), these)
        angles = PartAngles(products.compressed if compress else products.gram, C)
        return angles.cosines_to_others(angles.centre(0, 1 / angles.lengths[:, 0], torch.ones(N).double()))

    plain = (cosine(parts, False) - cosine(preconditioned, False)).abs().mean()
    compressed = (cosine(parts, True) - cosine(preconditioned, True)).abs().mean()
    assert compressed < plain


@pytest.mark.slow
@given(st.integers(0, 1000))
def test_the_geometric_median_has_the_least_sum_of_distances(seed):
    rng = np.random.default_rng(seed)
    points, weights = rng.normal(size=(7, 3)), rng.uniform(0.1, 1, 7)

    def total(place):
        return float((weights * np.linalg.norm(points - place, axis=1)).sum())

    shares = geometric_median(torch.tensor(points @ points.T), torch.tensor(weights)).numpy()
    assert shares.sum() == pytest.approx(1)
    best = minimize(total, points.mean(0), method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-9}).fun
    assert total(shares @ points) <= best * (1 + 1e-3)


def test_a_minority_does_not_carry_the_median_away():
    points = torch.zeros(5, 2).double()
    points[:2] = 1e6
    shares = geometric_median(points @ points.T, torch.ones(5).double())
    assert float((shares @ points).norm()) < 1e-2 * float(points[0].norm())


@pytest.mark.parametrize(
    ("network", "outcomes", "found"),
    [
        (nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 1)), 2, True),
        (nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)), 3, True),
        (nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)), 4, False),
        (nn.Linear(5, 1, bias=False), 2, False),
    ],
)
def test_the_output_layer_is_found_where_there_is_one(network, outcomes, found):
    layer = output_layer_of(Layout.of(network), outcomes)
    assert (layer is not None) == found
    assert output_layer_of(None, outcomes) is None


def test_outcome_0_of_two_pushes_the_one_logit_down():
    network = nn.Linear(2, 1)
    layer = output_layer_of(Layout.of(network), 2)
    rows = torch.tensor([[[-1.0, -2.0, -3.0], [1.0, 2.0, 3.0]]])
    weights, bias = layer.own_logit(rows)
    assert bias.tolist() == [[3.0, 3.0]]
    assert weights.tolist() == [[[1.0, 2.0], [1.0, 2.0]]]
