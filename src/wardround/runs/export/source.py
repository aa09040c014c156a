"""What is exported of a run: which round's weights, and what the run folder says of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from wardround import aggregators
from wardround.datasets.base import Task
from wardround.errors import ConfigError, WardroundError
from wardround.federation.model_factory import build_model
from wardround.federation.simulated import with_mean_batch_norm
from wardround.privacy.params import DpParams
from wardround.records import RoundRecord
from wardround.runs.best_round import BEST
from wardround.runs.config import load_config
from wardround.runs.export.inputs import INPUTS, ModelInputs
from wardround.runs.folder import RunFolder
from wardround.runs.runner import load_dataset
from wardround.training.base import has_batch_norm
from wardround.updates import Layout

__all__ = ["Choice", "TrainedModel", "read_trained_model"]

Choice = Literal["best", "last"]
DEFAULT_THRESHOLD = 0.5


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """The model of one round of a run."""

    folder: RunFolder
    config: Mapping[str, Any]
    inputs: ModelInputs
    network: nn.Module
    layout: Layout
    weights: Tensor
    round: int
    chosen: Choice
    group_norm: bool
    record: RoundRecord | None
    """Of the round; None where its line is missing."""

    @property
    def thresholds(self) -> dict[str, float]:
        """Class or finding → the probability above which it is said; nothing for a multi-class or survival task."""
        record, inputs = self.record, self.inputs
        if not Task(inputs.task).has_thresholds:
            return {}
        if inputs.positive is not None:
            chosen = ((record.metrics if record else None) or {}).get("threshold")
            return {inputs.positive: DEFAULT_THRESHOLD if chosen is None else float(chosen)}
        known = record.details.thresholds if record else {}
        return {name: float(known.get(name, DEFAULT_THRESHOLD)) for name in inputs.class_names}

    @property
    def why_default_threshold(self) -> str | None:
        """Why the threshold of a binary task was not chosen on validation samples; None where it was."""
        if self.record is None or (self.record.metrics or {}).get("threshold") is None:
            return "the run chose none on validation samples"
        reason = self.record.details.reasons.get("threshold")
        return None if reason is None else reason.text


def read_trained_model(folder: RunFolder, choice: Choice | None = None) -> TrainedModel:
    """The model of a run, out of its folder.

    Args:
        folder: a run with at least one finished round.
        choice: `best` on validation, or `last`; None: the best where the run has kept it, the last otherwise.
    """
    config, checkpoint = folder.config(), folder.read_checkpoint()
    if checkpoint is None:
        raise ConfigError(f"{folder.path}: no round is finished, so there is no model to export")
    inputs = _inputs(folder, config, checkpoint)
    network, group_norm = _network(config, inputs)
    layout = Layout.of(network)
    weights, round, chosen = _choose(folder, config, checkpoint, choice, layout)
    if tuple(weights.shape) != (layout.size,):
        raise ConfigError(
            f"{folder.checkpoint_path}: has {weights.numel()} parameters where the model has {layout.size}: "
            "the data or the model's code have changed since the run"
        )
    record = next((one for one in folder.rounds() if one.round == round), None)
    return TrainedModel(folder, config, inputs, network, layout, weights, round, chosen, group_norm, record)


def _choose(
    folder: RunFolder,
    config: Mapping[str, Any],
    checkpoint: Mapping[str, Any],
    choice: Choice | None,
    layout: Layout,
) -> tuple[Tensor, int, Choice]:
    best = checkpoint.get(BEST)
    if best is not None and choice != "last":
        return best["weights"], int(best["round"]), "best"
    if choice == "best":
        raise ConfigError(
            f"{folder.path}: has no weights of its best round (no AUROC or C-index on validation samples, or the run "
            "was made before best rounds were kept); use --round last"
        )
    weights: Tensor = checkpoint["federation"]["weights"]
    section = dict(config["aggregator"])
    rule = aggregators.create(section.pop("name"), **section)
    if rule.client_policy.local_batch_norm and bool(layout.batch_norm_mask.any()):
        own = checkpoint["federation"]["clients"].get("batch_norm") or {}
        if not own:
            raise WardroundError(
                f"{folder.path}: under {rule.name} BatchNorm stays with the hospitals: the server has no whole model"
            )
        weights = with_mean_batch_norm(weights, list(own.values()), layout)
    return weights, int(checkpoint["round"]), "last"


def _inputs(folder: RunFolder, config: Mapping[str, Any], checkpoint: Mapping[str, Any]) -> ModelInputs:
    if INPUTS in checkpoint:
        return ModelInputs.from_json(checkpoint[INPUTS])
    # A run of an earlier version: it kept the shape of a federation's data, but nothing of a simulation's.
    shape = checkpoint["federation"]["clients"].get("roster", {}).get("shape")
    if shape is not None:
        return ModelInputs.from_shape(shape)
    dataset = load_dataset(load_config(config, str(folder.config_path)))
    known = ModelInputs.of(dataset)
    # How the table was scaled then is not known: what is fitted now may be another thing.
    return ModelInputs(known.task, known.class_names, known.input_shape, known.feature_names)


def _network(config: Mapping[str, Any], inputs: ModelInputs) -> tuple[nn.Module, bool]:
    """The run's network, and whether its BatchNorm layers were replaced."""
    dp = (config.get("privacy") or {}).get("dp")
    params = None if dp is None else DpParams(**dp)
    network = build_model(
        config["model"], inputs.input_shape, inputs.task, len(inputs.class_names), int(config["seed"]), params
    )
    if params is None or params.unit != "patient" or not params.group_norm:
        return network, False
    with torch.device("meta"):
        plain = build_model(config["model"], inputs.input_shape, inputs.task, len(inputs.class_names), 0)
    return network, has_batch_norm(plain)
