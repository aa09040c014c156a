"""Signatures: only the server of the authority that a hospital trusts can make one."""

import datetime as dt
import json

import pytest

from wardround.errors import ConfigError, DataError
from wardround.runs.export.signature import sign, verify

certificates = pytest.importorskip(
    "wardround.flower.certificates", reason="the extra 'flower' is not installed"
)
MANIFEST = b'{"run": "a-run"}'


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certs")
    certificates.make_server_certificate(folder, ["127.0.0.1"])
    return certificates.KeyFiles(folder)


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    folder = tmp_path_factory.mktemp("others")
    certificates.make_server_certificate(folder, ["127.0.0.1"])
    return certificates.KeyFiles(folder)


@pytest.fixture(scope="module")
def signature(keys):
    return sign(MANIFEST, keys.server_key, keys.server)


def test_the_servers_signature_is_good(keys, signature):
    assert "127.0.0.1" in verify(MANIFEST, signature, keys.authority, dt.datetime.now(dt.UTC))


def test_no_signature_is_refused(keys):
    with pytest.raises(DataError, match="has no signature"):
        verify(MANIFEST, None, keys.authority)


def test_another_manifest_is_refused(keys, signature):
    with pytest.raises(DataError, match="not a signature of this manifest"):
        verify(MANIFEST + b" ", signature, keys.authority)


def test_another_authority_is_refused(others, signature):
    with pytest.raises(DataError, match="is not issued by"):
        verify(MANIFEST, signature, others.authority)


def test_another_servers_signature_with_this_servers_certificate_is_refused(keys, others, signature):
    mixed = json.loads(sign(MANIFEST, others.server_key, others.server))
    mixed["certificate"] = json.loads(signature)["certificate"]
    with pytest.raises(DataError, match="not a signature of this manifest"):
        verify(MANIFEST, json.dumps(mixed).encode(), keys.authority)


def test_the_authority_itself_is_no_server(keys):
    own = sign(MANIFEST, keys.authority_key, keys.authority)
    with pytest.raises(DataError, match="is not a server's"):
        verify(MANIFEST, own, keys.authority)


def test_an_expired_certificate_is_refused_where_a_time_is_given(keys, signature):
    later = dt.datetime.now(dt.UTC) + dt.timedelta(days=3000)
    with pytest.raises(DataError, match="not valid at present"):
        verify(MANIFEST, signature, keys.authority, later)
    verify(MANIFEST, signature, keys.authority)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"certificate": 1}', b"\xff", b"[" * 100_000])
def test_what_is_no_signature_is_one_line(keys, content):
    with pytest.raises(DataError, match="cannot be read"):
        verify(MANIFEST, content, keys.authority)


def test_a_key_that_is_not_the_certificates_is_refused(keys, others):
    with pytest.raises(ConfigError, match="not the elliptic curve key of"):
        sign(MANIFEST, others.server_key, keys.server)
