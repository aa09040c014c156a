"""What the red team found against `caac-guard`, replayed: a change that makes an attack worse is seen."""

import re
from importlib import resources
from statistics import fmean

import pytest

from wardround.experiments import RunFolder, expand, presets, run_many

PRESET = "redteam-caac-guard"
SLACK = 0.03  # other processors and versions round differently, and 25 rounds carry that far


def recorded() -> list[float]:
    """What each attack of the preset costs, as its file says."""
    file = resources.files("wardround").joinpath("protocols", "own", "presets", f"{PRESET}.yaml")
    return [float(lost) for lost in re.findall(r"# lost ([\d.]+)$", file.read_text(encoding="utf-8"), re.M)]


def test_every_kept_attack_has_its_loss_on_record():
    matrix, _ = presets.load_matrix(PRESET)
    attacks = [run["attack"] for run in matrix["runs"]]
    assert attacks[0] == {"name": "none"}
    assert len(recorded()) == len(attacks) - 1
    assert recorded() == sorted(recorded(), reverse=True)


@pytest.mark.slow
def test_kept_attacks_do_no_more_harm_than_is_on_record(tmp_path):
    matrix, where = presets.load_matrix(PRESET)
    clean, *attacked = matrix["runs"]
    worst_of_kind: dict[str, tuple[dict, float]] = {}
    for run, lost in zip(attacked, recorded(), strict=True):
        worst_of_kind.setdefault(run["attack"]["name"], (run, lost))
    runs = [clean, *(run for run, _ in worst_of_kind.values())]
    configs = expand({**matrix, "runs": runs}, where)
    ends = run_many(configs, tmp_path, 2, lambda event: None)
    assert {event.kind for event in ends} == {"finished"}
    found: dict[str, list[float]] = {}
    for config in configs:
        summary = RunFolder(tmp_path / config.run_name).summary()
        found.setdefault(config.attack["name"], []).append(summary.auroc)
    for name, (_, lost) in worst_of_kind.items():
        assert fmean(found["none"]) - fmean(found[name]) <= lost + SLACK, name
