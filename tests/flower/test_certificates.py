"""Certificates and keys: who can read them, what they are good for, what is never overwritten."""

import datetime as dt
import socket
import ssl
import stat
import threading

import pytest

pytest.importorskip("flwr")

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from wardround.errors import ConfigError
from wardround.flower.certificates import KeyFiles, make_node_keys, make_server_certificate, public_keys


@pytest.fixture
def files(tmp_path):
    make_server_certificate(tmp_path, ["fed.example.org", "10.0.0.5"])
    return KeyFiles(tmp_path)


def handshake(files, authority, host):
    """Connect to a server with these files, trusting `authority`, believing it is `host`."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.server, files.server_key)
    client = ssl.create_default_context(cafile=authority)
    ours, theirs = socket.socketpair()

    def accept():
        with theirs:
            try:
                server.wrap_socket(theirs, server_side=True).close()
            except OSError:
                return

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        with ours, client.wrap_socket(ours, server_hostname=host) as connection:
            return connection.version()
    finally:
        thread.join(60)


@pytest.mark.parametrize("host", ["fed.example.org", "10.0.0.5", "localhost", "127.0.0.1", "::1"])
def test_the_server_is_believed_under_its_names(files, host):
    assert handshake(files, files.authority, host) == "TLSv1.3"


def test_under_no_other_name_and_by_nobody_who_trusts_another(files, tmp_path):
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(files, files.authority, "evil.example.org")
    make_server_certificate(tmp_path / "other", ["fed.example.org"])
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        handshake(files, KeyFiles(tmp_path / "other").authority, "fed.example.org")


def test_private_keys_are_their_owners_alone(files):
    make_node_keys(files.folder, ["hospital-a"])
    for path in (files.authority_key, files.server_key, files.nodes / "hospital-a"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(files.authority.stat().st_mode) == 0o644


def test_node_keys_are_what_a_supernode_reads(files):
    make_node_keys(files.folder, ["hospital-a", "hospital-b"])
    private = load_ssh_private_key((files.nodes / "hospital-a").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.curve.name == "secp384r1"
    keys = public_keys(files.nodes)
    assert list(keys) == ["hospital-a", "hospital-b"]
    assert keys["hospital-a"] == private.public_key()


def test_nothing_is_overwritten_without_force(files):
    make_node_keys(files.folder, ["hospital-a"])
    before = {path: path.read_bytes() for path in files.folder.rglob("*") if path.is_file()}
    for again in (
        lambda: make_server_certificate(files.folder, ["fed.example.org"]),
        lambda: make_node_keys(files.folder, ["hospital-new", "hospital-a"]),
    ):
        with pytest.raises(ConfigError, match="--force"):
            again()
    assert before == {path: path.read_bytes() for path in files.folder.rglob("*") if path.is_file()}
    make_server_certificate(files.folder, ["fed.example.org"], force=True)
    assert files.server.read_bytes() != before[files.server]
    assert files.authority.read_bytes() == before[files.authority]  # hospitals trust it
    assert handshake(files, files.authority, "fed.example.org")


def test_how_long_it_is_good(files):
    make_server_certificate(files.folder, ["fed.example.org"], days=10, force=True)
    certificate = x509.load_pem_x509_certificate(files.server.read_bytes())
    left = certificate.not_valid_after_utc - dt.datetime.now(dt.UTC)
    assert dt.timedelta(days=9) < left <= dt.timedelta(days=10)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: make_server_certificate(folder, ["bad host"]), "neither a host name nor"),
        (lambda folder: make_server_certificate(folder, ["-x.org"]), "neither a host name nor"),
        (lambda folder: make_node_keys(folder, ["../evil"]), "letters, digits"),
        (lambda folder: make_node_keys(folder, [""]), "letters, digits"),
        (lambda folder: public_keys(folder / "nowhere"), "no such folder"),
        (lambda folder: public_keys(folder), "no public key in it"),
    ],
)
def test_mistakes_leave_nothing_behind(tmp_path, make, words):
    with pytest.raises(ConfigError, match=words):
        make(tmp_path)
    assert not list(tmp_path.iterdir())


def test_half_an_authority_is_not_mended(files):
    files.authority_key.unlink()
    with pytest.raises(ConfigError, match="belong together"):
        make_server_certificate(files.folder, ["fed.example.org"], force=True)


def test_public_keys_that_will_not_do(files):
    make_node_keys(files.folder, ["hospital-a"])
    (files.nodes / "twin.pub").write_bytes((files.nodes / "hospital-a.pub").read_bytes())
    with pytest.raises(ConfigError, match=r"the same key as hospital-a\.pub"):
        public_keys(files.nodes)
    (files.nodes / "twin.pub").write_text("hello\n")
    with pytest.raises(ConfigError, match="not a public key"):
        public_keys(files.nodes)


def test_modes_do_not_depend_on_the_umask(open_umask, mode_of, tmp_path):
    files = KeyFiles(tmp_path / "certs")
    make_node_keys(files.folder, ["hospital-a"])  # first: makes the folder above too
    make_server_certificate(files.folder, ["127.0.0.1"])
    assert mode_of(files.folder) == mode_of(files.nodes) == 0o700
    for path in (files.authority_key, files.server_key, files.nodes / "hospital-a"):
        assert mode_of(path) == 0o600
    for path in (files.authority, files.server, files.nodes / "hospital-a.pub"):
        assert mode_of(path) == 0o644


def test_a_server_gets_a_folder_for_the_hospitals_keys(tmp_path):
    make_server_certificate(tmp_path / "certs", ["fed.example.org"])
    assert (tmp_path / "certs" / "nodes").is_dir()
    assert (tmp_path / "certs" / "nodes").stat().st_mode & 0o777 == 0o700
