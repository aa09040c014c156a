import math

import pytest

from wardround.privacy.cohorts import cohort_problem

EVEN = {"a": 0.25, "b": 0.25, "c": 0.25, "d": 0.25}


@pytest.mark.parametrize(
    ("coefficients", "problem"),
    [
        (EVEN, None),
        ({"a": 0.5, "b": 0.25, "c": 0.25}, None),
        ({client: 1e-3 * share for client, share in EVEN.items()}, None),
        ({**EVEN, "e": 0.0}, None),
        ({"a": 0.5, "b": 0.5}, "a cohort of 2"),
        ({"a": 0.5, "b": 0.5, "c": 0.0}, "a cohort of 2"),
        ({"a": 0.5, "b": 0.5 - 1e-9, "c": 1e-9}, "a cohort of 2"),
        ({f"client-{i}": 0.001 for i in range(1000)}, None),
        ({"a": 0.5, **{f"client-{i}": 0.001 for i in range(500)}}, None),
        ({"a": 0.5, "b": 0.49, **{f"client-{i}": 0.00001 for i in range(1000)}}, "a cohort of 2"),
        ({"a": 1.0}, "a cohort of 1"),
        ({}, "must be finite"),
        ({"a": 0.6, "b": 0.2, "c": 0.2}, "one client has 0.600"),
        ({"a": 0.5, "b": 0.5, "c": 0.5}, "add up to at most 1"),
        ({"a": 1.5, "b": 0.5, "c": -1.0}, "not negative"),
        ({"a": 0.5, "b": math.nan, "c": 0.2}, "must be finite"),
        ({"a": 0.5, "b": math.inf, "c": 0.2}, "must be finite"),
        ({"a": True, "b": 0.0, "c": 0.0}, "must be finite"),
        ({"a": "0.3", "b": 0.3, "c": 0.4}, "must be finite"),
        ({"a": 0.0, "b": 0.0, "c": 0.0}, "not all 0"),
    ],
)
def test_which_sums_hide_their_parts(coefficients, problem):
    answer = cohort_problem(coefficients)
    assert answer is None if problem is None else problem in answer


def test_the_bounds_are_the_askers():
    two = {"a": 0.5, "b": 0.5}
    assert cohort_problem(two, min_cohort=2) is None
    assert cohort_problem(EVEN, min_cohort=5) == "a cohort of 4, fewer than 5 clients"
    assert "more than 0.2" in cohort_problem(EVEN, max_share=0.2)
