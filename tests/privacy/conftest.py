import numpy as np
import pytest

from wardround.privacy.encryption.ckks import CkksPublic, CkksSecret
from wardround.privacy.encryption.pads import pad_for, tag_for
from wardround.privacy.encryption.steward import DEPOSITS, PADDED_SUMS, Deposit, Policy, Steward

CLIENTS = tuple(f"hospital-{i}" for i in range(5))


@pytest.fixture(scope="session")
def secret():
    """One key pair for all tests: making one takes longer than most of them."""
    pytest.importorskip("tenseal", reason="the extra 'privacy' is not installed")
    return CkksSecret.generate()


@pytest.fixture(scope="session")
def public(secret):
    return CkksPublic(secret.public_bytes())


class Bench:
    """A steward with five clients, and what a server that follows the protocol would send."""

    def __init__(self, secret, public, mode=PADDED_SUMS, policy=None, dimension=20):
        self.log = []
        self.public = public
        self.keys = {client: client.encode() * 4 for client in CLIENTS}
        self.steward = Steward(secret, self.keys, mode, policy or Policy(), self.log.append)
        self.session = self.steward.begin()
        rng = np.random.default_rng(1)
        self.updates = {client: rng.normal(size=dimension) * 0.05 for client in CLIENTS}
        self.even = dict.fromkeys(CLIENTS, 0.2)

    def padded(self, client, round=1, session=None):
        pad = pad_for(self.keys[client], session or self.session, round)
        return self.public.encrypt(self.updates[client], pad)

    def coefficients(self, values):
        return {client: self.public.exact(value) for client, value in values.items()}

    def sum_of(self, values, round=1):
        return self.public.combine((self.padded(c, round), v) for c, v in self.coefficients(values).items())

    def open(self, values, ciphertext=None, round=1):
        ciphertext = ciphertext if ciphertext is not None else self.sum_of(values, round)
        return self.steward.open_padded_sum(self.session, round, self.coefficients(values), ciphertext)

    def deposit(self, client, round=1, signer=None, vector=None):
        ciphertext = self.public.encrypt(self.updates[client] if vector is None else vector, None)
        key = self.keys[signer or client]
        return Deposit(ciphertext, tag_for(key, self.session, round, client, ciphertext))

    def deposits(self, round=1):
        return {client: self.deposit(client, round) for client in CLIENTS}

    def expected(self, values):
        return sum(value * self.updates[client] for client, value in values.items())


@pytest.fixture
def bench(secret, public):
    return Bench(secret, public)


@pytest.fixture
def depositing(secret, public):
    return Bench(secret, public, DEPOSITS)


@pytest.fixture
def make_bench(secret, public):
    return lambda **options: Bench(secret, public, **options)
