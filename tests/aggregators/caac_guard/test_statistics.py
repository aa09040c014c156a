"""Which norms are far out."""

import pytest
import torch

from wardround.aggregators.caac_guard.statistics import excess_factors, size_slope, usual_log_norms


def test_norms_that_grow_with_samples_are_usual():
    samples = torch.tensor([10.0, 100.0, 1000.0, 10_000.0]).double()
    norms = samples.sqrt()
    assert size_slope(norms.log(), samples.log()) == pytest.approx(0.5)
    torch.testing.assert_close(usual_log_norms(norms.log(), samples), norms.log())
    assert torch.equal(
        excess_factors(norms, samples, torch.ones(4, dtype=torch.bool), torch.ones(4, dtype=torch.bool)),
        torch.ones(4).double(),
    )


def test_a_row_far_out_is_brought_back_to_the_usual_norm():
    norms = torch.ones(9).double()
    norms[0] = 400.0
    factors = excess_factors(
        norms,
        torch.full((9,), 50.0).double(),
        torch.ones(9, dtype=torch.bool),
        torch.ones(9, dtype=torch.bool),
    )
    assert factors[0] == pytest.approx(400.0)
    assert torch.equal(factors[1:], torch.ones(8).double())


def test_less_than_four_times_the_usual_is_left_alone_and_so_are_zeros():
    norms = torch.tensor([3.9, 1.0, 1.0, 1.0, 1.0, 0.0]).double()
    everyone = torch.ones(6, dtype=torch.bool)
    assert torch.equal(
        excess_factors(norms, torch.ones(6).double(), everyone, everyone), torch.ones(6).double()
    )
    assert torch.equal(
        excess_factors(norms * 0, torch.ones(6).double(), everyone, everyone), torch.ones(6).double()
    )


def test_who_is_flagged_does_not_decide_what_is_usual():
    norms = torch.tensor([1000.0, 1000.0, 1000.0, 1.0, 1.0]).double()
    among = torch.tensor([False, False, False, True, True])
    factors = excess_factors(norms, torch.ones(5).double(), among, among)
    assert (factors[3:] == 1).all()


def test_whom_no_test_could_judge_is_no_further_above_the_usual_than_those_who_passed():
    norms, samples = torch.tensor([1.0, 2.0, 1.0, 1.5, 30.0]).double(), torch.full((5,), 50.0).double()
    everyone, judged = torch.ones(5, dtype=torch.bool), torch.tensor([True, True, True, True, False])
    assert torch.equal(excess_factors(norms, samples, everyone, everyone), torch.ones(5).double())
    factors = excess_factors(norms, samples, everyone, judged)
    torch.testing.assert_close(factors, torch.tensor([1.0, 1, 1, 1, 15]).double())
    assert torch.equal(excess_factors(norms, samples, everyone, ~everyone), torch.ones(5).double())
