"""Everything wardround raises on purpose.

    WardroundError
    ├── ConfigError          a configuration, file or command line that cannot be right
    │   ├── ParameterError   an unknown or impossible parameter of a rule, attack, dataset, …
    │   └── PluginError      a plug-in (or a module of ours) that cannot be loaded; says its file and line
    ├── ContractError        a rule, attack, … that does not do what its base class asks of it
    ├── DataError            raw data that is missing, unreadable or not what was expected
    ├── TooFewClients        a rule was given fewer clients than its mathematics needs
    ├── WorkerDied           a worker process ended in the middle of its work
    └── MissingExtra         an optional dependency is not installed; says what to install

And what it warns of, which the command line prints on one line each:

    WardroundWarning         something is not as one may think, and the work continues
    └── RenamedWarning       a former name of a parameter (also a FutureWarning)

The command line prints the message of any of these on one line and exits with code 2. Anything else is
a defect of ours and keeps its traceback.
"""

from __future__ import annotations

import difflib
import importlib
import sys
import traceback
import warnings
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import TextIO

__all__ = [
    "ConfigError",
    "ContractError",
    "DataError",
    "MissingExtra",
    "ParameterError",
    "PluginError",
    "RenamedWarning",
    "TooFewClients",
    "WardroundError",
    "WardroundWarning",
    "WorkerDied",
    "did_you_mean",
    "print_warnings_plainly",
    "require",
]


class WardroundError(Exception):
    """The root of all errors a user can cause and fix."""


class ConfigError(WardroundError):
    """A configuration, file or command line that cannot be right."""


class ParameterError(ConfigError):
    """An unknown or impossible parameter of a named member (rule, attack, dataset, …)."""


class ContractError(WardroundError):
    """A member (rule, attack, …) lacks a method or returned the wrong thing; says which one, and what was expected."""


class PluginError(ConfigError):
    """A plug-in, or a module of the package, that cannot be loaded, and where the fault is."""

    def __init__(self, message: str, file: Path | None = None, line: int | None = None) -> None:
        super().__init__(message)
        self.file, self.line = file, line

    @classmethod
    def caused_by(cls, error: BaseException, folder: Path, shown: str | None = None) -> PluginError:
        """The error of code below `folder` as one line: `my_rule.py, line 3: NameError: …`.

        Args:
            error: What importing the code raised.
            folder: The file or folder of the code; the line is the last one of it that was reached.
            shown: What to call the file; its path if None.
        """
        if isinstance(error, PluginError) and error.file is not None:
            return error  # of another module that this one needed: its own place is the right one
        ours = isinstance(error, PluginError | ContractError)
        message = str(error) if ours else f"{type(error).__name__}: {error}"
        if isinstance(error, SyntaxError) and error.filename is not None:
            file, line = Path(error.filename), error.lineno
            message = f"{type(error).__name__}: {error.msg}"
        else:
            file, line = _last_line_below(folder, error)
        if isinstance(error, ContractError) and str(file) in message:
            return cls(message, file, line)  # says already where the class is
        name = shown if shown is not None and file == folder else str(file)
        return cls(f"{name}, line {line}: {message}" if line else f"{name}: {message}", file, line)


class DataError(WardroundError):
    """Raw data that is missing, unreadable or not what was expected."""


class TooFewClients(WardroundError):
    """A rule was given fewer clients than its mathematics needs."""


class WorkerDied(WardroundError):
    """A worker process ended in the middle of its work (killed, or out of memory)."""


class MissingExtra(WardroundError):
    """An optional dependency is not installed."""


class WardroundWarning(UserWarning):
    """Something is not as one may think, and the work continues."""


class RenamedWarning(WardroundWarning, FutureWarning):
    """A parameter was given by its former name, which stops working with the next release."""


def print_warnings_plainly() -> None:
    """From now on, print warnings of ours on one line, without the place in the code that Python puts before them."""
    former = warnings.showwarning
    if getattr(former, "is_plain", False):
        return

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, WardroundWarning):
            print(f"wardround: warning: {message}", file=sys.stderr if file is None else file, flush=True)
        else:
            former(message, category, filename, lineno, file, line)

    show.is_plain = True  # type: ignore[attr-defined]
    warnings.showwarning = show


REGISTERING = Path(__file__).with_name("registry.py")
"""Raises what is wrong with a member; the line to fix is the one that called it."""


def _last_line_below(folder: Path, error: BaseException) -> tuple[Path, int | None]:
    """The innermost file and line of the traceback that belong to `folder` (a file or a folder)."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_relative_to(folder) and file != REGISTERING:
            return file, frame.lineno
    return folder, None


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """The nearest known word and the list of all, as the tail of an error message.

    >>> did_you_mean("alfa", ["alpha", "clients"])
    "did you mean 'alpha'? known: alpha, clients"
    """
    names = sorted(known)
    nearest = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f"did you mean '{nearest[0]}'? " if nearest else ""
    return f"{hint}known: {', '.join(names) if names else '(none)'}"


def require(module: str, extra: str) -> ModuleType:
    """Import an optional dependency, or say the command that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise  # the package is there, but something inside it is broken: do not hide that
        raise MissingExtra(
            f"{module.split('.')[0]} is not installed; run: pip install 'wardround[{extra}]'"
        ) from None
