"""Real hospitals in a masked round, and a server that lies to them."""

import os

import numpy as np
import pytest

from wardround.errors import ConfigError, WardroundError
from wardround.flower.certificates import make_node_keys
from wardround.flower.config import federation_from, hospital_from
from wardround.flower.hospital.hospital import Hospital
from wardround.flower.hospital.memory import read_log
from wardround.flower.hospital.state_file import StateFile
from wardround.flower.messages import TRAIN, Note, pack, unpack
from wardround.flower.orders import AUDIT, order_hash, work_section
from wardround.flower.secure_aggregation.client import MaskingClient
from wardround.flower.secure_aggregation.cohort import Cohort, Limits, PublicKeys

NAMES = ("east", "north", "south", "west")
FED = federation_from("model: {name: mlp, hidden: [4]}\nrounds: 9\nfederation: {clients: 4}")
WEIGHTS = np.zeros(33, np.float32)
REFUSED = "refused by the hospital's policy"


def hospital(name, folder=None, **values):
    data = {"name": "synthetic", "samples": 200, "features": 6}
    values = {"policy": {"mode": "secure-aggregation", "min_cohort": 3}, **values}
    return Hospital.from_config(
        hospital_from({"name": name, "dataset": data, "seed": NAMES.index(name), **values}), folder
    )


def train_order(round=1, **head):
    policy = {"prox_mu": None, "local_batch_norm": False}
    asked = {
        "kind": TRAIN,
        **work_section(FED.run),
        "round": round,
        "clients": 4,
        "policy": policy,
        "run": "one",
    }
    return Note(
        {**asked, "mode": "secure-aggregation", AUDIT: [round, "0" * 64], **head}, {}, {"weights": WEIGHTS}
    )


class Server:
    """A server that asks what the test makes it ask."""

    def __init__(self, hospitals, order=None):
        self.hospitals, self.order = hospitals, order or train_order()
        self.hash = order_hash(self.order)

    def train(self):
        self.trained = {name: h.reply(self.order) for name, h in self.hospitals.items()}
        self.keys = {name: PublicKeys(*reply.head["keys"]) for name, reply in self.trained.items()}
        return self

    def cohort(self, keys=None, **weights):
        keys = keys or self.keys
        shares = {**dict.fromkeys(keys, 1 / len(keys)), **weights}
        return Cohort(self.hash, keys, shares).to_plain()

    def ask(self, name, kind, **head):
        return self.hospitals[name].reply(
            Note({"kind": kind, "run": "one", "round": 1, "order": self.hash, **head})
        )

    def share(self):
        self.shares = {name: self.ask(name, "share-keys", cohort=self.cohort()) for name in self.hospitals}
        return self

    def tokens(self, name):
        return {peer: reply.head["tokens"][name] for peer, reply in self.shares.items() if peer != name}

    def mask(self):
        self.masked = {name: self.ask(name, "mask", shares=self.tokens(name)) for name in self.hospitals}
        return self

    def refuses(self, name, kind, **head):
        with pytest.raises(WardroundError, match=REFUSED):
            self.ask(name, kind, **head)


@pytest.fixture
def hospitals():
    return {name: hospital(name) for name in NAMES}


@pytest.fixture
def server(hospitals):
    return Server(hospitals).train()


def test_nothing_but_reports_and_keys_leaves_with_training(server):
    for reply in server.trained.values():
        assert not reply.arrays
        assert set(reply.head) == {"keys"}
        assert set(reply.metrics) == {"num-examples", "loss"}


def test_another_mode_than_the_policys_is_refused(hospitals):
    for mode in ("plaintext", "encrypted-fedmed"):
        with pytest.raises(WardroundError, match=REFUSED):
            hospitals["north"].reply(train_order(mode=mode))
    plain = {key: value for key, value in train_order().head.items() if key != "mode"}
    with pytest.raises(WardroundError, match=REFUSED):
        hospitals["north"].reply(Note(plain, {}, {"weights": WEIGHTS}))


def test_a_round_is_answered_for_one_order(server):
    """Attack: a learning rate near zero for all but one, or the same round with other work."""
    training = {**server.order.head["training"], "lr": 0.02}
    with pytest.raises(WardroundError, match=REFUSED):
        server.hospitals["north"].reply(train_order(training=training))


def test_hospitals_with_different_orders_share_no_masks(hospitals):
    """Attack: all but the victim train with another learning rate; the server hides it in the orders' hashes."""
    victim, others = Server({"north": hospitals["north"]}).train(), None
    training = {**victim.order.head["training"], "lr": 1e-5}
    rest = {name: hospitals[name] for name in NAMES if name != "north"}
    others = Server(rest, train_order(training=training)).train()
    keys = {**victim.keys, **others.keys}
    shares = {
        name: server.ask(name, "share-keys", cohort=server.cohort(keys))
        for server in (victim, others)
        for name in server.hospitals
    }
    tokens = {peer: shares[peer].head["tokens"]["north"] for peer in rest}
    victim.refuses("north", "mask", shares=tokens)


@pytest.mark.parametrize(
    "weights",
    [
        {"north": 1.0, "east": 0.0, "south": 0.0, "west": 0.0},
        {"north": 0.7, "east": 0.1, "south": 0.1, "west": 0.1},
        {"north": 0.5, "east": 0.5, "south": 1e-12, "west": 0.0},
        {"north": 2.0, "east": -0.5, "south": -0.5, "west": 0.0},
        {"north": float("nan")},
    ],
)
def test_weights_that_single_a_hospital_out_are_refused(server, weights):
    server.refuses("north", "share-keys", cohort=server.cohort(**weights))


def test_a_cohort_of_one_or_two_is_refused(server):
    for names in (["north"], ["north", "east"]):
        server.refuses(
            "north", "share-keys", cohort=server.cohort({name: server.keys[name] for name in names})
        )
    for junk in (None, [], {"north": 5}, "cohort"):
        server.refuses("north", "share-keys", cohort=junk)


def test_a_second_cohort_for_one_round_is_refused(server):
    """Attack: several sums of one round with permuted weights give single updates by linear algebra."""
    server.share()
    server.refuses("north", "share-keys", cohort=server.cohort(north=0.3, east=0.2))
    server.mask()
    server.refuses("north", "mask", shares=server.tokens("north"))
    again = server.hospitals["north"].reply(server.order)
    assert again.head == {"spent": True}  # neither keys nor update: it has gone into one sum
    server.refuses("north", "share-keys", cohort=server.cohort())


def test_the_same_round_as_another_run_is_refused(server):
    """Attack: several runs of the same rounds, each with other weights."""
    north = server.hospitals["north"]
    with pytest.raises(WardroundError, match=REFUSED):
        north.reply(train_order(run="two"))
    restarted = hospital("north")
    restarted.load_state(north.save_state())
    with pytest.raises(WardroundError, match=REFUSED):
        restarted.reply(train_order(run="two"))
    policy = {"mode": "secure-aggregation", "runs": ["one", "two"]}
    open_to_both = hospital("north", policy=policy)
    open_to_both.load_state(north.save_state())
    assert "keys" in open_to_both.reply(train_order(run="two")).head
    with pytest.raises(WardroundError, match=REFUSED):
        open_to_both.reply(train_order(run="three"))


def test_the_same_order_before_masking_gets_fresh_keys(server):
    before = dict(server.keys)
    server.share().train()
    assert all(server.keys[name].masks != before[name].masks for name in NAMES)
    reports = [reply.metrics for reply in server.trained.values()]
    assert all(reports)
    server.share().mask()


def test_both_kinds_of_shares_of_a_peer_are_not_to_be_had(server):
    """Attack: tell half that `west` survived, and half that it dropped out, then ask everybody the other way round."""
    server.share().mask()
    everyone, without = list(NAMES), [name for name in NAMES if name != "west"]
    lists = {"east": everyone, "north": without, "south": without, "west": everyone}
    tags = {name: server.ask(name, "confirm", survivors=left).head["tags"] for name, left in lists.items()}
    for name, left in lists.items():
        server.refuses(name, "confirm", survivors=without if left == everyone else everyone)
        received = {peer: own[name] for peer, own in tags.items() if name in own and peer != name}
        server.refuses(name, "reveal", tags=received)
        server.refuses(name, "reveal", tags={})


def test_a_replay_of_a_stage_is_refused(server):
    server.share().mask()
    tags = {name: server.ask(name, "confirm", survivors=list(NAMES)).head["tags"] for name in NAMES}
    received = {peer: own["north"] for peer, own in tags.items() if peer != "north"}
    revealed = server.ask("north", "reveal", tags=received)
    assert set(revealed.head["seeds"]) == set(NAMES)
    assert not revealed.head["keys"]
    for kind, head in (
        ("share-keys", {"cohort": server.cohort()}),
        ("mask", {"shares": server.tokens("north")}),
        ("confirm", {"survivors": list(NAMES)}),
        ("reveal", {"tags": received}),
    ):
        server.refuses("north", kind, **head)


def test_a_stage_of_no_round_is_refused(hospitals, server):
    fresh = Server({"north": hospital("north")})
    fresh.keys = server.keys
    fresh.refuses("north", "share-keys", cohort=server.cohort())
    server.hash = "1" * 64
    server.refuses("north", "share-keys", cohort=server.cohort())


def test_a_restart_changes_nothing(tmp_path):
    """Every answer is on the disk before it leaves: a hospital that was killed neither forgets nor repeats."""
    folders = {name: tmp_path / name for name in NAMES}
    for folder in folders.values():
        folder.mkdir()

    class Restarted:
        def __init__(self, name):
            self.name = name

        def reply(self, note):
            own = hospital(self.name, folders[self.name])
            StateFile(folders[self.name] / "memory", own).load()
            return unpack(own.answer(pack(note)))

    server = Server({name: Restarted(name) for name in NAMES}).train().share()
    server.refuses("north", "share-keys", cohort=server.cohort())
    server.mask()
    server.refuses("north", "mask", shares=server.tokens("north"))
    assert server.hospitals["north"].reply(server.order).head == {"spent": True}
    server.ask("north", "confirm", survivors=list(NAMES))
    server.refuses("north", "confirm", survivors=["north", "east", "south"])
    for folder in folders.values():
        assert os.stat(folder / "memory").st_mode & 0o077 == 0  # keys of the round are in it
    lines = read_log(folders["north"])
    assert [line["kind"] for line in lines if "refused" not in line] == [
        "train", "share-keys", "mask", "train", "confirm",
    ]  # fmt: skip
    assert [line["kind"] for line in lines if "refused" in line] == ["share-keys", "mask", "confirm"]
    assert all(line["order"] == server.hash for line in lines if "refused" not in line)
    assert "answered once" in next(line["refused"] for line in lines if "refused" in line)


def test_a_model_that_was_summed_from_is_not_trained_from_again(hospitals):
    """Attack: the same model in later rounds, for a sum with other weights that can be subtracted from the first."""
    server = Server(hospitals).train().share().mask()
    tags = {name: server.ask(name, "confirm", survivors=list(NAMES)).head["tags"] for name in NAMES}
    again = train_order(round=2, **{AUDIT: [2, "0" * 64]})
    assert hospitals["west"].reply(again).head["keys"]  # no sum of it was opened yet
    for name in NAMES[:3]:
        server.ask(name, "reveal", tags={peer: tags[peer][name] for peer in NAMES if peer != name})
        with pytest.raises(WardroundError, match=REFUSED):
            hospitals[name].reply(again)
        restarted = hospital(name)
        restarted.load_state(hospitals[name].save_state())
        with pytest.raises(WardroundError, match=REFUSED):
            restarted.reply(again)
        other = Note(again.head, {}, {"weights": WEIGHTS + 1})
        assert restarted.reply(other).head["keys"]


def test_an_update_that_cannot_be_masked_stays(server, monkeypatch, tmp_path):
    monkeypatch.setattr(
        "wardround.flower.hospital.hospital.masking_problem", lambda update: "an entry of 1e30"
    )
    with pytest.raises(WardroundError, match=REFUSED):
        hospital("north", tmp_path).reply(train_order())
    assert "its update cannot be masked: an entry of 1e30" in read_log(tmp_path)[-1]["refused"]


def test_with_registered_keys_a_server_cannot_play_hospitals(tmp_path):
    make_node_keys(tmp_path, NAMES)
    keys = tmp_path / "nodes"
    signed = {
        name: hospital(name, node_key=str(keys / name), peer_keys=str(keys))
        for name in ("north", "east", "south")
    }
    server = Server(signed).train()
    sybil = MaskingClient("west", server.hash, Limits()).public_keys()
    wider = {**server.keys, "west": sybil}
    server.refuses("north", "share-keys", cohort=server.cohort(wider))
    swapped = {**server.keys, "east": PublicKeys(sybil.masks, sybil.shares, server.keys["east"].signature)}
    server.refuses("north", "share-keys", cohort=server.cohort(swapped))
    server.share().mask()


def test_registered_keys_of_others_need_an_own_one(tmp_path):
    with pytest.raises(ConfigError, match="peer_keys needs node_key"):
        hospital("north", peer_keys=str(tmp_path))
