"""Who sees what in each mode, and against whom it holds: `wardround privacy explain` and the documentation."""

from __future__ import annotations

from wardround.errors import ParameterError, did_you_mean

__all__ = ["DIFFERENTIAL_PRIVACY", "PARTIES", "TABLE", "explain_mode"]

PARTIES = ("the server", "the steward", "other clients", "server and steward together")

BOUND = (
    "a round has one order, bound by its hash into what hospitals send; hospitals answer a round once, within their "
    "own policy; the steward opens one sum per round and per model that was trained from, over at least min_cohort "
    "registered hospitals, and no sum that is almost zero"
)
REMAINS = (
    "it still gets one weighted sum per round, and one loss and set of metrics per hospital and round, of models of "
    "its choice. Whatever hospitals it plays itself can be subtracted. Models that differ a little give almost the "
    "same updates again, and sums of them with other coefficients can be solved for single updates: max_mixtures "
    "limits the sets of coefficients, differential privacy what they tell. A new run needs new keys from the steward"
)
DIFFERENTIAL_PRIVACY = (
    "in a federation each hospital draws its noise from its operating system, demands by its own policy how much there "
    "must be, and keeps its own ledger of ε. Sample counts, losses and metrics are not covered: a hospital that "
    "demands noise keeps losses and metrics to itself. In a simulation the noise comes from the run's seed and "
    "protects nobody"
)

TABLE: dict[str, dict[str, str]] = {
    "plaintext": {
        "holds against": "strangers on the network only. The server receives every update",
        "a server that lies": "it has every update without a lie; what it can order is bounded by the "
        "hospital's policy",
        "what it is": "updates in the clear to an authenticated server over TLS; every rule works",
        "the server": "every update, every round, with its sender; sample counts and reported losses",
        "the steward": "there is none",
        "other clients": "the global model",
        "server and steward together": "as the server",
        "trust": "the server must be trusted with every update, as far as differential privacy does not protect it",
    },
    "encrypted-fedmed": {
        "holds against": "a server that is curious, and the known attacks of one that lies (tests carry them "
        "out, nothing "
        f"is proven): {BOUND}",
        "a server that lies": REMAINS,
        "what it is": "clients add a one-time pad and encrypt; the server weighs by reports (fedmed, fedavg, "
        "fedprox, mean) and sums ciphertexts; the steward opens the sum and takes off the pads",
        "the server": "sample counts, reported losses, weights, and the weighted sum of a round; no update",
        "the steward": "who took part with which weight, and the weighted sum; no single ciphertext reaches it",
        "other clients": "the global model",
        "server and steward together": "every update: the one has the ciphertexts, the other the key",
        "trust": "server and steward must not collude; a server that lies about what it summed gets noise, "
        "because the "
        "pads that come off are those of the cohort, weights and order it named; whoever owns all other clients of a "
        "cohort can subtract them",
    },
    "encrypted-caac": {
        "holds against": "a server that is curious, and the known attacks of one that lies (tests carry them "
        "out, nothing "
        f"is proven): {BOUND}; it never holds a ciphertext that is opened",
        "a server that lies": REMAINS,
        "what it is": "clients encrypt and seal for the steward; the steward computes each update's norm and "
        "its cosine to the last "
        "sum under encryption and opens these two scalars; the server derives clip scales and weights (caac); the "
        "steward sums the sealed ciphertexts and opens the sum",
        "the server": "two scalars per client and round (norm, cosine), sample counts, reported losses, weights, and "
        "the weighted sum; no update",
        "the steward": "the same scalars and sum. It also holds the single ciphertexts and the key: it opens "
        "nothing else, but it could",
        "other clients": "the global model",
        "server and steward together": "every update",
        "trust": "the steward must be trusted to follow its policy (it recomputes what it opens, because a "
        "scalar or sum "
        "that a server made up would show anything); the two scalars tell the server how much a client "
        "learnt and whether it agrees with the others, which over rounds describes its "
        "population",
    },
    "secure-aggregation": {
        "holds against": "an honest-but-curious server, together with fewer than two thirds of the cohort. "
        "Where every "
        "hospital holds the registered keys of the others (peer_keys): also a server that lies, together with fewer "
        "than a third of the cohort",
        "a server that lies": "without peer_keys it can play the other hospitals of a cohort itself and subtract "
        "them: every update. With them it gets one weighted sum per round and per model that was "
        "trained from, or none. Models that differ a little give almost the same updates again: sums of them with "
        "other weights or cohorts can be subtracted, and only differential privacy bounds what that tells",
        "what it is": "hospitals mask their weighted updates for each other (fedmed, fedavg, fedprox, mean); "
        "the masks "
        "cancel in the sum. Keys are shared among the hospitals, so that those who drop out do not cost the round",
        "the server": "sample counts, reported losses, weights, who dropped out, and the weighted sum of a "
        "round over "
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
