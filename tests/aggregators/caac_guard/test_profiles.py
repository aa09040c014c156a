"""What caac-guard remembers of a client, and how fast it learns: the averages by hand."""

import math

import pytest
import torch

from wardround import Updates, aggregators
from wardround.aggregators.caac_guard.profiles import Profiles

WIDTH = 4


def learn(profiles, log_norm, heading=1.0, direction=(1.0, 0.0, 0.0, 0.0), accepted=True):
    """Let the only client have a round; returns its profile afterwards, in words."""
    past = profiles.of(["a"], WIDTH)
    values = (torch.tensor([value], dtype=torch.float64) for value in (log_norm, heading))
    projected = torch.tensor([direction], dtype=torch.float64)
    profiles.learn(past, torch.tensor([accepted]), *values, projected)
    return profiles.table()["a"]


def level(line):
    return math.log(line["usual norm"])


def test_the_first_round_sets_the_level_and_the_direction():
    profiles = Profiles()
    line = learn(profiles, log_norm=2.0, direction=(0.0, 3.0, 0.0, 0.0))
    assert level(line) == pytest.approx(2.0)
    assert line["accepted rounds"] == 1
    assert (line["log-norm spread"], line["cosine to own past"], line["cosine spread"]) == (0.15, 1.0, 0.15)
    assert profiles.direction.tolist() == [[0.0, 3.0, 0.0, 0.0]]


def test_the_level_is_the_mean_of_the_first_twenty_rounds_and_forgets_from_then_on():
    """The n-th accepted round counts 1/n, but never less than a twentieth."""
    profiles = Profiles()
    levels = [level(learn(profiles, 0.1 * (n % 2))) for n in range(20)]
    means = [sum(0.1 * (k % 2) for k in range(n + 1)) / (n + 1) for n in range(20)]
    assert levels == pytest.approx(means)
    for n in range(20, 40):  # the 21st to the 40th round
        before, value = levels[-1], 0.1 * (n % 2)
        levels.append(level(learn(profiles, value)))
        assert levels[-1] == pytest.approx(before + 0.05 * (value - before))


def test_the_past_direction_is_averaged_at_the_same_rate():
    profiles = Profiles()
    learn(profiles, 0.0, direction=(1.0, 0.0, 0.0, 0.0))
    learn(profiles, 0.0, direction=(0.0, 1.0, 0.0, 0.0))
    torch.testing.assert_close(profiles.direction, torch.tensor([[0.5, 0.5, 0.0, 0.0]]).double())
    learn(profiles, 0.0, direction=(0.0, 0.0, 3.0, 0.0))
    torch.testing.assert_close(profiles.direction, torch.tensor([[1 / 3, 1 / 3, 1.0, 0.0]]).double())
    for _ in range(17):
        learn(profiles, 0.0, direction=(0.0, 0.0, 0.0, 0.0))
    last = profiles.direction.clone()
    learn(profiles, 0.0, direction=(0.0, 0.0, 0.0, 20.0))
    torch.testing.assert_close(profiles.direction, 0.95 * last + torch.tensor([0.0, 0.0, 0.0, 1.0]).double())


def test_the_mean_heading_follows_by_three_tenths_of_what_is_new():
    profiles = Profiles()
    learn(profiles, 0.0, heading=1.0)
    line = learn(profiles, 0.0, heading=0.8)
    assert line["cosine to own past"] == pytest.approx(1.0 + 0.3 * -0.2)
    assert line["cosine spread"] == pytest.approx(math.sqrt(0.8 * 0.15**2 + 0.2 * 0.2**2))
    line = learn(profiles, 0.0, heading=0.9)
    assert line["cosine to own past"] == pytest.approx(0.94 + 0.3 * -0.04)


def test_the_spread_follows_by_a_fifth_of_the_new_square():
    profiles = Profiles()
    learn(profiles, 0.0)
    line = learn(profiles, 0.3)
    assert level(line) == pytest.approx(0.15)
    assert line["log-norm spread"] == pytest.approx(math.sqrt(0.8 * 0.15**2 + 0.2 * 0.3**2))


@pytest.mark.parametrize("sign", [1, -1])
def test_a_round_far_from_the_past_counts_for_three_spreads_at_most(sign):
    profiles = Profiles()
    learn(profiles, 0.0)
    line = learn(profiles, sign * 50.0, heading=-1.0)
    assert level(line) == pytest.approx(0.5 * sign * 0.45)
    assert line["log-norm spread"] == pytest.approx(math.sqrt(0.8 * 0.15**2 + 0.2 * 0.45**2))
    assert line["cosine to own past"] == pytest.approx(1 - 0.3 * 0.45)


def test_what_is_not_accepted_teaches_nothing():
    profiles = Profiles()
    before = learn(profiles, 0.5)
    direction = profiles.direction.clone()
    assert learn(profiles, 9.0, heading=-1.0, direction=(9.0,) * WIDTH, accepted=False) == before
    assert torch.equal(profiles.direction, direction)


def contradictions(profiles, *rounds):
    """Each client's share after rounds in which one client of two contradicts, or not, or is not compared."""
    share = None
    for compared, contradicts in rounds:
        past = profiles.of(["a", "b"], WIDTH)
        share = profiles.count_contradictions(
            past, torch.tensor([compared, True]), torch.tensor([float(contradicts), 0.0]).double()
        )
    return share.tolist()


def test_the_share_of_contradictions_is_a_mean_that_forgets_after_five_rounds():
    profiles = Profiles()
    assert contradictions(profiles, (True, True)) == [1.0, 0.0]
    assert contradictions(profiles, (True, False)) == pytest.approx([1 / 2, 0.0])
    assert contradictions(profiles, (True, False), (True, True)) == pytest.approx([2 / 4, 0.0])
    assert contradictions(profiles, (True, True)) == pytest.approx([3 / 5, 0.0])
    assert contradictions(profiles, (True, False)) == pytest.approx([0.8 * 3 / 5, 0.0])  # not 3/6
    assert profiles.table()["a"]["contradiction rounds"] == 6


def test_a_round_without_comparison_does_not_count():
    profiles = Profiles()
    contradictions(profiles, (True, True))
    assert contradictions(profiles, (False, True), (False, False)) == [1.0, 0.0]
    assert profiles.table()["a"]["contradiction rounds"] == 1
    assert profiles.table()["b"]["contradiction rounds"] == 3


def test_offences_are_counted_up_to_six_and_forgiven_one_by_one():
    profiles = Profiles()

    def count(suspicious):
        return bool(profiles.count_offences(profiles.of(["a"], WIDTH), torch.tensor([suspicious])))

    assert [count(True) for _ in range(8)] == [False, False] + [True] * 6
    assert profiles.table()["a"]["recent flags"] == 6
    assert [count(False) for _ in range(8)] == [True] * 3 + [False] * 5
    assert profiles.table()["a"]["recent flags"] == 0


def test_windows_hold_the_last_rounds_of_each_client():
    profiles = Profiles()
    for value in (1.0, 2.0, 3.0, 4.0):
        window = profiles.extend_window(
            profiles.of(["a", "b"], WIDTH), "fallen", torch.tensor([value, -value])
        )
    assert window.tolist() == [[2.0, 3.0, 4.0], [-2.0, -3.0, -4.0]]
    assert profiles.extend_window(profiles.of(["b"], WIDTH), "fallen", torch.tensor([7.0])).tolist() == [
        [-3.0, -4.0, 7.0]
    ]


def test_the_rule_learns_at_these_rates():
    """Rows of one norm for thirty rounds, then one tenth longer: a twentieth of the way."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(6, 50, generator=generator)
    rule = aggregators.create("caac-guard")
    for t in range(1, 31):
        rows = base + 0.3 * torch.randn(6, 50, generator=generator)
        out = rule.aggregate(Updates(rows / rows.norm(dim=1, keepdim=True)), t)
        assert not out.flags.any()
    rule.aggregate(Updates(1.1 * rows / rows.norm(dim=1, keepdim=True)), 31)
    line = rule.profile_table()["client-00"]
    spread = line["log-norm spread"]
    assert spread < 0.05, "it has shrunk: the norm was always the same"
    assert 0 < level(line) <= 0.05 * math.log(1.1) + 1e-6
