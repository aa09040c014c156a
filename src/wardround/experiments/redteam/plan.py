"""What a red team is asked to do, apart from how long it may take."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from wardround import attacks, plugins
from wardround.errors import ConfigError
from wardround.experiments.redteam.space import candidates
from wardround.experiments.true_f import with_true_f
from wardround.registry import Parameters
from wardround.runs.config import RunConfig, dotted, load_config, override

__all__ = ["METRICS", "Metric", "Plan", "Sampler"]

Sampler = Literal["tpe", "random"]
Metric = Literal["auroc", "c_index", "auprc", "accuracy", "f1"]
METRICS: dict[str, float] = {"auroc": 0.5, "c_index": 0.5, "auprc": 0.0, "accuracy": 0.0, "f1": 0.0}
"""Metric → what a model is worth that was broken so far that it has none."""


class Plan(Parameters):
    """The rule and its setting, the seeds, and how to look for attacks."""

    aggregator: str
    base: dict[str, Any]
    """A run's configuration; its attack and its seed give way to the search's."""
    settings: tuple[dict[str, Any], ...] = ()
    """Overrides of the base: the search looks for the worst attack in the worst of these settings. None: the base."""
    seeds: tuple[int, ...] = Field(min_length=1)
    max_fraction: float = Field(0.4, gt=0, le=1)
    """The largest share of Byzantine clients."""
    metric: Metric = "auroc"
    sampler: Sampler = "tpe"
    search_seed: int = Field(0, ge=0)
    f: Literal["attackers"] | None = None
    """`attackers`: where a rule or pre-aggregation has an `f` and none is said, it is that of the run's attackers."""
    without: tuple[str, ...] = ()
    """Attacks that are not tried, alone or in a mixture."""

    @field_validator("seeds")
    @classmethod
    def _each_seed_once(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) < len(seeds):
            raise ValueError("a seed occurs twice")
        return seeds

    def check(self) -> None:
        """Raise where the search cannot be run here. Reading the results of one asks for less."""
        plugins.load_all(self.base.get(plugins.KEY))
        for name in self.without:
            attacks.registry.get(name)
        if not set(candidates(self.without)) - {"mix"}:
            raise ConfigError("without: no attack is left to try")
        for setting in range(self.count_settings):
            self.clean(self.seeds[0], setting)

    @property
    def count_settings(self) -> int:
        """How many settings there are, the base alone being one."""
        return max(1, len(self.settings))

    def setting_words(self, setting: int) -> str:
        """A setting in a few words; empty where there is only one."""
        changed = dotted(self.settings[setting]) if len(self.settings) > 1 else {}
        return ", ".join(f"{key} {value}" for key, value in changed.items()) or (
            "the base" if changed else ""
        )

    @property
    def rule(self) -> str:
        """The rule with the parameters that the base gives it."""
        own = override(self.base, {"aggregator.name": self.aggregator})["aggregator"]
        parameters = ", ".join(f"{key} {value}" for key, value in own.items() if key != "name")
        return f"{self.aggregator} ({parameters})" if parameters else self.aggregator

    @property
    def setting(self) -> dict[str, Any]:
        """All that must be the same where two rules are compared."""
        differs = ("name", "aggregator", "attack", "seed", plugins.KEY)
        base = {key: self.base[key] for key in self.base if key not in differs}
        return {"base": base, **self.model_dump(include={"settings", "seeds", "max_fraction", "metric", "f"})}

    def config(self, attack: dict[str, Any], seed: int, setting: int = 0) -> RunConfig:
        """The run of one attack (a configuration's section) and seed in one of the settings."""
        plugins.load_all(self.base.get(plugins.KEY))
        own = dotted(self.settings[setting]) if self.settings else {}
        config = load_config(
            {
                **override(override(self.base, {"aggregator.name": self.aggregator}), own),
                "name": f"{self.aggregator}-{attack['name']}",
                "attack": attack,
                "seed": seed,
            },
            "redteam",
        )
        return config if self.f is None else with_true_f(config, "redteam")

    def clean(self, seed: int, setting: int = 0) -> RunConfig:
        """The same run without an attack."""
        return self.config({"name": "none"}, seed, setting)
