"""YAML that people write, in which a key that stands twice is an error, and YAML that the program writes itself.

Both as `yaml.safe_load` and `yaml.safe_dump` have it, where the last of two keys wins; with libyaml, where PyYAML has
it, ten times as fast.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from wardround.errors import ConfigError

try:
    from yaml import CSafeDumper as _SafeDumper
    from yaml import CSafeLoader as _SafeLoader
except ImportError:  # PyYAML was built without libyaml
    from yaml import SafeDumper as _SafeDumper  # type: ignore[assignment]
    from yaml import SafeLoader as _SafeLoader  # type: ignore[assignment]

__all__ = ["dump_yaml", "parse_own_yaml", "parse_yaml", "read_yaml_file"]


def dump_yaml(values: Any) -> str:
    """Plain values as a YAML text, keys in their order.

    >>> dump_yaml({"seed": 1, "name": "Köln"})
    'seed: 1\\nname: Köln\\n'
    """
    text: str = yaml.dump(values, Dumper=_SafeDumper, sort_keys=False, allow_unicode=True)
    return text


def parse_own_yaml(text: str | bytes) -> Any:
    """The values of a YAML text that the program wrote or brought along.

    Most such texts are nothing but keys, simple values and lists, one per line, which is read several times as fast
    line by line; a line of any other kind, and the whole text is YAML's to read.

    Raises:
        yaml.YAMLError: The text is not YAML.

    >>> parse_own_yaml("seed: 1\\nhidden:\\n- 64\\n- 32\\n")
    {'seed': 1, 'hidden': [64, 32]}
    """
    if isinstance(text, str):
        try:
            return _SimpleText(text).read()
        except _NotSimpleError:
            pass
    return yaml.load(text, _SafeLoader)


class _NotSimpleError(Exception):
    """The text has something that only YAML knows how to read."""


class _SimpleText:
    """Reads a text of the form that `dump_yaml` gives to mappings, lists and short values."""

    def __init__(self, text: str) -> None:
        self.lines: list[tuple[int, str]] = []
        """Indentation and the rest of every line."""
        for line in text.split("\n")[:-1]:
            content = line.lstrip(" ")
            self.lines.append((len(line) - len(content), content))
        if not self.lines or not text.endswith("\n"):
            raise _NotSimpleError
        self.place = 0

    def read(self) -> dict[Any, Any]:
        values = self._mapping(0)
        if self.place < len(self.lines):
            raise _NotSimpleError
        return values

    def _mapping(self, indent: int) -> dict[Any, Any]:
        values: dict[Any, Any] = {}
        lines, end = self.lines, len(self.lines)
        while (
            self.place < end and lines[self.place][0] == indent and not lines[self.place][1].startswith("- ")
        ):
            found = _ENTRY.fullmatch(lines[self.place][1])
            if found is None:
                raise _NotSimpleError
            key, text = found.groups()
            self.place += 1
            values[_value(key)] = self._nested(indent) if text is None else _value(text)
        self._check_end(indent)
        return values

    def _nested(self, indent: int) -> Any:
        """What stands below a key with this indentation: a mapping, deeper, or a list, which need not be deeper."""
        if self.place == len(self.lines):
            raise _NotSimpleError
        below, content = self.lines[self.place]
        if content.startswith("- ") and below >= indent:
            return self._list(below)
        if below <= indent:
            raise _NotSimpleError
        return self._mapping(below)

    def _list(self, indent: int) -> list[Any]:
        values: list[Any] = []
        lines, end = self.lines, len(self.lines)
        while self.place < end and lines[self.place][0] == indent and lines[self.place][1].startswith("- "):
            item = lines[self.place][1][2:]
            if _ENTRY.fullmatch(item):  # a mapping, whose first key stands behind the dash
                lines[self.place] = (indent + 2, item)
                values.append(self._mapping(indent + 2))
            else:
                self.place += 1
                values.append(_value(item))
        self._check_end(indent)
        return values

    def _check_end(self, indent: int) -> None:
        """A deeper line would belong to the value before it, such as a long text that was folded."""
        if self.place < len(self.lines) and self.lines[self.place][0] > indent:
            raise _NotSimpleError


def _value(text: str) -> Any:
    if text == "[]":
        return []
    return {} if text == "{}" else _scalar(text)


@lru_cache(maxsize=4096)
def _scalar(text: str) -> Any:
    """The value of a text by itself, as YAML has it."""
    if not text or (text[0] in "&*!|>?%@-#" and not _NUMBER.fullmatch(text)):
        raise _NotSimpleError
    try:
        value = yaml.load(text, _SafeLoader)
    except yaml.YAMLError:
        raise _NotSimpleError from None
    if isinstance(value, dict | list | set):
        raise _NotSimpleError
    return value


_ENTRY = re.compile(r"([A-Za-z0-9_.\-]+):(?: (\S.*))?")
_NUMBER = re.compile(r"-[0-9.]+(e[-+][0-9]+)?")


class _Loader(_SafeLoader):
    """A loader to which two equal keys of one mapping are an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[Any, int] = {}
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.tag != "tag:yaml.org,2002:merge":
                key = self.construct_object(key_node)
                mark = key_node.start_mark
                if key in lines:
                    problem = (
                        f"'{key}' is given twice, in lines {lines[key]} and {mark.line + 1}: keep one of them"
                    )
                    raise yaml.constructor.ConstructorError(None, None, problem, mark)
                lines[key] = mark.line + 1
        return super().construct_mapping(node, deep)


def parse_yaml(text: str) -> Any:
    """The values of a YAML text.

    Raises:
        yaml.YAMLError: The text is not YAML, or gives a key twice; `problem` and `problem_mark` say what and where.

    >>> parse_yaml("seed: 1")
    {'seed': 1}
    >>> try:
    ...     parse_yaml("seed: 1\\nseed: 2")
    ... except yaml.YAMLError as error:
    ...     print(error.problem)
    'seed' is given twice, in lines 1 and 2: keep one of them
    """
    return yaml.load(text, _Loader)


def read_yaml_file(path: Path, hint: str = "") -> Any:
    """The values of a YAML file, or one line on what is wrong with it; `hint` follows where there is no file."""
    try:
        return parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file{hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{path}: not valid YAML{line}: {getattr(error, 'problem', error)}") from None
