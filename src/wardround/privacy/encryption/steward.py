"""The key steward: holds the secret key, opens sums and scalars by a policy, logs every opening.

It checks what it opens instead of relying on the server:

* a *padded sum* (`open_padded_sum`) is summed by the server; the steward sees that sum only. Each client added a
  pad that only it and the steward know; the steward takes off the pads of the clients and weights the server
  named. If the server handed in anything else, what it gets back is noise (see `pads`).
* *deposits* (`measure`, then `open_measured_sum`) are single ciphertexts, each sealed by its client so that only the
  steward can read it: the server never holds a ciphertext that is opened. The steward computes norms, cosines and
  the weighted sum of exactly these itself, encrypted, and opens only the results. The direction of the cosines is
  the sum it opened last: a server that could choose it would read one coordinate per round.

Everything is bound to the round and to the hash of the order that clients answered: clients with different orders
cannot be summed. A steward's keys are for one run. Rounds only go forward; a round has one order, one measurement per
client and one sum. The same question again (a server that was killed and resumes) gets the same answer, from memory;
a different one is refused. A model that clients started from has one sum, too, whatever the round: training from it
again would give the same updates, and two sums of them could be subtracted. A steward does the one kind of opening or
the other, for as long as its keys live.

What is opened gets noise of fixed size, whatever is in it. An exact CKKS opening beside its ciphertext gives away the
secret key (Li and Micciancio, EUROCRYPT 2021), and noise in proportion to the value would be none on a sum of zeros.
The cipher's own error has a spread of e ≈ 10⁻¹⁵ per value (ring 16384, scale 2⁶⁰). With Gaussian noise of spread σ, the
opened values of two keys differ by at most n·(e/σ)²/2 in Kullback-Leibler divergence over n opened values: 2⁻²⁴ for
σ = 2⁻²⁴ and n = 2³⁰, a thousand rounds of a million parameters. Sums whose root mean square is below 2⁻²² are refused:
nothing but noise would be left of them.

Not covered: a server that knows, or plays, all other clients of a cohort can subtract them from the sum. That is why
`min_cohort` counts hospitals that are registered with the steward by name. And a server that changes the model a
little (or only the order of its hidden units) gets almost the same updates again, with coefficients of its choice:
`max_mixtures` bounds how many different sets of coefficients it gets; differential privacy bounds what they tell.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from pydantic import Field

from wardround.errors import ParameterError
from wardround.privacy.cohorts import MAX_SHARE, MIN_COHORT, cohort_problem, too_few
from wardround.privacy.dp import ProfileNoise
from wardround.privacy.encryption.ciphers import SecretSide
from wardround.privacy.encryption.ckks import CkksSecret, unpack
from wardround.privacy.encryption.pads import open_sealed, pad_for
from wardround.privacy.encryption.refusals import KeysSpent, Refused
from wardround.privacy.noise import STEPS_PER_SIGMA, discrete_gaussian, system_normal
from wardround.privacy.order_names import start_of
from wardround.registry import Parameters

__all__ = ["DEPOSITS", "PADDED_SUMS", "Measured", "Policy", "Progress", "Steward", "StewardHandle"]

PADDED_SUMS = "encrypted-fedmed"
DEPOSITS = "encrypted-caac"

VECTOR_NOISE = 2.0**-24
"""Spread of the noise on every value of an opened sum."""
SCALAR_NOISE = 2.0**-34
"""Spread of the noise on a squared norm or an inner product. Few of them are opened: two per client and round."""
SMALLEST_SUM = 2.0**-22
"""Least root mean square of a sum that is opened."""
TRIANGLE_SLACK = 1e-3
MIXTURE_SLACK = 1e-5
"""Coefficients that differ by less are the same: they are rounded to what a cipher can multiply with."""
LAST_ROUND = 10**6


class Policy(Parameters):
    """What the steward opens."""

    min_cohort: int = Field(MIN_COHORT, ge=2)
    """Fewest clients in a sum."""
    max_share: float = Field(MAX_SHARE, gt=0, lt=1)
    """Largest share of one client in a sum."""
    max_mixtures: int | None = Field(None, ge=1)
    """How many sets of coefficients that do not follow from each other are used in a run; None: any number.

    With k of them, updates that hardly change from round to round can be combined so that k − 1 clients fall out of the
    sum. Rules with fixed weights (`mean`, `fedavg`, `fedprox`) need one, and one more for each set of missing clients.
    """


@dataclass(frozen=True)
class Measured:
    """The two scalars of a client and round."""

    norm: float
    cosine: float | None
    """To the sum opened last; None where there is none yet."""


class StewardHandle(Protocol):
    """What the aggregating server can ask, in this process or over a connection."""

    def public_context(self) -> tuple[str, bytes]: ...

    def open_padded_sum(
        self, round: int, order: str, coefficients: Mapping[str, float], ciphertext: bytes
    ) -> np.ndarray: ...

    def measure(self, round: int, order: str, deposits: Mapping[str, bytes]) -> dict[str, Measured]: ...

    def open_measured_sum(self, round: int, order: str, coefficients: Mapping[str, float]) -> np.ndarray: ...


@dataclass
class Progress:
    """What the steward remembers of its run."""

    round: int = 0
    order: str = ""
    measured: dict[str, Measured] = field(default_factory=dict)
    """The scalars of this round, as they were given out."""
    norms: dict[str, float] = field(default_factory=dict)
    """The norms of this round without profile noise: an opened sum cannot be longer than its parts."""
    coefficients: dict[str, float] | None = None
    """Of this round's sum; None while it is not opened."""
    last_sum: np.ndarray | None = None
    """The sum opened last, of this round or an earlier one."""
    last_round: int = 0
    """The round of that sum."""
    starts: dict[str, int] = field(default_factory=dict)
    """Model that an order started from → the round of the last sum when it was first asked about."""
    mixtures: list[dict[str, float]] = field(default_factory=list)
    """Sets of coefficients that were used, none of which follows from the others; kept where there is a limit."""


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
        keep: Callable[[Progress], None] | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Put a steward together.

        Args:
            secret: the cipher's secret side.
            client_keys: client → the key it shares with the steward.
            mode: `PADDED_SUMS` or `DEPOSITS`.
            policy: what is opened.
            log: is handed a plain dict for every opening and every refusal.
            names: how clients are called in the log.
            profile_noise: noise on norms and cosines, where there is to be any.
            keep: called whenever something was opened, before the answer leaves.
            progress: where an earlier process of this steward stopped.
        """
        if mode not in (PADDED_SUMS, DEPOSITS):
            raise ParameterError(f"a steward's mode is {PADDED_SUMS} or {DEPOSITS}, got {mode!r}")
        self.secret, self.client_keys, self.mode = secret, dict(client_keys), mode
        self.policy = policy or Policy()
        self.log = log or (lambda line: None)
        self.names, self.profile_noise = names, profile_noise
        self.keep = keep or (lambda progress: None)
        self.progress = progress or Progress()
        self._deposits: dict[str, bytes] = {}  # of this round, without the clients' seals
        self._lock = threading.Lock()

    def public_context(self) -> tuple[str, bytes]:
        """The cipher's name and its public keys."""
        return self.secret.name, self.secret.public_bytes()

    def open_padded_sum(
        self, round: int, order: str, coefficients: Mapping[str, float], ciphertext: bytes
    ) -> np.ndarray:
        """Open Σ coefficient · (update + pad) and take off the pads of exactly these clients, weights and order."""
        with self._lock:
            request = _Request("sum", round, order, tuple(coefficients))
            self._check_request(request, PADDED_SUMS)
            if (repeated := self._repeated_sum(request, coefficients)) is not None:
                return repeated
            self._check_cohort(request, coefficients)
            parts = [
                (coefficient, pad_for(self.client_keys[client], round, order))
                for client, coefficient in coefficients.items()
                if coefficient
            ]
            return self._give_out(request, coefficients, self.secret.open_sum(ciphertext, parts))

    def measure(self, round: int, order: str, deposits: Mapping[str, bytes]) -> dict[str, Measured]:
        """Norm and cosine of every deposit: two scalars per client and round."""
        with self._lock:
            request = _Request("scalars", round, order, tuple(deposits))
            self._check_request(request, DEPOSITS)
            secret = self._ckks(request)
            if self.progress.coefficients is not None:
                return self._repeated_scalars(request)
            if len(deposits) < self.policy.min_cohort:
                raise self._refusal(request, too_few(len(deposits), self.policy.min_cohort))
            opened = {client: self._unsealed(request, client, sealed) for client, sealed in deposits.items()}
            self._check_lengths(request, opened)
            for client, ciphertext in opened.items():
                self._deposits[client] = ciphertext
                if client in self.progress.measured:
                    continue  # the same answer as before: a second measurement would average the noise away
                try:
                    norm, cosine = self._scalars(secret, ciphertext)
                except (Refused, ValueError) as problem:
                    raise self._refusal(request, f"{self.names(client)}: {problem}", client) from None
                self.progress.norms[client] = norm
                if self.profile_noise is not None:
                    norm, cosine = self.profile_noise.blur(norm, cosine, system_normal)
                self.progress.measured[client] = Measured(norm, cosine)
            self.keep(self.progress)
            self._note(request)
            return {client: self.progress.measured[client] for client in deposits}

    def open_measured_sum(self, round: int, order: str, coefficients: Mapping[str, float]) -> np.ndarray:
        """Sum the round's deposits with these coefficients, encrypted, and open the sum."""
        with self._lock:
            request = _Request("sum", round, order, tuple(coefficients))
            self._check_request(request, DEPOSITS)
            secret = self._ckks(request)
            if (repeated := self._repeated_sum(request, coefficients)) is not None:
                return repeated
            missing = [client for client in coefficients if client not in self._deposits]
            if missing:
                raise self._refusal(request, f"no deposit of {self.names(missing[0])}")
            self._check_cohort(request, coefficients)
            opened = secret.open_combination(
                (self._deposits[client], value) for client, value in coefficients.items()
            )
            bound = sum(value * self.progress.norms[client] for client, value in coefficients.items())
            if not np.linalg.norm(opened) <= bound * (1 + TRIANGLE_SLACK) + 1e-6:
                raise self._refusal(request, "the sum is longer than its parts: one wrapped around")
            return self._give_out(request, coefficients, opened)

    def _give_out(
        self, request: _Request, coefficients: Mapping[str, float], opened: np.ndarray
    ) -> np.ndarray:
        """Add the noise to an opened sum, remember it, log it."""
        if not np.isfinite(opened).all():
            raise self._refusal(request, "the sum is not finite")
        if not len(opened) or float(np.sqrt(np.mean(opened**2))) < SMALLEST_SUM:
            raise self._refusal(
                request, "the sum is (almost) zero: what would be opened is the cipher's own noise"
            )
        noise = discrete_gaussian(len(opened), float(STEPS_PER_SIGMA)) * (VECTOR_NOISE / STEPS_PER_SIGMA)
        result = (opened + noise).astype(np.float32).astype(np.float64)
        self.progress.coefficients, self.progress.last_sum = dict(coefficients), result
        self.progress.last_round = request.round
        if self.policy.max_mixtures is not None and not _follows(coefficients, self.progress.mixtures):
            self.progress.mixtures = [*self.progress.mixtures, dict(coefficients)]
        self._deposits.clear()
        self.keep(self.progress)  # before the answer leaves: whatever happens next, this round has its sum
        self._note(request, coefficients=_named(coefficients, self.names))
        return result

    def _repeated_sum(self, request: _Request, coefficients: Mapping[str, float]) -> np.ndarray | None:
        """The answer of this round's sum, where the same is asked again; None where there is none yet."""
        if self.progress.coefficients is None:
            return None
        if self.progress.coefficients != dict(coefficients) or self.progress.last_sum is None:
            raise self._refusal(request, "this round has its sum; two sums can be subtracted")
        self._note(request, repeated=True)
        return self.progress.last_sum

    def _repeated_scalars(self, request: _Request) -> dict[str, Measured]:
        """The scalars that were given out before this round's sum, where no others are asked for."""
        measured = self.progress.measured
        if any(client not in measured for client in request.clients):
            raise self._refusal(request, "this round has its sum; nobody is measured any more")
        self._note(request, repeated=True)
        return {client: measured[client] for client in request.clients}

    def _unsealed(self, request: _Request, client: str, sealed: bytes) -> bytes:
        key = self.client_keys[client]
        content = open_sealed(key, client, request.round, request.order, sealed)
        if content is None:
            raise self._refusal(
                request, f"not sealed by {self.names(client)} for this round and order", client
            )
        return content

    def _check_lengths(self, request: _Request, ciphertexts: Mapping[str, bytes]) -> None:
        """Name the client whose vector has another length than most: one of them must not cost everyone the round."""
        lengths = {}
        for client, ciphertext in ciphertexts.items():
            try:
                lengths[client] = unpack(ciphertext)[0]
            except Refused as problem:
                raise self._refusal(request, f"{self.names(client)}: {problem}", client) from None
        usual = Counter(lengths.values()).most_common(1)[0][0]
        for client, length in lengths.items():
            if length != usual:
                raise self._refusal(
                    request, f"{self.names(client)} sent {length} values instead of {usual}", client
                )

    def _scalars(self, secret: CkksSecret, ciphertext: bytes) -> tuple[float, float | None]:
        last = self.progress.last_sum
        norm = math.sqrt(max(0.0, self._noisy(secret.squared_norm(ciphertext))))
        if last is None:
            return norm, None
        length = norm * float(np.linalg.norm(last))
        if not length:
            return norm, 1.0
        return norm, float(np.clip(self._noisy(secret.dot(ciphertext, last)) / length, -1, 1))

    def _noisy(self, value: float) -> float:
        return value + SCALAR_NOISE * system_normal()

    def _ckks(self, request: _Request) -> CkksSecret:
        if not isinstance(self.secret, CkksSecret):
            raise self._refusal(request, f"{self.secret.name} has no inner products; ckks has")
        return self.secret

    def _check_request(self, request: _Request, mode: str) -> None:
        """Refuse what these keys are not for; begin a new round where it is the next one."""
        if self.mode != mode:
            raise self._refusal(request, f"its keys are for {self.mode}, this is a request of {mode}")
        round = request.round
        if isinstance(round, bool) or not isinstance(round, int) or not 1 <= round <= LAST_ROUND:
            raise self._refusal(request, f"a round is a number from 1 to {LAST_ROUND}")
        if not isinstance(request.order, str) or not 0 < len(request.order) <= 128:
            raise self._refusal(request, "an order is named by its hash")
        unknown = [client for client in request.clients if client not in self.client_keys]
        if unknown:
            raise self._refusal(request, f"{len(unknown)} unknown clients")
        if round < self.progress.round:
            raise self._spent(request, f"round {self.progress.round} has begun: a replay")
        if round == self.progress.round and request.order != self.progress.order:
            raise self._spent(request, "this round has begun with another order")
        if round > self.progress.round:
            self._begin(request)

    def _begin(self, request: _Request) -> None:
        """Begin a new round, from a model that no sum has been opened of."""
        before, start = self.progress, start_of(request.order)
        if before.starts.get(start, before.last_round) != before.last_round:
            raise self._refusal(
                request, "a sum was opened since this model was first trained from: two could be subtracted"
            )
        self.progress = Progress(
            request.round,
            request.order,
            last_sum=before.last_sum,
            last_round=before.last_round,
            starts={**before.starts, start: before.last_round},
            mixtures=before.mixtures,
        )
        self._deposits.clear()

    def _check_cohort(self, request: _Request, coefficients: Mapping[str, float]) -> None:
        problem = cohort_problem(coefficients, self.policy.min_cohort, self.policy.max_share)
        if problem is not None:
            raise self._refusal(request, problem)
        most, mixtures = self.policy.max_mixtures, self.progress.mixtures
        if most is not None and len(mixtures) >= most and not _follows(coefficients, mixtures):
            raise self._refusal(request, f"a set of coefficients beyond the {most} of max_mixtures")

    def _note(self, request: _Request, **more: Any) -> None:
        line = {"time": time.time(), "kind": request.kind} | {
            "round": _short(request.round),
            "order": _short(request.order),
        }
        self.log({**line, "clients": [self.names(client) for client in request.clients], **more})

    def _refusal(self, request: _Request, reason: str, client: str | None = None) -> Refused:
        return Refused(self._refused(request, reason), client)

    def _spent(self, request: _Request, reason: str) -> KeysSpent:
        return KeysSpent(self._refused(request, f"{reason}. A new run needs new keys of the steward"))

    def _refused(self, request: _Request, reason: str) -> str:
        self._note(request, refused=reason)
        return f"the steward refuses round {_short(request.round)}: {reason}"


@dataclass(frozen=True)
class _Request:
    """What the server asks for, for checks and log."""

    kind: str
    round: int
    order: str
    clients: tuple[str, ...]


def _follows(coefficients: Mapping[str, float], mixtures: Sequence[Mapping[str, float]]) -> bool:
    """Are the coefficients a combination of some that were used before, up to their rounding?"""
    if not mixtures:
        return False
    clients = sorted({client for mixture in (coefficients, *mixtures) for client in mixture})
    used = np.array([[mixture.get(client, 0.0) for client in clients] for mixture in mixtures])
    new = np.array([coefficients.get(client, 0.0) for client in clients])
    rest = new - np.linalg.lstsq(used.T, new, rcond=None)[0] @ used
    return float(np.linalg.norm(rest)) <= MIXTURE_SLACK * float(np.linalg.norm(new))


def _short(value: object) -> object:
    """For messages and the log: a number or a name as it is, whatever else a stranger sent as its type."""
    if (isinstance(value, int) and abs(value) < 2**63) or (isinstance(value, str) and len(value) <= 128):
        return value
    return type(value).__name__


def _named(coefficients: Mapping[str, float], names: Callable[[str], str]) -> dict[str, float]:
    return {names(client): value for client, value in coefficients.items()}
