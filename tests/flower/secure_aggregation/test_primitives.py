"""Shares and encryption are those of Flower's SecAgg+, which serves as an independent reference."""

import contextlib
import itertools

import pytest

pytest.importorskip("flwr")

from cryptography.fernet import InvalidToken
from flwr.common.secure_aggregation import secaggplus_utils as flower_shares
from flwr.common.secure_aggregation.crypto import shamir, symmetric_encryption

from wardround.flower.secure_aggregation import primitives as own

SECRETS = [b"", b"x", b"sixteen bytes...", bytes(range(167))]


@pytest.mark.slow
@pytest.mark.parametrize("secret", SECRETS)
def test_enough_shares_give_the_secret_back_here_and_in_flower(secret):
    shares = own.create_shares(secret, 3, 5)
    assert len({len(share) for share in shares}) == 1
    for some in itertools.permutations(shares, 3):
        assert own.combine_shares(list(some)) == secret
    assert shamir.combine_shares(shares[1:4]) == secret
    assert own.combine_shares(shamir.create_shares(secret, 3, 5)[2:]) == secret


def test_too_few_or_mixed_shares_do_not():
    secret = bytes(range(64))
    shares, others = own.create_shares(secret, 3, 5), own.create_shares(bytes(64), 3, 5)
    for some in (shares[:2], [*shares[:2], others[2]]):
        with contextlib.suppress(ValueError):  # or it finds another secret
            assert own.combine_shares(some) != secret


def test_two_hospitals_have_one_key_and_a_third_has_not():
    a, b, c = own.new_key(), own.new_key(), own.new_key()
    key = own.shared_key(a, b.public_key())
    assert (
        key
        == own.shared_key(b, a.public_key())
        == symmetric_encryption.generate_shared_key(b, a.public_key())
    )
    token = own.encrypt(key, b"shares")
    assert own.decrypt(key, token) == symmetric_encryption.decrypt(key, token) == b"shares"
    with pytest.raises(InvalidToken):
        own.decrypt(own.shared_key(c, a.public_key()), token)
    with pytest.raises(InvalidToken):
        own.decrypt(key, token[:-5] + b"AAAA=")


def test_shares_on_their_way():
    content = own.join_shares(2, 7, b"first", b"second share")
    assert content == flower_shares.share_keys_plaintext_concat(2, 7, b"first", b"second share")
    assert own.split_shares(content) == (2, 7, b"first", b"second share")
    with pytest.raises(ValueError, match="not two shares"):
        own.split_shares(content[:19])


def test_a_public_key_is_on_a_curve():
    with pytest.raises(ValueError, match="PEM"):
        own.public_key(b"nonsense")
