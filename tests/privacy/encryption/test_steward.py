"""The steward opens sums over cohorts and scalars, and nothing that shows one client's update."""

import numpy as np
import pytest

from wardround.privacy.dp import ProfileNoise
from wardround.privacy.encryption.ckks import pack
from wardround.privacy.encryption.pads import tag_for
from wardround.privacy.encryption.refusals import Refused
from wardround.privacy.encryption.steward import Deposit, Policy

A, B, C, D, E = (f"hospital-{i}" for i in range(5))


def relative(got, expected):
    return np.linalg.norm(got - expected) / np.linalg.norm(expected)


def correlation(one, other):
    return abs(np.corrcoef(one, other)[0, 1])


class TestPaddedSums:
    def test_the_sum_that_was_described_is_opened(self, bench):
        values = {A: 0.1, B: 0.3, C: 0.2, D: 0.4, E: 0.0}
        assert relative(bench.open(values), bench.expected(values)) < 1e-4

    def test_a_cohort_of_one_is_refused(self, bench):
        with pytest.raises(Refused, match="cohort of 1, fewer than 3"):
            bench.open({A: 1.0})

    def test_a_one_hot_weight_is_refused(self, bench):
        with pytest.raises(Refused, match="cohort of 1"):
            bench.open({A: 1.0, B: 0.0, C: 0.0, D: 0.0, E: 0.0})

    def test_a_cohort_padded_with_weights_of_nothing_is_refused(self, bench):
        with pytest.raises(Refused, match="cohort of 2"):
            bench.open({A: 0.5, B: 0.499999, C: 1e-6})

    def test_a_weight_above_the_bound_is_refused(self, bench):
        with pytest.raises(Refused, match=r"one client has 0\.600 of the sum, more than 0\.5"):
            bench.open({A: 0.6, B: 0.2, C: 0.2})
        with pytest.raises(Refused, match=r"0\.750"):  # shares count, not sizes
            bench.open({A: 0.3, B: 0.05, C: 0.05})

    @pytest.mark.parametrize("bad", [-0.2, float("nan"), float("inf")])
    def test_coefficients_that_are_no_weights_are_refused(self, bench, bad):
        total = bench.sum_of(bench.even)
        with pytest.raises(Refused, match="finite, not negative"):
            bench.steward.open_padded_sum(bench.session, 1, {**bench.even, A: bad}, total)

    def test_a_second_sum_of_a_round_is_refused_so_nothing_can_be_subtracted(self, bench):
        bench.open(bench.even)
        without_one = dict.fromkeys((A, B, C, D), 0.25)
        with pytest.raises(Refused, match="two sums can be subtracted"):
            bench.open(without_one)
        with pytest.raises(Refused, match="two sums can be subtracted"):
            bench.open(bench.even)

    def test_an_earlier_round_is_a_replay(self, bench):
        old = bench.sum_of(bench.even, round=1)
        bench.open(bench.even, old, round=1)
        bench.open(bench.even, round=2)
        with pytest.raises(Refused, match="a replay"):
            bench.open(bench.even, old, round=1)

    def test_strangers_and_unknown_sessions_are_refused(self, bench):
        total = bench.sum_of(bench.even)
        with pytest.raises(Refused, match="unknown clients"):
            bench.steward.open_padded_sum(bench.session, 1, {**bench.even, "intruder": 0.2}, total)
        with pytest.raises(Refused, match="unknown session"):
            bench.steward.open_padded_sum("made-up", 1, bench.even, total)


class TestAServerThatLies:
    """It describes a proper cohort and hands in something else: what comes back must tell it nothing."""

    def test_one_clients_ciphertext_passed_off_as_the_sum(self, make_bench):
        bench = make_bench(dimension=2000)
        got = bench.open(bench.even, bench.padded(A))
        assert correlation(got, bench.updates[A]) < 0.1
        assert np.linalg.norm(got) > 1e6 * np.linalg.norm(bench.updates[A])

    def test_other_weights_than_described(self, make_bench):
        bench = make_bench(dimension=2000)
        nearly_one_hot = bench.sum_of({A: 0.99, B: 0.005, C: 0.005})
        got = bench.open(bench.even, nearly_one_hot)
        assert correlation(got, bench.updates[A]) < 0.1

    def test_an_old_rounds_ciphertexts_in_a_new_round(self, make_bench):
        bench = make_bench(dimension=2000)
        old = bench.sum_of(bench.even, round=1)
        got = bench.open(bench.even, old, round=2)
        assert correlation(got, bench.expected(bench.even)) < 0.1

    def test_another_sessions_ciphertexts(self, make_bench):
        bench = make_bench(dimension=2000)
        other = bench.steward.begin()
        got = bench.steward.open_padded_sum(
            other, 1, bench.coefficients(bench.even), bench.sum_of(bench.even)
        )
        assert correlation(got, bench.expected(bench.even)) < 0.1


class TestDeposits:
    def test_scalars_and_sum_are_those_of_the_plain_updates(self, depositing):
        mean = depositing.expected(depositing.even)
        for round in (1, 2):
            measured = depositing.steward.measure(depositing.session, round, depositing.deposits(round))
            for client, update in depositing.updates.items():
                assert measured[client].norm == pytest.approx(np.linalg.norm(update), rel=1e-4)
                if round == 1:
                    assert measured[client].cosine is None
                else:
                    lengths = np.linalg.norm(update) * np.linalg.norm(mean)
                    assert measured[client].cosine == pytest.approx(update @ mean / lengths, abs=1e-4)
            got = depositing.steward.open_measured_sum(
                depositing.session, round, depositing.coefficients(depositing.even)
            )
            assert relative(got, mean) < 1e-4

    def test_one_ciphertext_under_several_names_is_refused(self, depositing):
        deposits = depositing.deposits()
        deposits[B] = deposits[C] = deposits[A]
        with pytest.raises(Refused, match="not signed by hospital-1"):
            depositing.steward.measure(depositing.session, 1, deposits)

    def test_a_ciphertext_the_server_made_is_refused(self, depositing):
        deposits = depositing.deposits()
        deposits[B] = depositing.deposit(B, signer=A)
        with pytest.raises(Refused, match="not signed by hospital-1"):
            depositing.steward.measure(depositing.session, 1, deposits)
        forged = Deposit(deposits[C].ciphertext + b"x", deposits[C].tag)
        with pytest.raises(Refused, match="not signed by hospital-2"):
            depositing.steward.measure(depositing.session, 1, {**depositing.deposits(), C: forged})

    def test_a_replayed_deposit_is_refused(self, depositing):
        old = depositing.deposits(round=1)
        depositing.steward.measure(depositing.session, 1, old)
        with pytest.raises(Refused, match="not signed"):
            depositing.steward.measure(depositing.session, 2, old)
        with pytest.raises(Refused, match="a replay"):
            depositing.steward.measure(depositing.session, 1, old)

    def test_a_client_is_measured_once_a_round(self, depositing):
        depositing.steward.measure(depositing.session, 1, depositing.deposits())
        with pytest.raises(Refused, match="measured already"):
            depositing.steward.measure(depositing.session, 1, depositing.deposits())

    def test_more_than_two_openings_a_client_and_round_are_refused(self, depositing):
        depositing.steward.measure(depositing.session, 1, depositing.deposits())
        depositing.steward.open_measured_sum(depositing.session, 1, depositing.even)
        for again in (
            lambda: depositing.steward.measure(depositing.session, 1, depositing.deposits()),
            lambda: depositing.steward.open_measured_sum(depositing.session, 1, depositing.even),
        ):
            with pytest.raises(Refused):
                again()
        opened = [line for line in depositing.log if "refused" not in line and A in line["clients"]]
        assert len(opened) == 2

    def test_sums_of_deposits_obey_the_same_policy(self, depositing):
        depositing.steward.measure(depositing.session, 1, depositing.deposits())
        for values, reason in (
            ({A: 1.0}, "cohort of 1"),
            ({**dict.fromkeys((B, C, D, E), 0.0), A: 1.0}, "cohort of 1"),
            ({A: 0.8, B: 0.1, C: 0.1}, "more than 0.5"),
        ):
            with pytest.raises(Refused, match=reason):
                depositing.steward.open_measured_sum(depositing.session, 1, values)

    def test_scalars_of_a_lone_client_are_refused(self, depositing):
        with pytest.raises(Refused, match="cohort of 1"):
            depositing.steward.measure(depositing.session, 1, {A: depositing.deposit(A)})

    def test_a_sum_without_its_deposit_is_refused(self, depositing):
        three = {client: depositing.deposit(client) for client in (A, B, C)}
        depositing.steward.measure(depositing.session, 1, three)
        with pytest.raises(Refused, match="no deposit of hospital-3"):
            depositing.steward.open_measured_sum(depositing.session, 1, {A: 0.25, B: 0.25, C: 0.25, D: 0.25})

    def test_a_norm_that_wraps_around_does_not_pass(self, depositing):
        """A malicious client encrypts values so long that their squares wrap to a small reading."""
        public = depositing.public
        longest = np.zeros(20)
        longest[0] = 2.0**31
        slots = np.zeros(4096)
        slots[:20] = longest
        ciphertext = pack(20, [public.tenseal.ckks_vector(public.context, slots).serialize()])
        deposits = depositing.deposits()
        deposits[A] = Deposit(ciphertext, tag_for(depositing.keys[A], depositing.session, 1, A, ciphertext))
        measured = depositing.steward.measure(depositing.session, 1, deposits)
        assert measured[A].norm < 2.0**30  # the reading is wrong, as the attacker wants it
        with pytest.raises(Refused, match="longer than its parts"):
            depositing.steward.open_measured_sum(depositing.session, 1, depositing.even)

    def test_profile_noise_is_added_before_scalars_leave(self, depositing):
        depositing.steward.profile_noise = ProfileNoise(epsilon=1.0, delta=1e-5, clip=1.0)
        measured = depositing.steward.measure(depositing.session, 1, depositing.deposits())
        errors = [abs(measured[c].norm - np.linalg.norm(u)) for c, u in depositing.updates.items()]
        assert max(errors) > 0.01


class TestModesAreKeptApart:
    def test_an_unpadded_ciphertext_cannot_be_lifted_above_the_pads(self, depositing, make_bench):
        """Scaled by 2^38 a bare update would stand out above any pad: no padded opening where there are bare ones."""
        bare = depositing.deposit(A).ciphertext
        lifted = depositing.public.combine([(bare, 2.0**31)])
        with pytest.raises(Refused, match="its keys are for encrypted-caac"):
            depositing.open(depositing.even, lifted)
        careless = make_bench()  # the same cipher keys in the other mode: what would happen
        got = careless.open(careless.even, lifted)
        assert correlation(got, depositing.updates[A]) > 0.9

    def test_deposits_are_not_taken_where_sums_are_padded(self, bench):
        with pytest.raises(Refused, match="its keys are for encrypted-fedmed"):
            bench.steward.measure(bench.session, 1, bench.deposits())
        with pytest.raises(Refused, match="its keys are for encrypted-fedmed"):
            bench.steward.open_measured_sum(bench.session, 1, bench.even)


class TestTheLog:
    def test_every_opening_and_every_refusal_is_a_line(self, bench):
        bench.open(bench.even)
        with pytest.raises(Refused):
            bench.open(bench.even)
        begun, opened, refused = bench.log
        assert begun["kind"] == "begin"
        assert opened["kind"] == "sum"
        assert opened["coefficients"] == pytest.approx(bench.even, rel=1e-6)
        assert set(opened["clients"]) == set(bench.updates)
        assert "subtracted" in refused["refused"]

    def test_the_log_can_hold_pseudonyms(self, bench):
        bench.steward.names = lambda client: "p-" + client[-1]
        bench.open(bench.even)
        assert bench.log[-1]["clients"] == ["p-0", "p-1", "p-2", "p-3", "p-4"]


def test_a_session_can_go_on_from_another(bench):
    bench.open(bench.even)
    later = bench.steward.begin(after=bench.session)
    assert bench.steward.sessions[later].last_sum is not None
    with pytest.raises(Refused, match="not known"):
        bench.steward.begin(after="made-up")


def test_the_policy_is_what_the_steward_was_given(make_bench):
    bench = make_bench(policy=Policy(min_cohort=5, max_share=0.3))
    with pytest.raises(Refused, match="cohort of 4, fewer than 5"):
        bench.open(dict.fromkeys((A, B, C, D), 0.25))
    with pytest.raises(Refused, match=r"more than 0\.3"):
        bench.open({A: 0.4, B: 0.15, C: 0.15, D: 0.15, E: 0.15})
