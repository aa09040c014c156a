"""Members by name, with typed parameters: the mechanism behind every `create(name, **params)`.

A member is a class with a nested `Params` (a frozen pydantic model). Registering it under a name is all
it takes to make it reachable from Python, YAML and the command line, with the same errors everywhere.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import sys
import warnings
from abc import ABC
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticUndefined, to_jsonable_python

from wardround.errors import ContractError, ParameterError, PluginError, RenamedWarning, did_you_mean
from wardround.plugins import LOADING, Registration, load_installed, note

__all__ = ["Configurable", "Parameters", "Registry", "explain", "source_of"]


class Parameters(BaseModel):
    """Base of all parameter sets: frozen, no unknown keys, defaults checked like given values."""

    renamed: ClassVar[Mapping[str, str]] = {}
    """Former name → present name: the former still works, with a warning, until the next release."""

    new: ClassVar[frozenset[str]] = frozenset()
    """Parameters that version 0.1 did not have. At their defaults they are no part of what it called a run."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False, ser_json_inf_nan="constants"
    )

    @model_validator(mode="before")
    @classmethod
    def _accept_former_names(cls, values: Any) -> Any:
        former = [name for name in cls.renamed if isinstance(values, dict) and name in values]
        if not former:
            return values
        values = dict(values)
        for name in former:
            present = cls.renamed[name]
            if present in values:
                raise ValueError(f"'{name}' is the former name of '{present}': give only '{present}'")
            warnings.warn(
                f"parameter '{name}' is now called '{present}'; '{name}' stops working with the next release",
                RenamedWarning,
                stacklevel=2,
            )
            values[present] = values.pop(name)
        return values

    def plain(self) -> dict[str, Any]:
        """Nothing but dicts, lists, strings and numbers: what goes into a file."""
        values: dict[str, Any] = json.loads(self.model_dump_json())
        return values

    def non_default(self) -> dict[str, Any]:
        """What differs from the defaults, as plain values: the share of these parameters in a run's identity.

        A default that is written out says nothing. So a parameter that is added later, with a default, leaves the
        identity of older runs as it is.

        >>> class Params(Parameters):
        ...     width: int = 64
        ...     depth: int = 2
        >>> Params(width=64, depth=3).non_default()
        {'depth': 3}
        """
        defaults = self._defaults()
        return {
            name: _non_default(getattr(self, name, None), value)
            for name, value in self.plain().items()
            if name not in defaults or not _is_equal(value, defaults[name])
        }

    def _defaults(self) -> dict[str, Any]:
        """The values of parameters that nobody gave, as plain values; those that must be given are not in it."""
        fields = type(self).model_fields
        required = {name: getattr(self, name) for name, field in fields.items() if field.is_required()}
        try:  # defaults are checked like given values, and a check may fill them in
            values = type(self)(**required).plain()
        except ValidationError:  # not without another parameter
            values = {
                name: to_jsonable_python(field.get_default(call_default_factory=True))
                for name, field in fields.items()
                if name not in required
            }
        return {name: value for name, value in values.items() if name not in required}


class Configurable(ABC):
    """A registered member: `Params` describes its parameters, `params` holds the validated values.

    A member with parameters of its own defines both, so that type checkers know them:

        class Params(Parameters):
            width: int = 64

        params: Params
    """

    name: ClassVar[str]
    listed: ClassVar[bool] = True
    """Is it among the names to choose from? Not where only a Python program has what it stands for."""

    class Params(Parameters):
        """No parameters."""

    params: Parameters

    def __init__(self, params: Parameters | None = None) -> None:
        self.params = self.Params() if params is None else params

    def __repr__(self) -> str:
        values = ", ".join(f"{key}={value!r}" for key, value in self.params)
        return f"{self.name}({values})"


Member = TypeVar("Member", bound=Configurable)


class Registry(Generic[Member]):
    """The named members of one kind: those of our packages, of installed plug-ins, and of a user's own files.

    Each package is imported submodule by submodule on first use, so that a new member is one new file
    with a `@register("its-name")` class and nothing else. A module that cannot be imported is an error
    every time members are asked for: a list with some of them missing would pass for all of them.
    """

    def __init__(self, kind: str, *packages: str, base: type[object] = Configurable) -> None:
        """Members of this `kind` (a word for messages) derive from `base` and are looked for in `packages`."""
        self.kind = kind
        self._packages, self._base = packages, base
        self._members: dict[str, type[Member]] = {}
        self._loaded = self._is_loading = False

    def register(self, name: str) -> Callable[[type[Member]], type[Member]]:
        """Class decorator: make the class reachable as `name`."""
        if not isinstance(name, str):
            raise PluginError(f'{self.kind}: the name is missing; write @register("its-name")')

        def add(member: type[Member]) -> type[Member]:
            self._check(name, member)
            outside = not _is_inside(member.__module__, self._packages)
            if outside:
                self._load()  # so that a name of ours is taken whatever was imported first
            replaced = self._members.get(name)
            if replaced is not None and not _is_same_source(replaced, member):
                raise PluginError(
                    f"{self.kind} '{name}' is registered twice: by {_source(replaced)} and by "
                    f"{_source(member)}; choose another name"
                )
            member.name = name
            self._members[name] = member
            if outside:
                note(Registration(self._members, name, member, replaced))
            return member

        return add

    def _check(self, name: str, member: type[Member]) -> None:
        """Raise for a class that could not do the work of a member."""
        where = f"{self.kind} '{name}'"
        if not (isinstance(member, type) and issubclass(member, self._base)):
            shown = getattr(member, "__name__", repr(member))
            raise PluginError(f"{where}: {shown} must be a class derived from {self._base.__name__}")
        if missing := sorted(getattr(member, "__abstractmethods__", ())):
            methods = ", ".join(f"{method}{_arguments(getattr(member, method))}" for method in missing)
            raise ContractError(f"{where}{source_of(member)}: {member.__name__} must define {methods}")
        if not (isinstance(member.Params, type) and issubclass(member.Params, Parameters)):
            raise PluginError(f"{where}: {member.__name__}.Params must be a class derived from Parameters")

    def _load(self) -> None:
        if self._loaded:
            return
        with LOADING:
            if self._loaded or self._is_loading:
                return
            self._is_loading = True
            try:
                for package in self._packages:
                    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
                        _import(f"{package}.{module.name}")
                load_installed()
                self._loaded = True
            finally:
                self._is_loading = False

    def available(self) -> list[str]:
        """Every registered name to choose from, sorted."""
        self._load()
        return sorted(name for name, member in self._members.items() if member.listed)

    def __contains__(self, name: object) -> bool:
        """Is a member registered as `name`, listed or not?"""
        self._load()
        return name in self._members

    def get(self, name: str) -> type[Member]:
        """The class registered as `name`; an unknown name is an error that lists the known ones."""
        self._load()
        try:
            return self._members[name]
        except (KeyError, TypeError):
            raise ParameterError(
                f"unknown {self.kind} {name!r}; {did_you_mean(str(name), self.available())}"
            ) from None

    def create(self, name: str, /, **params: Any) -> Member:
        """Build a member; unknown or impossible parameters are errors that name the right ones."""
        return self.get(name)(self.validate(name, params))

    def validate(self, name: str, params: Mapping[str, Any]) -> Parameters:
        """The member's parameters with defaults filled in, without building the member."""
        return self._build(name, self.get(name).Params, params)

    def _build(self, name: str, model: type[Parameters], params: Mapping[str, Any]) -> Parameters:
        try:
            return model(**params)
        except ValidationError as error:
            raise ParameterError(f"{self.kind} '{name}': {explain(error, model)}") from None

    def keys(self, name: str) -> list[str]:
        """The names of the member's parameters."""
        return list(self.get(name).Params.model_fields)

    def describe(self, name: str) -> dict[str, Any]:
        """Parameter name → default, for listings and records."""
        return {
            key: None if field.default is PydanticUndefined else field.get_default(call_default_factory=True)
            for key, field in self.get(name).Params.model_fields.items()
        }


def _non_default(value: Any, plain: Any) -> Any:
    """The plain form of a value, where parameters inside it say only what differs from their defaults."""
    if isinstance(value, Parameters):
        return value.non_default()
    if isinstance(value, list | tuple) and isinstance(plain, list):
        return [_non_default(inner, shown) for inner, shown in zip(value, plain, strict=True)]
    return plain


def _is_equal(value: Any, default: Any) -> bool:
    return bool(value == default) and isinstance(value, bool) == isinstance(default, bool)


def source_of(member: type) -> str:
    """Where a class is defined, as part of a message: ` (file, line n)`; empty where it has no file."""
    try:
        file, (_, line) = inspect.getsourcefile(member), inspect.getsourcelines(member)
    except (OSError, TypeError):
        return ""
    return f" ({file}, line {line})"


def _arguments(method: Callable[..., Any]) -> str:
    names = [name for name in inspect.signature(method).parameters if name != "self"]
    return f"({', '.join(names)})"


def _import(module: str) -> None:
    """Import a module of ours, or say in which file and line it is broken."""
    try:
        importlib.import_module(module)
    except Exception as error:
        whole = sys.modules[module.partition(".")[0]]  # the fault may be in another of its modules
        raise PluginError.caused_by(error, Path(whole.__path__[0])) from error


def _is_inside(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _is_same_source(one: type, other: type) -> bool:
    """Is one class a newer version of the other: the same module, or the same file, executed again?"""
    if one.__module__ == other.__module__:
        return one.__qualname__ == other.__qualname__
    file = _file(one)
    return file is not None and file == _file(other)


def _file(member: type) -> str | None:
    return getattr(sys.modules.get(member.__module__), "__file__", None)


def _source(member: type) -> str:
    """Where a member comes from, in words: a module of ours, or a file."""
    return (
        member.__module__
        if _is_inside(member.__module__, ("wardround",))
        else _file(member) or member.__module__
    )


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """One line for people out of pydantic's report: where, what is wrong, what would be right."""
    problems = []
    for problem in error.errors():
        path = ".".join(str(part) for part in problem["loc"] if not str(part).startswith("function-"))
        if problem["type"] == "extra_forbidden":
            known = _fields_at(model, problem["loc"][:-1])
            problems.append(f"unknown key '{path}'; {did_you_mean(str(problem['loc'][-1]), known)}")
        elif problem["type"] == "missing":
            problems.append(f"'{path}' is required")
        else:
            message = problem["msg"].removeprefix("Value error, ")
            message = message[0].lower() + message[1:] if message[:5] == "Input" else message
            got = "" if isinstance(problem["input"], dict) else f", got {problem['input']!r}"
            problems.append(f"{path + ': ' if path else ''}{message.replace('input should', 'must')}{got}")
    return "; ".join(dict.fromkeys(problems))


def _fields_at(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """The field names of the nested model at `path` (the outermost model where it cannot be found)."""
    for part in path:
        field = model.model_fields.get(str(part))
        inner = field.annotation if field else None
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            model = inner
    return list(model.model_fields)
