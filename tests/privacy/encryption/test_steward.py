"""The steward opens sums over cohorts and scalars, and nothing that shows one client's update."""

import numpy as np
import pytest

from wardround.privacy.dp import ProfileNoise
from wardround.privacy.encryption.ckks import SLOTS, pack
from wardround.privacy.encryption.pads import pad_for
from wardround.privacy.encryption.refusals import KeysSpent, Refused
from wardround.privacy.encryption.steward import DEPOSITS, SMALLEST_SUM, VECTOR_NOISE, Policy


def order_of(round, other=False):
    """The name of a round's order: each round starts from another model."""
    return f"{round:032x}.{('f0' if other else '0f') * 32}"


A, B, C, D, E = (f"hospital-{i}" for i in range(5))
ORDER, OTHER = order_of(1), order_of(1, other=True)


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
            bench.steward.open_padded_sum(1, ORDER, {**bench.even, A: bad}, total)

    def test_a_second_sum_of_a_round_is_refused_so_nothing_can_be_subtracted(self, bench):
        bench.open(bench.even)
        without_one = dict.fromkeys((A, B, C, D), 0.25)
        with pytest.raises(Refused, match="two sums can be subtracted"):
            bench.open(without_one)
        with pytest.raises(Refused, match="two sums can be subtracted"):
            bench.open({**bench.even, A: 0.2 + 2.0**-20})

    def test_the_same_sum_asked_again_is_the_same_answer(self, bench):
        """So that a server that was killed can resume; fresh noise would average away."""
        first = bench.open(bench.even)
        assert np.array_equal(bench.open(bench.even), first)
        assert bench.log[-1]["repeated"]

    def test_another_order_for_the_same_round_is_refused(self, bench):
        bench.open(bench.even)
        for values in (bench.even, dict.fromkeys((A, B, C, D), 0.25)):
            with pytest.raises(Refused, match="this round has begun with another order"):
                bench.open(values, order=OTHER)

    def test_a_round_that_was_begun_and_refused_keeps_its_order(self, bench):
        with pytest.raises(Refused, match="cohort of 1"):
            bench.open({A: 1.0})
        with pytest.raises(Refused, match="another order"):
            bench.open(bench.even, order=OTHER)
        assert relative(bench.open(bench.even), bench.expected(bench.even)) < 1e-4

    def test_an_earlier_round_is_a_replay(self, bench):
        old = bench.sum_of(bench.even, round=1)
        bench.open(bench.even, old, round=1)
        bench.open(bench.even, round=2)
        with pytest.raises(Refused, match="a replay"):
            bench.open(bench.even, old, round=1)

    def test_a_new_run_with_old_keys_is_refused_in_one_line(self, bench):
        for round in (1, 2, 3):
            bench.open(bench.even, round=round)
        line = "round 3 has begun: a replay. A new run needs new keys of the steward"
        with pytest.raises(KeysSpent, match=line) as refusal:
            bench.open(bench.even, round=1, order=OTHER)
        assert "\n" not in str(refusal.value)

    def test_strangers_are_refused(self, bench):
        total = bench.sum_of(bench.even)
        with pytest.raises(Refused, match="unknown clients"):
            bench.steward.open_padded_sum(1, ORDER, {**bench.even, "intruder": 0.2}, total)

    @pytest.mark.parametrize("round", [0, -1, 10**6 + 1, 10**400, True, 1.5, "1", None, [1]])
    def test_absurd_rounds_are_refused(self, bench, round):
        with pytest.raises(Refused, match="a round is a number from 1 to 1000000"):
            bench.steward.open_padded_sum(round, ORDER, bench.even, b"")
        assert bench.steward.progress.round == 0

    @pytest.mark.parametrize("order", ["", "x" * 200, 7, None, ["a"]])
    def test_an_order_without_a_hash_is_refused(self, bench, order):
        with pytest.raises(Refused, match="named by its hash"):
            bench.steward.open_padded_sum(1, order, bench.even, b"")

    def test_coefficients_that_add_up_to_more_than_one_are_refused(self, bench):
        with pytest.raises(Refused, match="add up to at most 1"):
            bench.open(dict.fromkeys(bench.even, 0.3))

    @pytest.mark.parametrize("bad", ["0.2", None, [0.2], 10**400, True])
    def test_coefficients_of_another_kind_are_refused(self, bench, bad):
        with pytest.raises(Refused, match="must be finite"):
            bench.steward.open_padded_sum(1, ORDER, {**bench.even, A: bad}, b"")

    def test_a_sum_of_nothing_is_refused(self, make_bench):
        """What would be opened is the cipher's own noise, which gives its key away."""
        bench = make_bench(scale=1e-9)
        with pytest.raises(Refused, match=r"\(almost\) zero"):
            bench.open(bench.even)
        just_enough = make_bench(scale=10 * SMALLEST_SUM)
        assert just_enough.open(just_enough.even).any()

    def test_noise_of_fixed_size_is_on_what_is_opened(self, make_bench):
        errors = []
        for _ in range(2):
            bench = make_bench(dimension=4000)
            exact = bench.expected(bench.coefficients(bench.even))
            errors.append(bench.open(bench.even) - exact)
            assert errors[-1].std() == pytest.approx(VECTOR_NOISE, rel=0.1)
        assert correlation(*errors) < 0.1  # never the same twice


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

    def test_another_orders_ciphertexts(self, make_bench):
        bench = make_bench(dimension=2000)
        got = bench.open(bench.even, bench.sum_of(bench.even, order=OTHER))
        assert correlation(got, bench.expected(bench.even)) < 0.1

    def test_one_client_that_was_given_another_order(self, make_bench):
        """Others were told to send nothing: the sum would be the victim's update, if it came off."""
        bench = make_bench(dimension=2000)
        parts = [(bench.padded(A, order=OTHER), 0.2), *((bench.padded(c), 0.2) for c in (B, C, D, E))]
        for order in (ORDER, OTHER):
            total = bench.public.combine((cipher, bench.public.exact(value)) for cipher, value in parts)
            bench.steward = bench.restarted(None)
            got = bench.open(bench.even, total, order=order)
            for update in bench.updates.values():
                assert correlation(got, update) < 0.1
            assert np.linalg.norm(got) > 1e6 * np.linalg.norm(bench.updates[A])


class TestDeposits:
    @pytest.mark.slow
    def test_scalars_and_sum_are_those_of_the_plain_updates(self, depositing):
        mean = depositing.expected(depositing.even)
        for round in (1, 2):
            measured = depositing.measure(depositing.deposits(round), round=round)
            for client, update in depositing.updates.items():
                assert measured[client].norm == pytest.approx(np.linalg.norm(update), rel=1e-4)
                if round == 1:
                    assert measured[client].cosine is None
                else:
                    lengths = np.linalg.norm(update) * np.linalg.norm(mean)
                    assert measured[client].cosine == pytest.approx(update @ mean / lengths, abs=1e-4)
            got = depositing.measured_sum(depositing.even, round)
            assert relative(got, mean) < 1e-4

    def test_one_ciphertext_under_several_names_is_refused(self, depositing):
        deposits = depositing.deposits()
        deposits[B] = deposits[C] = deposits[A]
        with pytest.raises(Refused, match="not sealed by hospital-1"):
            depositing.measure(deposits)

    def test_a_ciphertext_the_server_made_is_refused(self, depositing):
        deposits = depositing.deposits()
        deposits[B] = depositing.deposit(B, signer=A)
        with pytest.raises(Refused, match="not sealed by hospital-1"):
            depositing.measure(deposits)
        forged = deposits[C][:-1] + bytes([deposits[C][-1] ^ 1])
        with pytest.raises(Refused, match="not sealed by hospital-2"):
            depositing.measure({**depositing.deposits(), C: forged})

    def test_a_bare_ciphertext_is_refused(self, depositing):
        bare = depositing.public.encrypt(depositing.updates[A], None)
        for content in (bare, b"", b"short"):
            with pytest.raises(Refused, match="not sealed by hospital-0"):
                depositing.measure({**depositing.deposits(), A: content})

    @pytest.mark.slow
    def test_a_replayed_deposit_is_refused(self, depositing):
        old = depositing.deposits(round=1)
        depositing.measure(old)
        with pytest.raises(Refused, match="not sealed"):
            depositing.measure(old, round=2)
        with pytest.raises(Refused, match="a replay"):
            depositing.measure(old)

    def test_a_deposit_for_another_order_is_refused(self, depositing):
        deposits = depositing.deposits()
        deposits[B] = depositing.deposit(B, order=OTHER)
        with pytest.raises(Refused, match="not sealed by hospital-1 for this round and order"):
            depositing.measure(deposits)

    @pytest.mark.slow
    def test_a_client_is_measured_once_a_round(self, depositing):
        """Asked again, the answer is the one that was given: a second measurement would average the noise away."""
        depositing.steward.profile_noise = ProfileNoise(epsilon=1.0, delta=1e-5, clip=1.0)
        first = depositing.measure()
        assert depositing.measure() == first
        longer = {client: depositing.deposit(client, vector=np.ones(20)) for client in first}
        assert depositing.measure(longer) == first

    @pytest.mark.slow
    def test_a_client_that_comes_late_is_measured_too(self, depositing):
        three = {client: depositing.deposit(client) for client in (A, B, C)}
        first = depositing.measure(three)
        all_five = depositing.measure()
        assert {client: all_five[client] for client in first} == first
        assert len(all_five) == 5

    @pytest.mark.slow
    def test_no_more_than_two_openings_a_client_and_round(self, depositing):
        measured, deposits = depositing.measure(), depositing.deposits()
        opened = depositing.measured_sum(depositing.even)
        for again in (
            lambda: depositing.measured_sum(dict.fromkeys((A, B, C, D), 0.25)),
            lambda: depositing.measure(order=OTHER),
            lambda: depositing.measured_sum(depositing.even, order=OTHER),
        ):
            with pytest.raises(Refused):
                again()
        assert depositing.measure(deposits) == measured
        assert np.array_equal(depositing.measured_sum(depositing.even), opened)
        fresh = [line for line in depositing.log if "refused" not in line and "repeated" not in line]
        assert [line["kind"] for line in fresh if A in line["clients"]] == ["scalars", "sum"]

    def test_who_comes_after_the_sum_is_not_measured(self, depositing):
        four = {client: depositing.deposit(client) for client in (A, B, C, D)}
        depositing.measure(four)
        depositing.measured_sum(dict.fromkeys(four, 0.25))
        with pytest.raises(Refused, match="this round has its sum"):
            depositing.measure()

    @pytest.mark.slow
    def test_sums_of_deposits_obey_the_same_policy(self, depositing):
        depositing.measure()
        for values, reason in (
            ({A: 1.0}, "cohort of 1"),
            ({**dict.fromkeys((B, C, D, E), 0.0), A: 1.0}, "cohort of 1"),
            ({A: 0.8, B: 0.1, C: 0.1}, "more than 0.5"),
        ):
            with pytest.raises(Refused, match=reason):
                depositing.measured_sum(values)

    def test_scalars_of_a_lone_client_are_refused(self, depositing):
        with pytest.raises(Refused, match="cohort of 1"):
            depositing.measure({A: depositing.deposit(A)})

    def test_a_sum_without_its_deposit_is_refused(self, depositing):
        three = {client: depositing.deposit(client) for client in (A, B, C)}
        depositing.measure(three)
        with pytest.raises(Refused, match="no deposit of hospital-3"):
            depositing.measured_sum({A: 0.25, B: 0.25, C: 0.25, D: 0.25})

    @pytest.mark.slow
    def test_a_norm_that_wraps_around_does_not_pass(self, depositing):
        """A malicious client encrypts values so long that their squares wrap to a small reading."""
        public = depositing.public
        longest = np.zeros(20)
        longest[0] = 2.0**31
        slots = np.zeros(SLOTS)
        slots[:20] = longest
        ciphertext = pack(20, [public.tenseal.ckks_vector(public.context, slots).serialize()])
        deposits = depositing.deposits()
        deposits[A] = depositing.sealed(A, ciphertext)
        measured = depositing.measure(deposits)
        assert measured[A].norm < 2.0**30  # the reading is wrong, as the attacker wants it
        with pytest.raises(Refused, match="longer than its parts"):
            depositing.measured_sum(depositing.even)

    @pytest.mark.slow
    def test_profile_noise_is_added_before_scalars_leave(self, depositing):
        depositing.steward.profile_noise = ProfileNoise(epsilon=1.0, delta=1e-5, clip=1.0)
        measured = depositing.measure()
        errors = [abs(measured[c].norm - np.linalg.norm(u)) for c, u in depositing.updates.items()]
        assert max(errors) > 0.01


class TestModesAreKeptApart:
    def test_an_unpadded_ciphertext_cannot_be_lifted_above_the_pads(self, depositing, make_bench):
        """Scaled by 2^38 a bare update would stand out above any pad: no padded opening where there are bare ones."""
        bare = depositing.public.encrypt(depositing.updates[A], None)
        lifted = depositing.public.combine([(bare, 2.0**31)])
        with pytest.raises(Refused, match="its keys are for encrypted-caac"):
            depositing.open(depositing.even, lifted)
        careless = make_bench()  # the same cipher keys in the other mode: what would happen
        got = careless.open(careless.even, lifted)
        assert correlation(got, depositing.updates[A]) > 0.9

    def test_deposits_are_not_taken_where_sums_are_padded(self, bench):
        with pytest.raises(Refused, match="its keys are for encrypted-fedmed"):
            bench.measure()
        with pytest.raises(Refused, match="its keys are for encrypted-fedmed"):
            bench.measured_sum(bench.even)


class TestFlooding:
    """What is opened is far noisier than the cipher itself, whatever is in it: its own error gives its key away."""

    @pytest.mark.slow
    @pytest.mark.parametrize("scale", [1e-6, 1e-2, 1.0])
    def test_of_deposits(self, make_bench, scale):
        bench = make_bench(mode=DEPOSITS, dimension=4000, scale=scale)
        values = bench.coefficients(bench.even)
        parts = [(bench.public.encrypt(update, None), values[c]) for c, update in bench.updates.items()]
        exact = bench.expected(values)
        own = bench.secret.open_combination(parts) - exact
        assert np.abs(own).max() < 1e-13 * max(1.0, scale)
        bench.measure()
        noise = bench.measured_sum(bench.even) - exact
        assert noise.std() > 2**22 * own.std()

    def test_of_padded_sums(self, make_bench):
        """Pads make numbers large, and rounding with them; it hides under pads that the server does not know."""
        bench = make_bench(dimension=4000)
        values = bench.coefficients(bench.even)
        pads = [(values[c], pad_for(key, 1, ORDER)) for c, key in bench.keys.items()]
        exact = bench.expected(values)
        own = bench.secret.open_sum(bench.sum_of(bench.even), pads) - exact
        assert own.std() < 1e-9
        assert (bench.open(bench.even) - exact).std() > 2**6 * own.std()


class TestTheLog:
    def test_every_opening_and_every_refusal_is_a_line(self, bench):
        bench.open(bench.even)
        with pytest.raises(Refused):
            bench.open(dict.fromkeys((A, B, C, D), 0.25))
        opened, refused = bench.log
        assert opened["kind"] == "sum"
        assert (opened["round"], opened["order"]) == (1, ORDER)
        assert opened["coefficients"] == pytest.approx(bench.even, rel=1e-6)
        assert set(opened["clients"]) == set(bench.updates)
        assert "subtracted" in refused["refused"]

    def test_the_log_can_hold_pseudonyms(self, bench):
        bench.steward.names = lambda client: "p-" + client[-1]
        bench.open(bench.even)
        assert bench.log[-1]["clients"] == ["p-0", "p-1", "p-2", "p-3", "p-4"]


class TestTheSameModelAgain:
    """Training is much the same every time it starts from the same model, whatever the round is called."""

    def again(self, round):
        return f"{order_of(1).partition('.')[0]}.{round:064x}"

    def test_in_a_later_round_is_refused_once_a_sum_was_opened(self, bench):
        bench.open(bench.even)
        without_one = dict.fromkeys((A, B, C, D), 0.25)
        for round in (2, 3):
            with pytest.raises(Refused, match="two could be subtracted"):
                bench.open(without_one, round=round, order=self.again(round))
        bench.open(bench.even, round=2)
        with pytest.raises(Refused, match="two could be subtracted"):
            bench.open(without_one, round=3, order=self.again(3))

    def test_is_fine_while_its_sum_was_never_opened(self, bench):
        with pytest.raises(Refused, match="cohort of 1"):
            bench.open({A: 1.0})
        opened = bench.open(bench.even, round=2, order=self.again(2))
        assert relative(opened, bench.expected(bench.even)) < 1e-4
        with pytest.raises(Refused, match="two could be subtracted"):
            bench.open(bench.even, round=3, order=self.again(3))

    @pytest.mark.slow
    def test_is_not_measured_against_another_direction(self, depositing):
        """Each would be one more linear view of the same update."""
        depositing.measure()
        depositing.measure(round=2, order=self.again(2))
        depositing.measure(round=3)
        depositing.measured_sum(depositing.even, round=3)
        with pytest.raises(Refused, match="two could be subtracted"):
            depositing.measure(round=4, order=self.again(4))

    def test_is_remembered_across_restarts(self, bench):
        bench.open(bench.even)
        bench.steward = bench.restarted(bench.kept[-1])
        with pytest.raises(Refused, match="two could be subtracted"):
            bench.open(bench.even, round=2, order=self.again(2))


class TestMixtures:
    def test_of_one_kind_are_enough_for_fixed_weights(self, make_bench):
        bench = make_bench(policy=Policy(max_mixtures=1))
        for round in (1, 2, 3):
            bench.open(bench.even, round=round)
        with pytest.raises(Refused, match="beyond the 1 of max_mixtures"):
            bench.open({**bench.even, A: 0.19, B: 0.21}, round=4)
        bench.steward = bench.restarted(bench.kept[-1])
        with pytest.raises(Refused, match="max_mixtures"):
            bench.open(dict.fromkeys((A, B, C, D), 0.25), round=4)
        bench.open(dict.fromkeys(bench.even, 0.1), round=4)  # a multiple tells nothing new

    def test_combinations_of_earlier_ones_do_not_count(self, make_bench):
        bench = make_bench(policy=Policy(max_mixtures=2))
        bench.open({A: 0.4, B: 0.3, C: 0.3}, round=1)
        bench.open({C: 0.3, D: 0.3, E: 0.4}, round=2)
        bench.open({A: 0.2, B: 0.15, C: 0.3, D: 0.15, E: 0.2}, round=3)
        with pytest.raises(Refused, match="max_mixtures"):
            bench.open(bench.even, round=4)


class TestARestart:
    """A new process of the same steward has what was kept, and so gives the same answers and the same refusals."""

    def test_of_padded_sums(self, bench):
        bench.open(bench.even)
        opened = bench.open(bench.even, round=2)
        bench.steward = bench.restarted(bench.kept[-1])
        assert np.array_equal(bench.open(bench.even, round=2), opened)
        for values, round, order, reason in (
            (dict.fromkeys((A, B, C, D), 0.25), 2, order_of(2), "two sums can be subtracted"),
            (bench.even, 2, order_of(2, other=True), "another order"),
            (bench.even, 1, order_of(1), "a replay"),
        ):
            with pytest.raises(Refused, match=reason):
                bench.open(values, round=round, order=order)

    @pytest.mark.slow
    def test_of_deposits(self, depositing):
        depositing.measure()
        depositing.measured_sum(depositing.even)
        measured = depositing.measure(round=2)
        depositing.steward = depositing.restarted(depositing.kept[-1])
        with pytest.raises(Refused, match="no deposit of"):
            depositing.measured_sum(
                depositing.even, round=2
            )  # deposits are not kept: they are handed in again
        assert depositing.measure(round=2) == measured
        assert all(pair.cosine is not None for pair in measured.values())
        mean = depositing.expected(depositing.even)
        assert relative(depositing.measured_sum(depositing.even, round=2), mean) < 1e-4


def test_the_policy_is_what_the_steward_was_given(make_bench):
    bench = make_bench(policy=Policy(min_cohort=5, max_share=0.3))
    with pytest.raises(Refused, match="cohort of 4, fewer than 5"):
        bench.open(dict.fromkeys((A, B, C, D), 0.25))
    with pytest.raises(Refused, match=r"more than 0\.3"):
        bench.open({A: 0.4, B: 0.15, C: 0.15, D: 0.15, E: 0.15})
