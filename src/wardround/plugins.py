"""Plug-ins: members in a user's own file or package, known everywhere that a configuration goes.

A plug-in is Python code that registers members. A configuration names it under `plugins` as a file
(`my_rule.py`, seen from the configuration's folder) or as a module (`package.module`), and whoever reads the
configuration loads it: `wardround run`, the workers of a matrix, a federation's server and hospitals. A package
that is installed needs no mention: its entry point in the group `wardround.plugins` is loaded with our own members.

A configuration keeps where a plug-in was found and the hash of its code. A run that is resumed with other
code would mix the results of both, so code that has changed is refused. Reading a run's folder loads no
plug-in: looking at results that somebody sent must not run what they sent along.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any

from pydantic import BaseModel, ConfigDict

from wardround.errors import ConfigError, PluginError

__all__ = [
    "GROUP", "KEY", "LOADING", "Plugin", "Registration", "anchored", "installed", "load", "load_all",
    "load_installed", "note",
]  # fmt: skip

KEY = "plugins"
GROUP = "wardround.plugins"
"""The entry points of installed packages that are plug-ins."""
LOADING = RLock()
"""Held while members are loaded: a second thread waits for all of them instead of seeing some."""


class Plugin(BaseModel):
    """A plug-in as a configuration records it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    """The absolute path of its file, or its module's name."""
    sha256: str
    """Of its code: of the file, or of all Python files of a package."""


@dataclass(frozen=True, eq=False)
class Registration:
    """One `@register(name)` in code that is not ours."""

    members: MutableMapping[str, Any]
    """Of the registry: name → class."""
    name: str
    member: type
    replaced: type | None
    """An earlier version of the same class, where its file was loaded before."""

    def undo(self) -> None:
        """Have the registry as it was before."""
        self.remove()
        if self.replaced is not None:
            self.members[self.name] = self.replaced

    def remove(self) -> None:
        """Take the member away, unless another has taken its place."""
        if self.members.get(self.name) is self.member:
            del self.members[self.name]


_watchers: list[list[Registration]] = []


def note(registration: Registration) -> None:
    """Tell whoever loads a plug-in right now what it registers."""
    for made in _watchers:
        made.append(registration)


@contextmanager
def _registrations() -> Iterator[list[Registration]]:
    """Collect what is registered inside; undo it where the inside fails."""
    made: list[Registration] = []
    _watchers.append(made)
    try:
        yield made
    except BaseException:
        for registration in reversed(made):
            registration.undo()
        raise
    finally:
        _watchers[:] = [watcher for watcher in _watchers if watcher is not made]


@dataclass(frozen=True, eq=False)
class _Loaded:
    """A plug-in that this process knows."""

    plugin: Plugin
    module: ModuleType
    made: tuple[Registration, ...]


_loaded: dict[str, _Loaded] = {}
"""Source → the version that is loaded."""
_installed: dict[str, dict[str, str]] | None = None
"""Name of an entry point → where it comes from; None until all are loaded."""
_is_loading_installed = False


def anchored(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A configuration (or a matrix of some) with the files of its plug-ins seen from `folder`.

    >>> anchored({"plugins": ["my_rule.py", "package.module"]}, Path("/study"))
    {'plugins': ['/study/my_rule.py', 'package.module']}
    """
    result = dict(values)
    if isinstance(entries := values.get(KEY), list):
        result[KEY] = [_anchor(entry, folder) for entry in entries]
    if isinstance(base := values.get("base"), dict):
        result["base"] = anchored(base, folder)
    return result


def _anchor(entry: Any, folder: Path) -> Any:
    if isinstance(entry, Mapping) and isinstance(entry.get("source"), str):
        return {**entry, "source": _anchor(entry["source"], folder)}
    return str(folder.absolute() / entry) if isinstance(entry, str) and _is_file(entry) else entry


def load_all(entries: Iterable[Any] | None) -> tuple[Plugin, ...]:
    """Load the plug-ins that a configuration lists under `plugins`."""
    if entries is None:
        return ()
    if isinstance(entries, str | Mapping) or not isinstance(entries, Iterable):
        raise ConfigError(f"{KEY}: expected a list, for example [my_rule.py], got {entries!r}")
    return tuple(load(entry) for entry in entries)


def load(entry: str | Path | Mapping[str, Any] | Plugin) -> Plugin:
    """Load one plug-in: a file, a module, or either with the hash that its code must have.

    The same code twice is loaded once. A file that has changed since this process loaded it is loaded
    again, and its members replace those of its older version.
    """
    source, expected = _read_entry(entry)
    with LOADING:
        if not _is_file(source):
            return _load_module(source, expected)
        return _load_file(Path(source), expected)


def _read_entry(entry: object) -> tuple[str, str | None]:
    """An entry of `plugins` as its source and the hash that is expected of it."""
    if isinstance(entry, str | Path):
        return str(entry), None
    if isinstance(entry, Plugin):
        return entry.source, entry.sha256
    if (
        isinstance(entry, Mapping)
        and isinstance(entry.get("source"), str)
        and entry.keys() <= {"source", "sha256"}
    ):
        return entry["source"], entry.get("sha256")
    raise ConfigError(f"{KEY}: expected a file (my_rule.py) or a module (package.module), got {entry!r}")


def _is_file(source: str) -> bool:
    return source.endswith(".py") or "/" in source or "\\" in source


def _load_file(shown: Path, expected: str | None) -> Plugin:
    path = shown.resolve()
    before = _loaded.get(str(path))
    if before is not None and before.plugin.sha256 == expected:
        return Plugin(
            source=str(path), sha256=expected
        )  # as configured, even if the file has changed meanwhile
    code = _read(shown)
    plugin = Plugin(source=str(path), sha256=hashlib.sha256(code).hexdigest())
    _check_hash(plugin, expected, str(shown))
    same = next((known for known in _loaded.values() if known.plugin.sha256 == plugin.sha256), None)
    if same is None:
        same = _execute(plugin, path, code, str(shown))
    if before is not None and before is not same:
        _forget(before, same)
    _loaded[str(path)] = same
    return plugin


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise PluginError(
            f"{path}: no such plug-in; a file is seen from the folder of its configuration"
        ) from None
    except IsADirectoryError:
        raise PluginError(f"{path}: a folder; name a file in it, or install it and name its module") from None
    except OSError as error:
        raise PluginError(f"{path}: cannot be read ({error.strerror})") from None


def _execute(plugin: Plugin, path: Path, code: bytes, shown: str) -> _Loaded:
    """Run a file as a module. Exactly what was hashed is run: no bytecode of an older version."""
    # The same name for the same code in every process, so that objects can travel between them.
    name = f"wardround_plugin_{re.sub(r'[^0-9A-Za-z]', '_', path.stem)}_{plugin.sha256[:12]}"
    spec = importlib.util.spec_from_loader(name, loader=None, origin=str(path))
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(path)
    sys.modules[name] = module
    try:
        with _registrations() as made:
            exec(compile(code, str(path), "exec", dont_inherit=True), module.__dict__)
            _check_made(made, shown)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise PluginError.caused_by(error, path, shown) from error
    except BaseException:
        del sys.modules[name]
        raise
    return _Loaded(plugin, module, tuple(made))


def _check_made(made: Sequence[Registration], shown: str) -> None:
    if not made:
        message = 'registers nothing; put @register("its-name") above the class of a rule, attack, dataset, …'
        raise PluginError(f"{shown}: {message}", Path(shown))


def _forget(before: _Loaded, now: _Loaded) -> None:
    """Take away what an older version of a file registered and the new one does not."""
    for registration in before.made:
        registration.remove()
    for source in [source for source, known in _loaded.items() if known is before]:
        del _loaded[source]
    if before.module.__name__ != now.module.__name__:
        sys.modules.pop(before.module.__name__, None)


def _load_module(name: str, expected: str | None) -> Plugin:
    before = _loaded.get(name)
    if before is None:
        modules = set(sys.modules)
        try:
            with _registrations() as made:
                module = _import(name)
                if (
                    name not in modules
                ):  # else the user's own program has imported it, and registered its members
                    _check_made(made, f"plug-in {name}")
        except PluginError:
            # Nothing of it is registered now: the next import must begin anew, with its submodules.
            for leftover in [module for module in set(sys.modules) - modules if _is_part(module, name)]:
                del sys.modules[leftover]
            raise
        plugin = Plugin(source=name, sha256=_hash(module))
        before = _loaded[name] = _Loaded(plugin, module, tuple(made))
    _check_hash(before.plugin, expected, name)
    return before.plugin


def _is_part(module: str, plugin: str) -> bool:
    """Is a module in the package that a plug-in belongs to?"""
    return module.partition(".")[0] == plugin.partition(".")[0]


def _import(name: str) -> ModuleType:
    """A plug-in's module, or in which file and line it is broken."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise PluginError(
                f"plug-in {name}: no module named {error.name!r}; install it, put its folder on PYTHONPATH, "
                "or name its file (my_rule.py)"
            ) from None
        raise PluginError.caused_by(error, _home(name)) from error
    except (Exception, SystemExit) as error:
        raise PluginError.caused_by(error, _home(name)) from error


def _home(name: str) -> Path:
    """The folder of the package that a module is in; of a module by itself, its file."""
    spec = importlib.util.find_spec(name.partition(".")[0])
    locations = None if spec is None else spec.submodule_search_locations
    if locations:
        return Path(next(iter(locations)))
    return Path(name if spec is None or spec.origin is None else spec.origin)


def _hash(module: ModuleType) -> str:
    """Of a module's file; of a package, of the names and contents of all its Python files."""
    digest = hashlib.sha256()
    if locations := getattr(module, "__path__", None):
        for folder in map(Path, locations):
            for file in sorted(folder.rglob("*.py")):
                digest.update(f"{file.relative_to(folder).as_posix()}\0".encode() + file.read_bytes())
    elif module.__file__ is not None:
        digest.update(Path(module.__file__).read_bytes())
    return digest.hexdigest()


def _check_hash(plugin: Plugin, expected: str | None, shown: str) -> None:
    if expected is not None and plugin.sha256 != expected:
        raise PluginError(
            f"{shown}: the plug-in has changed since this configuration was recorded (sha256 "
            f"{plugin.sha256[:12]}… instead of {expected[:12]}…); start a new run from your own configuration, "
            "or put the old code back"
        )


def load_installed() -> None:
    """Load the entry points of the group `wardround.plugins`; a broken one is an error every time."""
    global _installed, _is_loading_installed
    with LOADING:
        if _installed is not None or _is_loading_installed:  # a plug-in asks for members while it is loaded
            return
        _is_loading_installed = True
        try:
            _installed = {
                entry.name: _load_entry_point(entry) for entry in metadata.entry_points(group=GROUP)
            }
        finally:
            _is_loading_installed = False


def _load_entry_point(entry: metadata.EntryPoint) -> dict[str, str]:
    package = "?" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
    try:
        plugin = _load_module(entry.module, None)
    except PluginError as error:
        message = f"installed plug-in '{entry.name}' ({package}): {error}"
        raise PluginError(message, error.file or Path(entry.module), error.line) from error
    return {"source": plugin.source, "sha256": plugin.sha256, "package": package}


def installed() -> dict[str, dict[str, str]]:
    """Installed plug-ins by name, with module, hash, package and version: for the record of a run."""
    load_installed()
    return dict(_installed or {})
