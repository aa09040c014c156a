"""Every preset runs to its end: each of its attacks against each of its rules, on small files in the real layouts.

A run that fails after its last round has cost all its rounds, so what only happens at the end (every client evaluated
on its own samples, the summary, the analysis) is tried here for every pair, and so is every partition of a preset.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from raw_files import (
    MimicRelease,
    write_brains,
    write_chexpert,
    write_cifar,
    write_ham,
    write_isic,
    write_medmnist,
    write_mnist,
    write_nih,
)
from raw_tables import write_heart, write_tcga

from wardround import datasets
from wardround.analysis import analyze, load_runs
from wardround.datasets.prepared_cache import prepare
from wardround.experiments import expand, presets, run
from wardround.protocols import papers
from wardround.runs.config import RunConfig, load_config, override

pytest.importorskip("PIL")
pytest.importorskip("duckdb")

IMAGE_FOLDERS = {
    "ham10000": lambda folder: write_ham(folder, 280),
    "isic2019": lambda folder: write_isic(folder, 160),
    "chestxray8": lambda folder: write_nih(folder, 240),
    "chexpert": lambda folder: write_chexpert(folder, 60),
    "alzheimer-mri": lambda folder: write_brains(folder, 30),
}
OTHER_FOLDERS = {
    "mnist": lambda folder: write_mnist(folder, 140, 40),
    "cifar10": lambda folder: write_cifar(folder, 30),
    "mimic3": lambda folder: MimicRelease(folder, patients=160).write(),
}
SIZE = 16
FEW = 30
FEWER = 15
"""So many pairs of a preset are all tried: of a preset of a paper, and of any other."""
SMALL_MODELS = {
    "resnet18": {"name": "medical-cnn", "width": 2},
    "medical-cnn": {"width": 2},
    "bucketing-cnn": {"width": 2},
}
LITTLE_PRACTICE = {
    "permutations": 1, "shapley_budget": 2.5, "vae_max_dim": 64, "vae_epochs": 1, "attention_epochs": 1,
    "rl_steps": 2, "practice_clients": 4, "practice_groups": 1, "calm_groups": 1, "practice_draws": 1,
    "practice_permutations": 1, "tries": 2,
}  # fmt: skip
"""Of the rules that practise on the server's own data: most of their time is spent on that."""
FOR_TABLES = ("mlp", "logistic", "gru", "lstm")
ALL_PRESETS = sorted(presets.available())
OWN = ("guard-", "redteam", "wrong-f")
"""Presets of our own: each attack and each rule once; every pair of them would be hundreds."""
PAPERS = ("caac-core", "caac-core-isic2019", "caac-ablation", "dos-ham10000", "dos-chestxray", "fedmed-icu")
"""Presets whose every pair of attack and rule is tried, in one of the presets."""


@pytest.fixture(scope="module")
def raw(tmp_path_factory) -> Path:
    """A working folder with the files that presets name, and everything else prepared in its cache."""
    folder = tmp_path_factory.mktemp("raw")
    for name, write in IMAGE_FOLDERS.items():
        prepare(datasets.create(name, size=SIZE), write(folder / name), root=folder / "cache", workers=1)
    for name, write in OTHER_FOLDERS.items():
        prepare(datasets.create(name), write(folder / name), root=folder / "cache")
    prepare(datasets.create("heart", variant="flamby"), write_heart(folder / "heart"), root=folder / "cache")
    prepare(datasets.create("heart"), folder / "heart", root=folder / "cache")
    prepare(datasets.create("tcga-brca"), write_tcga(folder / "tcga"), root=folder / "cache")
    for path in ("pneumoniamnist.npz", "data/medmnist/pneumoniamnist.npz", "data/medmnist/breastmnist.npz"):
        write_medmnist(folder / path, counts=(120, 60, 30))
    lines = ["age,pressure,smoking", *(f"{20 + i % 60},{110 + i % 7},{i % 3 % 2}" for i in range(300))]
    (folder / "smoking.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def working_folder(raw, monkeypatch) -> Path:
    monkeypatch.chdir(raw)
    monkeypatch.setenv("WARDROUND_DATA", str(raw / "cache"))
    return raw


@cache
def planned() -> dict[str, list[RunConfig]]:
    """The runs of each preset that are tried.

    Of every preset: every attack, rule, kind of partition and dataset. Of all together: every attack in every strength
    against every rule that it meets in a paper's preset, once for tables and once for images of each kind of labels. A
    pair that an earlier preset has tried on the same kind of data is not tried again.
    """
    tried: set[str] = set()
    plan: dict[str, list[RunConfig]] = {}
    for preset in ALL_PRESETS:
        met: set[str] = set()
        plan[preset] = []
        few = FEW if preset in PAPERS else FEWER
        for config in covering(of_first_seed(preset), few, times=1 if preset.startswith(OWN) else 2):
            pair, own = _pair(config), _members(config)
            if pair not in tried or not own <= met:
                plan[preset].append(config)
            tried.add(pair)
            met |= own
    return plan


def of_first_seed(preset: str) -> list[RunConfig]:
    matrix, where = presets.load_matrix(preset)
    return expand(matrix, where, [f"seeds=[{matrix['seeds'][0]}]"] if "seeds" in matrix else [])


def covering(configs: list[RunConfig], few: int, times: int) -> list[RunConfig]:
    """Runs in which every attack, rule, partition and dataset of a preset occurs.

    Where there are few, every attack in every strength meets every rule on every dataset. Each pair takes another one
    of its runs in turn. Of the largest presets each attack and each rule is met so many times: their pairs are those of
    others.
    """
    chosen = _one_per(configs, lambda config: (config.dataset, config.attack, config.aggregator))
    if len(chosen) > few:
        chosen = _one_per(configs, lambda config: (config.attack_parameters(), config.aggregator))
    if len(chosen) > few:
        random.Random(0).shuffle(chosen)
        met: Counter[str] = Counter()
        chosen = [config for config in chosen if _is_new(config, met, times)]
    partitions = {config.partition["name"] for config in chosen}
    others = [config for config in configs if config.partition["name"] not in partitions]
    return chosen + _one_per(others, lambda config: config.partition["name"])


def _one_per(configs: list[RunConfig], key: Callable[[RunConfig], object]) -> list[RunConfig]:
    members: dict[str, list[RunConfig]] = {}
    for config in configs:
        members.setdefault(repr(key(config)), []).append(config)
    return [runs[turn % len(runs)] for turn, runs in enumerate(members.values())]


def _is_new(config: RunConfig, met: Counter[str], times: int) -> bool:
    """Was the attack or the rule met less often than it should be? Both are counted then."""
    names = f"attack {config.attack['name']}", repr(config.aggregator)
    if min(met[name] for name in names) >= times:
        return False
    met.update(names)
    return True


def _pair(config: RunConfig) -> str:
    """What decides whether a run can fail: the kind of labels, tables or images, the attack and the rule."""
    task = datasets.registry.get(config.dataset["name"]).task
    return repr((task, config.model["name"] in FOR_TABLES, config.attack_parameters(), config.aggregator))


def _members(config: RunConfig) -> set[str]:
    sections = (config.attack_parameters(), config.aggregator, config.partition["name"], config.dataset)
    return set(map(repr, sections))


def shrunken(config: RunConfig) -> RunConfig:
    """The same run in two rounds, on small images with a small network."""
    changes = {"rounds": 2, "training.epochs": 1, "evaluate_every": 1, "partition.min_size": 1}
    if config.dataset["name"] in IMAGE_FOLDERS:
        changes["dataset.size"] = SIZE
    if config.attack["start"] > 1:
        changes["attack.start"] = 2
    if "t_boot" in config.aggregator:
        changes["aggregator.t_boot"] = 1
    changes["root.samples"] = 8
    changes |= {
        f"aggregator.{key}": value for key, value in LITTLE_PRACTICE.items() if key in config.aggregator
    }
    changes |= {f"model.{key}": value for key, value in SMALL_MODELS.get(config.model["name"], {}).items()}
    return load_config(override(config.plain(), changes))


@pytest.mark.slow
@pytest.mark.parametrize("preset", ALL_PRESETS)
def test_every_attack_meets_every_rule_and_the_analysis_reads_it(preset, working_folder, tmp_path):
    for config in planned()[preset]:
        small = shrunken(config)
        summary = run(small, tmp_path, workers=1).summary()
        assert (summary.finished, summary.rounds) == (True, 2), small.run_name
    assert analyze(load_runs([tmp_path]), papers=papers()).tables


@pytest.mark.slow
def test_what_is_tried_leaves_out_no_attack_rule_or_partition_of_any_preset():
    for preset in ALL_PRESETS:
        configs = of_first_seed(preset)
        for key in ("attack", "aggregator", "partition", "dataset"):
            named = {getattr(config, key)["name"] for config in configs}
            assert {getattr(config, key)["name"] for config in planned()[preset]} == named, (preset, key)
    pairs = {_pair(config) for configs in planned().values() for config in configs}
    for preset in PAPERS:
        for config in of_first_seed(preset):
            assert _pair(config) in pairs, preset


@pytest.mark.slow
def test_the_papers_large_network_runs_too(working_folder, tmp_path):
    """ResNet-18 as it is, with more clients than the test split has samples for all of them."""
    pytest.importorskip("monai")
    config = expand(*presets.load_matrix("caac-core-isic2019"))[-1]
    values = override(
        config.plain(),
        {
            "rounds": 1,
            "attack.start": 1,
            "dataset.size": 32,
            "partition.min_size": 1,
            "partition.clients": 6,
        },
    )
    assert values["model"]["name"] == "resnet18"
    prepare(datasets.create("isic2019", size=32), working_folder / "isic2019", workers=1)
    folder = run(load_config(values), tmp_path, workers=1)
    assert folder.summary().finished
    (last,) = folder.rounds()
    assert len(last.per_client) == 6


@pytest.mark.slow
def test_the_dos_papers_own_choices_run(working_folder, tmp_path):
    """Images drawn one by one without a validation split, two dense layers, and whole-client batches."""
    config = expand(
        *presets.load_matrix("dos-ham10000"), changes=["dataset.split=image", "model.dense=[120]"]
    )[-1]
    folder = run(shrunken(config), tmp_path, workers=1)
    summary = folder.summary()
    assert summary.finished
    assert summary.final["auroc"] is not None
    assert folder.rounds()[-1].validation["auroc"] is None
