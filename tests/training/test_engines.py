import pytest
import torch
from torch import nn

from wardround import models
from wardround.errors import ConfigError
from wardround.training import (
    ENGINES,
    FusedTrainer,
    ProcessesTrainer,
    SequentialTrainer,
    TrainingParams,
    VectorizedTrainer,
    engines,
    make_trainer,
    resolve_device,
)

DENSE = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
OTHER = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))


@pytest.fixture
def make(objective):
    return lambda model, **wish: make_trainer(
        model, objective("binary"), TrainingParams(), device="cpu", **wish
    )


@pytest.fixture
def machine(monkeypatch):
    def is_like(cores, obstacle=None):
        monkeypatch.setattr(engines, "available_cores", lambda: cores)
        monkeypatch.setattr(engines, "why_no_processes", lambda: obstacle)

    return is_like


def test_dense_models_are_fused_or_else_vectorised(make, monkeypatch):
    dense = [DENSE, *(models.create(name).build((4,), outputs=1) for name in ("mlp", "logistic"))]
    for model in dense:
        assert type(make(model)) is FusedTrainer
        assert make(model).engine == "fused"
    monkeypatch.setattr(engines, "why_not_fused", lambda: "there is no numba")
    for model in dense:
        assert type(make(model)) is VectorizedTrainer
        assert make(model).engine == "vectorized"


def test_a_fused_engine_has_a_thread_per_core_unless_told_otherwise(make, machine):
    machine(cores=4)
    assert make(DENSE).workers == 4
    assert make(DENSE, workers=1).workers == 1


def test_other_models_get_processes_where_they_help(make, machine):
    machine(cores=4)
    assert type(make(OTHER)) is ProcessesTrainer
    assert type(make(OTHER, workers=1)) is SequentialTrainer
    machine(cores=1)
    assert type(make(OTHER)) is SequentialTrainer
    assert type(make(OTHER, workers=2)) is ProcessesTrainer
    machine(cores=4, obstacle="no fork here")
    assert type(make(OTHER)) is SequentialTrainer


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_a_wish_is_granted(make, machine, engine):
    machine(cores=2)
    assert make(DENSE, engine=engine).engine == engine


def test_an_impossible_wish_says_what_is_possible(make, machine):
    machine(cores=2)
    with pytest.raises(
        ConfigError, match=r"it has a BatchNorm1d; engines that can: auto, processes, sequential"
    ):
        make(OTHER, engine="vectorized")
    machine(cores=2, obstacle="no fork here")
    with pytest.raises(
        ConfigError, match=r"no fork here; engines that can: auto, fused, vectorized, sequential"
    ):
        make(DENSE, engine="processes")
    with pytest.raises(ConfigError, match="did you mean 'vectorized'"):
        make(DENSE, engine="vectorised")
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        make(DENSE, workers=0)


def test_devices_are_resolved(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == resolve_device("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match="finds no GPU"):
        resolve_device("cuda")
    with pytest.raises(ConfigError, match="unknown device 'gpu'"):
        resolve_device("gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device("auto") == resolve_device("cuda") == torch.device("cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_is_used_where_there_is_one(objective):
    trainer = make_trainer(OTHER, objective("binary"), TrainingParams())
    assert trainer.engine == "sequential"
    assert trainer.device.type == "cuda"


class TestPrecision:
    CONVOLUTION = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 1))

    @pytest.fixture
    def trainer(self, objective):
        def make(precision, model=self.CONVOLUTION, **wish):
            params = TrainingParams(precision=precision)
            return make_trainer(model, objective("binary"), params, device="cpu", **wish)

        return make

    def test_every_engine_for_convolutions_has_it(self, trainer, machine):
        machine(cores=2)
        for engine in ("sequential", "processes"):
            assert trainer("bf16", engine=engine).precision == "bf16"
            assert trainer("float32", engine=engine).precision == "float32"

    @pytest.mark.parametrize(("able", "precision"), [(True, "bf16"), (False, "float32")])
    def test_auto_asks_the_machine(self, trainer, monkeypatch, able, precision):
        monkeypatch.setattr(engines, "_computes_in_bf16", lambda device: able)
        assert trainer("auto").precision == precision
        assert trainer("auto", DENSE).precision == "float32"

    def test_a_network_without_convolutions_has_none(self, trainer):
        with pytest.raises(ConfigError, match="for networks with convolutions"):
            trainer("bf16", DENSE)
