"""MODEL_CARD.md: what a model is, from which data and hospitals it comes, how good it is, and what it is not for.

Everything in it comes out of the run folder. What the run did not measure is said to be unknown, not left out.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import wardround
from wardround.datasets.base import Task
from wardround.records import ClientRecord, EvaluationDetails
from wardround.runs.export.network import second_output
from wardround.runs.export.source import TrainedModel
from wardround.runs.quarantine import quarantined

__all__ = ["model_card"]

RATES = ("n", "auroc", "c_index", "auprc", "accuracy", "f1", "sensitivity", "specificity", "brier", "loss")
NOT_SHOWN = ("threshold",)
"""Entries of a round's metrics that have a place of their own."""
Row = Sequence[object]


def model_card(trained: TrainedModel, without_onnx: str | None = None) -> str:
    """The text of the card.

    Args:
        trained: the model and the folder of its run.
        without_onnx: why there is no model.onnx; None where there is one.
    """
    clients = trained.folder.clients()
    sections = [
        _heading(trained),
        _use(trained, without_onnx),
        _data(trained),
        _training(trained),
        _participants(trained, clients),
        _performance(trained),
        _groups(trained),
        _calibration(trained),
        _privacy(trained),
        _limits(trained, clients),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _heading(trained: TrainedModel) -> str:
    inputs, rounds = trained.inputs, int(trained.config["rounds"])
    done = max((record.round for record in trained.folder.rounds()), default=trained.round)
    chosen = {
        "best": f"round {trained.round} of {done}, the best by {_main(trained)} on validation samples",
        "last": f"round {trained.round}, the last one that is finished",
    }[trained.chosen]
    of = "" if done == rounds else f" (the run was to have {rounds} rounds)"
    lines = [
        f"# {trained.config.get('name', 'run')}: {inputs.task} model of a federation",
        "",
        f"- Run: `{trained.folder.path.name}`, written by wardround {wardround.__version__}",
        f"- Weights: {chosen}{of}",
        f"- Network: {_inline(trained.config['model'])}, {trained.layout.size:,} parameters",
        f"- Predicts: {_predicts(trained)}",
    ]
    return "\n".join(lines)


def _main(trained: TrainedModel) -> str:
    """What rounds were compared by."""
    return "C-index" if trained.inputs.task == Task.SURVIVAL.value else "AUROC"


def _predicts(trained: TrainedModel) -> str:
    inputs = trained.inputs
    if inputs.task == Task.SURVIVAL.value:
        return (
            f"a risk score (log hazard) of `{inputs.class_names[1]}`: who has the higher one is expected to have it "
            "sooner. It is no probability and no time"
        )
    if inputs.positive is not None:
        return f"the probability of `{inputs.positive}` (the other class is `{inputs.class_names[0]}`)"
    names = ", ".join(f"`{name}`" for name in inputs.class_names)
    every = "each finding" if inputs.task == Task.MULTILABEL.value else "each class"
    return f"the probability of {every} of {names}"


def _use(trained: TrainedModel, without_onnx: str | None) -> str:
    inputs = trained.inputs
    shape = " × ".join(str(size) for size in inputs.input_shape)
    lines = ["## How to use it", ""]
    if inputs.is_table and inputs.preprocessing is not None:
        lines.append(
            "- `wardround predict MODEL_FOLDER TABLE.csv` takes a table with the raw columns of `schema.json`."
        )
    elif inputs.is_table and inputs.feature_names:
        lines.append(
            "- `wardround predict MODEL_FOLDER TABLE.csv` takes a table whose columns are the model's own inputs, "
            "already scaled: the run kept no preprocessing."
        )
    else:
        lines.append(
            f"- The network takes samples of shape {shape}, prepared as the run's dataset prepares them."
        )
    lines.append(
        f"- `model.safetensors` holds the weights by name. There is no `model.onnx`: {without_onnx}."
        if without_onnx is not None
        else f"- `model.onnx` takes `input` (rows × {shape}, float32, after preprocessing) and gives `logits` and "
        f"`{second_output(inputs.task)}`; `model.safetensors` holds the weights by name."
    )
    if (inputs.preprocessing or {}).get("scale") == "local":
        lines.append(
            "- In training every hospital scaled its numbers by itself. `preprocessing.json` has common scales: "
            "predict with it only after a check on your own data."
        )
    for name, threshold in trained.thresholds.items():
        lines.append(f"- A sample is called `{name}` above a probability of {threshold:.4g}.")
    if inputs.positive is not None:
        why = trained.why_default_threshold
        lines.append(
            "- That threshold has the highest F1 on validation samples."
            if why is None
            else f"- That threshold is a habit, not a choice: {why}."
        )
    return "\n".join(lines)


def _data(trained: TrainedModel) -> str:
    record = trained.config.get("record") or {}
    held: Mapping[str, Sequence[int]] = record.get("clients") or {}
    total = sum(sum(counts) for counts in held.values())
    lines = [
        "## Data",
        "",
        f"- Dataset: {_inline(trained.config.get('dataset') or {})}",
        f"- Partition: {_inline(trained.config.get('partition') or {})}",
        f"- {len(held)} hospitals" + (f", {total:,} training samples or findings in all" if total else ""),
    ]
    if trained.inputs.feature_names:
        names = trained.inputs.feature_names
        shown = ", ".join(f"`{name}`" for name in names[:40])
        more = f" and {len(names) - 40} more" if len(names) > 40 else ""
        lines.append(f"- {len(names)} inputs of the network: {shown}{more}")
    return "\n".join(lines)


def _training(trained: TrainedModel) -> str:
    config = trained.config
    initial = config.get("initial_model")
    return "\n".join(
        [
            "## Training",
            "",
            f"- Rounds: {config['rounds']}, seed {config['seed']}",
            f"- Rule: {_inline(config['aggregator'])}",
            f"- Local training: {_inline(config['training'])}",
            f"- Began from: {'random weights' if not initial else f'an exported model ({_inline(initial)})'}",
        ]
    )


def _participants(trained: TrainedModel, clients: Sequence[ClientRecord]) -> str:
    """Who took part and how much, who was flagged, dropped, absent or in quarantine, up to the exported round."""
    by_client: dict[str, list[ClientRecord]] = defaultdict(list)
    for record in clients:
        if record.round <= trained.round:
            by_client[record.client].append(record)
    if not by_client:
        return ""
    set_aside = quarantined(trained.folder.path)
    has_flags = any(record.flag is not None for record in clients)
    rows: list[Row] = []
    for client in sorted(by_client):
        records = by_client[client]
        used = [record for record in records if record.status == "ok"]
        left_out = Counter(record.status for record in records if record.status != "ok")
        weights = [record.weight for record in used if record.weight is not None]
        rows.append(
            [
                client,
                max((record.num_samples or 0 for record in records), default=0),
                len(used),
                f"{100 * sum(weights) / trained.round:.1f} %" if weights else "–",
                sum(record.flag is True for record in records) if has_flags else "–",
                ", ".join(f"{count} {status}" for status, count in sorted(left_out.items())) or "–",
                f"yes: {set_aside[client]}" if client in set_aside else "no",
            ]
        )
    heads = [
        "hospital",
        "samples",
        "rounds used",
        "mean weight",
        "rounds flagged",
        "left out",
        "in quarantine now",
    ]
    flags = (
        "" if has_flags else "\n\nThe rule raises no flags: that nobody was accused says nothing of anybody."
    )
    return f"## Who took part\n\nUp to round {trained.round}.\n\n{_table(heads, rows)}{flags}"


def _performance(trained: TrainedModel) -> str:
    record = trained.record
    lines = ["## How good it is", ""]
    if record is None or not record.metrics:
        lines.append("Not measured in this round.")
        return "\n".join(lines)
    federated = (
        "federation" in trained.config and (trained.config.get("dataset") or {}).get("name") == "hospitals"
    )
    by = "medians of what the hospitals report on their own" if federated else "on the run's"
    lines.append(f"After round {trained.round}, {by} test and validation samples.")
    columns = {"test": record.metrics, "validation": record.validation or {}}
    names = [name for name in _ordered(record.metrics) if _is_number(record.metrics[name])]
    rows: list[Row] = [[name, *(_number(values.get(name)) for values in columns.values())] for name in names]
    lines += ["", _table(["measure", *columns], rows)]
    lines += ["", "### Per hospital", "", _per_hospital(trained)]
    return "\n".join(lines)


def _per_hospital(trained: TrainedModel) -> str:
    own, when = (trained.record.per_client if trained.record else None), trained.round
    if not own:
        rounds = [record for record in trained.folder.rounds() if record.per_client]
        if not rounds:
            return "Not measured: the run has not come to its last round."
        own, when = rounds[-1].per_client, rounds[-1].round
    assert own is not None
    names = _ordered(name for values in own.values() for name, value in values.items() if _is_number(value))
    rows: list[Row] = [
        [client, *(_number(own[client].get(name)) for name in names)] for client in sorted(own)
    ]
    other = (
        ""
        if when == trained.round
        else f" That is not the exported model, which is of round {trained.round}."
    )
    return f"On each hospital's own test samples, after round {when}.{other}\n\n{_table(['hospital', *names], rows)}"


def _groups(trained: TrainedModel) -> str:
    lines, details = ["## Patient groups", ""], _details(trained)
    if not details.groups:
        return "\n".join(
            [*lines, "Not measured: the data has no groups (sex, age, site), or none were named."]
        )
    for attribute, groups in details.groups.items():
        names = _ordered(
            name for values in groups.values() for name, value in values.items() if name != "reason"
        )
        rows: list[Row] = [
            [group, *(_number(values.get(name)) for name in names)] for group, values in groups.items()
        ]
        gaps = details.gaps.get(attribute)
        if gaps:
            rows.append(["largest gap", *(_number(gaps.get(name)) for name in names)])
        lines += [f"### {attribute}", "", _table([attribute, *names], rows), ""]
        reasons = {group: values["reason"] for group, values in groups.items() if values.get("reason")}
        lines += [f"- {group}: {reason}" for group, reason in reasons.items()]
    return "\n".join(lines).rstrip()


def _calibration(trained: TrainedModel) -> str:
    lines, details = ["## Calibration", ""], _details(trained)
    metrics = (trained.record.metrics if trained.record else None) or {}
    if metrics.get("brier") is not None:
        lines.append(f"Brier score on test samples: {_number(metrics['brier'])} (0 is best).")
    if metrics.get("ece") is not None:
        lines.append(f"Mean distance between predicted and observed shares: {_number(metrics['ece'])}.")
    if details.calibration:
        rows: list[Row] = [
            [f"{one.low:g} to {one.high:g}", one.n, _number(one.predicted), _number(one.observed)]
            for one in details.calibration
        ]
        lines += ["", _table(["predicted probability", "samples", "mean predicted", "observed share"], rows)]
    elif trained.inputs.task == Task.SURVIVAL.value:
        lines.append("Not defined: the model ranks patients by risk and gives no probability.")
    elif len(lines) == 2:
        lines.append("Not measured. Do not read a predicted probability as a frequency before it is.")
    return "\n".join(lines)


def _privacy(trained: TrainedModel) -> str:
    privacy = trained.config.get("privacy") or {}
    lines = ["## Privacy", "", f"- Mode: `{privacy.get('mode', 'plaintext')}`"]
    if trained.config.get("initial_model"):
        lines.append(
            "- The figures are of this run. What the model that it began from has spent comes on top."
        )
    spent = trained.record.privacy if trained.record else None
    if not spent:
        lines.append(
            "- No differential privacy: ε is not bounded. A model can reveal samples that it was trained on."
        )
        return "\n".join(lines)
    unit = (privacy.get("dp") or {}).get("unit", "client")
    if "epsilon" in spent:
        lines.append(
            f"- ε = {spent['epsilon']:.3f} at δ = {spent['delta']:g}, per {unit}, spent up to round {trained.round} "
            "(the most of any hospital)"
        )
    if "profile_epsilon" in spent:
        lines.append(f"- Profiles: ε = {spent['profile_epsilon']:.3f} at δ = {spent['profile_delta']:g}")
    return "\n".join(lines)


def _limits(trained: TrainedModel, clients: Sequence[ClientRecord]) -> str:
    config = trained.config
    lines = [
        "## Limits",
        "",
        "- Not a medical device. Nobody has examined this model for clinical use.",
        "- It holds for patients like those of the hospitals above. For others, measure first.",
        "- A robust rule bounds what attackers can do; no rule here is known to withstand every attacker.",
    ]
    attackers = sorted({record.client for record in clients if record.byzantine})
    if attackers:
        attack = (config.get("attack") or {}).get("name")
        lines.append(
            f"- **The run simulated an attack** (`{attack}`) by {', '.join(attackers)}: this model is for research."
        )
    broken = sorted({record.client for record in clients if record.faulty})
    if broken:
        fault = (config.get("fault") or {}).get("name")
        lines.append(
            f"- **The run simulated a fault** (`{fault}`) of {', '.join(broken)}: this model is for research."
        )
    if trained.chosen == "best":
        lines.append(
            f"- The round was chosen by its {_main(trained)} on validation samples; the test figures above had no part "
            "in that."
        )
    if (summary := trained.folder.summary()) is None or not summary.finished:
        lines.append("- The run is not finished.")
    return "\n".join(lines)


def _details(trained: TrainedModel) -> EvaluationDetails:
    return EvaluationDetails() if trained.record is None else trained.record.details


def _ordered(names: Iterable[str]) -> list[str]:
    known = [name for name in dict.fromkeys(names) if name not in NOT_SHOWN]
    return [*(name for name in RATES if name in known), *(name for name in known if name not in RATES)]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: object) -> str:
    if not _is_number(value):
        return "–" if value is None else str(value)
    return str(value) if isinstance(value, int) else f"{value:.4f}"


def _inline(values: object) -> str:
    """A section of a configuration on one line."""
    if not isinstance(values, Mapping):
        return f"`{values}`"
    name = values.get("name")
    rest = {key: value for key, value in values.items() if key != "name" and value is not None}
    text = ", ".join(f"{key} {json.dumps(value, ensure_ascii=False)}" for key, value in rest.items())
    return f"`{name}`" + (f" ({text})" if text else "") if name else text


def _table(heads: Sequence[str], rows: Sequence[Row]) -> str:
    """A Markdown table; a cell cannot end it early, whatever it holds."""

    def line(cells: Iterable[object]) -> str:
        return "| " + " | ".join(" ".join(str(cell).replace("|", "\\|").split()) for cell in cells) + " |"

    return "\n".join([line(heads), line("---" for _ in heads), *(line(row) for row in rows)])
