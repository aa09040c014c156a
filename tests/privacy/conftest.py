import numpy as np
import pytest

from wardround.privacy.encryption.ckks import CkksPublic, CkksSecret
from wardround.privacy.encryption.pads import pad_for, seal_for_steward
from wardround.privacy.encryption.steward import DEPOSITS, PADDED_SUMS, Policy, Steward

CLIENTS = tuple(f"hospital-{i}" for i in range(5))


def order_of(round, other=False):
    """The name of the order that the clients of a bench answer: each round starts from another model."""
    return f"{round:032x}.{('f0' if other else '0f') * 32}"


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

    def __init__(self, secret, public, mode=PADDED_SUMS, policy=None, dimension=20, scale=0.05):
        self.log, self.kept = [], []
        self.secret, self.public, self.mode = secret, public, mode
        self.policy = policy or Policy()
        self.keys = {client: client.encode() * 4 for client in CLIENTS}
        self.steward = self.restarted(None)
        rng = np.random.default_rng(1)
        self.updates = {client: rng.normal(size=dimension) * scale for client in CLIENTS}
        self.even = dict.fromkeys(CLIENTS, 0.2)

    def restarted(self, progress):
        """The steward in a new process: it has its keys and what it kept."""
        return Steward(
            self.secret,
            self.keys,
            self.mode,
            self.policy,
            self.log.append,
            keep=self.kept.append,
            progress=progress,
        )

    def padded(self, client, round=1, order=None):
        pad = pad_for(self.keys[client], round, order or order_of(round))
        return self.public.encrypt(self.updates[client], pad)

    def coefficients(self, values):
        return {client: self.public.exact(value) for client, value in values.items()}

    def sum_of(self, values, round=1, order=None):
        parts = self.coefficients(values).items()
        return self.public.combine((self.padded(c, round, order), v) for c, v in parts)

    def open(self, values, ciphertext=None, round=1, order=None):
        ciphertext = ciphertext if ciphertext is not None else self.sum_of(values, round, order)
        return self.steward.open_padded_sum(
            round, order or order_of(round), self.coefficients(values), ciphertext
        )

    def sealed(self, client, ciphertext, round=1, order=None, signer=None):
        key = self.keys[signer or client]
        return seal_for_steward(key, client, round, order or order_of(round), ciphertext)

    def deposit(self, client, round=1, order=None, signer=None, vector=None):
        ciphertext = self.public.encrypt(self.updates[client] if vector is None else vector, None)
        return self.sealed(client, ciphertext, round, order, signer)

    def deposits(self, round=1, order=None):
        return {client: self.deposit(client, round, order) for client in CLIENTS}

    def measure(self, deposits=None, round=1, order=None):
        deposits = self.deposits(round, order) if deposits is None else deposits
        return self.steward.measure(round, order or order_of(round), deposits)

    def measured_sum(self, values, round=1, order=None):
        return self.steward.open_measured_sum(round, order or order_of(round), self.coefficients(values))

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
