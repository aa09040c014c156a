"""The file in which a hospital keeps what it must not forget, beside the log of what has left it.

The file is on disk before the log knows of a reply, and the log before the reply leaves. So a log that knows more than
the file means that an old file was put back, or that it was lost. A hospital whose memory cannot be read does not begin
anew: it would answer rounds a second time and spend its privacy budget twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from wardround.errors import ConfigError
from wardround.files import locked, make_private_folder, replace_file
from wardround.flower.hospital.memory import LOG_FILE, REMEMBERED_RUNS, HospitalMemory, last_answered

if TYPE_CHECKING:
    from wardround.flower.hospital.hospital import Hospital

__all__ = ["STATE_FILE", "StateFile"]

STATE_FILE = "memory"
"""The file's name in the hospital's state folder."""
START_ANEW = "to begin anew with nothing remembered, move its whole folder away"


class StateFile:
    """Loads a hospital's state when it starts, and keeps it on disk with every reply."""

    def __init__(self, path: Path, hospital: Hospital) -> None:
        self.path, self.hospital = path, hospital
        hospital.keep = self.save

    def load(self) -> None:
        """Bring the hospital to where it was. Raises ConfigError, in one line, where that is not known."""
        hospital, path = self.hospital, self.path
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            content = b""
        except OSError as error:
            raise ConfigError(f"{path}: the hospital's memory cannot be read ({error.strerror})") from None
        try:
            hospital.load_state(content)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}; {START_ANEW}") from None
        except Exception as error:  # whatever torch makes of bytes that are none of its own
            raise ConfigError(
                f"{path}: not a hospital's memory ({type(error).__name__}); {START_ANEW}"
            ) from None
        if hospital.memory is not None:
            self._compare_with_log(hospital.memory)

    def _compare_with_log(self, memory: HospitalMemory) -> None:
        for run, logged in last_answered(self.path.parent).items():
            if run not in memory.answered and len(memory.answered) >= REMEMBERED_RUNS:
                continue  # one of the oldest
            remembered = memory.answered.get(run, (0, ""))[0]
            if logged > remembered:
                raise ConfigError(
                    f"{self.path}: is at round {remembered} of a run of which {LOG_FILE} has an answer in round "
                    f"{logged}: lost, or an old copy was put back; {START_ANEW}"
                )

    def save(self) -> None:
        """Bring the hospital's state onto the disk. Every order changes it: orders are counted."""
        make_private_folder(self.path.parent)
        replace_file(self.path, self.hospital.save_state(), 0o600)

    @contextmanager
    def in_turn(self) -> Iterator[Hospital]:
        """The hospital as it was left by whoever answered last, in this process or another."""
        make_private_folder(self.path.parent)
        with locked(self.path.with_name(f"{self.path.name}.lock")):
            self.load()
            yield self.hospital
