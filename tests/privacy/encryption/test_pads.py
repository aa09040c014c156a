import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wardround.privacy.encryption.pads import Pad, pad_for, tag_for


@given(st.binary(min_size=1, max_size=40), st.integers(1, 50), st.integers(0, 3))
def test_a_pad_is_the_same_for_whoever_knows_the_key_and_stays_in_its_bound(key, count, part):
    drawn = Pad(key).real(count, 4.0, part)
    assert np.array_equal(drawn, Pad(key).real(count, 4.0, part))
    assert np.abs(drawn).max() <= 4.0


def test_pads_look_uniform_and_differ_by_client_session_round_and_part():
    pads = [
        pad_for(key, session, round).real(20_000, 1.0, part)
        for key in (b"a", b"b")
        for session in ("s", "t")
        for round in (1, 2)
        for part in (0, 1)
    ]
    correlations = np.corrcoef(pads) - np.eye(len(pads))
    assert np.abs(correlations).max() < 0.04  # 5.6 standard errors of 1/√20000
    assert abs(np.concatenate(pads).var() - 1 / 3) < 0.005


def test_a_pad_hides_the_small_digits_too():
    """The pad's own remainder modulo a step far below any entry of an update is uniform."""
    remainder = np.mod(Pad(b"key").real(50_000, 2.0**20), 2.0**-20) * 2.0**20
    counts = np.histogram(remainder, bins=10, range=(0, 1))[0]
    assert np.abs(counts / 5000 - 1).max() < 0.08  # 6 standard errors


@given(st.integers(1, 10**60), st.integers(0, 5))
def test_integers_are_below_their_bound(below, part):
    assert 0 <= Pad(b"key").integer(below, part) < below


def test_a_tag_binds_key_session_round_client_and_content():
    right = tag_for(b"key", "s", 1, "a", b"content")
    others = [
        tag_for(b"other", "s", 1, "a", b"content"),
        tag_for(b"key", "t", 1, "a", b"content"),
        tag_for(b"key", "s", 2, "a", b"content"),
        tag_for(b"key", "s", 1, "b", b"content"),
        tag_for(b"key", "s", 1, "a", b"contents"),
    ]
    assert right not in others
    assert len(set(others)) == len(others)
