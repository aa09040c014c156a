"""`wardround export`: the model of a run as a folder."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import wardround
from wardround.errors import ConfigError, MissingExtra
from wardround.files import UNFINISHED, make_private_folder, replace_file
from wardround.runs.export.card import model_card
from wardround.runs.export.manifest import (
    CARD,
    MANIFEST,
    ONNX,
    PREPROCESSING,
    SCHEMA,
    SIGNATURE,
    WEIGHTS,
    Manifest,
    weights_hash,
)
from wardround.runs.export.network import load_weights, onnx_bytes, weights_bytes
from wardround.runs.export.signature import sign
from wardround.runs.export.source import Choice, TrainedModel, read_trained_model
from wardround.runs.folder import RunFolder

__all__ = ["SigningKey", "export_run", "model_files", "write_model_folder"]


@dataclass(frozen=True)
class SigningKey:
    """What a server signs a model with."""

    key: Path
    certificate: Path


def export_run(
    folder: RunFolder,
    out: Path,
    choice: Choice | None = None,
    onnx: bool = True,
    signing_key: SigningKey | None = None,
    force: bool = False,
) -> Manifest:
    """Write a run's model into the folder `out`.

    Args:
        folder: the run.
        out: a folder that is not there yet, or is empty; with `force` a model in it is replaced.
        choice: which round's weights (see `read_trained_model`).
        onnx: write model.onnx too. Needs the extra `export`.
        signing_key: signs the manifest.
        force: replace a model that is there already.
    """
    _check_place(out, force)
    trained = read_trained_model(folder, choice)
    files = model_files(trained, onnx, signing_key)
    write_model_folder(out, files)
    return Manifest.from_bytes(files[MANIFEST], out / MANIFEST)


def model_files(
    trained: TrainedModel,
    onnx: bool = True,
    signing_key: SigningKey | None = None,
    without_onnx: str = "it was not asked for",
) -> dict[str, bytes]:
    """All files of a model folder.

    `without_onnx`: why there is no model.onnx where `onnx` is False; the card says so.
    """
    load_weights(trained.network, trained.weights)
    inputs = trained.inputs
    files = {WEIGHTS: weights_bytes(trained.weights, trained.layout)}
    if onnx:
        files[ONNX] = onnx_bytes(trained.network, inputs)
    files[PREPROCESSING] = _json(inputs.preprocessing)
    files[SCHEMA] = _json(inputs.schema)
    files[CARD] = model_card(trained, None if onnx else without_onnx).encode()
    manifest = Manifest(
        run=trained.folder.path.name,
        round=trained.round,
        chosen=trained.chosen,
        model=trained.config["model"],
        group_norm=trained.group_norm,
        task=inputs.task,
        class_names=inputs.class_names,
        input_shape=inputs.input_shape,
        feature_names=inputs.feature_names,
        thresholds=trained.thresholds,
        parameters=trained.layout.size,
        weights=weights_hash(trained.weights),
        files={name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        wardround=wardround.__version__,
    ).to_bytes()
    files[MANIFEST] = manifest
    if signing_key is not None:
        files[SIGNATURE] = sign(manifest, signing_key.key, signing_key.certificate)
    return files


def write_model_folder(out: Path, files: Mapping[str, bytes], private: bool = False) -> None:
    """Write a model folder so that it is there as a whole or not at all; a model that was there is replaced."""
    temporary = out.with_name(out.name + UNFINISHED)
    try:
        if private:
            make_private_folder(out.parent)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True, mode=0o700 if private else 0o777)
        for name, content in files.items():
            replace_file(temporary / name, content)
        if out.exists():
            shutil.rmtree(out)
        os.replace(temporary, out)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise ConfigError(f"{out}: cannot be written ({error.strerror})") from None


def has_onnx() -> bool:
    """Can model.onnx be written here?"""
    from wardround.errors import require

    try:
        for module in ("onnx", "onnxscript"):
            require(module, "export")
    except MissingExtra:
        return False
    return True


def _check_place(out: Path, force: bool) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise ConfigError(f"{out}: is a file; --out names a folder")
    content = {path.name for path in out.iterdir()}
    if not content:
        return
    if MANIFEST not in content:
        raise ConfigError(
            f"{out}: holds something else than a model; give a folder that is empty or not there yet"
        )
    if not force:
        raise ConfigError(f"{out}: holds a model already; --force replaces it")


def _json(values: object) -> bytes:
    return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode()
