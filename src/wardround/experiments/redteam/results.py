"""What a red team found: the attacks tried, the worst of them, and the file that keeps both."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from pydantic import ValidationError

from wardround import attacks
from wardround.errors import ConfigError
from wardround.experiments.redteam.plan import METRICS, Plan
from wardround.files import replace_file
from wardround.records import Summary
from wardround.registry import Parameters, explain
from wardround.runs.config import override
from wardround.yaml_text import dump_yaml

__all__ = ["FILE", "WORST", "Findings", "Outcome", "Tried", "outcome_of", "read_findings"]

FILE = "redteam.json"
MATRIX = "harmful.yaml"
REPLAYS = "worst"
WORST = 10  # so many are kept with their configurations
HARMFUL = 0.02  # an attack that costs more than this is counted as harmful


class Outcome(Parameters):
    """What one run came to."""

    seed: int
    value: float
    """The metric on the test data after the last round."""
    loss: float
    """What the attack cost: the metric of the run without attack minus this, or what a backdoor gained, if more."""
    backdoor: float | None = None
    """Share of the test samples that get a backdoor's label with its trigger, minus the share that do so without it or
    by a model that was never attacked."""
    tpr: float | None = None
    fpr: float | None = None
    verdict: Literal["flags", "weights"] | None = None
    """What was counted as found: flags, or weights below a tenth of an equal share."""


class Tried(Parameters):
    """An attack and what it did."""

    number: int
    """In the order of the search, from 0."""
    attack: dict[str, Any]
    setting: int = 0
    """In which of the plan's settings it was run."""
    outcomes: tuple[Outcome, ...] = ()
    state: Literal["complete", "halved", "failed"]
    """Run on every seed, given up after some for doing little harm, or impossible."""
    reason: str | None = None

    @property
    def loss(self) -> float:
        """Mean over the seeds it was run on."""
        return fmean(outcome.loss for outcome in self.outcomes)

    @property
    def value(self) -> float:
        return fmean(outcome.value for outcome in self.outcomes)

    @property
    def backdoor(self) -> float | None:
        """What its backdoor gained, mean over the seeds; None where it has none."""
        gained = [outcome.backdoor for outcome in self.outcomes if outcome.backdoor is not None]
        return fmean(gained) if gained else None

    @property
    def name(self) -> str:
        """The attack's name; both names of a mixture."""
        parts = self.attack.get("parts", ())
        return " + ".join(part["name"] for part in parts) if parts else self.attack["name"]

    @property
    def knows_defence(self) -> bool:
        """Do the attackers own a copy of the rule? Of an attack whose plug-in is not here nobody can say: no."""
        names = [section["name"] for section in self.attack.get("parts", (self.attack,))]
        known = attacks.available()
        return any(name in known and attacks.registry.get(name).knows_defence for name in names)

    def rate(self, which: Literal["tpr", "fpr"]) -> float | None:
        """Mean detection rate over the seeds, None where there is none."""
        known = [rate for outcome in self.outcomes if (rate := getattr(outcome, which)) is not None]
        return fmean(known) if known else None


class Findings(Parameters):
    """All that a search came to."""

    plan: Plan
    clean: dict[int, float]
    """Seed → the metric without attack, in the first setting."""
    clean_elsewhere: tuple[dict[int, float], ...] = ()
    """The same in the other settings."""
    trials: tuple[Tried, ...]

    @property
    def ranked(self) -> list[Tried]:
        """Attacks that were run on every seed, the worst first; of equals the one found first."""
        complete = [tried for tried in self.trials if tried.state == "complete"]
        return sorted(complete, key=lambda tried: (-tried.loss, tried.number))

    @property
    def worst(self) -> list[Tried]:
        return self.ranked[:WORST]

    @property
    def clean_value(self) -> float:
        """Without attack in the first setting, mean over seeds."""
        return self.clean_value_in(0)

    def clean_value_in(self, setting: int) -> float:
        """Without attack in one of the settings, mean over seeds."""
        return fmean((self.clean, *self.clean_elsewhere)[setting].values())

    @property
    def harmful(self) -> list[str]:
        """Which of the attacks, whatever their parameters, cost more than a little on the seeds they were run on."""
        return sorted({t.attack["name"] for t in self.trials if t.outcomes and t.loss > HARMFUL})

    @property
    def kept(self) -> list[Tried]:
        """What cost more than a little on all seeds, the worst first: what a better rule must stand."""
        return [tried for tried in self.ranked if tried.loss > HARMFUL]

    def lowest(self, with_copy: bool = True) -> Tried | None:
        """The attack that costs most of the metric, whatever a backdoor gains; None where none was run on every seed.

        Args:
            with_copy: Count attackers, too, who own a copy of the rule they attack.
        """
        counted = [tried for tried in self.ranked if with_copy or not tried.knows_defence]
        return max(counted, key=lambda t: self.clean_value_in(t.setting) - t.value, default=None)

    def best_backdoor(self) -> Tried | None:
        """The attack whose backdoor gains most; None where none was run on every seed."""
        counted = [tried for tried in self.ranked if tried.backdoor is not None]
        return max(counted, key=lambda tried: tried.backdoor or 0.0, default=None)

    def worst_so_far(self) -> list[float | None]:
        """After each trial the greatest loss of a complete one; None before the first."""
        best: float | None = None
        curve = []
        for tried in self.trials:
            if tried.state == "complete":
                best = tried.loss if best is None else max(best, tried.loss)
            curve.append(best)
        return curve

    def replay_name(self, place: int) -> str:
        """The file of the worst attack at a place (from 0)."""
        return f"{REPLAYS}/{place + 1:02d}-{self.worst[place].attack['name']}.yaml"

    def write(self, folder: Path) -> None:
        """`redteam.json`, and configurations to replay: of the worst for `wardround run`, of what is kept
        for `wardround matrix`."""
        (folder / REPLAYS).mkdir(exist_ok=True)
        kept = set()
        for place, tried in enumerate(self.worst):
            path = folder / self.replay_name(place)
            kept.add(path)
            config = self.plan.config(tried.attack, self.plan.seeds[0], tried.setting).plain()
            header = (
                f"# Costs {self.plan.rule} {tried.loss:.3f} of its {self.plan.metric}, mean over seeds "
                f"{', '.join(map(str, self.plan.seeds))}.\n"
            )
            replace_file(path, (header + dump_yaml(config)).encode())
        for stale in set((folder / REPLAYS).glob("[0-9][0-9]-*.yaml")) - kept:
            stale.unlink()
        replace_file(folder / MATRIX, self._matrix().encode())
        replace_file(folder / FILE, (self.model_dump_json(indent=1) + "\n").encode())

    def _matrix(self) -> str:
        """What is kept, with the run without attack before it, as a matrix."""
        plan = self.plan
        own = plan.settings or ({},)
        matrix = {
            "name": f"redteam-{plan.aggregator}",
            "base": override(plan.base, {"aggregator.name": plan.aggregator}),
            "runs": [
                *({**setting, "attack": {"name": "none"}} for setting in own),
                *({**own[tried.setting], "attack": tried.attack} for tried in self.kept),
            ],
            "seeds": list(plan.seeds),
        }
        header = (
            f"# Attacks that cost {plan.rule} more than {HARMFUL} of its {plan.metric}, the worst first.\n"
        )
        return header + dump_yaml(matrix)


def outcome_of(
    summary: Summary, seed: int, metric: str, clean: float | None, untaught: float | None = None
) -> Outcome:
    """Read a run's summary.

    Args:
        summary: of the run.
        seed: of the run.
        metric: What counts.
        clean: That of the run without attack; None for this run itself.
        untaught: Attack success of the backdoor on the model of the run without attack; None where nobody measured it.
    """
    if summary.final and metric not in summary.final:
        known = ", ".join(name for name in summary.final if name in METRICS)
        raise ConfigError(
            f"redteam: these runs have no {metric}, which the task does not define; choose from: {known}"
        )
    value = (summary.final or {}).get(metric)
    value = METRICS[metric] if value is None else value  # nothing left to measure: as good as guessing
    gained = _backdoor_gain(summary.final or {}, untaught)
    lost = 0.0 if clean is None else clean - value
    rates, verdict = (summary.detection, "flags") if summary.detection else (summary.suppression, "weights")
    return Outcome(
        seed=seed,
        value=value,
        loss=lost if gained is None else max(lost, gained),
        backdoor=gained,
        tpr=rates and rates["tpr"],
        fpr=rates and rates["fpr"],
        verdict=verdict if rates else None,
    )


def _backdoor_gain(final: Mapping[str, Any], untaught: float | None) -> float | None:
    """A backdoor that works counts, whatever the metric says; None where the attack has none.

    Only what the trigger adds is the attack's: a model that gives everyone the target needs no trigger, and where a
    model that was never attacked answers the trigger with the target, nobody had to teach it.
    """
    triggered, without = (final.get(f"attack_success{suffix}") for suffix in ("", "_without_trigger"))
    if triggered is None or without is None:
        return None
    by_itself = max(float(without), 0.0 if untaught is None or untaught != untaught else untaught)
    return float(triggered) - by_itself


def read_findings(paths: Sequence[Path]) -> list[Findings]:
    """What red teams wrote at or below some folders."""
    findings = []
    for path in paths:
        files = sorted(path.rglob(FILE)) if path.is_dir() else []
        if not files:
            raise ConfigError(f"{path}: no {FILE} in it (wardround redteam --aggregator NAME --out {path})")
        findings += [_read(file) for file in files]
    return findings


def _read(file: Path) -> Findings:
    try:
        return Findings(**json.loads(file.read_text(encoding="utf-8")))
    except ValidationError as error:
        raise ConfigError(f"{file}: {explain(error, Findings)}") from None
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{file}: cannot be read ({error})") from None
