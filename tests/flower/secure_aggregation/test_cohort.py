from dataclasses import replace

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from wardround.flower.secure_aggregation.cohort import (
    Cohort,
    Limits,
    PublicKeys,
    group_context,
    read_public_key,
    threshold_for,
)
from wardround.privacy.encryption.refusals import Refused

NAMES = ("a", "b", "c", "d")
COHORT = Cohort("order", {n: PublicKeys(f"{n}1", f"{n}2") for n in NAMES}, dict.fromkeys(NAMES, 0.25))


@given(st.integers(2, 1000))
def test_two_groups_of_the_threshold_share_a_third(clients):
    threshold = threshold_for(clients)
    assert threshold <= clients
    assert 2 * threshold - clients >= clients / 3


def test_a_cohort_survives_a_message():
    assert Cohort.from_plain(COHORT.to_plain(), "order") == COHORT
    assert Cohort.from_plain(COHORT.to_plain(), "order").context == COHORT.context


@pytest.mark.parametrize(
    "plain", [None, [], {"a": None}, {"a": ["1", "2"]}, {"a": ["1", "2", "", "x"]}, {"a": 5}]
)
def test_what_is_no_cohort_is_refused(plain):
    with pytest.raises(Refused):
        Cohort.from_plain(plain, "order").check(Limits())


def test_the_context_is_of_everything_that_was_agreed():
    others = [
        replace(COHORT, order="another"),
        replace(COHORT, weights={**COHORT.weights, "a": 0.2500001}),
        replace(COHORT, keys={**COHORT.keys, "a": PublicKeys("x", "a2")}),
        replace(COHORT, keys={**COHORT.keys, "a": PublicKeys("a1", "x")}),
        replace(COHORT, keys={**COHORT.keys, "e": PublicKeys("e1", "e2")}),
    ]
    contexts = {cohort.context for cohort in [COHORT, *others]}
    contexts |= {group_context(COHORT, group) for group in (NAMES, NAMES[:3], NAMES[1:])}
    assert len(contexts) == 9
    assert group_context(COHORT, NAMES) == group_context(COHORT, NAMES[::-1])


def test_who_is_left_is_checked():
    COHORT.check_left(NAMES[:3], Limits())
    with pytest.raises(Refused, match="2 of 4 hospitals are left, 3 are needed"):
        COHORT.check_left(NAMES[:2], Limits())
    with pytest.raises(Refused, match="2 of 4 hospitals are left"):
        COHORT.check_left([*NAMES[:2], *NAMES[:2]], Limits())  # nobody counts twice
    with pytest.raises(Refused, match="not all of these"):
        COHORT.check_left([*NAMES, "e"], Limits())
    with pytest.raises(Refused, match="a cohort of 4, fewer than 5"):
        COHORT.check_left(NAMES, Limits(min_cohort=5))


def test_a_key_is_nobody_elses():
    twin = replace(COHORT, keys={**COHORT.keys, "a": PublicKeys("b1", "a2")})
    with pytest.raises(Refused, match="the same"):
        twin.check(Limits())


def pem(key):
    form = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return key.public_key().public_bytes(*form).decode()


def test_only_keys_of_the_curve_are_read():
    assert read_public_key(pem(ec.generate_private_key(ec.SECP384R1())))
    for bad in ("", "no key", pem(ec.generate_private_key(ec.SECP256R1())), "x" * 10_000):
        with pytest.raises(Refused, match="a public key"):
            read_public_key(bad)
    with pytest.raises(Refused, match="a public key"):
        read_public_key(pem(rsa.generate_private_key(65537, 1024)))
