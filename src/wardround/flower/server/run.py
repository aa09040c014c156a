"""Run a federation over a Flower Grid: an ordinary run folder, resumed where it was left, and an audit log beside it.

Flower's own loop always begins at round 1, so the rounds are those of `runs.runner`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from wardround.aggregators.base import Aggregator
from wardround.datasets import Dataset, Task
from wardround.datasets.partition import Assignment
from wardround.federation.clients import TooFewReplies
from wardround.federation.evaluation import Evaluator
from wardround.federation.loop import Federation
from wardround.federation.model_factory import build_model, build_trainer
from wardround.federation.server_data import ServerData
from wardround.federation.task_check import check_task
from wardround.flower.config import FederationConfig
from wardround.flower.server.audited_steward import AuditedSteward
from wardround.flower.server.delivery import Deliveries, deliver_model, is_delivery_pending
from wardround.flower.server.flower_clients import FlowerClients
from wardround.flower.server.membership import Membership, QuorumMissed
from wardround.flower.server.server_side import check_server_side, load_server_dataset
from wardround.privacy.encryption.refusals import StewardAway
from wardround.privacy.protection import Protection
from wardround.records import RoundRecord
from wardround.runs.audit import AuditLog
from wardround.runs.best_round import BEST, BestRound
from wardround.runs.config import RECORD
from wardround.runs.export.inputs import ModelInputs
from wardround.runs.folder import RunFolder
from wardround.runs.quarantine import quarantined
from wardround.runs.runner import (
    Listener,
    build_campaign,
    build_rule,
    build_schedule,
    load_and_partition,
    record,
    run_rounds,
    summary_on_exit,
    versions,
)
from wardround.threads import one_thread
from wardround.updates import Layout

__all__ = ["build_federation", "run_federation"]


def run_federation(
    config: FederationConfig,
    grid: Grid,
    out: Path,
    listen: Listener | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> RunFolder:
    """Run or resume the federation in `out/<run name>`. A finished one is left as it is."""
    config.adopt_former_folder(out)
    folder = config.find_folder(out)
    finished = folder.summary()
    is_finished = finished is not None and finished.finished
    if is_finished and not is_delivery_pending(folder):
        return folder
    # One thread: results must not depend on how many there are.
    with one_thread():
        dataset: Dataset | None = None
        assignment: Assignment | None = None
        if config.has_partition:
            dataset, assignment = load_and_partition(config.run)
        elif config.has_dataset:
            dataset = load_server_dataset(config)
        check_server_side(config, dataset)  # before anybody is waited for
        with folder.locked(private=True):
            membership = Membership(config, grid, folder, dataset, assignment, clock, sleep)
            if is_finished:
                _deliver_later(config, folder, membership, dataset, assignment)
            else:
                _resume(config, folder, membership, dataset, assignment, listen)
    return folder


def _resume(
    config: FederationConfig,
    folder: RunFolder,
    membership: Membership,
    dataset: Dataset | None,
    assignment: Assignment | None,
    listen: Listener | None,
) -> None:
    # Hospitals that have trained for weeks are not to begin anew because the server was upgraded.
    checkpoint = _as_now(folder.resume(mix_versions=True))
    done = 0 if checkpoint is None else checkpoint["round"]
    audit = membership.audit
    if config.federation.deliver:
        Deliveries().write(folder)
    folder.write_config({**config.plain(), RECORD: versions()})  # now it is a run, if one without a round

    def log_end(status: str, reason: str | None) -> None:
        audit.append(f"run-{status}", **({"reason": reason} if reason else {}))

    with summary_on_exit(folder, (QuorumMissed,), log_end):
        audit.append("run-started" if checkpoint is None else "run-resumed", run=folder.path.name, round=done)
        if checkpoint is not None:
            membership.roster.load_state_dict(checkpoint["federation"]["clients"]["roster"])
        membership.wait_for_start(resumed=checkpoint is not None)
        dataset = membership.prepared(dataset)
        federation = build_federation(config, membership, dataset, assignment)
        if checkpoint is not None:
            federation.load_state_dict(checkpoint["federation"])
        folder.write_config({**config.plain(), RECORD: record(federation, "flower", config.per_round)})
        federation.rule.warm_up(config.per_round, federation.layout.size)
        best = BestRound(None if checkpoint is None else checkpoint.get(BEST))
        inputs = model_inputs(membership, dataset)
        run_rounds(federation, folder, done, best, inputs, listen, partial(log_round, audit))
    if config.federation.deliver:  # finished, or its budget is spent: this is the model that there will be
        _deliver(config, folder, membership, federation)


def _as_now(checkpoint: dict[str, Any] | None) -> dict[str, Any] | None:
    """A checkpoint as this version writes it; that of version 0.1 has the roster elsewhere."""
    if checkpoint is None or "clients" in checkpoint["federation"]:
        return checkpoint
    state = dict(checkpoint["federation"])
    state["clients"] = {"roster": state.pop("roster")}
    return {**checkpoint, "federation": state}


def _deliver(
    config: FederationConfig, folder: RunFolder, membership: Membership, federation: Federation
) -> None:
    hospitals = sorted({record.client for record in folder.clients()})
    deliver_model(folder, config.federation, federation.clients, hospitals, membership.audit)


def _deliver_later(
    config: FederationConfig,
    folder: RunFolder,
    membership: Membership,
    dataset: Dataset | None,
    assignment: Assignment | None,
) -> None:
    """Bring the model of a finished run to hospitals that have not got it."""
    checkpoint, summary = _as_now(folder.read_checkpoint()), folder.summary()
    assert checkpoint is not None  # a finished run has one
    assert summary is not None
    membership.roster.load_state_dict(checkpoint["federation"]["clients"]["roster"])
    membership.audit.append("delivery-resumed", run=folder.path.name)
    federation = build_federation(config, membership, membership.prepared(dataset), assignment)
    _deliver(config, folder, membership, federation)
    folder.write_summary(summary)  # the same again: who watches the folder sees that this is the end


def model_inputs(membership: Membership, dataset: Dataset | None) -> ModelInputs:
    """What the federation's model takes and gives."""
    shape = membership.roster.shape
    assert shape is not None  # the hospitals or the server's own data have fixed it
    agreed = shape.get("preprocessing") is not None
    return ModelInputs.of(dataset) if dataset is not None and not agreed else ModelInputs.from_shape(shape)


def build_federation(
    config: FederationConfig,
    membership: Membership,
    dataset: Dataset | None = None,
    assignment: Assignment | None = None,
) -> Federation:
    """The federation of these hospitals, before its first round."""
    run, shape = config.run, membership.roster.shape
    assert shape is not None  # hospitals or the server's own data have fixed it
    dp = run.privacy.dp
    model = build_model(
        run.model, shape["input_shape"], shape["task"], len(shape["class_names"]), run.seed, dp
    )
    rule = build_rule(run)
    check_task(Task(shape["task"]), rule)
    if run.initial_model is not None:
        run.initial_model.start(model, model_inputs(membership, dataset))
    known = membership.order if assignment is not None else tuple(membership.roster.descriptions)
    campaign, schedule = build_campaign(run, known or ()), build_schedule(run)
    layout = Layout.of(model)
    protection = _protection(config, membership, rule, layout)
    protection.check_cohort(config.per_round)
    if (channel := protection.channel) is not None:
        channel.steward = AuditedSteward(channel.steward, membership.audit.append)
    dtype = next(iter(model.state_dict().values())).dtype
    clients = FlowerClients(config, membership, schedule, layout, dtype, dataset, assignment)
    server: dict[str, Any] = {}
    if dataset is not None:
        server_data = ServerData(dataset, rule, schedule)
        server["server_data"] = server_data
        server["evaluator"] = Evaluator(
            model, dataset, server_data.validation_rows, campaign.attack.backdoors
        )
        if server_data.root is not None:
            server["trainer"] = build_trainer(model, dataset, run.training, None, run.engine, run.device)
    set_aside = partial(quarantined, membership.folder.path)
    return Federation(
        clients,
        model,
        rule,
        run.training,
        schedule,
        protection,
        campaign,
        quarantined=set_aside,
        **server,
    )


def _protection(
    config: FederationConfig, membership: Membership, rule: Aggregator, layout: Layout
) -> Protection:
    """Protection of the rounds; a steward that is away is waited for like hospitals are."""

    def attempt() -> Protection:
        try:
            return Protection(config.run.privacy, rule, None, layout.size, config.run.seed)
        except StewardAway as away:
            raise TooFewReplies(str(away)) from None

    return membership.retry_until_quorum(attempt, 1)


def log_round(audit: AuditLog, line: RoundRecord) -> None:
    """Write what happened to each client in a round into the audit log."""
    for client, left_out in line.left_out.items():
        event = "quarantine-applied" if left_out.status == "quarantined" else "dropped"
        audit.append(event, round=line.round, client=client, reason=left_out.reason)
    if line.skipped is not None:
        audit.append("round-skipped", round=line.round, reason=line.skipped)
    weights = {client.client: client.weight for client in line.clients}
    audit.append("weights", round=line.round, clients=weights)
