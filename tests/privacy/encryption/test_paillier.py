import numpy as np
import pytest

from wardround.errors import ConfigError, WardroundError
from wardround.privacy.encryption.pads import Pad
from wardround.privacy.encryption.paillier import LARGEST, PER_CIPHERTEXT, PaillierPublic, PaillierSecret
from wardround.privacy.encryption.refusals import Refused, Unsealable


@pytest.fixture(scope="module")
def keys():
    pytest.importorskip("gmpy2", reason="the extra 'privacy' is not installed")
    secret = PaillierSecret.generate()
    return secret, PaillierPublic(secret.public_bytes())


@pytest.mark.parametrize("length", [1, PER_CIPHERTEXT, PER_CIPHERTEXT + 1])
def test_a_padded_weighted_sum_is_exact_to_the_fixed_point(keys, length):
    secret, public = keys
    rows = np.random.default_rng(length).uniform(-1, 1, size=(3, length))
    rows[0, 0], rows[1, 0] = LARGEST, -LARGEST
    values = [public.exact(value) for value in (0.5, 0.2, 0.3)]
    pads = [Pad(bytes([i])) for i in range(3)]
    total = public.combine(
        (public.encrypt(row, pad), value) for row, pad, value in zip(rows, pads, values, strict=True)
    )
    opened = secret.open_sum(total, list(zip(values, pads, strict=True)))
    assert opened == pytest.approx(np.array(values) @ rows, abs=2.0**-24)


def test_extreme_entries_do_not_spill_into_their_neighbours(keys):
    secret, public = keys
    rows = np.tile([LARGEST, 0.0, -LARGEST, 0.0], (4, 2))
    total = public.combine((public.encrypt(row, None), 1.0) for row in rows)
    assert secret.open_sum(total, []).tolist() == (4 * rows[0]).tolist()
    with pytest.raises(Refused, match="sum to 5"):
        public.combine((public.encrypt(rows[0], None), 1.0) for _ in range(5))


def test_what_was_not_described_stays_hidden(keys):
    secret, public = keys
    pads = [Pad(bytes([i])) for i in range(3)]
    row = np.random.default_rng(0).uniform(-1, 1, PER_CIPHERTEXT)
    third = public.exact(1 / 3)
    opened = secret.open_sum(
        public.combine([(public.encrypt(row, pads[0]), 1.0)]), [(third, p) for p in pads]
    )
    assert np.median(np.abs(opened)) > 10


def test_too_large_a_model_is_an_error_with_the_estimated_time(keys):
    _, public = keys
    public.check(1000, 5)
    with pytest.raises(ConfigError, match=r"1200000 parameters for 20 clients would take about \d+ minutes"):
        public.check(1_200_000, 20)


def test_keys_keep_their_sides_apart(keys):
    secret, _ = keys
    with pytest.raises(WardroundError, match="secret primes"):
        PaillierPublic(secret.secret_bytes())
    with pytest.raises(WardroundError, match="no secret"):
        PaillierSecret(secret.public_bytes())
    with pytest.raises(WardroundError, match="not Paillier keys"):
        PaillierPublic(b"what")


@pytest.mark.parametrize("bad", [np.nan, np.inf, 2 * LARGEST])
def test_what_does_not_fit_is_refused(keys, bad):
    with pytest.raises(Unsealable):
        keys[1].encrypt(np.array([bad]), None)


@pytest.mark.parametrize("content", [b"", b"WRP1", b"x" * 600])
def test_bytes_that_are_no_ciphertext_are_refused(keys, content):
    with pytest.raises(Refused):
        keys[0].open_sum(content, [])
