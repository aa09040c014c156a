"""The registry of rules: every one takes `pre`, the pre-aggregations before it, and `strata`, to work by outcome."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field, SerializeAsAny, create_model

from wardround.aggregators.preaggregation.base import registry as steps
from wardround.errors import ParameterError
from wardround.registry import Parameters, Registry

if TYPE_CHECKING:
    from wardround.aggregators.base import Aggregator

__all__ = ["PRE", "STRATA", "RuleRegistry"]

PRE, STRATA = "pre", "strata"
"""The parameters that every rule has beside its own."""


def _steps(value: Any) -> tuple[Parameters, ...]:
    """`["nnm", {"name": "bucketing", "s": 2}]` as checked parameters, each with its name."""
    entries = [value] if isinstance(value, str | Mapping) else value
    if not isinstance(entries, list | tuple):
        raise ValueError("must be a list of pre-aggregations, for example [nnm] or [{name: bucketing, s: 2}]")
    return tuple(_step(entry) for entry in entries)


def _step(entry: Any) -> Parameters:
    if isinstance(entry, Parameters):
        return entry
    values = {"name": entry} if isinstance(entry, str) else entry
    if not isinstance(values, Mapping) or not isinstance(values.get("name"), str):
        raise ValueError(f"a pre-aggregation is a name or {{name: …, parameters…}}, got {entry!r}")
    own = {key: value for key, value in values.items() if key != "name"}
    try:
        checked = steps.validate(values["name"], own)
    except ParameterError as error:
        raise ValueError(str(error)) from None
    return _named(values["name"], type(checked))(**{"name": values["name"], **checked.model_dump()})


@cache
def _named(name: str, params: type[Parameters]) -> type[Parameters]:
    """The parameters of a pre-aggregation beside its name."""
    return create_model(
        f"Named{params.__qualname__}", __base__=params, name=(str, Field(pattern=f"^{name}$"))
    )


@cache
def _with_pre(params: type[Parameters]) -> type[Parameters]:
    """The parameters of a rule beside its pre-aggregations."""
    entries = Annotated[tuple[SerializeAsAny[Parameters], ...], BeforeValidator(_steps)]
    return create_model(params.__name__, __base__=params, pre=(entries, Field(())))


@cache
def _with_strata(params: type[Parameters]) -> type[Parameters]:
    """The parameters of a rule that works within each outcome."""
    return create_model(params.__name__, __base__=params, strata=(bool, Field(False)))


class RuleRegistry(Registry["Aggregator"]):
    """Rules by name; with `pre`, a rule behind pre-aggregations; with `strata`, a rule within each outcome."""

    def keys(self, name: str) -> list[str]:
        return [*super().keys(name), PRE, STRATA]

    def create(self, name: str, /, **params: Any) -> Aggregator:
        checked = self.validate(name, params)
        if getattr(checked, STRATA, False):
            within = self.create(name, **{key: value for key, value in params.items() if key != STRATA})
            by_outcome: Aggregator = _within_outcomes().within_outcomes_class(type(within))(checked, within)
            return by_outcome
        entries: tuple[Parameters, ...] = getattr(checked, PRE, ())
        if not entries:
            return self.get(name)(checked)

        own = {key: value for key, value in checked.model_dump().items() if key != PRE}
        behind = self.get(name)(super().validate(name, own))
        before = []
        for entry in entries:
            values = entry.model_dump()
            before.append(steps.create(values.pop("name"), **values))
        pipeline: Aggregator = _pipelines().pipeline_class(type(behind))(checked, behind, before)
        return pipeline

    def class_of(self, name: str, params: Mapping[str, Any]) -> type[Aggregator]:
        """The class that `create` would build: what a rule with these parameters declares of itself."""
        rule = self.get(name)
        if params.get(PRE):
            rule = _pipelines().pipeline_class(rule)
        if params.get(STRATA):
            rule = _within_outcomes().within_outcomes_class(rule)
        return rule

    def validate(self, name: str, params: Mapping[str, Any]) -> Parameters:
        """The rule's parameters with defaults filled in; `pre` and `strata` are among them only where they are used."""
        used = {key: value for key, value in params.items() if key not in (PRE, STRATA) or value}
        if PRE not in used and STRATA not in used:
            return super().validate(name, used)
        model: type[Parameters] = self.get(name).Params
        model = _with_pre(model) if PRE in used else model
        return self._build(name, _with_strata(model) if STRATA in used else model, used)


def _within_outcomes() -> ModuleType:
    return importlib.import_module("wardround.aggregators.preaggregation.within_outcomes")


def _pipelines() -> ModuleType:
    """The module of pipelines: they are rules, whose base needs this module first."""
    return importlib.import_module("wardround.aggregators.preaggregation.pipeline")
