"""Sums of masked updates: exact up to rounding for whoever is left, nothing where too few are."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from hypothesis import given, settings
from hypothesis import strategies as st

from wardround.flower.secure_aggregation.client import KeyShares, Revealed
from wardround.flower.secure_aggregation.cohort import Limits, threshold_for
from wardround.flower.secure_aggregation.server import SumLost
from wardround.privacy.encryption.refusals import Refused

ROUNDING = 2.0**-41


@st.composite
def rounds(draw):
    """Size of a cohort, weights, and who is lost at which stage, with enough left at the end."""
    count = draw(st.integers(3, 8))
    names = [f"hospital-{i}" for i in range(count)]
    parts = draw(st.lists(st.floats(0.5, 1.0), min_size=count, max_size=count))
    weights = {name: part / sum(parts) for name, part in zip(names, parts, strict=True)}
    spare = count - threshold_for(count)
    lost = draw(st.lists(st.sampled_from(names), max_size=spare, unique=True))
    stages = [draw(st.sampled_from(["share", "mask", "confirm", "reveal"])) for _ in lost]
    return count, weights, dict(zip(lost, stages, strict=True)), draw(st.integers(0, 2**32))


@pytest.mark.slow
@given(rounds(), st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_the_sum_of_those_who_are_left_is_exact_up_to_rounding(masked_round, drawn, dimension):
    count, weights, lost, seed = drawn
    limits = Limits(min_cohort=2, max_share=0.9)
    play = masked_round(count, dimension, weights, limits=limits, seed=seed).begin()
    for stage in ("share", "mask", "confirm"):
        getattr(play, stage)([name for name, at in lost.items() if at == stage])
    total = play.reveal([name for name, at in lost.items() if at == "reveal"])
    left = [name for name in play.names if lost.get(name) not in ("share", "mask")]
    assert play.survivors == tuple(left)
    assert np.abs(total - play.expected(left)).max() <= count * ROUNDING


@pytest.mark.parametrize("stage", ["share", "mask", "confirm", "reveal"])
def test_fewer_than_the_threshold_have_no_sum(masked_round, stage):
    play = masked_round(6).begin()  # four are needed
    lost = play.names[:3]
    for before in ("share", "mask", "confirm", "reveal"):
        if before == stage:
            with pytest.raises(SumLost, match=r"3 of 6 hospitals .*4 are needed"):
                getattr(play, stage)(lost)
            return
        getattr(play, before)()


def test_hospitals_may_drop_out_one_after_the_other(masked_round):
    play = masked_round(10).begin()
    play.share(play.names[:1]).mask(play.names[1:3])
    assert play.survivors == tuple(play.names[3:])
    assert play.confirm().reveal() == pytest.approx(play.expected(), abs=1e-11)


def test_who_is_left_must_still_hide_each_other(masked_round):
    weights = {"hospital-0": 0.4, "hospital-1": 0.4, **{f"hospital-{i}": 0.05 for i in range(2, 6)}}
    play = masked_round(6, weights=weights).begin().share()
    with pytest.raises(SumLost, match=r"one client has 0\.667 of the sum"):
        play.mask(["hospital-1"])


@pytest.mark.parametrize(
    ("weights", "problem"),
    [
        ([0.6, 0.2, 0.2], "one client has 0.600"),
        ([0.5, 0.5, 0.0], "a cohort of 2"),
        ([0.5, 0.75, -0.25], "not negative"),
        ([0.5, 0.5, 0.5], "at most 1"),
        ([0.3, 0.3, float("nan")], "finite"),
    ],
)
def test_a_cohort_that_no_hospital_would_accept_is_not_asked(masked_round, weights, problem):
    named = {f"hospital-{i}": weight for i, weight in enumerate(weights)}
    with pytest.raises(Refused, match=problem):
        masked_round(3, weights=named).begin()


def test_a_cohort_of_one_is_none(masked_round):
    with pytest.raises(Refused, match="a cohort of 1"):
        masked_round(1).begin()
    with pytest.raises(Refused, match="a cohort of 2"):
        masked_round(2).begin()


def test_a_hospital_that_sends_noise_costs_the_round_and_not_the_model(masked_round):
    play = masked_round(5, dimension=40).begin().share()
    noise = np.random.default_rng(0).integers(0, 2**64, 40, dtype=np.uint64)
    for name, tokens in play.tokens.items():
        masked = play.clients[name].mask(tokens, play.updates[name])
        play.server.take_masked(name, noise if name == "hospital-2" else masked)
    play.survivors = play.server.survivors()
    with pytest.raises(SumLost, match="larger than any honest one"):
        play.confirm().reveal()


def changed(share):
    """The same share with another last byte."""
    return share[:-2] + f"{int(share[-2:], 16) ^ 1:02x}"


@pytest.mark.parametrize("kind", ["seeds", "keys"])
def test_a_false_share_is_noticed(masked_round, kind):
    play = masked_round(5).begin().share().mask(["hospital-4"])
    play.confirm()
    for name, tags in play.tags.items():
        revealed = play.clients[name].reveal(tags)
        if name == "hospital-0":
            false = {peer: changed(share) for peer, share in getattr(revealed, kind).items()}
            revealed = replace(revealed, **{kind: false})
        play.server.take_revealed(name, revealed)
    with pytest.raises(SumLost, match="do not fit together"):
        play.server.unmask()


def test_what_hospitals_send_is_checked(masked_round):
    play = masked_round(5).begin()
    shares = {name: client.share_keys(play.cohort) for name, client in play.clients.items()}
    with pytest.raises(Refused, match="not for all the others"):
        play.server.take_shares("hospital-0", KeyShares({}, ""))
    for name in play.names:
        play.server.take_shares(name, shares[name])
    play.tokens = play.server.deliveries()
    vector = np.zeros(play.dimension, np.uint64)
    for bad in (vector[:-1], vector.astype(np.int64), vector.reshape(2, -1)):
        with pytest.raises(Refused, match="a masked update"):
            play.server.take_masked("hospital-0", bad)
    with pytest.raises(Refused, match="not asked for"):
        play.server.take_masked("a stranger", vector)
    play.mask()
    with pytest.raises(Refused, match="not asked for"):
        play.server.take_masked("hospital-0", vector)
    with pytest.raises(Refused, match="not for all the others"):
        play.server.take_tags("hospital-0", {})
    play.confirm()
    first, second = (play.clients[name].reveal(play.tags[name]) for name in play.names[:2])
    for bad in (
        Revealed({}, {}),
        Revealed(first.seeds, first.seeds),
        second,  # another's shares
        Revealed(dict.fromkeys(first.seeds, "no hex"), {}),
        Revealed({peer: share + "00" for peer, share in first.seeds.items()}, {}),
    ):
        with pytest.raises(Refused, match="reveal"):
            play.server.take_revealed("hospital-0", bad)


def test_shares_below_the_threshold_say_nothing(masked_round):
    """Hospitals that collude with the server, one fewer than the threshold, do not have a seed."""
    play = masked_round(6).begin().share().mask()
    play.confirm()
    revealed = [play.clients[name].reveal(play.tags[name]) for name in play.names]
    shares = [bytes.fromhex(own.seeds["hospital-5"]) for own in revealed]
    seed = combine_shares(shares[: play.cohort.threshold])
    with suppress(ValueError):  # what they have need not even be padded like a seed
        assert combine_shares(shares[: play.cohort.threshold - 1]) != seed
