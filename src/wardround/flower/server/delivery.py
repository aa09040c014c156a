"""At the end of a federation: the model is exported, and brought to every hospital that took part.

`deliveries.json` in the run folder says who has it. A hospital that was away gets it when it comes back while the
server still serves; later, `wardround serve` with the same configuration brings it to those who have not got it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wardround.errors import WardroundError
from wardround.federation.clients import Clients, FinishedModel
from wardround.files import replace_file
from wardround.flower.config import FederationParams
from wardround.runs.audit import AuditLog
from wardround.runs.export.exported import read_model_folder
from wardround.runs.export.manifest import MANIFEST, Manifest, weights_hash
from wardround.runs.export.network import NotExportable
from wardround.runs.export.source import TrainedModel, read_trained_model
from wardround.runs.export.writer import SigningKey, has_onnx, model_files, write_model_folder
from wardround.runs.folder import RunFolder

__all__ = ["DELIVERIES", "MODEL_FOLDER", "Deliveries", "deliver_model", "is_delivery_pending"]

DELIVERIES, MODEL_FOLDER = "deliveries.json", "model"


@dataclass
class Deliveries:
    """Who has got the model of a run."""

    pending: bool = True
    """Nobody was asked yet."""
    delivered: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    """Hospital → why it has not got it."""

    @classmethod
    def read(cls, folder: RunFolder) -> Deliveries | None:
        """What the run folder says; None where it says nothing."""
        path = folder.path / DELIVERIES
        try:
            values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return cls(bool(values["pending"]), list(values["delivered"]), dict(values["missing"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise WardroundError(f"{path}: cannot be read ({error}); remove it to deliver anew") from None

    def write(self, folder: RunFolder) -> None:
        content = json.dumps(
            {"pending": self.pending, "delivered": self.delivered, "missing": self.missing}, indent=2
        )
        replace_file(folder.path / DELIVERIES, f"{content}\n".encode())


def is_delivery_pending(folder: RunFolder) -> bool:
    """Is there a hospital that took part in a finished run and has not got its model?"""
    deliveries = Deliveries.read(folder)
    return deliveries is not None and (deliveries.pending or bool(deliveries.missing))


def deliver_model(
    folder: RunFolder, params: FederationParams, clients: Clients, hospitals: list[str], audit: AuditLog
) -> None:
    """Export the model of a run and bring it to these hospitals, but for those who have it already."""
    deliveries = Deliveries.read(folder) or Deliveries()
    try:
        model = _exported(folder, params, audit)
    except WardroundError as error:  # the run is finished all the same
        audit.append("not-exported", reason=str(error))
        deliveries.pending = False
        deliveries.write(folder)
        return
    wanted = [hospital for hospital in hospitals if hospital not in deliveries.delivered]
    missing = dict(clients.deliver(model, wanted))
    for hospital in wanted:
        if hospital in missing:
            audit.append("not-delivered", client=hospital, round=model.round, reason=missing[hospital])
        else:
            audit.append("delivered", client=hospital, round=model.round)
    deliveries.delivered += [hospital for hospital in wanted if hospital not in missing]
    deliveries.pending, deliveries.missing = False, missing
    deliveries.write(folder)


def _exported(folder: RunFolder, params: FederationParams, audit: AuditLog) -> FinishedModel:
    """The model in the run folder; exported where it is not there yet, so that everybody gets the same bytes."""
    place, trained = folder.path / MODEL_FOLDER, read_trained_model(folder)
    files = _former(place, trained)
    if files is None:
        reason = _why_no_onnx(params)
        key = None
        if params.certificate_key is not None and params.certificate is not None:
            key = SigningKey(params.certificate_key, params.certificate)
        try:
            files = model_files(trained, reason is None, key, reason or "")
        except NotExportable as error:
            files = model_files(trained, False, key, str(error))
        write_model_folder(place, files)
        manifest = Manifest.from_bytes(files[MANIFEST])
        audit.append("exported", round=trained.round, chosen=trained.chosen, files=dict(manifest.files))
    return FinishedModel(trained.round, files)


def _former(place: Path, trained: TrainedModel) -> dict[str, bytes] | None:
    if not (place / MANIFEST).exists():
        return None
    files = read_model_folder(place)
    manifest = Manifest.from_bytes(files[MANIFEST], place / MANIFEST)
    same = manifest.round == trained.round and manifest.weights == weights_hash(trained.weights)
    return files if same else None


def _why_no_onnx(params: FederationParams) -> str | None:
    if not params.onnx:
        return "the federation's configuration says onnx: false"
    return None if has_onnx() else "the server lacks the extra 'export'"
