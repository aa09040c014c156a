"""Everything wardround raises on purpose.

    WardroundError
    ├── ConfigError          a configuration, file or command line that cannot be right
    │   └── ParameterError   an unknown or impossible parameter of a rule, attack, dataset, …
    ├── ContractError        a rule, attack, … that does not do what its base class asks of it
    ├── DataError            raw data that is missing, unreadable or not what was expected
    ├── TooFewClients        a rule was given fewer clients than its mathematics needs
    ├── WorkerDied           a worker process ended in the middle of its work
    └── MissingExtra         an optional dependency is not installed; says what to install

The command line prints the message of any of these on one line and exits with code 2. Anything else is
a defect of ours and keeps its traceback.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from types import ModuleType

__all__ = [
    "ConfigError",
    "ContractError",
    "DataError",
    "MissingExtra",
    "ParameterError",
    "TooFewClients",
    "WardroundError",
    "WorkerDied",
    "did_you_mean",
    "require",
]


class WardroundError(Exception):
    """The root of all errors a user can cause and mend."""


class ConfigError(WardroundError):
    """A configuration, file or command line that cannot be right."""


class ParameterError(ConfigError):
    """An unknown or impossible parameter of a named member (rule, attack, dataset, …)."""


class ContractError(WardroundError):
    """A member (rule, attack, …) lacks a method or returned the wrong thing; says which one, and what was expected."""


class DataError(WardroundError):
    """Raw data that is missing, unreadable or not what was expected."""


class TooFewClients(WardroundError):
    """A rule was given fewer clients than its mathematics needs."""


class WorkerDied(WardroundError):
    """A worker process ended in the middle of its work (killed, or out of memory)."""


class MissingExtra(WardroundError):
    """An optional dependency is not installed."""


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
