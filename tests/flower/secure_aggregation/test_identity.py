"""Registered keys: a server that plays hospitals of its own is noticed."""

from dataclasses import replace

import pytest

from wardround.errors import ConfigError
from wardround.flower.certificates import make_node_keys
from wardround.flower.secure_aggregation.client import MaskingClient
from wardround.flower.secure_aggregation.cohort import Cohort, Limits, PublicKeys
from wardround.flower.secure_aggregation.identity import Identity
from wardround.privacy.encryption.refusals import Refused

NAMES = ("a", "b", "c")
ORDER = "0" * 64


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    make_node_keys(folder, NAMES)
    return folder / "nodes"


@pytest.fixture
def cohort(keys):
    clients = {
        name: MaskingClient(name, ORDER, Limits(), Identity.from_files(keys / name, keys)) for name in NAMES
    }
    signed = {name: client.public_keys() for name, client in clients.items()}
    return clients, Cohort(ORDER, signed, dict.fromkeys(NAMES, 1 / 3))


def test_hospitals_that_signed_take_part(cohort):
    clients, agreed = cohort
    for client in clients.values():
        assert client.share_keys(agreed).tokens


@pytest.mark.parametrize("signature", ["", "00", "no hex"])
def test_keys_without_a_signature_are_refused(cohort, signature):
    clients, agreed = cohort
    unsigned = {**agreed.keys, "b": replace(agreed.keys["b"], signature=signature)}
    with pytest.raises(Refused, match="the keys of 'b' are not signed"):
        clients["a"].share_keys(replace(agreed, keys=unsigned))


def test_a_server_in_the_middle_is_noticed(cohort):
    """It puts keys of its own in the place of another's, with the signature of the other."""
    clients, agreed = cohort
    own = MaskingClient("b", ORDER, Limits()).public_keys()
    forged = {**agreed.keys, "b": replace(own, signature=agreed.keys["b"].signature)}
    with pytest.raises(Refused, match="the keys of 'b' are not signed"):
        clients["a"].share_keys(replace(agreed, keys=forged))


def test_a_hospital_that_nobody_knows_is_noticed(cohort):
    clients, agreed = cohort
    sybil = MaskingClient("d", ORDER, Limits()).public_keys()
    wider = replace(agreed, keys={**agreed.keys, "d": sybil}, weights=dict.fromkeys([*NAMES, "d"], 0.25))
    with pytest.raises(Refused, match="'d' has no registered key"):
        clients["a"].share_keys(wider)


def test_a_signature_is_for_one_order_and_one_name(cohort, keys):
    clients, agreed = cohort
    elsewhere = MaskingClient("b", "1" * 64, Limits(), Identity.from_files(keys / "b", keys))
    replayed = {**agreed.keys, "b": elsewhere.public_keys()}
    with pytest.raises(Refused, match="not signed"):
        clients["a"].share_keys(replace(agreed, keys=replayed))
    swapped = {**agreed.keys, "b": agreed.keys["c"], "c": agreed.keys["b"]}
    with pytest.raises(Refused, match="not signed"):
        clients["a"].share_keys(replace(agreed, keys=swapped))


def test_a_hospital_that_knows_nobody_signs_and_does_not_check(cohort, keys):
    _, agreed = cohort
    alone = MaskingClient("a", ORDER, Limits(), Identity.from_files(keys / "a"))
    unsigned = {name: PublicKeys(own.masks, own.shares) for name, own in agreed.keys.items()}
    assert alone.public_keys().signature
    assert alone.share_keys(replace(agreed, keys={**unsigned, "a": alone.public_keys()})).tokens


def test_files_that_are_no_keys_are_named(keys, tmp_path):
    (tmp_path / "key").write_text("no key")
    with pytest.raises(ConfigError, match="key: not a private key"):
        Identity.from_files(tmp_path / "key", keys)
    with pytest.raises(ConfigError, match="not a private key"):
        Identity.from_files(tmp_path / "none", keys)
    with pytest.raises(ConfigError, match="no such folder"):
        Identity.from_files(keys / "a", tmp_path / "none")
