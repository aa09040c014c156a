"""What is remembered of every client."""

import pytest
import torch

from wardround.aggregators.caac_guard.profiles import PARDON, Profiles, direction_limits


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


def test_sides_follow_slowly_and_only_what_is_shown_counts():
    profiles = Profiles()
    places = profiles.places(["a", "b"], 2)
    profiles.remember_sides(places, torch.tensor([1.0, torch.nan]).double(), 0.3, 0.5, 0)
    after = profiles.remember_sides(places, torch.tensor([0.0, -1.0]).double(), 0.3, 0.5, 0)
    assert after.tolist() == [0.5, -1.0]


def test_a_round_whose_outcomes_are_hardly_apart_is_no_evidence_and_lets_verdicts_pass():
    profiles = Profiles()
    places = profiles.places(["a", "b", "c"], 2)
    profiles.remember_sides(places, torch.tensor([1.0, -0.5, torch.nan]).double(), 0.4, 0.8, 0)
    after = profiles.remember_sides(places, torch.tensor([-1.0, 1.0, -1.0]).double(), 0.19, 0.8, 0)
    assert after[:2].tolist() == pytest.approx([1.0, -0.5 + 1.5 * PARDON])
    assert after[2].isnan()
    again = profiles.remember_sides(places, torch.tensor([-1.0, 1.0, -1.0]).double(), 0.4, 0.8, 0, False)
    assert again[1] == pytest.approx(float(-0.5 + 1.5 * (1 - (1 - PARDON) ** 2)))
    for _ in range(100):
        after = profiles.remember_sides(places, torch.tensor([-1.0, -1.0, -1.0]).double(), 0.19, 0.8, 0)
    assert after[1] > 0


def test_new_clients_get_places_and_old_ones_keep_theirs():
    profiles = Profiles()
    profiles.remember_sides(profiles.places(["a"], 2), torch.tensor([2.0]).double(), 0.3, 0.8, 0)
    places = profiles.places(["b", "a"], 2)
    assert places.tolist() == [1, 0]
    assert profiles.sides[0, 0] == 2.0
    assert profiles.sides[1].isnan().all()


def test_the_table_and_the_state_say_the_same():
    profiles = Profiles()
    places = profiles.places(["a", "b"], 2)
    profiles.remember_directions(places, torch.tensor([[0.5, 0.25], [-0.5, 1.0]]).double(), 0.8)
    profiles.remember_sides(places, torch.tensor([torch.nan, -0.5]).double(), 0.3, 0.8, 0)
    profiles.flagged[places[1]] = True
    other = Profiles()
    other.load_state_dict(profiles.state_dict())
    assert other.table() == profiles.table()
    assert profiles.table()["a"] == {"direction": 0.25, "discrimination": 1.0, "flagged": 0.0}
    assert profiles.table()["b"] == {"direction": -0.5, "discrimination": -0.5, "flagged": 1.0}
    assert other.furthest == [0.3, 0.0]
