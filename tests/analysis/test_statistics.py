"""Against scipy, statsmodels, enumeration and hand calculation."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from statsmodels.stats.multitest import multipletests

from wardround.analysis.statistics import adjusted, describe, paired, seeds_needed, smallest_wilcoxon_p

values = st.floats(-1, 1).map(lambda x: round(x, 6))


@pytest.mark.parametrize("n", range(1, 9))
def test_the_smallest_p_is_what_enumerating_all_signs_gives(n):
    ranks = np.arange(1, n + 1)
    sums = [
        sum(r for r, s in zip(ranks, signs, strict=True) if s)
        for signs in itertools.product((0, 1), repeat=n)
    ]
    total = n * (n + 1) / 2
    extreme = sum(min(s, total - s) <= 0 for s in sums) / 2**n
    assert smallest_wilcoxon_p(n) == pytest.approx(min(1.0, extreme))
    if n > 1:
        assert smallest_wilcoxon_p(n) == pytest.approx(stats.wilcoxon(ranks.astype(float)).pvalue)


def test_three_seeds_get_words_in_place_of_a_p_value():
    result = paired([0.9, 0.91, 0.92], [0.1, 0.12, 0.13])
    assert result.wilcoxon_p == result.smallest_p == 0.25
    assert not result.can_decide
    assert result.p_in_words == "3 seeds: smallest possible p is 0.25"


def test_six_seeds_can_decide():
    result = paired([0.9, 0.8, 0.7, 0.85, 0.95, 0.75], [0.5] * 6)
    assert result.can_decide
    assert result.p_in_words == "0.0312"
    assert (result.above, result.below) == (6, 0)


def test_a_difference_of_zero_is_on_nobodys_side_and_lowers_what_is_possible():
    result = paired([0.5, 0.6, 0.7, 0.8], [0.5, 0.5, 0.5, 0.5])
    assert (result.n, result.above, result.below) == (4, 3, 0)
    assert result.smallest_p == 0.25
    same = paired([0.5, 0.5], [0.5, 0.5])
    assert same.wilcoxon_p == same.smallest_p == 1.0
    assert same.p_in_words == "no difference in any of 2 seeds"
    assert same.t_p is same.cohens_d is None


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(values, values), min_size=2, max_size=12))
def test_paired_tests_are_scipys(pairs):
    ours, theirs = map(list, zip(*pairs, strict=True))
    result = paired(ours, theirs)
    differences = np.round(np.array(ours) - np.array(theirs), 12)
    assert result.difference == pytest.approx(differences.mean(), abs=1e-12)
    assert result.above + result.below == np.count_nonzero(differences)
    if differences.any():
        assert result.wilcoxon_p == pytest.approx(stats.wilcoxon(differences[differences != 0]).pvalue)
        assert result.wilcoxon_p >= result.smallest_p - 1e-12
    if differences.std() > 1e-6:
        assert result.t_p == pytest.approx(stats.ttest_rel(ours, theirs).pvalue, rel=1e-6)
        low, high = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
        assert (result.low, result.high) == (pytest.approx(low, abs=1e-9), pytest.approx(high, abs=1e-9))
        assert result.cohens_d == pytest.approx(differences.mean() / differences.std(ddof=1))


def test_one_pair_tells_nothing_and_none_is_none():
    result = paired([1.0], [0.0])
    assert result.wilcoxon_p == 1.0
    assert result.t_p is result.sd is None
    assert paired([], []) is None
    with pytest.raises(ValueError, match="one length, got 1 and 2"):
        paired([1.0], [1.0, 2.0])


def test_a_constant_difference_has_no_effect_size():
    result = paired([1.0, 2.0, 3.0], [0.5, 1.5, 2.5])
    assert result.difference == 0.5
    assert result.cohens_d is result.t_p is None


@settings(deadline=None, max_examples=30)
@given(st.lists(values, min_size=2, max_size=8))
def test_the_bootstrap_interval_is_scipys_and_lies_within_the_values(some):
    result = describe(some)
    assert min(some) - 1e-12 <= result.low <= result.high <= max(some) + 1e-12
    assert result.sd == pytest.approx(np.std(some, ddof=1))
    if np.std(some) > 1e-6:
        theirs = stats.bootstrap(
            (some,), np.mean, method="percentile", n_resamples=9999, rng=np.random.default_rng(1)
        ).bootstrap_distribution
        # In shares of resamples, four standard errors wide: of few values there are few means, and a quantile jumps.
        for bound, share in ((result.low, 0.025), (result.high, 0.975)):
            below, above = np.quantile(theirs, [share - 0.009, share + 0.009])
            assert below - 1e-9 <= bound <= above + 1e-9


def test_describing_one_value_or_none():
    assert describe([]) is None
    result = describe([0.5])
    assert (result.n, result.mean, result.sd, result.low) == (1, 0.5, None, None)


def test_corrections_by_hand():
    p = [0.01, 0.04, 0.03, 0.005]
    assert adjusted(p, "bonferroni") == pytest.approx([0.04, 0.16, 0.12, 0.02])
    # Holm: sorted 0.005·4, 0.01·3, 0.03·2, 0.04·1, each at least the one before.
    assert adjusted(p) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert adjusted([]) == []
    with pytest.raises(ValueError, match="correction must be holm or bonferroni, got 'hommel'"):
        adjusted(p, "hommel")


@pytest.mark.slow
@settings(deadline=None, max_examples=20)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.sampled_from(["holm", "bonferroni"]))
def test_corrections_are_those_of_statsmodels(p, method):
    assert adjusted(p, method) == pytest.approx(multipletests(p, method=method)[1], abs=1e-15)


def test_power_against_the_noncentral_t():
    n = seeds_needed(0.5)
    assert n == 34

    def power(count):
        df, shift = count - 1, 0.5 * math.sqrt(count)
        cut = stats.t.ppf(0.975, df)
        return 1 - stats.nct.cdf(cut, df, shift) + stats.nct.cdf(-cut, df, shift)

    assert power(n) >= 0.8 > power(n - 1)
    assert seeds_needed(-0.5) == n


@pytest.mark.parametrize("effect", [0.1, 0.3, 1.0, 1.7, 3.0, 20.0])
def test_no_fewer_seeds_would_do(effect):
    def power(n):
        """P(|Z + δ| > c·sqrt(V/df)), integrated over the chi-square V: no noncentral t in it."""
        cut, shift = stats.t.ppf(0.975, n - 1), effect * math.sqrt(n)

        def beyond(v):
            edge = cut * math.sqrt(v / (n - 1))
            return (stats.norm.sf(edge - shift) + stats.norm.cdf(-edge - shift)) * stats.chi2.pdf(v, n - 1)

        top = stats.chi2.isf(1e-12, n - 1)
        return integrate.quad(beyond, 0, top, limit=200, points=[top / 100, top / 10])[0]

    n = seeds_needed(effect)
    assert power(n) >= 0.8 - 1e-6
    assert n == 2 or power(n - 1) < 0.8
    assert seeds_needed(0.01) is None
