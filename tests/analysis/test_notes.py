"""What must be known before figures are believed: copies count once, versions and divergence are said."""

import json
import shutil
import warnings

import pytest

import wardround
from wardround.analysis import analyze, load_runs
from wardround.analysis.runs import Run
from wardround.errors import WardroundWarning
from wardround.runs.folder import RunFolder
from wardround.runs.identity import experiment_of


@pytest.fixture
def three_runs(make_run):
    """Two methods, three seeds each: the smallest p-value of Wilcoxon's test is 0.25."""
    for seed in range(3):
        make_run("caac", seed=seed, auroc=0.8 + 0.01 * seed)
        make_run("fedavg", seed=seed, auroc=0.7 + 0.02 * seed)
    return make_run.root


def test_copies_of_runs_are_counted_once_with_a_word(three_runs, tmp_path):
    shutil.copytree(three_runs, tmp_path / "dup" / "one")
    shutil.copytree(three_runs, tmp_path / "dup" / "two")
    with pytest.warns(WardroundWarning, match="6 run folders hold the same experiment as another one"):
        runs = load_runs([tmp_path / "dup"])
    assert len(runs) == 6
    analysis = analyze(runs)
    (comparison,) = analysis.comparisons
    assert comparison.test.n == 3, "not six seeds"
    assert comparison.test.wilcoxon_p == 0.25
    assert "counts once" in analysis.markdown()
    assert "counts once" in json.dumps(analysis.plain()["notes"])
    assert comparison == analyze(load_runs([three_runs])).comparisons[0]


def test_without_copies_there_is_no_word(three_runs):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert analyze(load_runs([three_runs])).notes == []


@pytest.mark.parametrize(
    "change",
    [{"name": "other"}, {"engine": "sequential"}, {"device": "cpu"}, {"evaluate_every": 5}],
)
def test_the_same_experiment_under_another_name_is_one(make_run, change):
    make_run(seed=0)
    make_run(seed=0, **change)
    with pytest.warns(WardroundWarning, match="1 run folder holds the same experiment"):
        (run,) = load_runs([make_run.root])
    assert [copy.folder.path.name for copy in run.copies] == ["made-1"]


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"method": "krum"},
        {"alpha": 0.5},
        {"dataset": "icu"},
        {"training__lr": 0.1},
        {"attack": "alie"},
        {"plugins": [{"file": "rule.py", "sha256": "ab"}]},
    ],
)
def test_other_experiments_are_not_copies(make_run, change):
    make_run()
    make_run(**change)
    assert len(load_runs([make_run.root])) == 2


def test_an_attack_that_reached_nobody_is_the_clean_run(make_run):
    clean, nobody = make_run(), make_run(attack="sign-flip", share=0.0)
    somebody = make_run(attack="sign-flip")
    identities = [experiment_of(folder.config()) for folder in (clean, nobody, somebody)]
    assert identities[0] == identities[1] != identities[2]


def test_a_finished_run_is_kept_before_one_that_is_not(make_run):
    make_run(status="stopped")
    make_run(status="finished")
    make_run(status="failed")
    with pytest.warns(WardroundWarning):
        (run,) = load_runs([make_run.root])
    assert run.folder.path.name == "made-1"
    assert analyze([run]).unfinished == []


def test_other_results_of_the_same_configuration_are_said(make_run):
    make_run(auroc=0.8)
    make_run(auroc=0.7)
    with pytest.warns(WardroundWarning, match="The same configuration gave other results.*made-1"):
        (run,) = load_runs([make_run.root])
    assert run.final("auroc") == 0.8


def test_folders_of_another_version_are_said(make_run):
    make_run(seed=0)
    folder = make_run(seed=1)
    config = folder.config()
    folder.write_config({**config, "record": {**config["record"], "wardround": "0.0.9"}})
    with pytest.warns(WardroundWarning, match=r"other versions of wardround.*0\.0\.9 \(1\)"):
        load_runs([make_run.root])
    folder.write_config({**config, "record": {**config["record"], "wardround": wardround.__version__}})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_runs([make_run.root])


def test_a_run_that_diverged_is_counted_and_said(make_run):
    make_run(seed=0)
    make_run(seed=1, status="diverged", curve=lambda number: None)
    with pytest.warns(WardroundWarning, match=r"1 run diverged.*made-1"):
        runs = load_runs([make_run.root])
    analysis = analyze(runs)
    assert sorted(m["auroc"] for m in analysis.measured) == [0.5, 0.8]
    assert "1 run diverged" in analysis.markdown()


def test_a_run_by_itself_has_no_copies(make_run):
    assert Run(RunFolder(make_run().path)).copies == ()
