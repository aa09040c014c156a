"""Checks of a federation's server before it waits for anybody."""

from __future__ import annotations

import ssl
from pathlib import Path

from wardround.errors import ConfigError
from wardround.files import is_locked
from wardround.flower.certificates import public_keys
from wardround.flower.config import FederationConfig
from wardround.flower.preflight import machine
from wardround.flower.preflight.findings import Finding, Findings
from wardround.flower.server.server_side import check_server_side

__all__ = ["check_server", "check_while_running"]

SERVER_MEMORY = 900 * 2**20
"""Bytes of the server's processes (server app, SuperLink, gateway) with a small model."""
BYTES_PER_WEIGHT = 4
COPIES = 3
"""Of every hospital's update at a time: as a message, as a row, and in what the rule makes of it."""


def check_server(
    config: FederationConfig, path: Path, out: Path, state: Path, insecure: bool, connect: bool = False
) -> list[Finding]:
    """Everything that can be known at the server alone; with `connect` also whether it can be reached from here."""
    findings = Findings()
    federation = config.federation
    findings.ok("configuration", f"{path}: {config.clients} hospitals, {config.run.rounds} rounds")
    running = is_locked(state / ".lock")
    if insecure:
        findings.warn(
            "keys", "no TLS and no keys (--insecure)", "for trials only; make them by `wardround certs`"
        )
    else:
        _check_tls(findings, config, path)
        findings.attempt("hospitals' keys", lambda own: _check_node_keys(own, config, path))
    if running:
        findings.ok("ports", f"this federation is running ({state})")
    else:
        key = f"{path}: federation.port"
        findings.attempt(
            "port",
            lambda own: machine.check_listening(own, "port", federation.host, federation.port, key),
            "stop what listens there, or choose another port",
        )
        if (port := federation.metrics_port) is not None:
            own_key = f"{path}: federation.metrics_port"
            findings.attempt(
                "metrics port",
                lambda own: machine.check_listening(
                    own, "metrics port", federation.metrics_host, port, own_key
                ),
                "choose another port",
            )
    machine.check_clock(findings)
    weights = _check_parts(findings, config)
    size = BYTES_PER_WEIGHT * (weights or 0)
    findings.attempt("disk", lambda own: machine.check_disk(own, "disk", out, 20 * size))
    if weights is not None:
        needed = SERVER_MEMORY + COPIES * size * config.per_round
        what = f"{weights:,} weights of {config.per_round} hospitals"
        machine.check_memory(findings, "memory", needed, what)
    if config.run.privacy.steward is not None:
        findings.attempt(
            "steward", lambda own: _check_steward(own, config), "start `wardround steward` on its machine"
        )
    if connect and not insecure:
        from wardround.flower.preflight.connection import check_gateway

        findings.attempt("gateway", lambda own: check_gateway(own, config, running))
    return findings.all


def check_while_running(config: FederationConfig, path: Path, insecure: bool) -> list[Finding]:
    """What was right at the start and may not stay so: certificates and this machine's clock."""
    findings = Findings()
    if not insecure:
        _check_tls(findings, config, path)
    machine.check_clock(findings)
    return findings.all


def _check_tls(findings: Findings, config: FederationConfig, path: Path) -> None:
    federation = config.federation
    for key in ("certificate", "certificate_key", "root_certificates"):
        if getattr(federation, key) is None:
            findings.fail(
                "certificate",
                f"{path}: federation.{key} is required",
                "make it by `wardround certs`, or --insecure",
            )
            return
    certificate, private = Path(str(federation.certificate)), Path(str(federation.certificate_key))
    authority = Path(str(federation.root_certificates))
    renew = "renew it: wardround certs CERTS --host NAME --force"

    def pair(own: Findings) -> None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, private, lambda: "")
        except ssl.SSLError as error:
            raise ConfigError(
                f"{certificate} and {private} do not belong together ({error.reason})"
            ) from None
        loaded, signer = machine.load_certificate(certificate), machine.load_certificate(authority)
        try:
            loaded.verify_directly_issued_by(signer)
        except (ValueError, TypeError):
            raise ConfigError(f"{certificate}: not signed by {authority}") from None
        except Exception as error:  # cryptography's InvalidSignature is a bare Exception
            raise ConfigError(f"{certificate}: not signed by {authority} ({type(error).__name__})") from None
        machine.note_expiry(own, "certificate", loaded, str(certificate), renew)
        new = "a new authority: remove ca.crt and ca.key, run `wardround certs`, send ca.crt to all hospitals"
        machine.note_expiry(own, "authority", signer, str(authority), new)

    findings.attempt("certificate", pair, "make them again by `wardround certs`")
    findings.attempt("server's key", lambda own: machine.check_private(own, "server's key", private))


def _check_node_keys(findings: Findings, config: FederationConfig, path: Path) -> None:
    folder = config.federation.node_keys
    if folder is None:
        raise ConfigError(
            f"{path}: federation.node_keys is required: the folder with the hospitals' public keys"
        )
    names = sorted(public_keys(folder))
    needed = config.federation.needed(config.per_round)
    text = f"{len(names)} in {folder}: {', '.join(names[:8])}{' …' if len(names) > 8 else ''}"
    if len(names) < needed:
        findings.fail(
            "hospitals' keys",
            f"{text}; a round needs {needed} hospitals",
            "put the NAME.pub of every hospital there, or lower federation.quorum",
        )
    elif len(names) < config.clients:
        findings.warn(
            "hospitals' keys",
            f"{text}; {config.clients} hospitals are expected",
            "put the NAME.pub of the others there: that works while the server runs, too",
        )
    else:
        findings.ok("hospitals' keys", text)


def _check_parts(findings: Findings, config: FederationConfig) -> int | None:
    """Build what the server builds of its own data, rule and model; return the number of weights, where known."""
    weights: list[int] = []

    def build(own: Findings) -> None:
        checked = check_server_side(config)
        if checked.data is not None:
            own.ok("server's data", checked.data)
        if checked.weights is None:
            own.ok("model", f"'{config.run.model['name']}'; its size depends on the hospitals' data")
        else:
            own.ok("model", f"'{config.run.model['name']}' with {checked.weights:,} weights")
            weights.append(checked.weights)

    findings.attempt("server's data", build)
    return weights[0] if weights else None


def _check_steward(findings: Findings, config: FederationConfig) -> None:
    from wardround.privacy.encryption.remote_steward import RemoteSteward
    from wardround.privacy.encryption.vault import server_key

    privacy = config.run.privacy
    steward = RemoteSteward(str(privacy.steward), server_key(Path(privacy.steward_keys or "")), timeout=15.0)
    cipher, _ = steward.public_context()
    if cipher != privacy.cipher:
        raise ConfigError(f"privacy.cipher is {privacy.cipher}, but the steward has keys for {cipher}")
    findings.ok("steward", f"{privacy.steward} answers, with keys for {cipher}")
