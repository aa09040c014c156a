"""What encryption costs a client, the server and the steward, and that it changes no result.

    python benchmarks/bench_privacy.py            # 1.2 million parameters, 10 clients; 30 rounds on ICU data
    python benchmarks/bench_privacy.py --quick    # a tenth of the parameters, 5 rounds
    python benchmarks/bench_privacy.py --only caac    # one part: modes, ciphers, masks, caac, or fedmed (a quarter of
                                                      # an hour)

Times are seconds of processor time of one client's or party's work, the smallest of the repeats: what others do on the
machine hardly counts. Bytes are what travels. The part `modes` has one round in every mode side by side, and what each
costs as a multiple of the round in the clear: ratios within one run say more than seconds of different machines.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from wardround import Updates, aggregators
from wardround.experiments import expand, load_config, override, presets, run
from wardround.flower.messages import Note, pack, unpack
from wardround.privacy.encryption.ciphers import new_secret, public_side
from wardround.privacy.encryption.ckks import MODULUS_BITS, RING_DIMENSION, CkksSecret, security_bits
from wardround.privacy.encryption.pads import Pad
from wardround.privacy.encryption.paillier import KEY_BITS, PER_CIPHERTEXT
from wardround.privacy.encryption.sealing import Sealer
from wardround.privacy.encryption.steward import DEPOSITS, PADDED_SUMS, Steward
from wardround.updates import Aggregation

Value = TypeVar("Value")
CLIENTS = 10


@dataclass(frozen=True)
class Cost:
    """What one round costs."""

    client: float
    """Seconds of one client, beyond its training."""
    sent: int
    """Bytes that one client sends."""
    server: float
    steward: float
    error: float
    """Of the sum, relative to the one in the clear."""

    @property
    def seconds(self) -> float:
        """Of everybody together."""
        return CLIENTS * self.client + self.server + self.steward


def timed(work: Callable[[], Value], repeats: int = 1) -> tuple[float, Value]:
    """The least time of some repeats, and the last result."""
    best, value = float("inf"), None
    for _ in range(repeats):
        start = time.process_time()
        value = work()
        best = min(best, time.process_time() - start)
    return best, value  # type: ignore[return-value]


def bench_cipher(name: str, parameters: int) -> None:
    """A weighted sum of ten clients' padded updates, against fedmed in the clear."""
    matrix = torch.randn(CLIENTS, parameters, generator=torch.Generator().manual_seed(0)) * 1e-3
    loss = torch.linspace(0.3, 0.8, CLIENTS)
    expected = aggregators.create("fedmed").aggregate(Updates(matrix, metrics={"loss": loss}))
    assert expected.weights is not None
    rows = matrix.double().numpy()
    made, secret = timed(lambda: new_secret(name))
    public = public_side(name, secret.public_bytes())
    pads = [Pad(bytes([i])) for i in range(CLIENTS)]
    coefficients = [public.exact(weight) for weight in expected.weights.tolist()]
    encrypting, first = timed(lambda: public.encrypt(rows[0], pads[0]), repeats=2)
    rest = [public.encrypt(row, pad) for row, pad in zip(rows[1:], pads[1:], strict=True)]
    summing, total = timed(lambda: public.combine(zip([first, *rest], coefficients, strict=True)))
    opening, opened = timed(lambda: secret.open_sum(total, list(zip(coefficients, pads, strict=True))))
    error = np.linalg.norm(opened - expected.delta.double().numpy()) / float(expected.delta.double().norm())
    print(
        f"{name:>9} {parameters:>10,} {made:>8.2f} {encrypting:>9.2f} {len(first) / 1e6:>10.2f} "
        f"{len(first) / parameters:>8.1f} {summing:>8.2f} {opening:>8.2f} {error:>10.1e}",
        flush=True,
    )


def bench_scalars(parameters: int) -> None:
    """Norm and cosine of one client's update under CKKS."""
    row = np.random.default_rng(0).normal(size=parameters) * 1e-3
    direction = np.random.default_rng(1).normal(size=parameters)
    secret = new_secret("ckks")
    assert isinstance(secret, CkksSecret)
    ciphertext = public_side("ckks", secret.public_bytes()).encrypt(row, None)
    secret.squared_norm(ciphertext)  # makes the rotation keys
    norm_time, squared = timed(lambda: secret.squared_norm(ciphertext), repeats=2)
    dot_time, dot = timed(lambda: secret.dot(ciphertext, direction), repeats=2)
    lengths = np.linalg.norm(row) * np.linalg.norm(direction)
    print(
        f"a client's two scalars at {parameters:,} parameters: norm {norm_time:.2f} s (relative error "
        f"{abs(squared / (row @ row) - 1):.1e}), cosine {dot_time:.2f} s "
        f"(error {abs(dot - row @ direction) / lengths:.1e})"
    )


def bench_caac(rounds: int) -> None:
    """The same run of caac in the clear and encrypted: final AUROC, flags, seconds a round."""
    config: dict[str, Any] = {
        "dataset": {"name": "icu"},
        "partition": {"name": "dirichlet", "clients": 20, "alpha": 0.5, "sizes": "power-law"},
        "aggregator": {"name": "caac", "t_boot": max(2, rounds // 3)},
        "attack": {"name": "sign-flip", "fraction": 0.2, "start": max(3, rounds // 2)},
        "rounds": rounds,
        "evaluate_every": rounds,
    }
    print(f"caac on ICU data, 20 clients, 4 of them malicious from the middle on, {rounds} rounds")
    print(f"{'mode':>16} {'auroc':>8} {'flags':>6} {'aggregate':>10} {'skipped':>8}")
    flags, aurocs = [], []
    with tempfile.TemporaryDirectory() as out:
        for mode in ("plaintext", "encrypted-caac"):
            folder = run(load_config({**config, "privacy": {"mode": mode}}), Path(out))
            summary = folder.summary()
            assert summary is not None
            flags.append([record.flag for record in folder.clients()])
            aurocs.append(summary.auroc)
            seconds = summary.overhead["seconds_per_round"]["aggregate"]
            print(
                f"{mode:>16} {aurocs[-1]:>8.4f} {sum(flags[-1]):>6} {seconds:>9.3f}s {summary.skipped_rounds:>8}"
            )
    different = sum(one != other for one, other in zip(*flags, strict=True))
    print(f"AUROC differs by {abs(aurocs[0] - aurocs[1]):.5f}; {different} of {len(flags[0])} flags differ")


def bench_fedmed(out: Path) -> None:
    """The preset fedmed-icu-encrypted beside the same runs in the clear; what is finished in `out` is not repeated."""
    print(f"{'liars':>11} {'clip':>11} {'auroc':>7} {'encrypted':>9} {'refused':>9} {'liars weigh':>12}")
    for config in expand(*presets.load_matrix("fedmed-icu-encrypted")):
        plain, hidden = (
            run(load_config(override(config.plain(), {"privacy.mode": mode})), out)
            for mode in ("plaintext", "encrypted-fedmed")
        )
        opened = {record.round for record in hidden.rounds() if not record.skipped}
        records = [record for record in hidden.clients() if record.round in opened]
        weigh = sum(record.weight or 0.0 for record in records if record.byzantine) / max(1, len(opened))
        finals = [folder.summary().auroc for folder in (plain, hidden)]
        liars = sum(record.byzantine for record in records if record.round == min(opened))
        who = f"{liars} colluding" if config.attack.get("collude") else str(liars)
        refused = f"{config.rounds - len(opened)} of {config.rounds}"
        print(
            f"{who:>11} {config.aggregator['clip']:>11} {finals[0]:>7.3f} {finals[1]:>9.3f} {refused:>9} "
            f"{weigh:>12.3f}",
            flush=True,
        )


def bench_modes(parameters: int) -> None:
    """One round of ten clients in every mode, beside the round in the clear."""
    costs = {
        "plaintext": plaintext_cost(parameters),
        PADDED_SUMS: steward_cost(PADDED_SUMS, parameters),
        DEPOSITS: steward_cost(DEPOSITS, parameters),
        "secure-aggregation": masks_cost(parameters)[0],
    }
    clear = costs["plaintext"]
    print(f"one round of {CLIENTS} clients, {parameters:,} parameters; multiples of the round in the clear")
    print(
        f"{'mode':>18} {'client s':>9} {'server s':>9} {'steward s':>9} {'MB/client':>10} {'x bytes':>8} "
        f"{'x seconds':>9} {'rel. error':>10}"
    )
    for mode, cost in costs.items():
        print(
            f"{mode:>18} {cost.client:>9.3f} {cost.server:>9.3f} {cost.steward:>9.3f} {cost.sent / 1e6:>10.2f} "
            f"{cost.sent / clear.sent:>8.1f} {cost.seconds / clear.seconds:>9.1f} {cost.error:>10.1e}",
            flush=True,
        )


def updates_of(parameters: int, clients: int = CLIENTS) -> Updates:
    """A round's updates, with the losses that fedmed weighs by."""
    matrix = torch.randn(clients, parameters, generator=torch.Generator().manual_seed(0)) * 1e-3
    return Updates(matrix, metrics={"loss": torch.linspace(0.3, 0.8, clients)})


def plaintext_cost(parameters: int) -> Cost:
    """Clients pack their updates, the server unpacks and sums."""
    updates = updates_of(parameters)
    rows = [row.numpy() for row in updates.matrix]
    packing, message = timed(lambda: pack(Note({}, {}, {"update": rows[0]})), repeats=3)
    messages = [pack(Note({}, {}, {"update": row})) for row in rows]

    def aggregate() -> Aggregation:
        received = np.stack([unpack(content).arrays["update"] for content in messages])
        return aggregators.create("fedmed").aggregate(
            Updates(torch.from_numpy(received), metrics=updates.metrics)
        )

    summing, _ = timed(aggregate, repeats=3)
    return Cost(packing, len(message), summing, 0.0, 0.0)


def steward_cost(mode: str, parameters: int) -> Cost:
    """Clients encrypt, and the server or the steward sums; the steward opens."""
    updates = updates_of(parameters)
    expected = aggregators.create("fedmed").aggregate(updates)
    assert expected.weights is not None
    keys = {client: client.encode() for client in updates.clients}
    steward = Steward(new_secret("ckks"), keys, mode)
    public = public_side(*steward.public_context())
    sealers = {client: Sealer(client, mode, key, public) for client, key in keys.items()}
    rows = dict(zip(updates.clients, updates.matrix.double().numpy(), strict=True))
    first = updates.clients[0]
    sealing, content = timed(lambda: sealers[first].seal(rows[first], 1, "order"), repeats=2)
    sealed = {client: sealers[client].seal(row, 1, "order") for client, row in rows.items()}
    coefficients = {
        client: public.exact(weight) for client, weight in zip(rows, expected.weights.tolist(), strict=True)
    }
    summing = 0.0  # where the steward does it
    if mode == PADDED_SUMS:
        summing, total = timed(lambda: public.combine((sealed[c], coefficients[c]) for c in rows))
        opening, opened = timed(lambda: steward.open_padded_sum(1, "order", coefficients, total))
    else:
        measuring, _ = timed(lambda: steward.measure(1, "order", sealed))
        adding, opened = timed(lambda: steward.open_measured_sum(1, "order", coefficients))
        opening = measuring + adding
    right = expected.delta.double().numpy()
    return Cost(
        sealing, len(content), summing, opening, float(np.linalg.norm(opened - right) / np.linalg.norm(right))
    )


def bench_masks(parameters: int, clients: int = CLIENTS, lost: int = 0) -> None:
    """Print what secure aggregation costs, where `lost` clients drop out after the others have masked."""
    cost, clear = masks_cost(parameters, clients, lost)
    print(
        f"{parameters:>10,} {clients:>8} {lost:>5} {cost.client:>9.2f} {cost.sent / 1e6:>10.2f} "
        f"{cost.sent / parameters:>8.1f} {cost.server:>9.2f} {cost.error:>10.1e} {4 * parameters / 1e6:>12.2f} "
        f"{clear:>9.3f}",
        flush=True,
    )


def masks_cost(parameters: int, clients: int = CLIENTS, lost: int = 0) -> tuple[Cost, float]:
    """The same weighted sum by secure aggregation, and the seconds of the sum in the clear."""
    from wardround.flower.secure_aggregation.client import MaskingClient
    from wardround.flower.secure_aggregation.cohort import Cohort, Limits
    from wardround.flower.secure_aggregation.server import MaskingServer

    updates = updates_of(parameters, clients)
    clear, expected = timed(lambda: aggregators.create("fedmed").aggregate(updates), repeats=2)
    assert expected.weights is not None
    names, limits, work = updates.clients, Limits(), 0.0
    rows = dict(zip(names, updates.matrix.double().numpy(), strict=True))
    weights = dict(zip(names, expected.weights.tolist(), strict=True))
    players = {name: MaskingClient(name, "order", limits) for name in names}
    cohort = Cohort("order", {name: player.public_keys() for name, player in players.items()}, weights)
    server = MaskingServer(cohort, parameters, limits)
    sent = sum(len(key) for key in (cohort.keys[names[0]].masks, cohort.keys[names[0]].shares))
    for name, player in players.items():
        spent, shares = timed(lambda player=player: player.share_keys(cohort))
        server.take_shares(name, shares)
        if name == names[0]:
            work, sent = work + spent, sent + sum(map(len, shares.tokens.values()))
    for name, tokens in server.deliveries().items():
        if name not in names[clients - lost :]:
            masking = partial(players[name].mask, tokens, rows[name])
            spent, masked = timed(masking)
            server.take_masked(name, masked)
            if name == names[0]:
                work, sent = work + spent, sent + masked.nbytes
    survivors = server.survivors()
    for name in survivors:
        spent, tags = timed(partial(players[name].confirm, survivors))
        server.take_tags(name, tags)
        work += spent if name == names[0] else 0.0
    for name, tags in server.confirmations().items():
        spent, revealed = timed(partial(players[name].reveal, tags))
        server.take_revealed(name, revealed)
        if name == names[0]:
            work, sent = work + spent, sent + len(str(revealed))
    unmasking, total = timed(server.unmask)
    left = sum(weights[name] * rows[name] for name in survivors)
    error = float(np.linalg.norm(total - left) / np.linalg.norm(left))
    return Cost(work, sent, unmasking, 0.0, error), clear


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=["modes", "ciphers", "caac", "fedmed", "masks"])
    parser.add_argument(
        "--out", type=Path, default=Path("runs"), help="folder for the runs of `--only fedmed`"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.only == "fedmed":
        bench_fedmed(given.out)
        return
    if given.only in (None, "modes"):
        bench_modes(120_000 if given.quick else 1_200_000)
    if given.only == "modes":
        return
    if given.only in (None, "masks"):
        print(
            f"{'parameters':>10} {'clients':>8} {'lost':>5} {'client s':>9} {'MB/client':>10} {'B/param':>8} "
            f"{'unmask s':>9} {'rel. error':>10} {'MB in clear':>12} {'sum s':>9}"
        )
        large = 120_000 if given.quick else 1_200_000
        for parameters, clients, lost in (
            (large, 10, 0),
            (large, 10, 3),
            (5_000, 10, 0),
            (5_000, 20, 0),
            (5_000, 50, 0),
        ):
            bench_masks(parameters, clients, lost)
    if given.only == "masks":
        return
    if given.only != "caac":
        print(
            f"ckks: ring {RING_DIMENSION}, modulus {sum(MODULUS_BITS)} bits, {security_bits()}-bit security; "
            f"paillier: {KEY_BITS} bits, {PER_CIPHERTEXT} values a ciphertext; {CLIENTS} clients"
        )
        print(
            f"{'cipher':>9} {'parameters':>10} {'keys s':>8} {'encrypt s':>9} {'MB/client':>10} {'B/param':>8} "
            f"{'sum s':>8} {'open s':>8} {'rel. error':>10}"
        )
        bench_cipher("ckks", 120_000 if given.quick else 1_200_000)
        bench_cipher("ckks", 5_000)
        bench_cipher("paillier", 500 if given.quick else 5_000)
        bench_scalars(120_000 if given.quick else 1_200_000)
    if given.only != "ciphers":
        bench_caac(5 if given.quick else 30)


if __name__ == "__main__":
    main()
