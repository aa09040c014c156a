"""The key steward: holds the secret key, opens sums and scalars by a policy, logs every opening.

It checks what it opens instead of relying on the server:

* a *padded sum* (`open_padded_sum`) is summed by the server; the steward sees that sum only. Each client added a
  pad that only it and the steward know; the steward takes off the pads of the clients and weights the server
  named. If the server handed in anything else, what it gets back is noise (see `pads`).
* *deposits* (`measure`, then `open_measured_sum`) are single ciphertexts, each signed by its client for this
  round. The steward computes norms, cosines and the weighted sum of exactly these itself, encrypted, and opens
  only the results. The direction of the cosines is the sum it opened last: a server that could choose it would
  read one coordinate a round.

A steward does the one or the other, for as long as its keys live: a server that held unpadded ciphertexts could scale
one until it stands out above the pads that a padded opening takes off.

All this protects single updates from an honest-but-curious server: one that follows the protocol and looks at all
it receives. It does not protect them from a dishonest one. A server that orders a tiny learning rate recovers the
CKKS key from what is opened; one that asks in several sessions, or orders different work from different clients, can
subtract sums from each other; one that knows all other updates of a cohort can subtract those (docs/privacy.md).
"""

from __future__ import annotations

import hmac
import math
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from pydantic import Field

from wardround.errors import ParameterError
from wardround.privacy.dp import ProfileNoise
from wardround.privacy.encryption.ciphers import SecretSide
from wardround.privacy.encryption.ckks import CkksSecret
from wardround.privacy.encryption.pads import pad_for, tag_for
from wardround.privacy.encryption.refusals import Refused
from wardround.registry import Parameters

__all__ = ["DEPOSITS", "PADDED_SUMS", "Deposit", "Measured", "Policy", "Steward", "StewardHandle"]

PADDED_SUMS = "encrypted-fedmed"
DEPOSITS = "encrypted-caac"

MAX_OPENINGS = 2
"""A client and round: its two scalars together are one opening, the sum it is part of another."""
COUNTS_FROM = 0.1
"""A client is part of a cohort from this share of 1/N on: a cohort is not padded with weights of nothing."""
FLOOD = 1e-5
"""Noise on what is opened, as a share of its root mean square. Exact CKKS openings beside their ciphertexts give
away the secret key (Li and Micciancio, "On the Security of Homomorphic Encryption on Approximate Numbers", 2021)."""
TRIANGLE_SLACK = 1e-3


class Policy(Parameters):
    """What the steward opens."""

    min_cohort: int = Field(3, ge=2)
    """Fewest clients in a sum."""
    max_share: float = Field(0.5, gt=0, lt=1)
    """Largest share of one client in a sum."""


@dataclass(frozen=True)
class Deposit:
    """A client's ciphertext and its signature for the steward."""

    ciphertext: bytes
    tag: bytes


@dataclass(frozen=True)
class Measured:
    """The two scalars of a client and round."""

    norm: float
    cosine: float | None
    """To the sum opened last; None where there is none yet."""


class StewardHandle(Protocol):
    """What the aggregating server can ask, in this process or over a connection."""

    def begin(self, after: str | None = None) -> str: ...

    def public_context(self) -> tuple[str, bytes]: ...

    def open_padded_sum(
        self, session: str, round: int, coefficients: Mapping[str, float], ciphertext: bytes
    ) -> np.ndarray: ...

    def measure(self, session: str, round: int, deposits: Mapping[str, Deposit]) -> dict[str, Measured]: ...

    def open_measured_sum(
        self, session: str, round: int, coefficients: Mapping[str, float]
    ) -> np.ndarray: ...


@dataclass
class Session:
    """What the steward remembers of one run."""

    round: int = 0
    openings: Counter[str] = field(default_factory=Counter)
    deposits: dict[str, Deposit] = field(default_factory=dict)
    norms: dict[str, float] = field(default_factory=dict)
    summed: bool = False
    last_sum: np.ndarray | None = None


class Steward:
    """The policy around a secret key. `log` is handed a plain dict for every opening and every refusal."""

    def __init__(
        self,
        secret: SecretSide,
        client_keys: Mapping[str, bytes],
        mode: str,
        policy: Policy | None = None,
        log: Callable[[dict[str, Any]], None] | None = None,
        names: Callable[[str], str] = str,
        profile_noise: ProfileNoise | None = None,
        keep: Callable[[str, Session], None] | None = None,
    ) -> None:
        if mode not in (PADDED_SUMS, DEPOSITS):
            raise ParameterError(f"a steward's mode is {PADDED_SUMS} or {DEPOSITS}, got {mode!r}")
        self.secret, self.client_keys, self.mode = secret, dict(client_keys), mode
        self.policy = policy or Policy()
        self.log = log or (lambda line: None)
        self.names = names  # how clients are called in the log
        self.profile_noise = profile_noise
        self.keep = keep or (lambda name, session: None)  # called whenever a session has moved on
        self.sessions: dict[str, Session] = {}
        self._random = np.random.default_rng(secrets.randbits(128))  # of the system: nobody may repeat it
        self._lock = threading.Lock()

    def begin(self, after: str | None = None) -> str:
        """A new session; `after` names the one it continues (of a run that was stopped)."""
        with self._lock:
            name = secrets.token_hex(16)
            last = None
            if after is not None:
                if after not in self.sessions:
                    raise self._refusal("begin", name, 0, [], f"session {after} is not known here")
                last = self.sessions[after].last_sum
            self.sessions[name] = Session(last_sum=last)
            self.keep(name, self.sessions[name])
            self._note("begin", name, 0, [], after=after)
            return name

    def public_context(self) -> tuple[str, bytes]:
        """The cipher's name and its public keys."""
        return self.secret.name, self.secret.public_bytes()

    def open_padded_sum(
        self, session: str, round: int, coefficients: Mapping[str, float], ciphertext: bytes
    ) -> np.ndarray:
        """Open Σ coefficient · (update + pad) and take off the pads of exactly these clients and weights."""
        with self._lock:
            self._must_be(PADDED_SUMS, "sum", session, round, coefficients)
            state = self._enter("sum", session, round, coefficients)
            self._check_cohort("sum", session, round, coefficients)
            self._spend("sum", session, round, state, coefficients)
            parts = [
                (coefficient, pad_for(self.client_keys[client], session, round))
                for client, coefficient in coefficients.items()
                if coefficient
            ]
            opened = self._flooded(self.secret.open_sum(ciphertext, parts))
            state.summed, state.last_sum = True, opened
            self.keep(session, state)
            self._note("sum", session, round, coefficients, coefficients=_named(coefficients, self.names))
            return opened

    def measure(self, session: str, round: int, deposits: Mapping[str, Deposit]) -> dict[str, Measured]:
        """Norm and cosine of every deposit: two scalars a client."""
        with self._lock:
            self._must_be(DEPOSITS, "scalars", session, round, deposits)
            state = self._enter("scalars", session, round, deposits)
            secret = self._ckks("scalars", session, round)
            for client, deposit in deposits.items():
                right = tag_for(self.client_keys[client], session, round, client, deposit.ciphertext)
                if not hmac.compare_digest(right, deposit.tag):
                    raise self._refusal(
                        "scalars", session, round, deposits, f"not signed by {self.names(client)}", client
                    )
                if client in state.deposits:
                    raise self._refusal(
                        "scalars", session, round, deposits, f"{self.names(client)} is measured already"
                    )
            if len(deposits) < self.policy.min_cohort:
                raise self._refusal("scalars", session, round, deposits, self._too_few(len(deposits)))
            self._spend("scalars", session, round, state, deposits)
            measured = {}
            for client, deposit in deposits.items():
                norm, cosine = self._scalars(secret, deposit.ciphertext, state.last_sum)
                state.deposits[client], state.norms[client] = deposit, norm
                if self.profile_noise is not None:
                    norm, cosine = self.profile_noise.blur(norm, cosine, self._random)
                measured[client] = Measured(norm, cosine)
            self._note("scalars", session, round, deposits)
            return measured

    def open_measured_sum(self, session: str, round: int, coefficients: Mapping[str, float]) -> np.ndarray:
        """Sum the round's deposits with these coefficients, encrypted, and open the sum."""
        with self._lock:
            self._must_be(DEPOSITS, "sum", session, round, coefficients)
            state = self._enter("sum", session, round, coefficients)
            secret = self._ckks("sum", session, round)
            missing = [client for client in coefficients if client not in state.deposits]
            if missing:
                raise self._refusal(
                    "sum", session, round, coefficients, f"no deposit of {self.names(missing[0])}"
                )
            self._check_cohort("sum", session, round, coefficients)
            self._spend("sum", session, round, state, coefficients)
            state.summed = True
            opened = secret.open_combination(
                (state.deposits[client].ciphertext, value) for client, value in coefficients.items()
            )
            bound = sum(value * state.norms[client] for client, value in coefficients.items())
            if not np.linalg.norm(opened) <= bound * (1 + TRIANGLE_SLACK) + 1e-6:
                raise self._refusal(
                    "sum",
                    session,
                    round,
                    coefficients,
                    "the sum is longer than its parts: one wrapped around",
                )
            opened = self._flooded(opened)
            state.last_sum = opened
            state.deposits.clear()
            self.keep(session, state)
            self._note("sum", session, round, coefficients, coefficients=_named(coefficients, self.names))
            return opened

    def _scalars(
        self, secret: CkksSecret, ciphertext: bytes, last: np.ndarray | None
    ) -> tuple[float, float | None]:
        norm = math.sqrt(max(0.0, self._flooded_number(secret.squared_norm(ciphertext))))
        if last is None:
            return norm, None
        length = norm * float(np.linalg.norm(last))
        if not length:
            return norm, 1.0
        return norm, float(np.clip(self._flooded_number(secret.dot(ciphertext, last)) / length, -1, 1))

    def _ckks(self, kind: str, session: str, round: int) -> CkksSecret:
        if not isinstance(self.secret, CkksSecret):
            raise self._refusal(
                kind, session, round, [], f"{self.secret.name} has no inner products; ckks has"
            )
        return self.secret

    def _must_be(self, mode: str, kind: str, session: str, round: int, clients: Any) -> None:
        if self.mode != mode:
            raise self._refusal(
                kind, session, round, clients, f"its keys are for {self.mode}, this is a request of {mode}"
            )

    def _enter(self, kind: str, session: str, round: int, clients: Any) -> Session:
        state = self.sessions.get(session)
        if state is None:
            raise self._refusal(kind, session, round, clients, "unknown session")
        strangers = [client for client in clients if client not in self.client_keys]
        if strangers:
            raise self._refusal(kind, session, round, clients, f"{len(strangers)} unknown clients")
        if round < state.round:
            raise self._refusal(kind, session, round, clients, f"round {state.round} has begun: a replay")
        if round > state.round:
            state.round, state.summed = round, False
            state.openings.clear()
            state.deposits.clear()
            state.norms.clear()
        if state.summed:
            raise self._refusal(
                kind, session, round, clients, "this round has its sum; two sums can be subtracted"
            )
        return state

    def _check_cohort(self, kind: str, session: str, round: int, coefficients: Mapping[str, float]) -> None:
        values = list(coefficients.values())
        total = sum(values)
        if not all(math.isfinite(v) and v >= 0 for v in values) or not total > 0:
            raise self._refusal(
                kind, session, round, coefficients, "coefficients must be finite, not negative, not all 0"
            )
        counted = sum(value / total >= COUNTS_FROM / len(values) for value in values)
        if counted < self.policy.min_cohort:
            raise self._refusal(kind, session, round, coefficients, self._too_few(counted))
        largest = max(values) / total
        if largest > self.policy.max_share:
            raise self._refusal(
                kind,
                session,
                round,
                coefficients,
                f"one client has {largest:.3f} of the sum, more than {self.policy.max_share:g}",
            )

    def _too_few(self, count: int) -> str:
        return f"a cohort of {count}, fewer than {self.policy.min_cohort} clients"

    def _spend(self, kind: str, session: str, round: int, state: Session, clients: Any) -> None:
        for client in clients:
            if state.openings[client] >= MAX_OPENINGS:
                raise self._refusal(
                    kind, session, round, clients, f"{MAX_OPENINGS} openings a client and round are spent"
                )
        state.openings.update(list(clients))
        self.keep(session, state)  # spent even if the rest goes wrong

    def _flooded(self, opened: np.ndarray) -> np.ndarray:
        spread = FLOOD * float(np.sqrt(np.mean(opened**2))) if len(opened) else 0.0
        noisy = opened + self._random.normal(0.0, spread, len(opened))
        return noisy.astype(np.float32).astype(np.float64)

    def _flooded_number(self, value: float) -> float:
        return value * (1 + FLOOD * float(self._random.normal()))

    def _note(self, kind: str, session: str, round: int, clients: Any, **more: Any) -> None:
        line = {"time": time.time(), "kind": kind, "session": session, "round": round}
        self.log({**line, "clients": [self.names(client) for client in clients], **more})

    def _refusal(
        self, kind: str, session: str, round: int, clients: Any, reason: str, culprit: str | None = None
    ) -> Refused:
        self._note(kind, session, round, clients, refused=reason)
        return Refused(f"the steward refuses round {round}: {reason}", culprit)


def _named(coefficients: Mapping[str, float], names: Callable[[str], str]) -> dict[str, float]:
    return {names(client): value for client, value in coefficients.items()}
