"""Checks of a machine that both sides need: keys and certificates, ports, clock, disk, memory."""

from __future__ import annotations

import ctypes
import datetime as dt
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from wardround.errors import ConfigError
from wardround.flower.preflight.findings import Findings
from wardround.flower.processes import check_port

if TYPE_CHECKING:
    from cryptography import x509

__all__ = [
    "EXPIRY_DAYS",
    "check_clock",
    "check_disk",
    "check_listening",
    "check_memory",
    "check_private",
    "load_certificate",
    "note_expiry",
]

EXPIRY_DAYS = 30
"""A certificate that ends sooner is worth a warning: hospitals need time to get another."""
LEAST_DISK, ENOUGH_DISK = 200 * 2**20, 2 * 2**30
LEAST_MEMORY = 300 * 2**20
TIME_ERROR = 5
"""What adjtimex(2) returns where nothing keeps the clock right."""


def check_private(findings: Findings, check: str, path: Path) -> None:
    """A private key must be readable by its owner alone."""
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        findings.fail(
            check, f"{path}: others may read this private key", f"run: chmod 600 {shlex.quote(str(path))}"
        )
        return
    with open(path, "rb"):
        findings.ok(check, f"{path}, mode {mode:o}")


def load_certificate(path: Path) -> x509.Certificate:
    """The certificate in a PEM file."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise ConfigError(f"{path}: not a certificate (PEM)") from None


def note_expiry(
    findings: Findings, check: str, certificate: x509.Certificate, place: str, remedy: str
) -> None:
    """Is a certificate valid now, and for a while?"""
    now = dt.datetime.now(dt.UTC)
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    left = (end - now).days
    if now < begin:
        findings.fail(
            check, f"{place}: valid only from {begin:%Y-%m-%d %H:%M} UTC", "set the clock right (NTP)"
        )
    elif now > end:
        findings.fail(check, f"{place}: expired on {end:%Y-%m-%d}", remedy)
    elif left < EXPIRY_DAYS:
        findings.warn(check, f"{place}: expires in {left} days, on {end:%Y-%m-%d}", remedy)
    else:
        findings.ok(check, f"{place}: valid until {end:%Y-%m-%d}")


def check_listening(findings: Findings, check: str, host: str, port: int, key: str) -> None:
    """Can a port be listened on?"""
    check_port(host, port, key)
    findings.ok(check, f"{host}:{port} is free")


def check_clock(findings: Findings) -> None:
    """Does something keep this machine's clock right? The kernel knows."""
    now = f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M:%S} UTC"
    state = _clock_state()
    if state is None:
        findings.ok("clock", f"{now}; whether it is kept right is not known on this system")
    elif state == TIME_ERROR:
        findings.warn(
            "clock",
            "nothing keeps it right",
            "switch NTP on (timedatectl set-ntp true): signatures of a clock that is 5 s ahead are refused",
        )
    else:
        findings.ok("clock", f"{now}, kept right by NTP")


def _clock_state() -> int | None:
    """What adjtimex(2) says, without changing anything; None where it cannot be asked."""
    if sys.platform != "linux":
        return None
    try:
        buffer = ctypes.create_string_buffer(512)  # struct timex with modes = 0: read only
        state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except (OSError, AttributeError):
        return None
    return None if state < 0 else int(state)


def check_disk(findings: Findings, check: str, folder: Path, needed: int = 0) -> None:
    """Is there room for logs, records and checkpoints (`needed` bytes beside the usual)?"""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    free = shutil.disk_usage(place).free
    text = f"{_size(free)} free in {place}"
    if free < LEAST_DISK + needed:
        findings.fail(check, text, f"free at least {_size(LEAST_DISK + needed)}, or choose another folder")
    elif free < ENOUGH_DISK + needed:
        findings.warn(check, text, f"{_size(ENOUGH_DISK + needed)} are enough for a long run")
    else:
        findings.ok(check, text)


def check_memory(findings: Findings, check: str, needed: int, what: str) -> None:
    """Is there memory for what will be held at a time?"""
    available = available_memory()
    if available is None:
        findings.ok(
            check, f"{_size(needed)} needed for {what}; how much there is is not known on this system"
        )
        return
    text = f"{_size(needed)} needed for {what}, {_size(available)} available"
    if needed > available:
        findings.fail(check, text, "use a machine with more memory, or a smaller model")
    elif needed + LEAST_MEMORY > available:
        findings.warn(check, text, "free some memory: there is little left for anything else")
    else:
        findings.ok(check, text)


def available_memory() -> int | None:
    """Bytes that a new process can have: of the machine, or of the container where that has fewer."""
    values = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        values += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        if limit != "max":
            values.append(max(0, int(limit) - used))
    except (OSError, ValueError, IndexError):
        pass
    return min(values) if values else None


def _size(size: int) -> str:
    """Bytes for people.

    >>> [_size(size) for size in (5000, 3 * 2**20, 5 * 2**30)]
    ['5 kB', '3 MB', '5.0 GB']
    """
    if size < 2**20:
        return f"{size / 1000:.0f} kB"
    return f"{size / 2**20:.0f} MB" if size < 2**30 else f"{size / 2**30:.1f} GB"
