"""What is remembered of every client."""

import pytest
import torch

from wardround.aggregators.caac_guard.profiles import (
    AGREEMENT,
    Profiles,
    direction_limits,
    weigh_evidence,
    weighted_median,
)


def test_the_weighted_median_is_that_of_repeated_values():
    values, weights = torch.tensor([3.0, 1.0, 2.0]), torch.tensor([5.0, 1.0, 1.0])
    assert weighted_median(values, weights) == 3.0
    assert weighted_median(values, torch.ones(3)) == 2.0


def test_directions_follow_slowly_and_forget():
    profiles = Profiles()
    places = profiles.places(["a", "b"], 2)
    first = torch.tensor([[0.5, torch.nan], [0.9, 0.8]]).double()
    torch.testing.assert_close(profiles.remember_directions(places, first, 0.8), first, equal_nan=True)
    low = torch.tensor([[-1.0, torch.nan], [-1.0, 0.8]]).double()
    means = profiles.remember_directions(places, low, 0.8)
    assert means[0, 0] == pytest.approx(0.8 * 0.5 - 0.2)
    assert means[1, 0] == pytest.approx(0.8 * 0.9 - 0.2)
    for _ in range(40):
        means = profiles.remember_directions(places, first, 0.8)
    torch.testing.assert_close(means, first, atol=1e-3, rtol=0, equal_nan=True)


def test_few_patients_may_disagree_more_and_liars_do_not_widen_the_limit():
    cosines = torch.tensor([[0.8], [0.9], [0.7], [-0.1], [-0.1], *[[-0.7]] * 6]).double()
    counts = torch.full_like(cosines, 100.0)
    counts[3] = 4
    limits = direction_limits(cosines, counts)
    assert (limits <= 0).all()
    assert cosines[3] > limits[3]
    assert cosines[4] <= limits[4]
    assert (cosines[5:] <= limits[5:]).all()


def test_evidence_fades_and_only_what_is_shown_counts():
    profiles = Profiles()
    places = profiles.places(["a", "b"], 2)
    profiles.remember_evidence(places, torch.tensor([1.0, torch.nan]).double(), 0.5)
    after = profiles.remember_evidence(places, torch.tensor([0.0, -1.0]).double(), 0.5)
    assert after.tolist() == [0.5, -1.0]


def test_evidence_counts_only_while_clients_agree():
    patients = torch.ones(6).double()
    agreed = torch.tensor([0.9, 0.8, 0.85, 0.9, 0.8, -0.6]).double()
    assert weigh_evidence(agreed, patients)[-1] < 0
    scattered = torch.tensor([0.4, 0.2, -0.1, 0.45, 0.3, -0.6]).double()
    assert weighted_median(scattered, patients) < AGREEMENT
    assert not weigh_evidence(scattered, patients).any()


def test_a_negative_value_within_the_noise_does_not_count():
    patients = torch.ones(7).double()
    wide = torch.tensor([1.0, 0.9, 0.1, 0.6, 0.2, 1.0, -0.1]).double()
    assert weigh_evidence(wide, patients)[-1] == 0


def test_new_clients_get_places_and_old_ones_keep_theirs():
    profiles = Profiles()
    profiles.remember_evidence(profiles.places(["a"], 2), torch.tensor([2.0]).double(), 1.0)
    places = profiles.places(["b", "a"], 2)
    assert places.tolist() == [1, 0]
    assert profiles.evidence.tolist() == [2.0, 0.0]


def test_the_table_and_the_state_say_the_same():
    profiles = Profiles()
    places = profiles.places(["a", "b"], 2)
    profiles.remember_directions(places, torch.tensor([[0.5, 0.25], [-0.5, 1.0]]).double(), 0.8)
    profiles.flagged[places[1]] = True
    other = Profiles()
    other.load_state_dict(profiles.state_dict())
    assert other.table() == profiles.table()
    assert profiles.table()["a"] == {"direction": 0.25, "discrimination": 0.0, "flagged": 0.0}
    assert profiles.table()["b"]["flagged"] == 1.0
