"""Which engine trains: picked by the model and the machine, or wished for."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from wardround.errors import ConfigError, did_you_mean
from wardround.training.base import Objective, Precision, Trainer, TrainingParams, has_convolutions
from wardround.training.dense import DenseStack, NotDense
from wardround.training.fused import FusedTrainer, why_not_fused
from wardround.training.processes import ProcessesTrainer, available_cores, why_no_processes
from wardround.training.sequential import SequentialTrainer
from wardround.training.vectorized import VectorizedTrainer

__all__ = ["DEVICES", "ENGINES", "Device", "Engine", "make_trainer", "resolve_device", "resolve_precision"]

Engine = Literal["auto", "fused", "vectorized", "sequential", "processes"]
Device = Literal["auto", "cpu", "cuda"]
ENGINES = ("auto", "fused", "vectorized", "sequential", "processes")
DEVICES = ("auto", "cpu", "cuda")


def resolve_device(device: str = "auto") -> torch.device:
    """The device to compute on; `auto` is the GPU where there is one.

    >>> resolve_device("cpu")
    device(type='cpu')
    """
    if device not in DEVICES:
        raise ConfigError(f"unknown device {device!r}; {did_you_mean(str(device), DEVICES)}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device 'cuda': torch finds no GPU here; device 'auto' or 'cpu' works")
    return torch.device("cuda" if device != "cpu" and torch.cuda.is_available() else "cpu")


def resolve_precision(precision: str, model: nn.Module, device: torch.device) -> Precision:
    """What a network is computed in; `auto` is bf16 for convolutions where the hardware computes in it.

    >>> resolve_precision("auto", nn.Linear(2, 1), torch.device("cpu"))
    'float32'
    """
    if precision == "float32":
        return "float32"
    if not has_convolutions(model):
        if precision == "bf16":
            raise ConfigError(
                "training.precision 'bf16' is for networks with convolutions, and this model has none; "
                "'float32' or 'auto' works"
            )
        return "float32"
    if precision == "bf16":
        return "bf16"
    return "bf16" if _computes_in_bf16(device) else "float32"


def _computes_in_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def make_trainer(
    model: nn.Module,
    objective: Objective,
    params: TrainingParams,
    engine: str = "auto",
    device: str = "auto",
    workers: int | None = None,
) -> Trainer:
    """An engine for this model: `fused` where it is a chain of dense layers, or `vectorized` where that one cannot run
    (on a GPU, without numba); else `processes` where there are several cores, else `sequential`.

    `workers` is the number of processes or threads (default: one per core); 1 means that others use the other cores,
    and `auto` then picks no processes.

    >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> trainer = make_trainer(network, Objective(False, torch.nn.Identity()), TrainingParams())
    >>> trainer.engine in ("fused", "vectorized")
    True
    """
    if engine not in ENGINES:
        raise ConfigError(f"unknown engine {engine!r}; {did_you_mean(str(engine), ENGINES)}")
    if workers is not None and workers < 1:
        raise ConfigError(f"workers must be at least 1, got {workers}")
    where = resolve_device(device)
    not_dense = _why_not_dense(model)
    reasons = {
        "fused": not_dense or ("it runs on the CPU" if where.type == "cuda" else why_not_fused()),
        "vectorized": not_dense,
        "processes": "a GPU is not shared between processes" if where.type == "cuda" else why_no_processes(),
        "sequential": None,
    }
    chosen = _pick(reasons, workers) if engine == "auto" else engine
    if reasons[chosen] is not None:
        working = [name for name, reason in reasons.items() if reason is None]
        raise ConfigError(
            f"engine '{chosen}' cannot train this model here: {reasons[chosen]}; "
            f"engines that can: {', '.join(['auto', *working])}"
        )
    precision = resolve_precision(params.precision, model, where)
    if chosen == "fused":
        return FusedTrainer(model, objective, params, available_cores() if workers is None else workers)
    if chosen == "vectorized":
        return VectorizedTrainer(model, objective, params, where)
    if chosen == "processes":
        return ProcessesTrainer(model, objective, params, workers, precision)
    return SequentialTrainer(model, objective, params, where, precision)


def _pick(reasons: dict[str, str | None], workers: int | None) -> str:
    for dense in ("fused", "vectorized"):
        if reasons[dense] is None:
            return dense
    several = (available_cores() if workers is None else workers) > 1
    return "processes" if several and reasons["processes"] is None else "sequential"


def _why_not_dense(model: nn.Module) -> str | None:
    try:
        DenseStack.of(model)
    except NotDense as reason:
        return str(reason)
    return None
