"""What parts say about their senders: on which side of the outcomes they lie."""

import pytest
import torch
from tests.aggregators.caac_guard.population import N, Population

from wardround import aggregators
from wardround.aggregators.caac_guard import evidence
from wardround.aggregators.caac_guard.evidence import (
    Nearness,
    compare_directions,
    compare_outcomes,
    nearness,
    nearness_of_many,
    nearness_of_two,
    takes_plain_gradients,
)
from wardround.aggregators.caac_guard.geometry import OutputLayer, PartAngles, geometric_median


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_distances(points, centres):
    """The definition, from the distances themselves."""
    clients, outcomes = points.shape[:2]
    values = torch.full((clients, outcomes), torch.inf, dtype=torch.float64)
    for i in range(clients):
        for c in range(outcomes):
            for k in range(outcomes):
                if k != c:
                    further = (points[i, c] - centres[k]).square().sum()
                    nearer = (points[i, c] - centres[c]).square().sum()
                    apart = (centres[k] - centres[c]).square().sum()
                    values[i, c] = min(float(values[i, c]), float((further - nearer) / apart))
    return values


@pytest.mark.parametrize("outcomes", [2, 3, 5])
def test_nearness_is_what_distances_say(outcomes):
    points, centres = random(7, outcomes, 4), random(outcomes, 4, seed=1)
    near = nearness(points @ centres.T, centres @ centres.T)
    torch.testing.assert_close(near.values, by_distances(points, centres))
    gaps = torch.cdist(centres, centres).square().fill_diagonal_(torch.inf)
    assert near.apart == pytest.approx(float(gaps.amin(1).mean()))


def test_two_outcomes_are_compared_from_inner_products_as_from_the_parts_themselves():
    parts, weights = random(9, 2, 12), torch.rand(9, 2, generator=torch.Generator().manual_seed(3)).double()
    flat = parts.flatten(0, 1)
    near = nearness_of_two(PartAngles(flat @ flat.T, 2), weights)
    points = torch.tensor([-1.0, 1.0])[:, None] * parts / parts.norm(dim=2, keepdim=True)
    centres = torch.stack(
        [geometric_median(points[:, c] @ points[:, c].T, weights[:, c]) @ points[:, c] for c in (0, 1)]
    )
    torch.testing.assert_close(near.values, by_distances(points, centres))


def test_an_outcome_that_nobody_holds_is_no_centre():
    parts, weights = random(6, 3, 5).abs(), torch.ones(6, 3, dtype=torch.float64)
    weights[:, 2] = 0
    values = nearness_of_many(parts, weights).values
    assert values[:, 2].isnan().all()
    torch.testing.assert_close(values[:, :2], nearness_of_many(parts[:, :2], weights[:, :2]).values)


def test_nobody_agrees_with_itself():
    """A part of an outcome that few have is compared with those of the others, not with itself."""
    parts = random(6, 2, 400) + torch.tensor([-3.0, 3.0])[:, None]
    parts[0] = random(2, 400, seed=1) * parts.norm() / 20
    weights = torch.tensor([[1.0, 1.0]] * 6)
    weights[3:, 1] = 0
    angles = PartAngles((parts.flatten(0, 1) @ parts.flatten(0, 1).T), 2)
    cosines = compare_directions(angles, weights, weights > 0, balanced=False)
    assert float(cosines[0].abs().max()) < 0.2
    assert float(cosines[1:3].min()) > 0.5


def exchanged_population(clients=60, exchanged=18, holders=8):
    """Points of two outcomes: few honest clients hold the rare one, and many that exchange labels claim it."""
    centres = torch.tensor([[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    points = torch.zeros(clients, 2, 3, dtype=torch.float64) + centres + 0.2 * random(clients, 2, 3)
    points[:exchanged] = points[:exchanged].flip(1)
    held = torch.zeros(clients, 2, dtype=torch.bool)
    held[:exchanged, 1] = True  # what they call the rare outcome is the common one
    held[0] = torch.tensor([True, False])  # and the other way round
    held[exchanged : exchanged + holders, 1] = True
    held[exchanged + holders :, 0] = True
    return points, held


def test_centres_move_until_those_who_exchange_labels_count_for_none(monkeypatch):
    points, held = exchanged_population()
    counts = torch.where(held, 40.0, 0.0).double()

    def measure(weights):
        centres = torch.stack(
            [geometric_median(points[:, c] @ points[:, c].T, weights[:, c]) @ points[:, c] for c in (0, 1)]
        )
        return nearness(points @ centres.T, centres @ centres.T)

    def sides():
        return compare_outcomes(measure, counts, held, counts, held, lambda now: now)

    assert (sides().values[:18] < 0).all()
    assert (sides().values[18:] > 0).all()
    assert sides().apart == pytest.approx(4, rel=0.2)
    monkeypatch.setattr(evidence, "MOVES", 1)
    assert not (sides().values[:18] < 0).all()


def judged(values):
    """What is said of clients with such nearness, 50 patients of each outcome."""
    near = Nearness(torch.tensor(values).double(), 1.0, torch.ones(2).double())
    counts = torch.where(near.values.isnan(), 0.0, 50.0)
    return compare_outcomes(lambda weights: near, counts, counts > 0, counts, counts > 0, lambda now: now)


HONEST = [[1.0, 0.9], [1.1, 1.0], [0.9, 1.0], [1.0, 1.0], [1.0, torch.nan], [torch.nan, 1.0]]


def test_a_client_is_judged_by_the_outcome_that_lies_best():
    sides = judged([*HONEST, [0.8, -1.4], [-0.8, torch.nan], [torch.nan, torch.nan]])
    assert sides.values[6:8].tolist() == pytest.approx([0.8, -0.8])
    assert sides.values[8].isnan()
    assert sides.patients[6:].tolist() == [50, 50, 0]


@pytest.mark.parametrize(
    ("wrong", "is_evidence"),
    [
        ([], True),
        ([[-1.0, -1.0]], True),
        ([[-1.0, torch.nan], [torch.nan, -1.0]], True),
        ([[torch.nan, -1.0], [torch.nan, -0.9]], False),  # who captures an outcome leaves the other as it is
        ([[0.9, -1.0], [1.0, -0.9]], True),  # patients that differ: nobody is on the wrong side
        ([[-1.0, -1.0]] * 7, False),  # more than half
    ],
)
def test_a_round_is_evidence_only_if_exchanged_outcomes_are_seen_in_two(wrong, is_evidence):
    assert judged([*HONEST, *wrong]).is_evidence == is_evidence


def test_outcomes_that_do_not_differ_are_no_evidence():
    """Centres of the same patients lie apart by chance, and points that count for one lie nearer to it."""
    parts = torch.tensor([-1.0, 1.0])[:, None] * (1 + 0.1 * random(12, 2, 400))
    flat, held = parts.flatten(0, 1), torch.ones(12, 2, dtype=torch.bool)
    angles, counts = PartAngles(flat @ flat.T, 2), torch.full((12, 2), 50.0, dtype=torch.float64)
    sides = compare_outcomes(
        lambda weights: nearness_of_two(angles, weights), counts, held, counts, held, lambda now: now
    )
    assert not sides.is_evidence


def test_clients_are_evidence_whose_outcomes_lie_differently_well():
    """Few hospitals: the parts of an outcome that few patients have scatter, and the outcome that lies best counts."""
    assert judged([[1.0, 0.2], [0.3, 1.0], [1.1, 2.0], [-0.6, -0.9]]).is_evidence


def test_a_round_whose_clients_scatter_is_no_evidence():
    assert not judged([[0.1, 0.2], [1.9, 1.0], [0.4, 0.5], [2.0, 1.0], [-1.0, -1.0]]).is_evidence


def test_steps_of_plain_gradients_are_known_by_their_sum():
    outcomes, inputs, clients = 4, 6, 10
    layer = OutputLayer(
        slice(0, outcomes * inputs), slice(outcomes * inputs, outcomes * (inputs + 1)), outcomes
    )
    probabilities = random(clients, outcomes).softmax(1)
    errors = torch.eye(outcomes, dtype=torch.float64)[0] - probabilities  # of one patient of outcome 0 each
    gradients = torch.einsum("nk,ni->nki", errors, random(clients, inputs, seed=1).abs())
    parts = torch.zeros(clients, outcomes, outcomes * (inputs + 1), dtype=torch.float64)
    parts[:, 0, : outcomes * inputs] = gradients.flatten(1)
    weights = torch.zeros(clients, outcomes, dtype=torch.float64)
    weights[:, 0] = 1
    assert takes_plain_gradients(parts, layer, weights)
    parts[:, 0, : outcomes * inputs] = gradients.flatten(1).sign()  # the first step of Adam
    assert not takes_plain_gradients(parts, layer, weights)


def clones_of_a_strange_outcome():
    """Eight clients claim the rare outcome with one part that nobody else's resembles; six hospitals have it."""
    population = Population(positive=True)
    population.counts[:] = 200.0
    population.counts[14:, 1] = 0
    parts = population.round()
    parts[14:, 1] = 0
    strange = torch.zeros_like(parts[0, 1])
    strange[:3], strange[-1] = 3.0, parts[8, 1, -1]
    parts[:8, 1] = strange
    return population.updates(parts)


def test_who_has_a_rare_outcome_is_not_accused_by_those_who_claim_a_strange_one():
    honest = torch.arange(8, N)
    out = aggregators.create("caac-guard", without=["direction"]).aggregate(clones_of_a_strange_outcome())
    assert not out.flags[honest].any()
