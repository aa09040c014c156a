"""The server's connection to a steward in another process."""

from __future__ import annotations

import hmac
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from wardround.errors import ConfigError, WardroundError
from wardround.privacy.encryption.refusals import KeysSpent, Refused, StewardAway
from wardround.privacy.encryption.steward import Measured
from wardround.privacy.encryption.wire import (
    NONCE,
    PROOF,
    NotAuthentic,
    answer_proof,
    pack_message,
    signed_headers,
    unpack_message,
)

__all__ = ["RemoteSteward"]


class RemoteSteward:
    """Asks a steward over HTTP; a `StewardHandle` like the steward itself."""

    def __init__(self, address: str, key: bytes, timeout: float = 600.0) -> None:
        if urlsplit(address).scheme not in ("http", "https") or not urlsplit(address).hostname:
            raise ConfigError(
                f"privacy.steward: {address!r} is no address; for example http://127.0.0.1:8471"
            )
        self.address, self.key, self.timeout = address.rstrip("/"), key, timeout

    def public_context(self) -> tuple[str, bytes]:
        """The cipher's name and its public keys."""
        head, blobs = self._ask("/context", {})
        return head["cipher"], blobs[0]

    def open_padded_sum(
        self, round: int, order: str, coefficients: Mapping[str, float], ciphertext: bytes
    ) -> np.ndarray:
        """See `Steward`."""
        head = {"round": round, "order": order, "coefficients": dict(coefficients)}
        return _vector(self._ask("/sum", head, [ciphertext])[1])

    def measure(self, round: int, order: str, deposits: Mapping[str, bytes]) -> dict[str, Measured]:
        """See `Steward`."""
        head = {"round": round, "order": order, "clients": list(deposits)}
        answer, _ = self._ask("/measure", head, list(deposits.values()))
        return {client: Measured(norm, cosine) for client, (norm, cosine) in answer["scalars"].items()}

    def open_measured_sum(self, round: int, order: str, coefficients: Mapping[str, float]) -> np.ndarray:
        """See `Steward`."""
        head = {"round": round, "order": order, "coefficients": dict(coefficients)}
        return _vector(self._ask("/measured-sum", head)[1])

    def _ask(
        self, path: str, head: dict[str, Any], blobs: Sequence[bytes] = ()
    ) -> tuple[dict[str, Any], list[bytes]]:
        body = pack_message(head, blobs)
        headers = signed_headers(self.key, path, body)
        request = urllib.request.Request(self.address + path, data=body, headers=headers, method="POST")
        # From Python 3.12 on urllib would keep the authorities of its first request, also where they are renewed.
        trusted = ssl.create_default_context() if request.type == "https" else None
        try:
            with urllib.request.urlopen(request, timeout=self.timeout, context=trusted) as response:
                status, answer, proof = response.status, response.read(), response.headers.get(PROOF)
        except urllib.error.HTTPError as error:
            status, answer, proof = error.code, error.read(), error.headers.get(PROOF)
        except OSError as error:
            reason = getattr(error, "reason", error)
            raise StewardAway(f"the steward at {self.address} cannot be reached ({reason})") from None
        if status == 401:  # a stranger's answer is not signed with our key
            raise NotAuthentic(
                f"the steward at {self.address} does not know this server's key, or the clocks differ"
            )
        right = answer_proof(self.key, headers[NONCE], status, answer)
        if not hmac.compare_digest(right.encode(), (proof or "").encode()):
            raise NotAuthentic(f"the answer from {self.address} is not signed with the steward's key")
        reply, parts = unpack_message(answer)
        if status == 403:
            refusal = KeysSpent if reply.get("spent") else Refused
            raise refusal(reply["error"], reply.get("client"))
        if status != 200:
            raise WardroundError(f"the steward at {self.address}: {reply['error']}")
        return reply, parts


def _vector(blobs: list[bytes]) -> np.ndarray:
    return np.frombuffer(blobs[0], dtype="<f8").astype(np.float64)
