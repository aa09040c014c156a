"""What the set of allowed answers adds up to, for a server that asks cleverly. See `test_malicious_server`.

Where something remains, a test shows it and what bounds it: the documentation says the same.
"""

import json
import math

import numpy as np
import pytest
from flwr.app import Message
from flwr.clientapp import ClientApp

from wardround.errors import ConfigError, WardroundError
from wardround.flower.config import federation_from, hospital_from
from wardround.flower.hospital.hospital import Hospital
from wardround.flower.hospital.memory import read_log
from wardround.flower.hospital.state_file import STATE_FILE, StateFile
from wardround.flower.inline_grid import InlineGrid
from wardround.flower.messages import EVALUATE, HELLO, SAMPLES, TRAIN, Note, from_records, to_records
from wardround.flower.orders import AUDIT, order_hash, work_section
from wardround.flower.server.run import run_federation
from wardround.privacy.encryption.ciphers import public_side
from wardround.privacy.encryption.pads import pad_for, seal_for_steward
from wardround.privacy.encryption.refusals import KeysSpent, Refused
from wardround.privacy.encryption.steward import DEPOSITS, PADDED_SUMS, Policy
from wardround.privacy.encryption.vault import Vault, key_path

pytestmark = pytest.mark.slow  # each with keys, hospitals and a steward of its own; the plain lies are fast

NAMES = [f"hospital-{i}" for i in range(4)]
EVEN = dict.fromkeys(NAMES, 0.25)
DATA = {"name": "synthetic", "samples": 200, "features": 6}
HIDDEN, FEATURES = 4, 6
SIZE = HIDDEN * (FEATURES + 1) + HIDDEN + 1
REFUSED = "refused by the hospital's policy"
FED = "model: {name: mlp, hidden: [4]}\ntraining: {lr: 0.05, batch_size: 1000}\nrounds: 20\nfederation: {clients: 4}"
WORK = work_section(federation_from(FED).run)
START = np.linspace(-0.5, 0.5, SIZE, dtype=np.float32)


def order(round=1, weights=START, kind=TRAIN, training=None, **changes):
    """What an honest server of this run would send, with some of it changed."""
    policy = {"prox_mu": None, "local_batch_norm": False}
    head = {"kind": kind, "run": "run-1", **WORK, "round": round, "clients": 4, "policy": policy}
    head["training"] = {**head["training"], **(training or {})}
    return Note(
        {**head, AUDIT: [round, "0" * 64], **changes}, {}, {"weights": np.asarray(weights, np.float32)}
    )


def hospital(name=NAMES[0], folder=None, **values):
    seed = int(name[-1])
    config = hospital_from({"name": name, "dataset": DATA, "seed": seed, **values})
    member = Hospital.from_config(config, folder)
    if folder is not None:
        StateFile(folder / STATE_FILE, member).load()
    return member


def is_refused(member, note):
    """Does the hospital refuse, and say nothing else?"""
    try:
        member.reply(note)
    except WardroundError as error:
        return str(error) == REFUSED
    return False


def plain_update(name, note):
    """What the hospital has learnt, which no server may see."""
    head = {key: value for key, value in note.head.items() if key != "mode"}
    return hospital(name).reply(Note(head, {}, note.arrays)).arrays["update"].astype(np.float64)


class Federation:
    """Hospitals with keys of one steward, everything on disk, and a server that asks what it likes."""

    def __init__(self, folder, mode, policy=None):
        pytest.importorskip("tenseal", reason="the extra 'privacy' is not installed")
        self.folder, self.mode = folder, mode
        self.vault = Vault(folder / "vault")
        self.vault.make(NAMES, mode, policy=policy)
        self.restart()

    def restart(self):
        """Everybody ends and starts again from disk."""
        self.steward = self.vault.steward()
        self.public = public_side(*self.steward.public_context())
        self.hospitals = {
            name: hospital(name, self.folder / name, steward_key=str(key_path(self.vault.keys, name)))
            for name in NAMES
        }

    def order(self, round=1, weights=START, **changes):
        return order(round, weights, mode=self.mode, **changes)

    def ask(self, note, names=NAMES):
        return {name: self.hospitals[name].reply(note).arrays["ciphertext"].tobytes() for name in names}

    def open(self, note, sealed, weights):
        asked, round = order_hash(note), note.head["round"]
        exact = {name: self.public.exact(weight) for name, weight in weights.items()}
        if self.mode == DEPOSITS:
            self.steward.measure(round, asked, sealed)
            return self.steward.open_measured_sum(round, asked, exact)
        total = self.public.combine((sealed[name], value) for name, value in exact.items() if value)
        return self.steward.open_padded_sum(round, asked, exact, total)

    def first_question(self, note, sealed):
        """What the steward is asked first in a round."""
        asked, round = order_hash(note), note.head["round"]
        if self.mode == DEPOSITS:
            return self.steward.measure(round, asked, sealed)
        return self.steward.open_padded_sum(round, asked, EVEN, sealed[NAMES[0]])

    def round(self, note, weights=EVEN):
        return self.open(note, self.ask(note), weights)


@pytest.fixture(params=[PADDED_SUMS, pytest.param(DEPOSITS, marks=pytest.mark.slow)])
def federation(request, tmp_path):
    return Federation(tmp_path, request.param)


def mixture(number):
    """One of four sets of coefficients that are independent of each other."""
    return dict(zip(NAMES, np.roll((0.4, 0.3, 0.2, 0.1), number), strict=True))


@pytest.mark.slow
class TestTheSameModelInLaterRounds:
    """Training from the same weights gives the same updates: four sums with other coefficients would be solved."""

    def test_four_such_sums_would_give_every_update(self):
        notes = [order(round) for round in (1, 2, 3, 4)]
        updates = np.array([plain_update(name, notes[0]) for name in NAMES])
        for note in notes[1:]:  # one batch of everything: no order of samples
            assert plain_update(NAMES[0], note) == pytest.approx(updates[0], abs=1e-6)
        coefficients = np.array([list(mixture(number).values()) for number in range(4)])
        assert np.linalg.solve(coefficients, coefficients @ updates) == pytest.approx(updates)

    @pytest.mark.parametrize(
        "changes",
        [
            {},
            {"seed": 7},
            {"training": {"lr": 0.05000001}},
            {"clients": 9},
            {"run": "another"},
            {"rounds": 21},
        ],
    )
    def test_only_one_of_them_is_opened(self, federation, changes):
        assert federation.round(federation.order(1), mixture(0)).any()
        for round in (2, 3):
            with pytest.raises(Refused, match="two could be subtracted"):
                federation.round(federation.order(round, **changes), mixture(round))
            federation.restart()

    def test_a_round_that_was_not_opened_may_be_asked_again(self, federation):
        """An honest server whose sum was refused has the same model in the next round."""
        with pytest.raises(Refused, match=r"more than 0\.5"):
            federation.round(federation.order(1), dict(zip(NAMES, (0.7, 0.1, 0.1, 0.1), strict=True)))
        assert federation.round(federation.order(2)).any()

    def test_what_remains_a_model_with_its_hidden_units_in_another_order(self, tmp_path):
        """It is another model to everybody, with the same updates in another order. `max_mixtures` bounds it."""
        turn = np.roll(np.arange(HIDDEN), 1)
        first, bias, second, last = np.split(START, np.cumsum([HIDDEN * FEATURES, HIDDEN, HIDDEN]))
        inputs = first.reshape(HIDDEN, FEATURES)[turn].ravel()
        turned = np.concatenate([inputs, bias[turn], second[turn], last])
        one, other = plain_update(NAMES[0], order(1)), plain_update(NAMES[0], order(2, turned))
        assert np.sort(other) == pytest.approx(np.sort(one), abs=1e-6)
        federation = Federation(tmp_path, PADDED_SUMS, Policy(max_mixtures=1))
        federation.round(federation.order(1), EVEN)
        with pytest.raises(Refused, match="max_mixtures"):
            federation.round(federation.order(2, turned), mixture(1))
        federation.round(federation.order(3, turned), EVEN)  # the same sum again, in another order


@pytest.mark.slow
class TestFromDisk:
    def test_replayed_orders_get_the_same_bytes_and_the_same_sum(self, federation):
        note = federation.order(1)
        sealed = federation.ask(note)
        opened = federation.open(note, sealed, EVEN)
        federation.restart()
        assert federation.ask(note) == sealed
        assert np.array_equal(federation.open(note, sealed, EVEN), opened)

    def test_nobody_answers_another_order_for_an_old_round(self, federation):
        federation.round(federation.order(3))
        federation.restart()
        for note in (federation.order(3, seed=1), federation.order(2), federation.order(1, START + 1)):
            assert all(is_refused(member, note) for member in federation.hospitals.values())
        with pytest.raises(KeysSpent):
            federation.first_question(federation.order(3, seed=1), dict.fromkeys(NAMES, b""))

    def test_a_memory_that_was_rolled_back_ends_the_hospital(self, federation):
        federation.round(federation.order(1))
        path = federation.folder / NAMES[0] / STATE_FILE
        old = path.read_bytes()
        federation.round(federation.order(2, START + 1))
        path.write_bytes(old)
        with pytest.raises(ConfigError, match="an old copy was put back"):
            federation.restart()

    def test_even_then_the_steward_opens_nothing_twice(self, federation):
        """Memory and log of a hospital, both put back: what its operator restores from a backup."""
        federation.round(federation.order(1))
        folder = federation.folder / NAMES[0]
        old = {path: path.read_bytes() for path in folder.iterdir()}
        federation.round(federation.order(2, START + 1))
        for path, content in old.items():
            path.write_bytes(content)
        federation.restart()
        again = federation.order(2, START + 2)
        sealed = federation.ask(again, NAMES[:1])  # it answers round 2 a second time
        with pytest.raises(KeysSpent):
            federation.first_question(again, dict.fromkeys(NAMES, sealed[NAMES[0]]))


class TestOneHospitalAtATime:
    def test_its_sum_and_its_scalars_are_refused(self, federation):
        note = federation.order()
        sealed = federation.ask(note, NAMES[:1])
        with pytest.raises(Refused, match="cohort of 1"):
            federation.open(note, sealed, {NAMES[0]: 1.0})

    def test_hospitals_that_nobody_registered_do_not_fill_a_cohort(self, federation):
        """Sybils: clients that the server makes up."""
        note, key = federation.order(), b"k" * 32
        sealed, asked = federation.ask(note, NAMES[:1]), order_hash(note)
        weights = {NAMES[0]: 0.4, "sybil-1": 0.3, "sybil-2": 0.3}
        for sybil in ("sybil-1", "sybil-2"):
            if federation.mode == DEPOSITS:
                ciphertext = federation.public.encrypt(np.zeros(SIZE), None)
                sealed[sybil] = seal_for_steward(key, sybil, 1, asked, ciphertext)
            else:
                sealed[sybil] = federation.public.encrypt(np.zeros(SIZE), pad_for(key, 1, asked))
        with pytest.raises(Refused, match="unknown clients"):
            federation.open(note, sealed, weights)
        renamed = dict(zip(NAMES[:3], sealed.values(), strict=True))  # under the names of registered ones
        renamed_weights = dict.fromkeys(NAMES[:3], 1 / 3)
        if federation.mode == DEPOSITS:
            with pytest.raises(Refused, match="not sealed by"):
                federation.open(note, renamed, renamed_weights)
        else:
            opened = federation.open(note, renamed, renamed_weights)
            assert np.abs(opened).max() > 1e4  # pads that do not come off


class TestWhatTrainingCanBeMadeToTell:
    @pytest.mark.parametrize("value", [0.0, -9e3])
    def test_a_model_without_gradients_gives_no_sum(self, federation, value):
        """Every hidden unit is dead, and the output's bias settled: what would be opened is noise."""
        weights = np.zeros(SIZE)
        weights[HIDDEN * FEATURES : HIDDEN * FEATURES + HIDDEN] = value
        weights[-1] = 9e3 if value else 0.0
        note = federation.order(1, weights, training={"lr": 1e-9, "optimizer": "sgd"})
        with pytest.raises(Refused, match=r"\(almost\) zero"):
            federation.round(note)

    def test_an_update_that_cannot_be_sealed_costs_the_round(self, federation):
        """Does it overflow? That depends on patients: one bit per round, not one per order."""
        member = federation.hospitals[NAMES[0]]
        wild = {
            "optimizer": "sgd",
            "lr": 10.0,
            "epochs": 50,
            "weight_decay": 0.1,
            "batch_size": 1,
            "prox_mu": 99.0,
        }
        first = federation.order(1, np.full(SIZE, 9e3), training=wild)
        assert is_refused(member, first)
        reason = read_log(federation.folder / NAMES[0])[-1]["refused"]
        assert "cannot be encrypted" in reason
        federation.restart()
        member = federation.hospitals[NAMES[0]]
        assert is_refused(member, federation.order(1, np.full(SIZE, 8e3), training=wild))
        assert is_refused(member, federation.order(1))
        assert not is_refused(member, federation.order(2))

    def test_infinities_of_an_update_are_not_sent_under_differential_privacy(self):
        """Where they are would tell what no noise covers."""
        pytest.importorskip("opacus", reason="the extra 'privacy' is not installed")
        floor = {"dp": {"unit": "client", "max_clip": 1.0, "min_noise": 1.0}}
        wild = {"optimizer": "sgd", "lr": 10.0, "epochs": 50, "batch_size": 1, "prox_mu": 99.0}
        dp = {"unit": "client", "clip": 1.0, "noise_multiplier": 1.0}
        reply = hospital(policy=floor).reply(order(1, np.full(SIZE, 9e3), training=wild, dp=dp))
        update = reply.arrays["update"]
        assert np.isfinite(update).all()
        assert np.abs(update).max() < 8

    @pytest.mark.parametrize(
        "changes",
        [
            {"rounds": 20, "round": 21},
            {"training": {"schedule": "cosine"}, "rounds": 20, "round": 21},
            {"training": {"batch_size": 10**30}},
            {"training": {"momentum": 1.0}},
            {"training": {"epochs": 10**9}},
            {"training": {"lr": math.nan}},
            {"training": {"step_every": 0, "schedule": "step"}},
            {"model": {"name": "mlp", "hidden": [10**7, 10**7]}},
            {"model": {"name": "mlp", "hidden": []}},
            {"model": {"name": "no-such-model"}},
            {"model": {"name": "mlp", "hidden": "many"}},
            {"seed": 10**300},
            {"policy": {"prox_mu": 1e300, "local_batch_norm": False}},
            {"dp": {"clip": -1}},
            {"dp": "much"},
        ],
    )
    def test_orders_that_make_no_sense_get_an_answer_and_cost_nothing(self, changes):
        member = hospital()
        with pytest.raises(WardroundError) as problem:
            member.reply(order(**changes))
        assert "\n" not in str(problem.value)
        member.reply(order())


class TestEvaluations:
    """Metrics are in the clear whatever the mode: each tells something of a model that the server chose."""

    def test_one_model_per_round_whatever_the_run_is_called(self, federation):
        member = federation.hospitals[NAMES[0]]
        first = dict(member.reply(federation.order(1, kind=EVALUATE)).metrics)
        for number in range(10):
            other = federation.order(1, START + number + 1, kind=EVALUATE, run=f"run-{number}")
            assert is_refused(member, other)
        federation.restart()
        member = federation.hospitals[NAMES[0]]
        assert dict(member.reply(federation.order(1, kind=EVALUATE)).metrics) == first
        assert is_refused(member, federation.order(1, START + 1, kind=EVALUATE))
        assert not is_refused(member, federation.order(2, START + 1, kind=EVALUATE))

    def test_a_search_for_a_patients_value_takes_a_round_for_every_step(self):
        """Accuracy of "feature 0 is above b" jumps where a patient is: bisection needs a model for each b."""
        member = hospital()

        def accuracy(round, bound):
            weights = np.zeros(SIZE)
            weights[0], weights[HIDDEN * FEATURES], weights[HIDDEN * (FEATURES + 1)] = 1e3, -1e3 * bound, 1.0
            weights[-1] = -1e-3
            return member.reply(order(round, weights, kind=EVALUATE)).metrics["accuracy"]

        asked = 0
        for bound in np.linspace(-1, 1, 50):
            try:
                accuracy(min(asked + 1, 20), bound)
            except WardroundError:
                break
            asked += 1
        assert asked == 20  # the rounds of the run; a hospital's policy has the most it takes

    def test_few_digits_leave(self):
        metrics = hospital().reply(order(kind=EVALUATE)).metrics
        assert {"loss", "auroc"} <= set(metrics)
        for name, value in metrics.items():
            assert name == SAMPLES or value == float(f"{value:.4g}")
        loss = hospital().reply(order()).metrics["loss"]
        assert loss == float(f"{loss:.4g}")

    def test_nothing_is_evaluated_where_noise_is_demanded(self):
        member = hospital(policy={"dp": {"unit": "client"}})
        assert is_refused(member, order(kind=EVALUATE))

    def test_a_hello_tells_shapes_and_counts(self):
        said = hospital().reply(Note({"kind": HELLO})).head
        assert set(said) == {
            "name",
            "samples",
            "task",
            "class_names",
            "input_shape",
            "feature_names",
            "versions",
        }


@pytest.mark.slow
class TestALyingServerOverMessages:
    """The server's own loop, with a network that shows each hospital what the attacker wants."""

    def grid(self, federation, change):
        app = ClientApp()

        @app.train()
        @app.evaluate()
        @app.query()
        def answer(message, context):
            name = NAMES[context.node_id - 2]
            note = change(name, from_records(message.content))
            return Message(to_records(federation.hospitals[name].reply(note)), reply_to=message)

        return InlineGrid(app, len(NAMES))

    def run(self, federation, tmp_path, change=lambda name, note: note, **values):
        import threading

        from wardround.privacy.encryption.steward_service import StewardService
        from wardround.privacy.encryption.vault import server_key

        rule = "fedavg" if federation.mode == PADDED_SUMS else "caac"
        with StewardService(federation.vault.steward(), server_key(federation.vault.keys)) as service:
            thread = threading.Thread(target=service.serve_forever, args=[0.01], daemon=True)
            thread.start()
            privacy = {
                "mode": federation.mode,
                "steward": service.address,
                "steward_keys": str(federation.vault.keys),
            }
            config = {
                "model": {"name": "mlp", "hidden": [4]},
                "training": {"lr": 0.05},
                "rounds": 2,
                "aggregator": {"name": rule},
                "privacy": privacy,
                "federation": {
                    "clients": 4,
                    "quorum": 3,
                    "poll_seconds": 0,
                    "deadline_seconds": 60,
                    "retries": 0,
                },
                **values,
            }
            try:
                return run_federation(
                    federation_from(json.dumps(config)), self.grid(federation, change), tmp_path
                )
            finally:
                service.shutdown()
                thread.join()

    def test_a_hospital_with_a_model_of_its_own_is_not_summed(self, federation, tmp_path):
        def change(name, note):
            if name != NAMES[0] or note.head["kind"] != TRAIN:
                return note
            return Note(note.head, note.metrics, {"weights": note.arrays["weights"] + 1})

        if federation.mode == PADDED_SUMS:  # pads that do not come off make a model that no hospital takes
            with pytest.raises(WardroundError, match=r"round 2.*refused by the hospital's policy"):
                self.run(federation, tmp_path / "runs", change)
        else:
            folder = self.run(federation, tmp_path / "runs", change)
            dropped = [line.client for line in folder.clients() if line.status == "dropped"]
            assert dropped == [NAMES[0]] * 2

    def test_a_second_run_with_the_same_keys_gets_no_update(self, federation, tmp_path):
        self.run(federation, tmp_path / "runs")
        with pytest.raises(WardroundError, match=REFUSED):
            self.run(federation, tmp_path / "runs", seed=1)
