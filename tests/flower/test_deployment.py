"""A federation of real processes on loopback survives kills, attacks, interrupts and intruders."""

import os
import signal

import pytest

pytest.importorskip("flwr")

from tests.flower.deployment import PATIENCE, wait_for

from wardround.flower.certificates import KeyFiles, make_node_keys, make_server_certificate
from wardround.runs.audit import verify

DATA = {"name": "synthetic", "samples": 300, "features": 6}
SHARED = {"name": "dirichlet", "clients": 3, "alpha": 1.0}
RUN = {
    "name": "drill",
    "model": {"name": "mlp", "hidden": [4]},
    "aggregator": {"name": "caac", "t_boot": 1},
    "rounds": 5000,  # the most that hospitals accept by default: it cannot be over before it is interrupted
    "evaluate_every": 5000,
}


def profile_rounds(run, client):
    """Return in how many rounds a client's profile was updated, according to the last checkpoint."""
    state = run.read_checkpoint()["federation"]["rule"]
    return dict(zip(state["clients"], state["profiles"][:, -1].tolist(), strict=True)).get(client, 0)


def took_part(deployment, client, after):
    """Return the rounds later than `after` in which a client had a weight."""
    lines = deployment.run.clients()
    return [line.round for line in lines if line.client == client and line.round > after and line.weight]


@pytest.mark.slow
def test_a_federation_survives_kills_attacks_and_intruders(deploy):
    fed = deploy(["hospital-a", "hospital-b", "hospital-c"], quorum=1, deadline_seconds=30, retries=20)
    fed.configure(**RUN)
    for part, name in enumerate(fed.hospitals):
        attack = (
            {"attack": {"name": "sign-flip", "scale": 1e39}} if name == "hospital-c" else {}
        )  # NaN, infinity
        fed.hospital(name, dataset=DATA, partition=SHARED, part=part, **attack)
    fed.serve()
    for name in fed.hospitals:
        fed.join(name)
    fed.wait_for_round(2)

    # Intruders are refused with one line.
    make_node_keys(fed.folder / "intruders", ["intruder"])
    make_server_certificate(fed.folder / "intruders", ["127.0.0.1"])
    intruders = KeyFiles(fed.folder / "intruders")
    fed.hospital("unregistered", dataset=DATA, node_key=str(intruders.nodes / "intruder"))
    fed.hospital("wrong-authority", dataset=DATA, root_certificates=str(intruders.authority),
                 node_key=str(fed.keys.nodes / "hospital-a"))  # fmt: skip
    fed.hospital("plaintext", dataset=DATA, node_key=str(intruders.nodes / "intruder"))
    refused = {
        "unregistered": (fed.join("unregistered"), "does not know this hospital's key"),
        "wrong-authority": (fed.join("wrong-authority"), "its certificate is not signed by"),
        "plaintext": (
            fed.start("plaintext", "join", "--insecure", "--config", fed.folder / "plaintext.yaml"),
            "speaks TLS only",
        ),
    }
    for name, (process, words) in refused.items():
        assert process.wait(PATIENCE) == 2, fed.output(name)
        assert words in fed.output(name).splitlines()[-1]
        del fed.started[name]

    # A hospital is killed; the others continue; it comes back and is recognised.
    known, killed_after = profile_rounds(fed.run, "hospital-a"), max(fed.rounds())
    assert known >= 1
    assert fed.end("hospital-a", signal.SIGKILL) == -signal.SIGKILL
    wait_for(
        lambda: not fed.processes(fed.folder / "hospital-a.yaml"), "the killed hospital's trainer to end"
    )
    wait_for(lambda: max(fed.rounds()) > killed_after + 1, f"a round without it {fed.output('serve')}")
    alone = [
        n for n in fed.rounds() if n > killed_after and n not in took_part(fed, "hospital-a", killed_after)
    ]
    assert alone
    fed.join("hospital-a")
    back = wait_for(
        lambda: took_part(fed, "hospital-a", max(alone)), f"its return {fed.output('hospital-a')}"
    )
    assert set(took_part(fed, "hospital-b", 0)) >= set(alone)
    wait_for(lambda: profile_rounds(fed.run, "hospital-a") > known, "its profile to be updated")
    assert profile_rounds(fed.run, "hospital-a") <= len(took_part(fed, "hospital-a", 0))
    assert [e["client"] for e in fed.events() if e["event"] == "joined"].count("hospital-a") == 1, back

    # The malicious one has cost its own row and nothing else.
    lines = [line for line in fed.run.clients() if line.client == "hospital-c"]
    assert not any(line.weight for line in lines)
    assert any(e["event"] == "dropped" and e["client"] == "hospital-c" for e in fed.events())
    weights = fed.run.read_checkpoint()["federation"]["weights"]
    assert weights.isfinite().all()

    # The server is killed in the middle of a round, with all its processes, and started again.
    fed.wait_for_round(max(fed.rounds()) + 1)
    assert len(fed.server_processes()) >= 4, "SuperLink, gateway, SuperExec, server app"
    fed.end("serve", signal.SIGKILL)
    wait_for(lambda: not fed.server_processes(), "the killed server's processes to end")
    done = max(fed.rounds())
    fed.serve()
    fed.wait_for_round(done + 2)
    assert [e["round"] for e in fed.events() if e["event"] == "run-resumed"] == [done]

    # Ctrl-C stops everything, and the same command resumes.
    assert fed.end("serve", signal.SIGINT) == 130, fed.output("serve")
    assert not fed.server_processes()
    assert "run the same command to resume" in fed.output("serve")
    done = max(fed.rounds())
    fed.serve()
    fed.wait_for_round(done + 1)
    assert fed.rounds() == list(range(1, max(fed.rounds()) + 1))

    # `systemctl stop` sends SIGTERM to every process at once: the run is stopped, not failed.
    for pid in fed.server_processes():
        os.kill(pid, signal.SIGTERM)
    for name in ("serve", *fed.hospitals):
        assert fed.end(name, signal.SIGTERM) == 130, fed.output(name)
    assert fed.run.summary().status == "stopped", fed.run.summary().reason
    assert fed.events()[-1]["event"] == "run-stopped"
    assert not fed.processes()
    assert verify(fed.run.path / "audit.jsonl") > 10


@pytest.mark.slow
def test_secure_aggregation_survives_hospitals_that_come_and_go(deploy):
    """Four hospitals that know each other's registered keys; three must be left."""
    names = [f"hospital-{letter}" for letter in "abcd"]
    fed = deploy(names, quorum=3, deadline_seconds=30, retries=20)
    fed.configure(**{**RUN, "aggregator": {"name": "mean"}, "privacy": {"mode": "secure-aggregation"}})
    for part, name in enumerate(names):
        fed.hospital(
            name,
            dataset=DATA,
            partition={**SHARED, "clients": 4},
            part=part,
            peer_keys=str(fed.keys.nodes),
            policy={"mode": "secure-aggregation", "min_cohort": 3},
        )
    fed.serve()
    for name in names:
        fed.join(name)
    fed.wait_for_round(2)
    assert all(record.skipped is None for record in fed.run.rounds())
    assert {event["stage"] for event in fed.events() if event["event"] == "stage"} == {
        "share-keys", "mask", "confirm", "reveal",
    }  # fmt: skip

    # One is killed, at whatever stage it is; the others continue, and it comes back.
    before = max(fed.rounds())
    fed.end("hospital-a", signal.SIGKILL)
    wait_for(lambda: max(fed.rounds()) > before + 1, f"rounds without it {fed.output('serve')}")
    later = [record for record in fed.run.rounds() if record.round > before]
    assert any(record.skipped is None for record in later)
    fed.join("hospital-a")
    wait_for(lambda: took_part(fed, "hospital-a", max(fed.rounds()) - 1), fed.output("hospital-a"))

    # The server is killed: the round it was in may be lost, the next one is not.
    fed.end("serve", signal.SIGKILL)
    wait_for(lambda: not fed.server_processes(), "the killed server's processes to end")
    done = max(fed.rounds())
    fed.serve()
    fed.wait_for_round(done + 2)
    assert any(record.skipped is None for record in fed.run.rounds() if record.round > done)
    for name in ("serve", *names):
        assert fed.end(name, signal.SIGTERM) == 130, fed.output(name)
    assert verify(fed.run.path / "audit.jsonl") > 10
