"""Who sees what in each mode: the table of `wardround privacy explain` and of the documentation."""

from __future__ import annotations

from wardround.errors import ParameterError, did_you_mean

__all__ = ["PARTIES", "TABLE", "explain_mode"]

PARTIES = ("the server", "the steward", "other clients", "server and steward together")

TABLE: dict[str, dict[str, str]] = {
    "plaintext": {
        "what it is": "updates in the clear to an authenticated server over TLS; every rule works",
        "the server": "every update, every round, with its sender; sample counts and reported losses",
        "the steward": "there is none",
        "other clients": "the global model",
        "server and steward together": "as the server",
        "trust": "the server must be trusted with every update (differential privacy bounds what one tells)",
    },
    "encrypted-fedmed": {
        "what it is": "clients add a one-time pad and encrypt; the server weighs by reports (fedmed, fedavg, "
        "fedprox, mean) and sums ciphertexts; the steward opens the sum and takes off the pads",
        "the server": "sample counts, reported losses, weights, and the weighted sum of a round; no update",
        "the steward": "who took part with which weight, and the weighted sum; no single ciphertext reaches it",
        "other clients": "the global model",
        "server and steward together": "every update: the one has the ciphertexts, the other the key",
        "trust": "server and steward must not collude; a server that lies about what it summed gets noise, because "
        "the pads that come off are those of the cohort and weights it named; whoever owns all other clients of a "
        "cohort can subtract them",
    },
    "encrypted-caac": {
        "what it is": "clients encrypt and sign; the steward computes each update's norm and its cosine to the last "
        "sum under encryption and opens these two scalars; the server derives clip scales and weights (caac); the "
        "steward sums the signed ciphertexts and opens the sum",
        "the server": "two scalars a client and round (norm, cosine), sample counts, reported losses, weights, and "
        "the weighted sum; no update",
        "the steward": "the same scalars and sum. It also holds the single ciphertexts and the key: it opens "
        "nothing else, but it could",
        "other clients": "the global model",
        "server and steward together": "every update",
        "trust": "the steward must be trusted to follow its policy (it recomputes what it opens, because a scalar or "
        "sum computed by a server that lies would show anything); the two scalars tell the server how much a client "
        "learnt and whether it agrees with the others, which over rounds describes its population",
    },
}


def explain_mode(mode: str) -> str:
    """A mode's leakage in words, line by line."""
    if mode not in TABLE:
        raise ParameterError(f"unknown mode {mode!r}; {did_you_mean(mode, TABLE)}")
    told = TABLE[mode]
    lines = [f"{mode}: {told['what it is']}", "", "who sees what"]
    lines += [f"  {party}: {told[party]}" for party in PARTIES]
    return "\n".join([*lines, "", f"trust: {told['trust']}"])
