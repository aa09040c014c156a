import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wardround.privacy.encryption.pads import Pad, open_sealed, pad_for, seal_for_steward


@given(st.binary(min_size=1, max_size=40), st.integers(1, 50), st.integers(0, 3))
def test_a_pad_is_the_same_for_whoever_knows_the_key_and_stays_in_its_bound(key, count, part):
    drawn = Pad(key).real(count, 4.0, part)
    assert np.array_equal(drawn, Pad(key).real(count, 4.0, part))
    assert np.abs(drawn).max() <= 4.0


def test_pads_look_uniform_and_differ_by_client_round_order_and_part():
    pads = [
        pad_for(key, round, order).real(20_000, 1.0, part)
        for key in (b"a", b"b")
        for round in (1, 2)
        for order in ("s", "t")
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


class TestSealedForTheSteward:
    @pytest.fixture(autouse=True)
    def _extra(self):
        pytest.importorskip("cryptography", reason="the extra 'privacy' is not installed")

    def test_the_steward_reads_what_the_client_wrote(self):
        for content in (b"", b"content", bytes(100_000)):
            sealed = seal_for_steward(b"key", "a", 1, "s", content)
            assert open_sealed(b"key", "a", 1, "s", sealed) == content

    def test_a_seal_binds_key_client_round_order_and_content(self):
        sealed = seal_for_steward(b"key", "a", 1, "s", b"content")
        for key, client, round, order in (
            (b"other", "a", 1, "s"),
            (b"key", "b", 1, "s"),
            (b"key", "a", 2, "s"),
            (b"key", "a", 1, "t"),
        ):
            assert open_sealed(key, client, round, order, sealed) is None
        for place in range(len(sealed)):
            changed = bytearray(sealed)
            changed[place] ^= 1
            assert open_sealed(b"key", "a", 1, "s", bytes(changed)) is None
        for length in range(len(sealed)):
            assert open_sealed(b"key", "a", 1, "s", sealed[:length]) is None

    def test_parts_cannot_be_pushed_from_one_field_into_the_next(self):
        sealed = seal_for_steward(b"key", 'a", 1', 1, "s", b"content")
        assert open_sealed(b"key", "a", 1, '1, "s', sealed) is None

    def test_nothing_of_the_content_is_seen_and_no_two_seals_are_alike(self):
        content = b"an update in its ciphertext" * 20
        one, other = (seal_for_steward(b"key", "a", 1, "s", content) for _ in range(2))
        assert one != other
        assert content[:8] not in one
        assert len(one) == len(content) + 12 + 16
