"""What a hospital refuses, whatever the server says. The server here is the attacker."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from flwr.common.secure_aggregation.crypto.shamir import combine_shares

from wardround.flower.secure_aggregation.client import MaskingClient
from wardround.flower.secure_aggregation.cohort import Cohort, Limits, group_context
from wardround.flower.secure_aggregation.masks import decode, derive, mask_stream
from wardround.flower.secure_aggregation.server import SumLost
from wardround.privacy.encryption.refusals import Refused

VICTIM = "hospital-0"


def shared(masked_round, **options):
    """A round up to the stage where updates are masked."""
    return masked_round(**options).begin().share()


def test_every_stage_is_answered_once_and_in_order(masked_round):
    play = masked_round(5).begin()
    client, update = play.clients[VICTIM], play.updates[VICTIM]
    calls = {
        "share-keys": lambda: client.share_keys(play.cohort),
        "mask": lambda: client.mask(play.tokens[VICTIM], update),
        "confirm": lambda: client.confirm(play.survivors),
        "reveal": lambda: client.reveal(play.tags[VICTIM]),
    }
    play.tokens, play.survivors, play.tags = {VICTIM: {}}, (), {VICTIM: {}}

    def refuses(*stages):
        for stage in stages:
            with pytest.raises(Refused, match="each is answered once"):
                calls[stage]()

    refuses("mask", "confirm", "reveal")
    play.share()
    refuses("share-keys", "confirm", "reveal")
    play.mask()
    refuses("share-keys", "mask", "reveal")
    play.confirm()
    refuses("share-keys", "mask", "confirm")
    play.reveal()
    refuses(*calls)


def test_one_share_per_peer_never_both(masked_round):
    play = shared(masked_round, count=6).mask(["hospital-5"]).confirm()
    for name in play.survivors:
        revealed = play.clients[name].reveal(play.tags[name])
        assert set(revealed.seeds) == set(play.survivors)
        assert set(revealed.keys) == {"hospital-5"}
        with pytest.raises(Refused):
            play.clients[name].reveal(play.tags[name])


@pytest.mark.parametrize("count", [1, 2])
def test_a_cohort_below_the_hospitals_own_least_is_refused(masked_round, count):
    play = masked_round(count)  # a server without limits of its own
    with pytest.raises(Refused, match=f"a cohort of {count}"):
        play.clients[VICTIM].share_keys(play.cohort)


@pytest.mark.parametrize(
    ("weights", "problem"),
    [
        ([1.0, 0.0, 0.0, 0.0, 0.0], "a cohort of 1"),
        ([0.5, 0.5 - 4e-9, 1e-9, 1e-9, 1e-9], "a cohort of 2"),
        ([0.6, 0.1, 0.1, 0.1, 0.1], "one client has 0.600"),
        ([0.6, 0.6, -0.1, -0.1, 0.0], "not negative"),
        ([0.4, 0.4, 0.4, 0.4, 0.4], "at most 1"),
        ([float("inf"), 0.1, 0.1, 0.1, 0.1], "finite"),
        ([float("nan"), 0.1, 0.1, 0.1, 0.1], "finite"),
    ],
)
def test_weights_that_single_somebody_out_are_refused(masked_round, weights, problem):
    named = {f"hospital-{i}": weight for i, weight in enumerate(weights)}
    play = masked_round(5, weights=named)
    with pytest.raises(Refused, match=problem):
        play.clients[VICTIM].share_keys(play.cohort)


def test_a_cohort_with_other_keys_for_this_hospital_is_refused(masked_round):
    play, other = masked_round(5), masked_round(5)
    swapped = {**play.cohort.keys, VICTIM: other.cohort.keys[VICTIM]}
    with pytest.raises(Refused, match="own keys"):
        play.clients[VICTIM].share_keys(replace(play.cohort, keys=swapped))
    without = {name: keys for name, keys in play.cohort.keys.items() if name != VICTIM}
    with pytest.raises(Refused, match="own keys"):
        play.clients[VICTIM].share_keys(replace(play.cohort, keys=without))
    with pytest.raises(Refused, match="another order"):
        play.clients[VICTIM].share_keys(replace(play.cohort, order="1" * 64))


def split(play, view):
    """Half of the hospitals are given another view of the cohort than the rest."""
    first, second = play.names[:3], play.names[3:]
    shares = {name: play.clients[name].share_keys(play.cohort) for name in first}
    shares |= {name: play.clients[name].share_keys(view) for name in second}
    return shares


def other_weights(play):
    return replace(play.cohort, weights={**play.weights, "hospital-0": 0.19, "hospital-1": 0.21})


@pytest.mark.parametrize("name", ["hospital-0", "hospital-4"])
def test_hospitals_with_different_weights_do_not_read_each_others_shares(masked_round, name):
    play = masked_round(5)
    shares = split(play, other_weights(play))
    tokens = {peer: own.tokens[name] for peer, own in shares.items() if peer != name}
    with pytest.raises(Refused, match="not made for this hospital, order, cohort and weights"):
        play.clients[name].mask(tokens, play.updates[name])


def test_masks_of_different_orders_do_not_cancel(masked_round, monkeypatch):
    """Even where hospitals did not look at the shares: the masks themselves are bound to what was agreed."""
    play = masked_round(5, dimension=40).begin()
    shares = split(play, other_weights(play))
    monkeypatch.setattr(MaskingClient, "_read_token", lambda self, cohort, peer, token: (b"", b""))
    vectors = []
    for name in play.names:
        tokens = {peer: own.tokens[name] for peer, own in shares.items() if peer != name}
        vectors.append(play.clients[name].mask(tokens, play.updates[name]))
    # With all seeds known, what is left of the sum is the masks between the two groups.
    monkeypatch.undo()
    total = np.sum(vectors, axis=0, dtype=np.uint64)
    for name, client in play.clients.items():
        context = group_context(play.cohort if name in play.names[:3] else other_weights(play), play.names)
        total -= mask_stream(derive(client._seed, "own mask", context), 40)
    assert np.abs(decode(total)).max() > 1e5


def test_a_hospital_that_was_told_of_others_present_spoils_the_sum_and_shows_nothing(masked_round):
    """Different lists of who has shared keys: every list may be proper by itself, the masks do not cancel."""
    play = shared(masked_round, count=6, dimension=40)
    for name, tokens in play.tokens.items():
        told = {peer: token for peer, token in tokens.items() if name != VICTIM or peer != "hospital-5"}
        play.server.take_masked(name, play.clients[name].mask(told, play.updates[name]))
    survivors = tuple(name for name in play.names if name != "hospital-5")
    tags = {name: play.clients[name].confirm(survivors) for name in survivors}
    received = {peer: own[VICTIM] for peer, own in tags.items() if peer != VICTIM}
    with pytest.raises(Refused, match="told something else"):
        play.clients[VICTIM].reveal(received)


def test_two_lists_of_survivors_are_noticed(masked_round):
    """The server tells some that the victim is left, others that it dropped out: to have both kinds of its shares."""
    play = shared(masked_round, count=6).mask()
    everyone, without = play.names, play.names[1:]
    tags = {name: play.clients[name].confirm(everyone) for name in play.names[:3]}
    tags |= {name: play.clients[name].confirm(without) for name in play.names[3:]}
    for name in play.names:
        received = {peer: own[name] for peer, own in tags.items() if peer != name and name in own}
        with pytest.raises(Refused):
            play.clients[name].reveal(received)
        same = {
            peer: tag
            for peer, tag in received.items()
            if (peer in play.names[:3]) == (name in play.names[:3])
        }
        with pytest.raises(Refused, match="3 hospitals have confirmed who is left, 4 are needed"):
            play.clients[name].reveal(same)


@pytest.mark.parametrize(
    ("survivors", "problem"),
    [
        (range(1, 6), "is said to have dropped out"),
        (range(3), "3 of 6 hospitals are left, 4 are needed"),
        ([0], "1 of 6"),
        ([0, 0, 0, 0], "1 of 6"),
        ([0, 1, 2, 9], "were not there"),
        ([], "is said to have dropped out"),
    ],
)
def test_who_survived_is_checked(masked_round, survivors, problem):
    play = shared(masked_round, count=6).mask()
    with pytest.raises(Refused, match=problem):
        play.clients[VICTIM].confirm([f"hospital-{i}" for i in survivors])


def test_somebody_who_was_not_there_did_not_survive(masked_round):
    play = masked_round(6).begin().share(["hospital-5"]).mask()
    with pytest.raises(Refused, match="were not there"):
        play.clients[VICTIM].confirm(play.names)


def test_survivors_must_still_hide_this_hospital(masked_round):
    weights = {"hospital-0": 0.4, "hospital-1": 0.4, **{f"hospital-{i}": 0.05 for i in range(2, 6)}}
    play = shared(masked_round, count=6, weights=weights).mask()
    left = [name for name in play.names if name != "hospital-1"]
    with pytest.raises(Refused, match=r"one client has 0\.667"):
        play.clients[VICTIM].confirm(left)
    small = Limits(min_cohort=6)
    play = shared(masked_round, count=6, limits=small).mask()
    with pytest.raises(Refused, match="a cohort of 5, fewer than 6"):
        play.clients[VICTIM].confirm(left)


def test_too_few_shares_mask_nothing(masked_round):
    play = shared(masked_round, count=6)
    few = dict(list(play.tokens[VICTIM].items())[:2])
    with pytest.raises(Refused, match="3 of 6 hospitals are left"):
        play.clients[VICTIM].mask(few, play.updates[VICTIM])
    with pytest.raises(Refused, match="1 of 6"):
        play.clients[VICTIM].mask({}, play.updates[VICTIM])
    with pytest.raises(Refused, match="not all of these"):
        play.clients[VICTIM].mask({**play.tokens[VICTIM], "a stranger": "token"}, play.updates[VICTIM])
    with pytest.raises(Refused, match="for itself"):
        play.clients[VICTIM].mask({**play.tokens[VICTIM], VICTIM: "token"}, play.updates[VICTIM])


def test_shares_of_somebody_else_or_another_round_are_refused(masked_round):
    play, earlier = shared(masked_round), shared(masked_round)
    client, tokens = play.clients[VICTIM], play.tokens[VICTIM]
    for wrong in (
        {**tokens, "hospital-1": earlier.tokens[VICTIM]["hospital-1"]},  # of another round
        {**tokens, "hospital-1": tokens["hospital-2"]},  # of another peer
        {**tokens, "hospital-1": play.tokens["hospital-1"][VICTIM]},  # its own, sent back
        {**tokens, "hospital-1": play.tokens["hospital-2"]["hospital-1"]},  # for another peer
        {**tokens, "hospital-1": "gAAAA"},
        {**tokens, "hospital-1": ""},
    ):
        with pytest.raises(Refused, match="the shares of 'hospital-1'"):
            client.mask(wrong, play.updates[VICTIM])
    client.mask(
        tokens, play.updates[VICTIM]
    )  # nothing had left the hospital: the right ones are still welcome


def test_confirmations_of_strangers_or_of_another_round_count_for_nothing(masked_round):
    play, earlier = (shared(masked_round).mask().confirm() for _ in range(2))
    tags = play.tags[VICTIM]
    for wrong, problem in (
        ({**tags, "hospital-1": earlier.tags[VICTIM]["hospital-1"]}, "told something else"),
        ({**tags, "hospital-1": tags["hospital-2"]}, "told something else"),
        (
            {**tags, "hospital-1": play.tags["hospital-1"][VICTIM]},
            "told something else",
        ),  # its own, sent back
        ({**tags, "a stranger": "tag"}, "not one of the others"),
        ({**tags, VICTIM: "tag"}, "not one of the others"),
        ({}, "1 hospitals have confirmed"),
    ):
        with pytest.raises(Refused, match=problem):
            play.clients[VICTIM].reveal(wrong)


def test_a_masked_update_says_nothing_by_itself(masked_round):
    """The same update twice, in two rounds, is two unrelated vectors; an update of zeros is as random as any."""
    plays = [shared(masked_round, dimension=20_000) for _ in range(2)]
    zeros = np.zeros(20_000)
    vectors = [play.clients[VICTIM].mask(play.tokens[VICTIM], zeros) for play in plays]
    assert not np.intersect1d(*vectors).size
    for vector in vectors:
        assert abs(np.unpackbits(vector.view(np.uint8)).mean() - 0.5) < 0.005


def test_a_server_that_drops_all_but_one_gets_no_sum(masked_round):
    """It keeps one masked update to itself and asks the others for the keys of everybody else."""
    play = shared(masked_round, count=6)
    for name, tokens in play.tokens.items():
        masked = play.clients[name].mask(tokens, play.updates[name])
        if name == VICTIM:
            play.server.take_masked(name, masked)
    with pytest.raises(SumLost):
        play.server.survivors()
    for name in play.names:
        with pytest.raises(Refused):
            play.clients[name].confirm([VICTIM])


def test_the_next_stage_can_be_answered_by_another_process(masked_round):
    play = masked_round(5).begin()

    def restart():
        for name, client in play.clients.items():
            fresh = MaskingClient(name, "", play.limits)
            fresh.load_state_dict(client.state_dict())
            assert fresh.state_dict() == client.state_dict()
            play.clients[name] = fresh

    for stage in ("share", "mask", "confirm"):
        restart()
        getattr(play, stage)()
        restart()
        with pytest.raises(Refused, match="each is answered once"):
            play.clients[VICTIM].share_keys(play.cohort)
    assert play.clients[VICTIM].sent_update
    before = play.clients[VICTIM].state_dict()
    assert play.reveal() == pytest.approx(play.expected(), abs=1e-11)
    after = play.clients[VICTIM].state_dict()
    for secret in ("seed", "shares", "mask_key", "share_key"):
        assert before[secret]
        assert after[secret] != before[secret]  # what could open this round is gone


def test_colluders_below_the_threshold_with_the_server_do_not_have_an_update(masked_round):
    """Server and t − 1 of n hospitals put together all they hold: the victim's seed stays unknown."""
    play = shared(masked_round, count=6).mask().confirm()
    colluders = play.names[1 : play.cohort.threshold]
    held = [play.clients[name]._shares[VICTIM] for name in colluders]
    assert len(held) == play.cohort.threshold - 1
    secrets = [bytes.fromhex(play.clients[VICTIM].state_dict()[name]) for name in ("seed", "mask_key")]
    for part, secret in enumerate(secrets):
        with suppress(ValueError):  # what they have need not even be padded like a secret
            assert combine_shares([shares[part] for shares in held]) != secret
        own = play.clients[VICTIM]._shares[VICTIM][part]
        assert combine_shares([own, *(shares[part] for shares in held)]) == secret  # one more would have it


def test_a_server_may_only_play_hospitals_where_nobody_signs(masked_round):
    """What is not covered without registered keys: a server that plays all the others has the update."""
    play = masked_round(5)
    sybils = [name for name in play.names if name != VICTIM]  # all of them the server's
    play.begin().share().mask().confirm()
    known = sum(play.weights[name] * play.updates[name] for name in sybils)
    assert play.reveal() - known == pytest.approx(play.weights[VICTIM] * play.updates[VICTIM], abs=1e-11)


def test_a_cohort_is_read_from_a_message(masked_round):
    play = masked_round(3)
    read = Cohort.from_plain(play.cohort.to_plain(), play.cohort.order)
    assert play.clients[VICTIM].share_keys(read).tokens.keys() == {"hospital-1", "hospital-2"}
