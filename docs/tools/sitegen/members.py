"""A page for every registered rule and attack, from its docstring, its parameters and its behaviour."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from sphinx.pycode import ModuleAnalyzer

from sitegen import attack_pictures, rule_pictures
from sitegen.docstrings import as_rst, split_docstring
from sitegen.rule_pictures import Round, Study
from wardround import aggregators, attacks
from wardround.registry import Configurable, Registry

ROOT = Path(__file__).parents[3]
NEEDS = {
    "needs_global_weights": "the global weights (`global_weights`)",
    "needs_root_update": "an update from trusted root data (`root_update`)",
    "needs_practice_ground": "root data of the server to practise on (`practice_ground`)",
}


def slug(name: str) -> str:
    """A member's name as a file's.

    >>> slug("caac-mag+dir")
    'caac-mag-and-dir'
    """
    return name.replace("+", "-and-")


def rule_page(name: str) -> str:
    """The page of one rule."""
    svg, study = rule_pictures.rule_picture(name)
    member = aggregators.registry.get(name)
    past = "a clean round" if study.past == 1 else f"{study.past} clean rounds"
    facts = {"Needs": _needs(study), "Gives": _gives(study)}
    return _page(
        member, aggregators.registry, facts, svg, rule_pictures.CAPTION.format(past=past), "aggregator"
    )


def attack_page(name: str) -> str:
    """The page of one attack."""
    description = attacks.describe(name)
    knows = ", ".join(f"`{level}`" for level in description["knowledge"])
    facts = {
        "May know": knows + (", and a copy of the defender's rule" if description["knows_defence"] else ""),
        "Lies in": ", ".join(f"its {place}" for place in description["lies_in"]) or "nothing",
    }
    svg = attack_pictures.attack_picture(name)
    return _page(attacks.registry.get(name), attacks.registry, facts, svg, attack_pictures.CAPTION, "attack")


def summary(member: type[Configurable]) -> str:
    """The first sentence of a member's docstring."""
    return as_rst([inspect.cleandoc(member.__doc__ or "").split("\n")[0]])[0]


def _needs(study: Study) -> str:
    rule, clients = study.rule, rule_pictures.CLIENTS
    needs = [text for attribute, text in NEEDS.items() if getattr(rule, attribute)]
    if rule.minimum_clients(clients) > 1:
        needs.insert(0, rule.requirement(clients) + f" of {clients} clients")
    if study.depends_on(claimed_samples=10.0):
        needs.append("the sample counts that clients report")
    if study.depends_on(claimed_quality=10.0):
        needs.append('the losses that clients report (`metrics["loss"]`)')
    return "; ".join(needs) or "the updates alone"


def _gives(study: Study) -> str:
    out = study.result(Round())
    gives = [
        "`delta`",
        *(f"`{part}`" for part in ("weights", "scores", "flags") if getattr(out, part) is not None),
    ]
    columns = ", ".join(f"`{column}`" for column in out.columns)
    return ", ".join(gives) + (f"; the columns {columns}" if columns else "")


def _page(
    member: type[Configurable],
    registry: Registry[Any],
    facts: dict[str, str],
    svg: str,
    caption: str,
    key: str,
) -> str:
    description, example = split_docstring(member.__doc__)
    source = Path(inspect.getfile(member)).resolve()
    where = source.relative_to(ROOT) if source.is_relative_to(ROOT) else source.name
    parts = [_title(member.name), description, *(f"**{fact}:** {text}." for fact, text in facts.items())]
    parts += [_title("Behaviour", "-"), _figure(svg, caption)]
    parts += [_title("Parameters", "-"), _parameters(member, registry)]
    parts += [_yaml(key, member.name, registry)]
    if example:
        parts += [_title("Example", "-"), example]
    parts += [f"Defined in `{where}`, class `{member.__qualname__}`."]
    return "\n\n".join(parts) + "\n"


def _title(text: str, line: str = "=") -> str:
    return f"{text}\n{line * max(3, len(text))}"


def _figure(svg: str, caption: str) -> str:
    body = (
        f"<figure>{svg}<figcaption>{caption.replace('`fedavg`', '<code>fedavg</code>')}</figcaption></figure>"
    )
    return ".. raw:: html\n\n" + "\n".join(f"   {line}" for line in body.splitlines())


def _yaml(section: str, name: str, registry: Registry[Any]) -> str:
    """The member as a configuration has it, with its plain defaults."""
    values: dict[str, Any] = {"name": name}
    if registry is attacks.registry and name != "none":
        values |= {"fraction": 0.2, "start": 15}
    values |= {
        key: value
        for key, value in registry.describe(name).items()
        if isinstance(value, bool | int | float | str)
    }
    written = yaml.safe_dump({section: values}, sort_keys=False, default_flow_style=None, width=64)
    return ".. code-block:: yaml\n\n" + "\n".join(f"   {line}" for line in written.splitlines())


def _parameters(member: type[Configurable], registry: Registry[Any]) -> str:
    fields = member.Params.model_fields
    if not fields:
        return "None."
    explanations = explained(member.Params)
    rows = [
        [f"`{name}`", f"`{_default(field)}`", _values(field), " ".join(as_rst(explanations.get(name, [])))]
        for name, field in fields.items()
    ]
    lines = [".. list-table::", "   :header-rows: 1", "   :widths: auto", ""]
    for row in [["name", "default", "values", "what it does"], *rows]:
        lines += [f"   {'*' if i == 0 else ' '} - {cell}" for i, cell in enumerate(row)]
    return "\n".join(lines)


def explained(params: type[Any]) -> dict[str, list[str]]:
    """The lines written below each parameter, those of base classes too."""
    explanations: dict[str, list[str]] = {}
    for base in reversed(params.__mro__):
        if base.__module__.startswith(("pydantic", "builtins", "typing", "abc")):
            continue
        for (owner, name), lines in ModuleAnalyzer.for_module(base.__module__).find_attr_docs().items():
            if owner == base.__qualname__:
                explanations[name] = [line for line in lines if line.strip()]
    return explanations


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined and field.default_factory is None:
        return "required"
    value = field.get_default(call_default_factory=True)
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _values(field: FieldInfo) -> str:
    """The values that a parameter takes: its type and bounds."""
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = [
        f"{sign} {getattr(limit, name)}"
        for limit in field.metadata
        for name, sign in signs.items()
        if hasattr(limit, name)
    ]
    return ", ".join([" or ".join(_types(field.annotation)), *bounds])


def _types(annotation: Any) -> Iterator[str]:
    names = {bool: "true or false", int: "whole number", float: "number", str: "text", type(None): "none"}
    if annotation in names:
        yield names[annotation]
    elif get_origin(annotation) is not None and str(get_origin(annotation)).endswith("Literal"):
        yield from (f"`{value}`" for value in get_args(annotation))
    elif get_args(annotation) and get_origin(annotation) not in (list, tuple, dict):
        for inner in get_args(annotation):
            yield from _types(inner)
    else:
        yield "list" if get_origin(annotation) in (list, tuple) else "mapping"
