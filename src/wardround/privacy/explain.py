"""Who sees what in each mode, and against whom it holds: `wardround privacy explain` and the documentation."""

from __future__ import annotations

from wardround.errors import ParameterError, did_you_mean

__all__ = ["DIFFERENTIAL_PRIVACY", "PARTIES", "TABLE", "explain_mode"]

PARTIES = ("the server", "the steward", "other clients", "server and steward together")

HONEST_BUT_CURIOUS = (
    "an honest-but-curious server only: one that sends the orders it should and tries to learn from the answers. It "
    "does not hold against a server that lies, because a hospital does whatever an order says"
)
SINGLE_UPDATES = (
    "it can ask for one round in several sessions with permuted weights and solve for every single update; or order a "
    "learning rate near zero from all hospitals but one, because the order is not bound to pad or signature: the sum "
    "is then that one's update"
)
DIFFERENTIAL_PRIVACY = (
    "in a federation it does not hold against the server in any mode: the order says whether there is any, a round "
    "asked twice returns the same noise, and the noise's seed has 32 bits, which can be searched. In a simulation the "
    "noise comes from the run's seed and protects nobody"
)

TABLE: dict[str, dict[str, str]] = {
    "plaintext": {
        "holds against": "strangers on the network only. The server receives every update",
        "a server that lies": "it has every update without a lie, and can order any training on a hospital's data",
        "what it is": "updates in the clear to an authenticated server over TLS; every rule works",
        "the server": "every update, every round, with its sender; sample counts and reported losses",
        "the steward": "there is none",
        "other clients": "the global model",
        "server and steward together": "as the server",
        "trust": "the server must be trusted with every update and with its orders",
    },
    "encrypted-fedmed": {
        "holds against": HONEST_BUT_CURIOUS,
        "a server that lies": SINGLE_UPDATES,
        "what it is": "clients add a one-time pad and encrypt; the server weighs by reports (fedmed, fedavg, "
        "fedprox, mean) and sums ciphertexts; the steward opens the sum and takes off the pads",
        "the server": "sample counts, reported losses, weights, and the weighted sum of a round; no update",
        "the steward": "who took part with which weight, and the weighted sum; no single ciphertext reaches it",
        "other clients": "the global model",
        "server and steward together": "every update: the one has the ciphertexts, the other the key",
        "trust": "the server must be trusted to send honest orders, and must not collude with the steward; a server "
        "that lies only about what it summed gets noise, because the pads that come off are those of the cohort and "
        "weights it named; whoever owns all other clients of a cohort can subtract them",
    },
    "encrypted-caac": {
        "holds against": HONEST_BUT_CURIOUS,
        "a server that lies": "it can order a learning rate near zero and recover the CKKS key from the noise of one "
        f"opened sum, and with it every update; {SINGLE_UPDATES}",
        "what it is": "clients encrypt and sign; the steward computes each update's norm and its cosine to the last "
        "sum under encryption and opens these two scalars; the server derives clip scales and weights (caac); the "
        "steward sums the signed ciphertexts and opens the sum",
        "the server": "two scalars a client and round (norm, cosine), sample counts, reported losses, weights, and "
        "the weighted sum; no update",
        "the steward": "the same scalars and sum. It also holds the single ciphertexts and the key: it opens "
        "nothing else, but it could",
        "other clients": "the global model",
        "server and steward together": "every update",
        "trust": "the server must be trusted to send honest orders, the steward to follow its policy (it recomputes "
        "what it opens, because a scalar or sum that a server made up would show anything); the two scalars tell the "
        "server how much a client learnt and whether it agrees with the others, which over rounds describes its "
        "population",
    },
    "secure-aggregation": {
        "holds against": "an honest-but-curious server, together with fewer than two thirds of the cohort. Where every "
        "hospital holds the registered keys of the others (peer_keys): also a server that lies, together with fewer "
        "than a third of the cohort",
        "a server that lies": "without peer_keys it can play the other hospitals of a cohort itself and subtract "
        "them: every update. With them it can end a round without a sum, and no more",
        "what it is": "hospitals mask their weighted updates for each other (fedmed, fedavg, fedprox, mean); the masks "
        "cancel in the sum. Keys are shared among the hospitals, so that those who drop out do not cost the round",
        "the server": "sample counts, reported losses, weights, who dropped out, and the weighted sum of a round over "
        "two thirds of the cohort or more; no update",
        "the steward": "there is none",
        "other clients": "the global model, and who takes part with which weight",
        "server and steward together": "as the server",
        "trust": "nobody alone. A third of the cohort or more together with the server can open single updates; a "
        "hospital that lies about its update is not noticed, because nobody sees it; whoever owns all other clients "
        "of a cohort can subtract them",
    },
}


def explain_mode(mode: str) -> str:
    """Against whom a mode holds and what it leaks, line by line; the limits come first."""
    if mode not in TABLE:
        raise ParameterError(f"unknown mode {mode!r}; {did_you_mean(mode, TABLE)}")
    answers = TABLE[mode]
    lines = [
        f"{mode} holds against: {answers['holds against']}",
        f"what a server that lies can do: {answers['a server that lies']}",
        f"differential privacy: {DIFFERENTIAL_PRIVACY}",
        "",
        f"{mode}: {answers['what it is']}",
        "",
        "who sees what, with a server and a steward that follow the protocol",
    ]
    lines += [f"  {party}: {answers[party]}" for party in PARTIES]
    return "\n".join([*lines, "", f"trust: {answers['trust']}"])
