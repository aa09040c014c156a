"""`wardround.simulate`: a federation of your own network and rows, in one call."""

from __future__ import annotations

import copy
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from wardround.api.arrays import Samples, read_inputs, read_samples
from wardround.api.frames import raw_columns
from wardround.api.networks import check_network, outputs_of
from wardround.api.pages import write_report
from wardround.api.tables import Records, client_row, round_row
from wardround.datasets.base import Task
from wardround.datasets.in_memory import hold_rows
from wardround.datasets.preprocessing import Preprocessing
from wardround.errors import ConfigError, WardroundWarning
from wardround.federation.model_factory import build_model
from wardround.models.in_memory import hold_network
from wardround.progress import progress as progress_bar
from wardround.records import MAIN_METRICS, ClientRecord, RoundRecord, Summary, main_metric, main_value
from wardround.runs.config import RunConfig, load_config
from wardround.runs.export.writer import export_run
from wardround.runs.folder import RunFolder
from wardround.runs.runner import load_and_partition, run
from wardround.runs.summary import why_no_auroc
from wardround.updates import Layout

__all__ = ["Result", "simulate"]

Section = str | Mapping[str, Any]
Network = nn.Module | Callable[[], nn.Module]
WIDE = 100.0
"""A column that spreads more than this has not been standardised."""

_scratch: tempfile.TemporaryDirectory[str] | None = None


@dataclass(frozen=True, eq=False)
class Result:
    """What a simulation came to."""

    folder: RunFolder
    """The run folder: `wardround watch`, `report` and `analyze` take it, too."""
    model: nn.Module
    """The network with the weights after the last round, in evaluation mode."""
    summary: Summary
    preprocessing: Preprocessing | None
    """How raw tables become the network's input; None where rows were given as they go in."""
    rounds: Records[RoundRecord]
    """One row per round."""
    clients: Records[ClientRecord]
    """One row per client and round."""
    network: Network | None = None
    """What the run was given as its model, where that was no name; needed to export it."""

    @property
    def path(self) -> Path:
        """The path of the run folder."""
        return self.folder.path

    @property
    def metrics(self) -> dict[str, float | None]:
        """Test metrics after the last round; None where one cannot be computed."""
        return {name: value for name, value in (self.summary.final or {}).items() if name != "round"}

    @property
    def class_names(self) -> list[str]:
        """The labels; of two the last is the one that is predicted."""
        names: list[str] = self.folder.config()["record"]["class_names"]
        return names

    @property
    def flagged(self) -> dict[str, int]:
        """Clients that the rule accused, and in how many rounds; most often accused first."""
        counts: dict[str, int] = {}
        for record in self.clients:
            if record.flag:
                counts[record.client] = counts.get(record.client, 0) + 1
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def predict(self, rows: Any) -> np.ndarray:
        """Probabilities for rows in the form in which they were given.

        Returns:
            One per row for two classes: of the label that is predicted. Else one per row and class or finding. Of a
            survival task no probability but the log hazard of each row: higher means an earlier event.
        """
        if self.preprocessing is None:
            inputs = read_inputs(rows, "predict")
        else:
            inputs = torch.from_numpy(self.preprocessing.transform(raw_columns(rows, "predict"), "predict"))
        with torch.no_grad():
            logits: torch.Tensor = self.model(inputs)
        task = self.folder.config()["record"]["task"]
        if task == Task.SURVIVAL.value:
            return logits[:, 0].numpy()
        if task != Task.MULTICLASS.value:
            shares = torch.sigmoid(logits)
            return (shares[:, 0] if task == Task.BINARY.value else shares).numpy()
        shares = torch.softmax(logits, 1)
        return (shares[:, 1] if shares.shape[1] == 2 else shares).numpy()

    def export(self, out: str | os.PathLike[str], onnx: bool = True, force: bool = False) -> Path:
        """Write the model as a folder, as `wardround export` does: weights, ONNX, preprocessing and a model card.

        Args:
            out: A folder that is not there yet.
            onnx: Write model.onnx, which runs without your network's code; needs the extra `export`.
            force: Replace a model that is there already.
        """
        with nullcontext() if self.network is None else hold_network(self.network):
            export_run(self.folder, Path(out), onnx=onnx, force=force)
        return Path(out)

    def report(self, path: str | os.PathLike[str] = "report.html", title: str = "wardround report") -> Path:
        """Write one self-contained HTML page about this run; several runs: `wardround.analyze(…).report(…)`."""
        return write_report([self.path], Path(path), title)

    def __repr__(self) -> str:
        known = ", ".join(f"{name} {value:.3f}" for name, value in self.metrics.items() if value is not None)
        lines = [f"{self.summary.status} after {self.summary.rounds} rounds: {known or 'no metrics'}"]
        if self.summary.reason:
            lines[0] += f" ({self.summary.reason})"
        if (
            why := why_no_auroc(self.summary.final, self.folder.config()["record"], self.summary.evaluation)
        ) is not None:
            lines.append(f"no {MAIN_METRICS[main_metric(self.summary.final)]}: {why}")
        if len(self.class_names) == 2:
            lines.append(f"predicts {self.class_names[1]!r} (not {self.class_names[0]!r})")
        truth = {record.client: " (an attacker)" for record in self.clients if record.byzantine}
        truth |= {record.client: " (broken)" for record in self.clients if record.faulty}
        if self.flagged:
            shown = [
                f"{client} in {count} rounds{truth.get(client, '')}" for client, count in self.flagged.items()
            ]
            lines.append(f"flagged: {', '.join(shown)}")
        return "\n".join([*lines, f"run folder: {self.path}"])


def simulate(
    model: Network | Section | None = None,
    clients: Mapping[str, tuple[Any, Any]] | None = None,
    *,
    dataset: Section | tuple[Any, Any] | None = None,
    partition: Section | None = None,
    aggregator: Section | None = None,
    attack: Section | None = None,
    fault: Section | None = None,
    rounds: int = 30,
    seed: int = 0,
    positive: object = None,
    name: str = "simulation",
    out: str | os.PathLike[str] | None = None,
    progress: bool = True,
    **settings: Any,
) -> Result:
    """Train a network across clients that live in this process, some of them attackers perhaps.

    Args:
        model: Your network, which starts from the weights it has and is not changed; or a function without arguments
            that makes it, which starts from weights drawn with the seed; or a name (`"mlp"`) or section
            (`{"name": "mlp", "hidden": [64, 32]}`) of a configuration. It gives logits: one per row for two classes,
            else one per class.
        clients: Client → (X, y). X: rows × features (or × channels × height × width), numpy, torch or pandas. y: one
            label per row, or one column of zeros and ones per finding. Each client's rows are split 70/10/20 into
            training, validation and test rows, by the seed.
        dataset: Instead of `clients`: a name or section of a configuration, or (X, y), which `partition` shares out.
        partition: A name or section, for `dataset`.
        aggregator: The rule, by name or as a section: `"median"`, `{"name": "trimmed-mean", "f": 2}`.
        attack: The attack as a section: `{"name": "alie", "fraction": 0.2}`; None: nobody attacks.
        fault: Likewise of hospitals that are broken: `{"name": "unit-error", "fraction": 0.1}`; None: nobody is.
        rounds: Number of rounds.
        seed: Decides everything that is drawn: the same seed and input give the same result.
        positive: Of two labels the one to predict.
        name: First part of the run folder's name.
        out: Folder for the run folder. The same call again then finds the run finished, or resumes it. None: a
            temporary folder that is gone when Python ends.
        progress: Show how far it is.
        settings: Any other key of a configuration: `training={"lr": 0.01}`, `participation=0.5`, `privacy={…}`.
            With `preprocessing={}` X may be raw tables: gaps are filled, words one-hot encoded and numbers scaled, from
            what each client says of its training rows, as in a federation.

    Returns:
        The trained network, metrics, records and run folder.

    >>> import numpy as np, torch, wardround
    >>> rng = np.random.default_rng(0)
    >>> def hospital(rows):
    ...     X = rng.normal(size=(rows, 4))
    ...     return X, X[:, 0] + 0.3 * rng.normal(size=rows) > 0
    >>> result = wardround.simulate(
    ...     model=lambda: torch.nn.Linear(4, 1), clients={"north": hospital(80), "south": hospital(120)},
    ...     training={"lr": 0.1}, rounds=6, progress=False)
    >>> result.metrics["auroc"] > 0.9, len(result.rounds), result.clients[0].client
    (True, 6, 'north')
    """
    values: dict[str, Any] = {"name": name, "rounds": rounds, "seed": seed, **settings}
    sections = {"aggregator": aggregator, "attack": attack, "fault": fault, "partition": partition}
    for key, section in sections.items():
        if section is not None:
            values[key] = _section(key, section)
    with ExitStack() as stack:
        raw = "preprocessing" in settings
        samples = _samples(clients, dataset, positive, raw)
        own = model if model is not None and not isinstance(model, str | Mapping) else None
        own = copy.deepcopy(own) if isinstance(own, nn.Module) else own  # the user may go on training theirs
        if samples is not None:
            if clients is not None:
                values["partition"] = _natural(values.get("partition"))
            if own is not None:
                samples = _fitted(own, samples, _first_rows(samples, values))
            values["dataset"] = stack.enter_context(_hold(samples))
        elif dataset is not None:
            assert isinstance(dataset, str | Mapping)
            values["dataset"] = _section("dataset", dataset)
        if own is not None:
            values["model"] = stack.enter_context(hold_network(own))
        elif model is not None:
            assert isinstance(model, str | Mapping)
            values["model"] = _section("model", model)
        return _run(load_config(values, "simulate"), own, samples, out, progress)


def _run(
    config: RunConfig,
    own: Network | None,
    samples: Samples | None,
    out: str | os.PathLike[str] | None,
    show: bool,
) -> Result:
    if own is not None and samples is None:
        data, _ = load_and_partition(config)
        check_network(outputs_of(own, data.prepare(data.train.inputs[:64])), data.task, data.class_names)
    bar = progress_bar(config.name, config.rounds) if show else nullcontext(_ignore)
    with bar as advance:

        def listen(record: RoundRecord) -> None:
            value, heading = main_value(record.metrics), MAIN_METRICS[main_metric(record.metrics)]
            advance(record.round, "" if value is None else f"{heading} {value:.3f}")

        folder = run(config, _temporary() if out is None else Path(out), listen)
    summary = folder.summary()
    assert summary is not None  # the run has come to an end
    network, preprocessing = _trained(config, folder)
    return Result(
        folder,
        network,
        summary,
        preprocessing,
        Records(folder.rounds(), round_row),
        Records(folder.clients(), client_row),
        own,
    )


def _ignore(done: int, note: str = "") -> None:
    """Show nothing."""


def _trained(config: RunConfig, folder: RunFolder) -> tuple[nn.Module, Preprocessing | None]:
    """The network of the run with its last weights, and what its input is made by."""
    data, _ = load_and_partition(config)
    network = build_model(
        config.model, data.input_shape, data.task.value, len(data.class_names), config.seed, config.privacy.dp
    )
    checkpoint = folder.read_checkpoint()
    if checkpoint is not None:
        tensors = network.state_dict()
        with torch.no_grad():
            for entry, value in Layout.of(network).unflatten(checkpoint["federation"]["weights"]).items():
                tensors[entry].copy_(value)
    return network.eval(), data.preprocessing


def _samples(
    clients: Mapping[str, tuple[Any, Any]] | None,
    dataset: Section | tuple[Any, Any] | None,
    positive: object,
    raw: bool,
) -> Samples | None:
    """The user's own rows; None where the dataset is one by name."""
    if clients is not None and dataset is not None:
        raise ConfigError("simulate: give clients or dataset, not both")
    if clients is not None:
        if not isinstance(clients, Mapping):
            raise ConfigError(f"clients: expected {{'name': (X, y), …}}, got {type(clients).__name__}")
        named = {str(client): pair for client, pair in clients.items()}
        if len(named) < len(clients):
            raise ConfigError("clients: two of them have the same name")
        samples = read_samples(named, positive, raw)
    elif dataset is None or isinstance(dataset, str | Mapping):
        if positive is not None:
            raise ConfigError(
                "positive: goes with clients or (X, y); a csv dataset has a `positive` of its own"
            )
        return None
    else:
        samples = read_samples({None: dataset}, positive, raw)
    _check_scales(samples)
    return samples


def _hold(samples: Samples) -> AbstractContextManager[dict[str, str | int]]:
    return hold_rows(samples.clients, samples.task, samples.class_names, samples.feature_names)


def _first_rows(samples: Samples, values: Mapping[str, Any]) -> torch.Tensor:
    """Some rows as the network will see them."""
    first = next(iter(samples.clients.values()))
    if first.columns is None:
        return first.inputs
    with _hold(samples) as section:
        data, _ = load_and_partition(load_config({**values, "dataset": section}, "simulate"))
        return data.train.inputs


def _fitted(own: Network, samples: Samples, inputs: torch.Tensor) -> Samples:
    """The rows as the network wants them: two classes as one output, or as an output each."""
    outputs = outputs_of(own, inputs)
    if outputs == 2 and samples.task is Task.BINARY:
        samples = replace(samples, task=Task.MULTICLASS)
    check_network(outputs, samples.task, samples.class_names)
    return samples


def _check_scales(samples: Samples) -> None:
    tables = [
        rows.inputs for rows in samples.clients.values() if rows.inputs.ndim == 2 and rows.columns is None
    ]
    if not tables:
        return
    spread = torch.cat(tables).double().std(0, correction=0)
    widest = int(spread.argmax())
    if spread[widest] > WIDE:
        column = samples.feature_names[widest] if samples.feature_names else f"{widest}"
        warnings.warn(
            f"column {column} of X spreads by {spread[widest]:.0f}: networks learn little from columns that are not "
            "standardised; bring each to mean 0 and deviation 1",
            WardroundWarning,
            stacklevel=4,
        )


def _natural(partition: Mapping[str, Any] | None) -> dict[str, Any]:
    """The clients are those that were given."""
    if partition is not None and partition.get("name") != "natural":
        raise ConfigError("simulate: `clients` say who holds what; `partition` shares out a `dataset`")
    return {"min_size": 1, **(partition or {"name": "natural"})}


def _section(key: str, value: Section) -> dict[str, Any]:
    if isinstance(value, str):
        return {"name": value}
    if isinstance(value, Mapping):
        return dict(value)
    raise ConfigError(f"{key}: expected a name or {{'name': …, parameters}}, got {type(value).__name__}")


def _temporary() -> Path:
    """A new folder that is gone when Python ends."""
    global _scratch
    if _scratch is None:
        _scratch = tempfile.TemporaryDirectory(prefix="wardround-")
    return Path(tempfile.mkdtemp(dir=_scratch.name))
