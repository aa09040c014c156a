"""Paillier's cryptosystem against known ciphertexts and by its own laws."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("gmpy2", reason="the extra 'privacy' is not installed")

from wardround.privacy.encryption.paillier_keys import PrivateKey, PublicKey, generate_private_key

P, Q = 1000003, 1000033
N = P * Q
# (message, r) → ciphertext under n = P·Q and g = n + 1, as another implementation (python-paillier 1.5) computes it.
KNOWN = [
    (0, 1, 1),
    (42, 23, 662075704329242981803836),
    (123456789012, 987654321, 179614727947363981497072),
    (1000036000098, 7, 922639155864895837209885),
]


@pytest.mark.parametrize(("message", "blinding", "ciphertext"), KNOWN)
def test_known_ciphertexts(message, blinding, ciphertext):
    assert PublicKey(N).encrypt(message, blinding) == ciphertext
    assert PrivateKey(P, Q).decrypt(ciphertext) == message


@given(st.integers(0, N - 1), st.integers(1, P - 1))
def test_decryption_by_remainders_is_that_of_the_paper(message, blinding):
    """m = L(c^λ mod n²) · L(g^λ mod n²)⁻¹ mod n with λ = lcm(p − 1, q − 1): section 4, without Chinese remainders."""
    ciphertext = pow(N + 1, message, N * N) * pow(blinding, N, N * N) % (N * N)
    assert PublicKey(N).encrypt(message, blinding) == ciphertext
    exponent = math.lcm(P - 1, Q - 1)
    logs = [(pow(value, exponent, N * N) - 1) // N for value in (ciphertext, N + 1)]
    assert logs[0] * pow(logs[1], -1, N) % N == message == PrivateKey(P, Q).decrypt(ciphertext)


@given(st.integers(0, N - 1), st.integers(0, N - 1), st.integers(0, 1000))
def test_products_are_sums_and_powers_are_multiples(one, other, times):
    key = PrivateKey(P, Q)
    total = key.public.encrypt(one) * key.public.encrypt(other) % key.public.n_squared
    assert key.decrypt(total) == (one + other) % N
    assert key.decrypt(pow(key.public.encrypt(one), times, key.public.n_squared)) == one * times % N


def test_encryption_is_never_the_same_twice():
    key = PublicKey(N)
    assert len({key.encrypt(5) for _ in range(20)}) == 20


def test_fresh_keys_have_the_length_asked_for():
    key, other = generate_private_key(512), generate_private_key(512)
    assert key.public.n.bit_length() == 512
    assert key.public.n != other.public.n
    assert key.decrypt(key.public.encrypt(123)) == 123


@pytest.mark.parametrize(("p", "q"), [(7, 7), (3, 7)])
def test_primes_that_do_not_work_are_refused(p, q):
    with pytest.raises(ValueError, match="different primes"):
        PrivateKey(p, q)
