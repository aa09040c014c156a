"""A server that lies, against real hospitals, keys and stewards: each attack is carried out, and fails."""

import numpy as np
import pytest
import torch

from wardround.errors import WardroundError
from wardround.flower.config import federation_from, hospital_from
from wardround.flower.hospital.hospital import Hospital
from wardround.flower.messages import EVALUATE, TRAIN, Note, pack
from wardround.flower.orders import AUDIT, order_hash, work_section
from wardround.privacy.encryption.refusals import Refused
from wardround.privacy.encryption.steward import DEPOSITS, PADDED_SUMS
from wardround.privacy.encryption.vault import Vault, key_path

NAMES = [f"hospital-{i}" for i in range(4)]
DATA = {"name": "synthetic", "samples": 200, "features": 6}
SIZE = 33
REFUSED = "refused by the hospital's policy"
FED = """
model: {name: mlp, hidden: [4]}
training: {lr: 0.05}
rounds: 20
federation: {clients: 4}
"""


def hospital(name, folder=None, **values):
    return Hospital.from_config(
        hospital_from({"name": name, "dataset": DATA, "seed": int(name[-1]), **values}), folder
    )


def order(round=1, weights=None, **changes):
    """What an honest server of this run would send, with some of it changed."""
    head = {
        "kind": TRAIN,
        "run": "run-1",
        **work_section(federation_from(FED).run),
        "round": round,
        "clients": 4,
        "policy": {"prox_mu": None, "local_batch_norm": False},
        AUDIT: [round, "0" * 64],
        **changes,
    }
    start = np.linspace(-0.5, 0.5, SIZE, dtype=np.float32) if weights is None else weights
    return Note(head, {}, {"weights": start})


def with_training(**changes):
    return {**order().head["training"], **changes}


class Federation:
    """Hospitals with keys of one steward, and the steward itself."""

    def __init__(self, folder, mode):
        pytest.importorskip("tenseal", reason="the extra 'privacy' is not installed")
        self.folder, self.mode = folder, mode
        self.vault = Vault(folder / "vault")
        self.vault.make(NAMES, mode)
        self.restart_steward()
        self.hospitals = {name: self.join(name) for name in NAMES}

    def join(self, name, **values):
        return hospital(name, steward_key=str(key_path(self.vault.keys, name)), **values)

    def restart_steward(self):
        self.steward = self.vault.steward()

    def restart_hospital(self, name):
        state, self.hospitals[name] = self.hospitals[name].save_state(), self.join(name)
        self.hospitals[name].load_state(state)

    def ask(self, note):
        """Every hospital's sealed reply to the same order."""
        return {name: self.sealed(name, note) for name in NAMES}

    def sealed(self, name, note):
        return self.hospitals[name].reply(note).arrays["ciphertext"].tobytes()

    def sum_of(self, sealed, weights):
        from wardround.privacy.encryption.ciphers import public_side

        public = public_side(*self.steward.public_context())
        exact = {name: public.exact(weight) for name, weight in weights.items()}
        return exact, public.combine((sealed[name], value) for name, value in exact.items() if value)

    def open(self, note, sealed, weights):
        asked, round = order_hash(note), note.head["round"]
        if self.mode == DEPOSITS:
            self.steward.measure(round, asked, sealed)
            return self.steward.open_measured_sum(round, asked, weights)
        exact, total = self.sum_of(sealed, weights)
        return self.steward.open_padded_sum(round, asked, exact, total)


@pytest.fixture(params=[PADDED_SUMS, pytest.param(DEPOSITS, marks=pytest.mark.slow)])
def federation(request, tmp_path):
    return Federation(tmp_path, request.param)


EVEN = dict.fromkeys(NAMES, 0.25)


def mode_of(federation):
    return {"mode": federation.mode}


def plain_update(name, note):
    """What the hospital has learnt, which no server may see: trained by one without keys."""
    head = {key: value for key, value in note.head.items() if key != "mode"}
    return hospital(name).reply(Note(head, {}, note.arrays)).arrays["update"].astype(np.float64)


def correlation(one, other):
    return abs(np.corrcoef(one, other)[0, 1])


def test_an_honest_round_gives_the_sum_and_nothing_else(federation):
    note = order(**mode_of(federation))
    opened = federation.open(note, federation.ask(note), EVEN)
    expected = np.mean([plain_update(name, note) for name in NAMES], axis=0)
    assert opened == pytest.approx(expected, abs=1e-5)


class TestTinyUpdates:
    """The server orders updates of almost nothing, so that what is opened is the cipher's own noise."""

    @pytest.mark.parametrize(
        "training",
        [
            {"lr": 1e-30},
            pytest.param(
                {"lr": 1e-4, "schedule": "step", "step_every": 1, "step_factor": 1e-12},
                marks=pytest.mark.slow,
            ),
            pytest.param({"lr": 2e-9, "schedule": "cosine"}, marks=pytest.mark.slow),
            {"lr": 1e-3, "weight_decay": 1e6},
        ],
    )
    def test_hospitals_refuse_the_order(self, federation, training):
        note = order(20, training=with_training(**training), **mode_of(federation))  # the last of its rounds
        with pytest.raises(WardroundError, match=REFUSED):
            federation.sealed(NAMES[0], note)

    def test_the_steward_refuses_a_sum_of_nothing(self, federation):
        """Even hospitals that comply do not help."""
        note = order(**mode_of(federation))
        sealed = {}
        for name, member in federation.hospitals.items():
            sealed[name] = member.client.sealer.seal(np.zeros(SIZE), 1, order_hash(note))
        with pytest.raises(Refused, match="almost"):
            federation.open(note, sealed, EVEN)

    def test_a_model_that_makes_gradients_vanish_is_refused(self, federation):
        for value in (1e8, np.nan, np.inf):
            with pytest.raises(WardroundError, match=REFUSED):
                federation.sealed(
                    NAMES[0], order(weights=np.full(SIZE, value, np.float32), **mode_of(federation))
                )

    def test_the_server_holds_no_ciphertext_that_is_opened(self, tmp_path):
        """Li and Micciancio's attack needs an opened value beside its ciphertext, and the server holds none."""
        federation = Federation(tmp_path, DEPOSITS)
        sealed = federation.ask(order(mode=DEPOSITS))
        with pytest.raises(Refused, match="not a CKKS ciphertext"):
            federation.sum_of(sealed, EVEN)


class TestOneRoundSeveralTimes:
    """Sums of one round with other weights give every single update by linear algebra."""

    def test_a_second_sum_is_refused_also_after_restarts(self, federation):
        note = order(**mode_of(federation))
        sealed = federation.ask(note)
        first = federation.open(note, sealed, EVEN)
        permuted = dict(zip(NAMES, (0.4, 0.3, 0.2, 0.1), strict=True))
        for _ in range(2):
            with pytest.raises(Refused, match=r"two sums can be subtracted|not measured again"):
                federation.open(note, sealed, permuted)
            federation.restart_steward()
        if federation.mode == PADDED_SUMS:  # a resumed server gets the same bytes, not new noise
            assert np.array_equal(federation.open(note, sealed, EVEN), first)

    def test_the_same_order_gets_the_same_bytes_and_another_is_refused(self, federation):
        note, name = order(**mode_of(federation)), NAMES[0]
        first = federation.sealed(name, note)
        others = [
            order(seed=1, **mode_of(federation)),
            order(weights=np.zeros(SIZE, np.float32), **mode_of(federation)),
            order(training=with_training(lr=0.06), **mode_of(federation)),
            order(run="another", seed=2, **mode_of(federation)),
        ]
        for _ in range(2):
            assert federation.sealed(name, note) == first
            for other in others:
                with pytest.raises(WardroundError, match=REFUSED):
                    federation.sealed(name, other)
            federation.restart_hospital(name)

    def test_rounds_do_not_go_back(self, federation):
        federation.sealed(NAMES[0], order(5, **mode_of(federation)))
        federation.restart_hospital(NAMES[0])
        with pytest.raises(WardroundError, match=REFUSED):
            federation.sealed(NAMES[0], order(4, **mode_of(federation)))


class TestDifferentOrders:
    """All but one hospital are made to send (almost) nothing of use: the sum would be the victim's update."""

    def test_hospitals_with_different_orders_cannot_be_summed(self, federation):
        victim, note = NAMES[0], order(**mode_of(federation))
        other = order(training=with_training(lr=2e-6), **mode_of(federation))
        sealed = {name: federation.sealed(name, note if name == victim else other) for name in NAMES}
        if federation.mode == DEPOSITS:
            with pytest.raises(Refused, match="not sealed by"):
                federation.open(note, sealed, EVEN)
            return
        opened = federation.open(note, sealed, EVEN)
        assert np.linalg.norm(opened) > 1e5, "what comes back lies under pads that do not come off"
        assert correlation(opened, plain_update(victim, note)) < 0.6  # 33 values: chance alone reaches 0.5

    @pytest.mark.parametrize(
        ("weights", "reason"),
        [
            ({NAMES[0]: 1.0}, "cohort of 1"),
            pytest.param(
                {NAMES[0]: 0.97, NAMES[1]: 0.01, NAMES[2]: 0.01, NAMES[3]: 0.01},
                "cohort of|more than",
                marks=pytest.mark.slow,
            ),
            ({NAMES[0]: 0.6, NAMES[1]: 0.2, NAMES[2]: 0.2}, "more than 0.5"),
            ({**EVEN, NAMES[0]: -0.25}, "not negative"),
            pytest.param(dict.fromkeys(NAMES, 25.0), "at most 1", marks=pytest.mark.slow),
        ],
    )
    def test_weights_that_single_somebody_out_are_refused(self, federation, weights, reason):
        note = order(**mode_of(federation))
        sealed = federation.ask(note)
        with pytest.raises(Refused, match=reason):
            federation.open(note, sealed, weights)

    def test_an_order_for_another_mode_is_refused(self, federation):
        for mode in ("plaintext", DEPOSITS if federation.mode == PADDED_SUMS else PADDED_SUMS):
            with pytest.raises(WardroundError, match=REFUSED):
                federation.sealed(NAMES[0], order(mode=mode))


class TestDifferentialPrivacy:
    FLOOR = {"dp": {"unit": "client", "max_clip": 1.0, "min_noise": 1.0, "budget": 30.0}}
    ENOUGH = {"unit": "client", "clip": 1.0, "noise_multiplier": 1.0}

    @pytest.fixture(autouse=True)
    def _extra(self):
        pytest.importorskip("opacus", reason="the extra 'privacy' is not installed")

    @pytest.mark.parametrize(
        "dp",
        [
            None,
            {**ENOUGH, "clip": 100.0},
            {**ENOUGH, "noise_multiplier": 1e-6},
            {"unit": "patient", "clip": 1.0, "noise_multiplier": 1.0},
        ],
    )
    def test_an_order_with_less_than_the_policy_demands_is_refused(self, dp):
        with pytest.raises(WardroundError, match=REFUSED):
            hospital(NAMES[0], policy=self.FLOOR).reply(order(dp=dp))

    def test_noise_is_never_the_same_and_follows_from_nothing_the_server_knows(self):
        answers = [hospital(NAMES[0], policy=self.FLOOR).reply(order(dp=self.ENOUGH)) for _ in range(2)]
        one, other = (answer.arrays["update"] for answer in answers)
        assert np.std(one - other) > 0.5, "two answers differ by their noise"

    def test_a_round_asked_twice_with_other_weights_is_refused(self):
        member = hospital(NAMES[0], policy=self.FLOOR)
        first = pack(member.reply(order(dp=self.ENOUGH)))
        assert pack(member.reply(order(dp=self.ENOUGH))) == first
        with pytest.raises(WardroundError, match=REFUSED):
            member.reply(order(dp=self.ENOUGH, weights=np.zeros(SIZE, np.float32)))

    def test_new_runs_spend_from_the_same_budget(self):
        member = hospital(NAMES[0], policy=self.FLOOR)

        def is_answered(number):
            try:
                member.reply(order(dp=self.ENOUGH, run=f"run-{number}"))
            except WardroundError:
                return False
            return True

        answered = [is_answered(number) for number in range(30)]
        assert 3 < sum(answered) < 30
        assert answered == sorted(answered, reverse=True), "once the budget is spent, it is spent"
        assert member.memory.ledger.epsilon() <= 30.0
        again = hospital(NAMES[0], policy=self.FLOOR)
        again.load_state(member.save_state())
        with pytest.raises(WardroundError, match=REFUSED):
            again.reply(order(dp=self.ENOUGH, run="after-a-restart"))

    def test_the_loss_stays_at_home_where_noise_is_demanded(self):
        reply = hospital(NAMES[0], policy=self.FLOOR).reply(order(dp=self.ENOUGH))
        assert set(reply.metrics) == {"num-examples"}


class TestAskingAllTheTime:
    def test_orders_per_day_are_limited_whatever_they_are(self):
        member = hospital(NAMES[0], policy={"max_orders_per_day": 3})
        for number in range(3):
            member.reply(Note({**order().head, "kind": EVALUATE, "run": f"run-{number}"}, {}, order().arrays))
        with pytest.raises(WardroundError, match=REFUSED):
            member.reply(order())

    def test_metrics_on_few_samples_are_not_reported(self):
        member = hospital(NAMES[0], policy={"min_reported": 10_000})
        reply = member.reply(Note({**order().head, "kind": EVALUATE}, {}, order().arrays))
        assert dict(reply.metrics) == {"num-examples": 0}

    def test_the_server_is_told_only_that_it_was_refused(self, tmp_path):
        member = hospital(NAMES[0], tmp_path, policy={"min_samples": 5000})
        with pytest.raises(WardroundError) as refusal:
            member.reply(order())
        assert str(refusal.value) == REFUSED
        assert "min_samples" in (tmp_path / "outgoing.jsonl").read_text()


def test_an_audit_log_that_was_cut_or_written_anew_is_noticed():
    member = hospital(NAMES[0])
    member.reply(order(1, **{AUDIT: [40, "a" * 64]}))
    for head in ([39, "b" * 64], [40, "b" * 64], None, [1], ["x", "y"]):
        with pytest.raises(WardroundError, match=REFUSED):
            member.reply(order(2, **{AUDIT: head}))
    member.reply(order(2, **{AUDIT: [52, "c" * 64]}))


@pytest.mark.parametrize("rule", ["fltrust", "caac", "fedavg", "centered-clipping"])
def test_a_denormal_update_does_not_break_the_model(rule):
    from wardround import Updates, aggregators

    rows = torch.randn(10, 20, generator=torch.Generator().manual_seed(0))
    rows[0] *= 1e-42
    member = aggregators.create(rule)
    for round in (1, 2, 3):
        result = member.aggregate(Updates(rows), round, global_weights=rows[1], root_update=rows[2])
        assert bool(torch.isfinite(result.delta).all())
        assert result.skipped is None
