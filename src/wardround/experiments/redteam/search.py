"""The search itself: Optuna proposes attacks, worker processes run them, the harmful ones get more seeds."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wardround.attacks.search_space import Choice, Space
from wardround.errors import ConfigError, WardroundError, require
from wardround.experiments.events import Event
from wardround.experiments.local_executor import run_in_processes
from wardround.experiments.matrix import run_many
from wardround.experiments.redteam.plan import Plan
from wardround.experiments.redteam.results import Findings, Outcome, Tried, outcome_of
from wardround.experiments.redteam.space import candidates, draw_attack, variants
from wardround.experiments.redteam.untaught import untaught_success
from wardround.runs.config import RunConfig
from wardround.runs.folder import RunFolder
from wardround.runs.identity import find_folder

__all__ = ["RUNS", "STUDY", "search"]

STUDY = "study.db"
RUNS = "runs"
KEPT = 3  # one of so many attacks, the worst, is run on more seeds
SETTING = "setting"
DIGITS = 3  # of a drawn number: enough to distinguish attacks, and readable in a configuration

Progress = Callable[[int, Findings], None]


def search(
    plan: Plan,
    out: Path,
    trials: int,
    jobs: int = 1,
    minutes: float | None = None,
    progress: Progress = lambda done, findings: None,
) -> Findings:
    """Try attacks until `trials` have been tried in total or the time is up; resume a search that was stopped.

    Every attack is seen once with its defaults, and with its rows at the honest norm and residual, before the sampler
    proposes any. After each seed the attacks
    that did least harm are given up (successive halving). `progress` is called after every attack.
    """
    optuna = require("optuna", "redteam")
    plan.check()
    with RunFolder(out).locked(), warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = _open(optuna, plan, out)
        clean = _clean_values(plan, out, jobs)
        deadline = None if minutes is None else time.monotonic() + 60 * minutes
        team = _Team(optuna, study, plan, out, clean, trials, jobs, deadline, progress)
        team.work()
        return team.findings()


def _open(optuna: Any, plan: Plan, out: Path) -> Any:
    """The study of this folder: a new one, or the one that was stopped."""
    study = optuna.create_study(
        study_name="redteam",
        storage=f"sqlite:///{out / STUDY}",
        direction="maximize",
        load_if_exists=True,
        pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=KEPT),
    )
    asked = plan.model_dump(mode="json")
    before = study.user_attrs.get("plan")
    if before is not None and (before := Plan(**before).model_dump(mode="json")) != asked:
        changed = ", ".join(key for key in asked if asked[key] != before.get(key))
        raise ConfigError(f"{out}: holds a search with another {changed}; give another --out")
    if before is None:
        rounds = plan.clean(plan.seeds[0]).rounds
        first = [variants(name, rounds, plan.max_fraction, plan.without) for name in candidates(plan.without)]
        # Every attack as it is, then what keeps something of the honest rows; over the settings in turn.
        queue = [drawn[0] for drawn in first] + [drawn for others in first for drawn in others[1:]]
        for place, usual in enumerate(queue):
            own = {SETTING: place % plan.count_settings} if plan.count_settings > 1 else {}
            study.enqueue_trial({**usual, **own}, skip_if_exists=True)
        study.set_user_attr("plan", asked)
    # A stopped search that begins its random numbers anew would propose what it proposed before.
    seed = plan.search_seed + 1000 * len(study.get_trials(deepcopy=False))
    study.sampler = (
        optuna.samplers.TPESampler(seed=seed, multivariate=True, group=True, constant_liar=True)
        if plan.sampler == "tpe"
        else optuna.samplers.RandomSampler(seed=seed)
    )
    return study


def _clean_values(plan: Plan, out: Path, jobs: int) -> list[dict[int, float]]:
    """Of every setting: seed → the metric of the run without attack."""
    settings = [[plan.clean(seed, setting) for seed in plan.seeds] for setting in range(plan.count_settings)]
    configs = [config for of_setting in settings for config in of_setting]
    for event in run_many(configs, out / RUNS, jobs, lambda event: None):
        if event.kind not in ("finished", "skipped"):
            raise WardroundError(f"{plan.aggregator} cannot be run here: {event.reason or event.kind}")
    return [
        {config.seed: _outcome(config, out, plan, None).value for config in of_setting}
        for of_setting in settings
    ]


def _outcome(config: RunConfig, out: Path, plan: Plan, clean: float | None, setting: int = 0) -> Outcome:
    summary = find_folder(config, out / RUNS).summary()
    assert summary is not None, config.run_name
    untaught = untaught_success(config, find_folder(plan.clean(config.seed, setting), out / RUNS))
    return outcome_of(summary, config.seed, plan.metric, clean, untaught)


@dataclass
class _Attempt:
    """An attack on its way through the seeds."""

    trial: Any
    attack: dict[str, Any]
    setting: int = 0
    outcomes: list[Outcome] = field(default_factory=list)


@dataclass
class _Team:
    """Keeps `jobs` runs going until enough attacks are tried or the time is up."""

    optuna: Any
    study: Any
    plan: Plan
    out: Path
    clean: list[dict[int, float]]
    """Of every setting: seed → the metric without attack."""
    trials: int
    jobs: int
    deadline: float | None
    progress: Progress
    ready: list[_Attempt] = field(default_factory=list)
    """Attempts that wait for the run of their next seed."""
    going: dict[str, tuple[RunConfig, list[_Attempt]]] = field(default_factory=dict)
    """Run name → the attempts that wait for its end: more than one where the sampler repeats itself."""

    def work(self) -> None:
        states = self.optuna.trial.TrialState
        for cut_short in self.study.get_trials(deepcopy=False, states=[states.RUNNING]):
            # Its process was killed: the same trial is resumed, and its finished runs are reused.
            self.ready.append(self._attempt(self.optuna.trial.Trial(self.study, cut_short._trial_id)))
        first = self._start()
        if first:
            run_in_processes(first, self.out / RUNS, self.jobs, lambda event: None, self._after)

    def findings(self) -> Findings:
        attempts = [tried for trial in self.study.get_trials(deepcopy=False) if (tried := _tried(trial))]
        numbered = [tried.model_copy(update={"number": place}) for place, tried in enumerate(attempts)]
        first, *others = self.clean
        return Findings(plan=self.plan, clean=first, clean_elsewhere=tuple(others), trials=tuple(numbered))

    def _after(self, event: Event) -> Sequence[RunConfig]:
        """A run has ended: report it to the study, and start what is next."""
        config, attempts = self.going.pop(event.run)
        if event.kind == "failed":
            for attempt in attempts:
                self._finish(attempt, "failed", event.reason)
        else:
            setting = attempts[0].setting  # one run, one setting
            outcome = _outcome(config, self.out, self.plan, self.clean[setting][config.seed], setting)
            for attempt in attempts:
                attempt.outcomes.append(outcome)
                self._continue_or_stop(attempt)
        return self._start()

    def _continue_or_stop(self, attempt: _Attempt) -> None:
        done = len(attempt.outcomes)
        if done == len(self.plan.seeds):
            self._finish(attempt, "complete")
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a trial that was cut short reports some seeds again
            attempt.trial.report(_mean_loss(attempt), step=done)
        if attempt.trial.should_prune():
            self._finish(attempt, "halved")
        else:
            self.ready.append(attempt)

    def _finish(self, attempt: _Attempt, state: str, reason: str | None = None) -> None:
        tried = {
            "attack": attempt.attack,
            "setting": attempt.setting,
            "outcomes": [outcome.model_dump() for outcome in attempt.outcomes],
            "state": state,
            "reason": reason,
        }
        attempt.trial.set_user_attr("tried", json.dumps(tried))
        states = self.optuna.trial.TrialState
        if state == "complete":
            self.study.tell(attempt.trial, _mean_loss(attempt))
        else:
            self.study.tell(attempt.trial, state=states.PRUNED if state == "halved" else states.FAIL)
        findings = self.findings()
        self.progress(len(findings.trials), findings)

    def _start(self) -> list[RunConfig]:
        """Runs for idle workers: the next seed of an attack that is being tried, otherwise a new attack."""
        started = []
        while len(self.going) < self.jobs and (attempt := self._next()):
            try:
                config = self.plan.config(
                    attempt.attack, self.plan.seeds[len(attempt.outcomes)], attempt.setting
                )
            except ConfigError as error:
                self._finish(attempt, "failed", str(error))
                continue
            if config.run_name in self.going:
                self.going[config.run_name][1].append(attempt)
            else:
                self.going[config.run_name] = (config, [attempt])
                started.append(config)
        return started

    def _next(self) -> _Attempt | None:
        if self.ready:
            return self.ready.pop(0)
        on_the_way = sum(len(attempts) for _, attempts in self.going.values())
        if len(self.findings().trials) + on_the_way >= self.trials or self._time_is_up():
            return None
        return self._attempt(self.study.ask())

    def _attempt(self, trial: Any) -> _Attempt:
        rounds = self.plan.clean(self.plan.seeds[0]).rounds
        suggested, settings = _Suggested(trial), self.plan.count_settings
        attack = draw_attack(suggested, rounds, self.plan.max_fraction, self.plan.without)
        setting = suggested(SETTING, Choice(tuple(range(settings))), 0) if settings > 1 else 0
        return _Attempt(trial, attack, setting)

    def _time_is_up(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline


class _Suggested:
    """A draw that asks Optuna."""

    def __init__(self, trial: Any) -> None:
        self.trial = trial

    def __call__(self, key: str, space: Space, default: Any) -> Any:
        if isinstance(space, Choice):
            return self.trial.suggest_categorical(key, space.values)
        if space.whole:
            return self.trial.suggest_int(key, int(space.low), int(space.high), log=space.log)
        value = self.trial.suggest_float(key, space.low, space.high, log=space.log)
        return min(max(float(f"{value:.{DIGITS}g}"), space.low), space.high)


def _mean_loss(attempt: _Attempt) -> float:
    return sum(outcome.loss for outcome in attempt.outcomes) / len(attempt.outcomes)


def _tried(trial: Any) -> Tried | None:
    """The result of a trial; None while it runs."""
    if not trial.state.is_finished() or "tried" not in trial.user_attrs:
        return None
    return Tried(number=trial.number, **json.loads(trial.user_attrs["tried"]))
