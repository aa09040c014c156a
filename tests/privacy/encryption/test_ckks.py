import numpy as np
import pytest
from fast_cases import slow_but
from hypothesis import given, settings
from hypothesis import strategies as st

from wardround.errors import WardroundError
from wardround.privacy.encryption.ckks import SLOTS, CkksPublic, CkksSecret, pack, security_bits, unpack
from wardround.privacy.encryption.pads import Pad
from wardround.privacy.encryption.refusals import Refused, Unsealable


def relative(got, expected):
    return np.linalg.norm(got - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize(
    "length", slow_but([1, SLOTS, SLOTS + 1], [1, SLOTS - 1, SLOTS, SLOTS + 1, 3 * SLOTS + 7])
)
@pytest.mark.parametrize("padded", [True, False])
def test_a_weighted_sum_of_vectors_of_any_length(secret, public, length, padded):
    rng = np.random.default_rng(length)
    rows = rng.normal(size=(4, length)) * 1e-2
    coefficients = [public.exact(value) for value in (0.1, 0.25, 0.3, 0.35)]
    pads = [Pad(bytes([i])) if padded else None for i in range(4)]
    total = public.combine(
        (public.encrypt(row, pad), value) for row, pad, value in zip(rows, pads, coefficients, strict=True)
    )
    opened = secret.open_sum(total, list(zip(coefficients, pads, strict=True)) if padded else [])
    assert opened.shape == (length,)
    assert relative(opened, coefficients @ rows) < 1e-5


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_norms_and_inner_products_are_those_of_the_plain_vectors(secret, public, data):
    length = data.draw(st.integers(1, 2 * SLOTS))
    scale = data.draw(st.sampled_from([1e-2, 1.0, 1e4]))
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    row, other = rng.normal(size=(2, length)) * scale
    ciphertext = public.encrypt(row, None)
    assert secret.squared_norm(ciphertext) == pytest.approx(row @ row, rel=1e-5)
    lengths = np.linalg.norm(row) * np.linalg.norm(other)
    assert secret.dot(ciphertext, other) == pytest.approx(row @ other, abs=1e-5 * lengths)


def test_a_dot_product_with_nothing_is_nothing(secret, public):
    assert secret.dot(public.encrypt(np.ones(3), None), np.zeros(3)) == 0


def test_the_public_side_holds_no_secret_and_refuses_to(secret, public):
    assert not public.context.has_secret_key()
    with pytest.raises(WardroundError, match="holds a secret key"):
        CkksPublic(secret.secret_bytes())
    with pytest.raises(WardroundError, match="no secret key"):
        CkksSecret(secret.public_bytes())
    chunk = unpack(public.encrypt(np.ones(3), None))[1][0]
    with pytest.raises(ValueError, match="secret_key"):
        public.tenseal.ckks_vector_from(public.context, chunk).decrypt()


def test_a_stored_key_opens_what_was_encrypted_before(secret, public):
    ciphertext = public.encrypt(np.arange(5.0), None)
    again = CkksSecret(secret.secret_bytes())
    assert again.open_sum(ciphertext, []) == pytest.approx(np.arange(5.0), abs=1e-6)


def test_the_same_vector_never_encrypts_to_the_same_bytes(public):
    assert public.encrypt(np.ones(3), None) != public.encrypt(np.ones(3), None)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e12])
def test_what_the_cipher_cannot_hold_is_refused(public, bad):
    with pytest.raises(Unsealable):
        public.encrypt(np.array([0.0, bad]), None)


@pytest.mark.slow
def test_long_vectors_that_still_fit_are_measured_right(secret, public):
    row = np.zeros(10)
    row[3] = 2.0**27
    assert secret.squared_norm(public.encrypt(row, None)) == pytest.approx(2.0**54, rel=1e-6)


@pytest.mark.parametrize(
    "content", [b"", b"WRC1", b"x" * 100, pack(5, []), pack(5, [b"abc"]), pack(1, [b"a", b"b"])]
)
def test_bytes_that_are_no_ciphertext_are_refused(secret, public, content):
    with pytest.raises(Refused):
        secret.open_sum(content, [])
    with pytest.raises(Refused):
        public.combine([(content, 1.0)])


def test_sums_of_nothing_or_of_unlike_lengths_are_refused(public):
    with pytest.raises(Refused, match="at least one"):
        public.combine([(public.encrypt(np.ones(3), None), 0.0)])
    with pytest.raises(Refused, match="cannot be summed"):
        public.combine([(public.encrypt(np.ones(n), None), 0.5) for n in (3, 4)])


def test_the_security_level_follows_the_standards_table():
    assert security_bits() == 192
    assert security_bits(8192, [60, 60, 60, 60]) == 0
    assert security_bits(16384, [60] * 8) == 0
    assert security_bits(16384, [60, 40, 40, 60]) == 192


@pytest.mark.slow
def test_a_million_parameters_and_ten_clients(secret, public):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(10, 1_200_000)) * 1e-3
    pads = [Pad(bytes([i])) for i in range(10)]
    coefficients = [public.exact(0.1)] * 10
    total = public.combine(
        (public.encrypt(row, pad), value) for row, pad, value in zip(rows, pads, coefficients, strict=True)
    )
    opened = secret.open_sum(total, list(zip(coefficients, pads, strict=True)))
    assert relative(opened, np.array(coefficients) @ rows) < 1e-4
