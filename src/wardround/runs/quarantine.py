"""Clients that an operator excludes from a run: they are not asked and have weight 0 until they are released."""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from wardround.errors import ConfigError, WardroundError, did_you_mean
from wardround.files import locked, replace_file
from wardround.runs.audit import AuditLog
from wardround.runs.folder import RunFolder

__all__ = ["AUDIT_LOG", "STATE", "quarantine", "quarantined", "release", "user_name"]

AUDIT_LOG = "audit.jsonl"
"""The audit log's name in a run's folder."""
STATE = "quarantine.json"


def quarantined(folder: Path) -> dict[str, str]:
    """Read which clients are in quarantine now, and why. Cheap enough for every round."""
    path = Path(folder) / STATE
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise WardroundError(f"{path}: cannot be read ({error})") from None
    if not isinstance(values, dict) or not all(isinstance(reason, str) for reason in values.values()):
        raise WardroundError(f"{path}: not a list of quarantined clients; remove it to begin anew")
    return values


def quarantine(folder: Path, client: str, reason: str) -> None:
    """Exclude a client from the next round on. Safe while the run is going; written to the audit log."""
    with _locked(folder, reason) as clients:
        if client in clients:
            raise ConfigError(f"{client} is quarantined already ({clients[client]})")
        _check_known(folder, client)
        _note(folder, "quarantined", client, reason)
        _write(folder, {**clients, client: reason})


def release(folder: Path, client: str, reason: str) -> None:
    """Let a quarantined client take part again from the next round on; written to the audit log."""
    with _locked(folder, reason) as clients:
        if client not in clients:
            raise ConfigError(f"{client} is not quarantined; {did_you_mean(client, clients)}")
        _note(folder, "released", client, reason)
        _write(folder, {other: why for other, why in clients.items() if other != client})


def user_name() -> str:
    """Who runs this process, for logs."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no name for this number
        return str(os.getuid())


@contextmanager
def _locked(folder: Path, reason: str) -> Iterator[dict[str, str]]:
    if not reason.strip():
        raise ConfigError("--reason: say why; it goes into the audit log")
    RunFolder(folder).config()  # or it is no run
    _check_not_finished(folder)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(Path(folder) / ".quarantine.lock"))
        except OSError as error:
            raise ConfigError(f"{folder}: cannot be written ({error.strerror})") from None
        yield quarantined(folder)


def _check_not_finished(folder: Path) -> None:
    """A stopped or failed run can be resumed and then obeys; a finished one has no next round."""
    summary = RunFolder(folder).summary()
    if summary is not None and summary.finished:
        raise ConfigError(
            f"{folder}: this run is finished; quarantine and release act from the next round on, and it has none"
        )


def _check_known(folder: Path, client: str) -> None:
    """A typing mistake would leave the client one means in the federation."""
    known = {record.client for record in RunFolder(folder).clients()}
    if known and client not in known:
        raise ConfigError(f"{folder}: no client '{client}' in it; {did_you_mean(client, known)}")


def _note(folder: Path, event: str, client: str, reason: str) -> None:
    AuditLog(Path(folder) / AUDIT_LOG).append(event, client=client, reason=reason, user=user_name())


def _write(folder: Path, clients: dict[str, str]) -> None:
    replace_file(Path(folder) / STATE, (json.dumps(clients, indent=2, ensure_ascii=False) + "\n").encode())
