"""YAML that people write, in which a key that stands twice is an error, and YAML that the program writes itself.

Both as `yaml.safe_load` and `yaml.safe_dump` have it, where the last of two keys wins; with libyaml, where PyYAML has
it, ten times as fast.
"""

from __future__ import annotations

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

    Raises:
        yaml.YAMLError: The text is not YAML.
    """
    return yaml.load(text, _SafeLoader)


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
