import numpy as np
import pytest
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from wardround.flower.secure_aggregation.masks import decode, derive, encode, mask_stream
from wardround.privacy.encryption.refusals import Unsealable
from wardround.privacy.masking import LARGEST_ENTRY

VALUES = arrays(np.float64, 6, elements=st.floats(-LARGEST_ENTRY, LARGEST_ENTRY))


@given(VALUES, VALUES)
def test_sums_of_whole_numbers_are_sums_of_values(one, other):
    assert np.abs(decode(encode(one / 2) + encode(other / 2)) - (one + other) / 2).max() <= 2.0**-40


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2 * LARGEST_ENTRY, -1e30])
def test_what_does_not_fit_is_not_masked(value):
    with pytest.raises(Unsealable, match="can be masked"):
        encode(np.array([0.0, value]))


def test_nothing_is_nothing():
    assert len(decode(encode(np.zeros(0)))) == 0


def test_a_stream_follows_from_its_key_alone():
    assert np.array_equal(mask_stream(bytes(32), 100), mask_stream(bytes(32), 100))
    assert np.array_equal(mask_stream(bytes(32), 100)[:10], mask_stream(bytes(32), 10))
    assert not np.array_equal(mask_stream(bytes(32), 100), mask_stream(bytes(31) + b"\1", 100))
    bits = np.unpackbits(mask_stream(bytes(32), 10_000).view(np.uint8))
    assert abs(bits.mean() - 0.5) < 0.005


def test_every_bit_of_a_key_counts():
    """Flower's own generator folds a seed to 32 bits by XOR: these two have the same mask there."""
    one, other = bytes(32), bytes([1, 0, 0, 0, 1, *[0] * 27])
    same = [pseudo_rand_gen(seed, 2**32, [(8,)])[0] for seed in (one, other)]
    assert np.array_equal(*same)
    assert not np.array_equal(mask_stream(one, 8), mask_stream(other, 8))


def test_a_key_is_for_one_purpose_and_context():
    keys = {
        derive(secret, purpose, context)
        for secret in (b"a", b"b")
        for purpose in "xy"
        for context in (b"", b"c")
    }
    assert len(keys) == 8
    assert {len(key) for key in keys} == {32}
