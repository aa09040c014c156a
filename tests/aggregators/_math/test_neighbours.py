import pytest
import torch

from wardround.aggregators._math.neighbours import krum_order, krum_scores, repeated_krum


def squared(points):
    points = torch.tensor(points, dtype=torch.float64)
    return (points[:, None] - points[None, :]).square()


def test_scores_by_hand_squared_and_without_itself():
    """Points 0 1 3 7 on a line, f = 0: two nearest others each."""
    assert krum_scores(squared([0.0, 1.0, 3.0, 7.0]), f=0).tolist() == [1 + 9, 1 + 4, 4 + 9, 16 + 36]


def test_unsquared_distances_would_choose_another():
    """At 0: 3² + 3² = 18; at 10: 1² + 4.5² = 21.25, though 3 + 3 > 1 + 4.5."""
    points = [0.0, 3.0, -3.0, 10.0, 11.0, 14.5, 5.5]
    scores = krum_scores(squared(points)[:6, :6], f=2)
    assert scores[0] == 18
    assert scores[3] == pytest.approx(21.25)
    unsquared = squared(points)[:6, :6].sqrt().sort(1).values[:, 1:3].sum(1)
    assert unsquared[0] > unsquared[3]


def test_counting_itself_as_a_neighbour_would_choose_another():
    """f = 1 of 5: two nearest others. A close pair far from the rest wins only if each counts itself."""
    points = squared([0.0, 1.0, 2.5, 10.0, 10.1])
    assert krum_order(points, f=1)[0] == 1
    with_itself = points.sort(1).values[:, :2].sum(1)
    assert with_itself.argmin() in (3, 4)


def test_a_shared_least_score_goes_to_the_one_nearer_to_everyone():
    points = [0.0, 1.0, 4.0]  # one neighbour each: 0 and 1 share the score 1
    assert krum_order(squared(points), f=0) == [1, 0, 2]
    assert krum_order(squared(points[::-1]), f=0) == [1, 2, 0]


def test_repeated_krum_scores_anew_after_every_pick():
    """Points 0 1 2 9 12 14 on a line, f = 1: three nearest, then two, then one.

    Of all six: 2 is chosen (4 + 1 + 49 = 54; the next is 1 with 1 + 1 + 64). Left 0 1 9 12 14, two nearest:
    12 with 9 + 4 = 13 before 14 with 29. Left 0 1 9 14, one nearest: 0 and 1 share 1, and 1 is nearer to all.
    Without new scores the second would be 1.
    """
    points = squared([0.0, 1.0, 2.0, 9.0, 12.0, 14.0])
    assert krum_order(points, f=1)[:2] == [2, 1]
    assert repeated_krum(points, f=1, count=3) == [2, 4, 1]


def test_a_single_row_is_its_own_choice():
    assert repeated_krum(torch.zeros(1, 1, dtype=torch.float64), f=0, count=1) == [0]


@pytest.mark.parametrize("f", [0, 1, 2, 4])
def test_repeated_krum_is_krum_on_what_is_left(f):
    for seed in range(6):
        points = torch.randn(4 * f + 3 + seed, 3, generator=torch.Generator().manual_seed(seed)).double()
        if seed % 2:
            points[::2] = points[0]  # who sends the same ties with each other
        distances = (points[:, None] - points).square().sum(2)
        left, expected = list(range(len(points))), []
        for _ in range(len(points) - 2 * f):
            expected.append(left.pop(krum_order(distances[left][:, left], f)[0]))
        assert repeated_krum(distances, f, len(points) - 2 * f) == expected
