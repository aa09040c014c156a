"""What a check found, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Literal

from wardround.errors import ConfigError, WardroundError

__all__ = ["Finding", "Findings", "Status", "failures", "report"]

Status = Literal["ok", "warning", "failed"]


@dataclass(frozen=True)
class Finding:
    """The outcome of one check."""

    check: str
    """What was looked at, in a word or two."""
    status: Status
    text: str
    """What was found, in one line."""
    remedy: str = ""
    """What to do about it."""

    def plain(self) -> dict[str, str]:
        """For programs."""
        return {key: str(value) for key, value in asdict(self).items()}

    def __str__(self) -> str:
        return f"{self.check}: {self.text}" + (f"; {self.remedy}" if self.remedy else "")


class Findings:
    """Collects the outcomes of checks; one that raises has failed, and the others are still made."""

    def __init__(self) -> None:
        self.all: list[Finding] = []

    def ok(self, check: str, text: str) -> None:
        """Everything is as it should be."""
        self.all.append(Finding(check, "ok", text))

    def warn(self, check: str, text: str, remedy: str) -> None:
        """It works, but somebody should know."""
        self.all.append(Finding(check, "warning", text, remedy))

    def fail(self, check: str, text: str, remedy: str = "") -> None:
        """It will not work."""
        self.all.append(Finding(check, "failed", text, remedy))

    def attempt(self, check: str, test: Callable[[Findings], None], remedy: str = "") -> None:
        """Run a check; an error of ours is its outcome."""
        try:
            test(self)
        except WardroundError as error:
            self.fail(check, str(error), remedy)
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            self.fail(check, f"{place}{error.strerror or error}", remedy)


def failures(findings: Iterable[Finding]) -> list[Finding]:
    """Those that keep a federation from working."""
    return [finding for finding in findings if finding.status == "failed"]


def report(findings: Iterable[Finding], echo: Callable[[str], None]) -> None:
    """Print warnings, and raise a `ConfigError` with everything that failed."""
    findings = list(findings)
    for finding in findings:
        if finding.status == "warning":
            echo(f"warning: {finding}")
    failed = failures(findings)
    if failed:
        more = f" (and {len(failed) - 1} more: `wardround check` lists them)" if len(failed) > 1 else ""
        first = failed[0]
        raise ConfigError(first.text + (f"; {first.remedy}" if first.remedy else "") + more)
