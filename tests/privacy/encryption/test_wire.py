import pytest
from hypothesis import given
from hypothesis import strategies as st

from wardround.errors import WardroundError
from wardround.privacy.encryption.wire import (
    BODY,
    NONCE,
    PROOF,
    TIME,
    Doorkeeper,
    NotAuthentic,
    pack_message,
    signed_headers,
    unpack_message,
)

KEY = b"k" * 32


@pytest.mark.slow
@given(st.dictionaries(st.text(), st.integers() | st.floats(allow_nan=False)), st.lists(st.binary()))
def test_messages_survive(head, blobs):
    assert unpack_message(pack_message(head, blobs)) == (head, blobs)


@given(st.binary(max_size=60))
def test_no_bytes_make_it_fall_over(content):
    try:
        unpack_message(content)
    except WardroundError as error:
        assert "not a message" in str(error)  # noqa: PT017 - both outcomes are fine


def test_a_signed_request_is_let_in_once():
    door, headers = Doorkeeper(KEY), signed_headers(KEY, "/sum", b"body")
    assert door.admit("/sum", headers) == headers[NONCE]
    door.check_body(headers, b"body")
    with pytest.raises(NotAuthentic, match="replay"):
        door.admit("/sum", headers)


@pytest.mark.parametrize("name", [TIME, NONCE, BODY, PROOF])
def test_whatever_is_changed_breaks_the_signature(name):
    headers = signed_headers(KEY, "/sum", b"body")
    with pytest.raises(NotAuthentic, match="not signed"):
        Doorkeeper(KEY).admit("/sum", {**headers, name: headers[name][:-1] + "x"})
    with pytest.raises(NotAuthentic, match="not signed"):
        Doorkeeper(KEY).admit("/sum", {key: value for key, value in headers.items() if key != name})


def test_another_path_key_body_or_hour_is_not_let_in():
    headers = signed_headers(KEY, "/sum", b"body")
    with pytest.raises(NotAuthentic, match="not signed"):
        Doorkeeper(KEY).admit("/measure", headers)
    with pytest.raises(NotAuthentic, match="not signed"):
        Doorkeeper(b"other").admit("/sum", headers)
    with pytest.raises(NotAuthentic, match="old"):
        Doorkeeper(KEY).admit("/sum", headers, now=float(headers[TIME]) + 61)
    with pytest.raises(NotAuthentic, match="not the one that was signed"):
        Doorkeeper.check_body(headers, b"another body")


def test_a_nonce_is_remembered_for_as_long_as_its_request_is_young_enough():
    door, headers = Doorkeeper(KEY), signed_headers(KEY, "/sum", b"")
    start = float(headers[TIME])
    door.admit("/sum", headers, now=start - 59)
    with pytest.raises(NotAuthentic, match="replay"):
        door.admit("/sum", headers, now=start + 59)
