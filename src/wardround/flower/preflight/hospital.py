"""Checks of a hospital before it joins."""

from __future__ import annotations

from pathlib import Path

from wardround.datasets.schema import Schema
from wardround.datasets.table_source import TableSource
from wardround.errors import ConfigError
from wardround.files import is_locked
from wardround.flower.config import HospitalConfig
from wardround.flower.preflight import machine
from wardround.flower.preflight.connection import check_server_reachable
from wardround.flower.preflight.findings import Finding, Findings

__all__ = ["check_hospital"]

HOSPITAL_MEMORY = 600 * 2**20
"""Bytes of a hospital's processes beside its data."""


def check_hospital(
    config: HospitalConfig,
    path: Path,
    state: Path,
    insecure: bool,
    schema: Schema | None = None,
    connect: bool = False,
    with_data: bool = True,
) -> list[Finding]:
    """Everything that can be known in a hospital alone; with `connect` also against its server.

    Args:
        config: The hospital.
        path: Its configuration file.
        state: Where it keeps what it remembers.
        insecure: Without TLS and keys.
        schema: The federation's schema, to check the table against; None: the hospital's own, where it names one.
        connect: Ask the server, too.
        with_data: Read the data; `join` leaves large ones to its trainer.
    """
    findings = Findings()
    findings.ok("configuration", f"{path}: {config.name}")
    if is_locked(state / ".lock"):
        findings.ok("running", f"this hospital has joined ({state})")
    if insecure:
        findings.warn(
            "keys", "no TLS and no keys (--insecure)", "for trials only; make them by `wardround certs`"
        )
    else:
        findings.attempt("key", lambda own: _check_key(own, config, path))
        findings.attempt("authority", lambda own: _check_authority(own, config, path))
    for key, what in ((config.steward_key, "steward's key"), (config.peer_keys, "peers' keys")):
        if key is not None:
            findings.attempt(what, lambda own, key=key, what=what: _check_other_key(own, what, key))  # type: ignore[misc]
    machine.check_clock(findings)
    findings.attempt("disk", lambda own: machine.check_disk(own, "disk", state))
    if with_data or _is_table(config):
        findings.attempt("data", lambda own: _check_data(own, config, schema))
    if connect:
        findings.attempt("server", lambda own: check_server_reachable(own, config, path, insecure))
    return findings.all


def _is_table(config: HospitalConfig) -> bool:
    from wardround import datasets

    return issubclass(datasets.registry.get(config.dataset["name"]), TableSource)


def _check_key(findings: Findings, config: HospitalConfig, path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    if config.node_key is None:
        raise ConfigError(
            f"{path}: node_key is required; make it by `wardround certs CERTS --node {config.name}`"
        )
    try:
        key = load_ssh_private_key(config.node_key.read_bytes(), None)
    except ValueError as error:
        raise ConfigError(f"{config.node_key}: not a private key ({error})") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{config.node_key}: an elliptic curve key is needed; make it by `wardround certs`")
    machine.check_private(findings, "key", config.node_key)
    if config.node_key.name != config.name:
        findings.warn(
            "key's name",
            f"the key is called {config.node_key.name}, the hospital {config.name}",
            f"a hospital's name is the file name of its public key at the server: it must be {config.name}.pub there",
        )


def _check_authority(findings: Findings, config: HospitalConfig, path: Path) -> None:
    if config.root_certificates is None:
        raise ConfigError(
            f"{path}: root_certificates is required: the ca.crt that the server's operator sent"
        )
    certificate = machine.load_certificate(config.root_certificates)
    remedy = "ask the server's operator for the new ca.crt"
    machine.note_expiry(findings, "authority", certificate, str(config.root_certificates), remedy)


def _check_other_key(findings: Findings, what: str, path: Path) -> None:
    if path.is_dir():
        names = sorted(file.stem for file in path.glob("*.pub"))
        if not names:
            raise ConfigError(f"{path}: no public key in it (NAME.pub)")
        findings.ok(what, f"{path}: {', '.join(names)}")
    elif not path.exists():
        raise ConfigError(f"{path}: does not exist")
    else:
        machine.check_private(findings, what, path)


def _check_data(findings: Findings, config: HospitalConfig, schema: Schema | None) -> None:
    from wardround.flower.hospital.data import HospitalData

    data = HospitalData(config.dataset, config.seed, config.partition, config.part)
    source = data.source
    if schema is not None:
        share, against = data.load(schema), "the federation's schema"
    else:
        share, against = data.share, "its own description"
    if isinstance(source, TableSource) and source.needs_schema and schema is None:
        findings.ok(
            "data",
            f"{len(share.train_rows)} rows can be read; what the columns mean, the federation's schema says "
            "(--schema FILE checks against it)",
        )
        return
    dataset = share.dataset
    counts = dataset.train.targets[share.train_rows]
    text = f"{len(share.train_rows)} training and {len(share.test_rows)} test samples fit {against}"
    if not len(share.train_rows):
        findings.fail("data", "no training samples", "bring more rows")
        return
    if counts.ndim == 1 and len(set(counts.tolist())) == 1 and len(dataset.class_names) > 1:
        only = dataset.class_names[int(counts[0])]
        findings.warn(
            "data", f"{text}; all of them are '{only}'", "that is allowed; is the label the right column?"
        )
    else:
        findings.ok("data", text)
    machine.check_memory(findings, "memory", HOSPITAL_MEMORY, "training beside the data")
