"""More rounds for a run that has come to its end: a new run that begins where the other one stopped.

The new run has a folder and a hash of its own, as a run of so many rounds always has. It ends with the same bytes as a
run that had all rounds from the start. What only the last round of a run does (it is always evaluated, and every
client says how good the model is for itself) is taken back where that round is no longer the last.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from wardround import aggregators
from wardround.errors import ConfigError
from wardround.files import UNFINISHED, append_text, make_private_folder, replace_file
from wardround.plugins import KEY as PLUGINS
from wardround.records import EvaluationDetails, RoundRecord
from wardround.runs.best_round import BEST, BEST_BEFORE
from wardround.runs.config import RECORD, RunConfig
from wardround.runs.folder import RunFolder
from wardround.runs.quarantine import AUDIT_LOG, STATE
from wardround.training.base import learning_rate

__all__ = ["extend"]

MAY_DIFFER = ("name", "rounds", "engine", "device", "federation", RECORD)
"""Keys of config.yaml that say how long a run is and how it is computed, not what it computes."""
WRITTEN_ANEW = ("files", "schema", "wardround", "round")


def extend(
    former: RunFolder,
    target: RunFolder,
    config: RunConfig,
    recorded: Mapping[str, Any] | None = None,
    private: bool = False,
) -> bool:
    """Prepare the folder of a run with more rounds from that of a run with fewer.

    Args:
        former: the run that is there, finished or stopped.
        target: where the new run will be. One that is there already is left alone: it is resumed as any other.
        config: the new run's configuration: that of the former one, but for `rounds` (and its name).
        recorded: what it writes into config.yaml where that is not `config.plain()`.
        private: only its owner may look into the new folder.

    Returns:
        Was there something to prepare?
    """
    if former.path.resolve() == target.path.resolve() or target.config_path.exists():
        return False
    before, now = former.config(), dict(config.plain() if recorded is None else recorded)
    _check_same_experiment(former, before, now)
    state = former.read_checkpoint()
    if state is None:
        raise ConfigError(f"{former.path}: no round is finished, so there is nothing to resume")
    done, planned = int(state["round"]), int(before["rounds"])
    if config.rounds <= done:
        raise ConfigError(
            f"{former.path}: has {done} finished rounds; rounds={config.rounds} is not more: say how many there are to "
            "be in all"
        )
    _check_rounds_do_not_matter(former, config, done, planned)
    former.verify()
    records, extra = former.rounds(), done == planned and done % config.evaluate_every != 0
    if done == planned:
        records[-1] = _as_any_round(records[-1], config, extra)
    if extra:
        state[BEST] = state.get(BEST_BEFORE)
    state.pop(BEST_BEFORE, None)
    _write(former, target, {**now, RECORD: before.get(RECORD) or {}}, records, state, private)
    return True


def _check_same_experiment(former: RunFolder, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    def own(values: Mapping[str, Any]) -> dict[str, Any]:
        kept: dict[str, Any] = json.loads(
            json.dumps({k: v for k, v in values.items() if k not in MAY_DIFFER})
        )
        kept[PLUGINS] = sorted(str(plugin["sha256"]) for plugin in kept.get(PLUGINS) or ())
        return kept

    one, other = own(before), own(now)
    for key in sorted(set(one) | set(other)):
        if one.get(key) != other.get(key):
            raise ConfigError(
                f"{former.path}: was run with {key} = {one.get(key)!r}, the configuration has {other.get(key)!r}: "
                "only rounds may differ"
            )


def _check_rounds_do_not_matter(former: RunFolder, config: RunConfig, done: int, planned: int) -> None:
    """Refuse a run whose first rounds would have been others, had it had more."""
    training = config.training
    for round in range(1, done + 1):
        if learning_rate(training, round, planned) != learning_rate(training, round, config.rounds):
            raise ConfigError(
                f"{former.path}: training.schedule {training.schedule} depends on the number of rounds: the first "
                f"{done} would have been others with rounds={config.rounds}; begin from its exported model instead "
                "(initial_model)"
            )
    name, params = config.section("aggregator")
    if aggregators.create(name, **params).needs_practice_ground:
        raise ConfigError(
            f"{former.path}: aggregator {name} practises for a given number of rounds: the first {done} would have "
            f"been others with rounds={config.rounds}; begin from its exported model instead (initial_model)"
        )


def _as_any_round(last: RoundRecord, config: RunConfig, extra: bool) -> RoundRecord:
    """The record of a last round as it would be, were it not the last."""
    name, params = config.section("aggregator")
    if extra:  # it was evaluated only because it was the last
        return replace(last, metrics=None, validation=None, per_client=None, details=EvaluationDetails())
    if aggregators.create(name, **params).client_policy.local_batch_norm or last.metrics is None:
        return last
    return replace(last, per_client=None, details=replace(last.details, per_client_reasons={}))


def _write(
    former: RunFolder,
    target: RunFolder,
    config: dict[str, Any],
    records: list[RoundRecord],
    state: dict[str, Any],
    private: bool,
) -> None:
    """The new folder is there as a whole or not at all."""
    unfinished = RunFolder(target.path.with_name(target.path.name + UNFINISHED))
    try:
        if target.path.is_dir():
            target.path.rmdir()  # empty, or it is somebody's
        shutil.rmtree(unfinished.path, ignore_errors=True)
        if private:
            make_private_folder(unfinished.path)
        unfinished.path.mkdir(parents=True, exist_ok=True)
        for name in (AUDIT_LOG, STATE):
            if (former.path / name).exists():
                replace_file(unfinished.path / name, (former.path / name).read_bytes())
        done = int(state["round"])
        lines = (
            former.clients_path.read_bytes().splitlines(keepends=True) if former.clients_path.exists() else []
        )
        kept = [line for line in lines if line.endswith(b"\n") and json.loads(line)["round"] <= done]
        replace_file(unfinished.clients_path, b"".join(kept))
        rounds = "".join(json.dumps(one.line()) + "\n" for one in records if one.round <= done)
        append_text(unfinished.rounds_path, rounds)
        unfinished.write_config(config)
        unfinished.write_checkpoint(
            {k: v for k, v in state.items() if k not in WRITTEN_ANEW} | {"round": done}
        )
        os.replace(unfinished.path, target.path)
    except OSError as error:
        shutil.rmtree(unfinished.path, ignore_errors=True)
        raise ConfigError(f"{target.path}: cannot be written ({error.strerror})") from None
