"""`wardround run`, `matrix` and `demo`, as a person types them."""

import json
import os
import signal
import subprocess
import sys

import pytest
import yaml
from waiting_rule import WaitingRule

from wardround.worker_processes import EXPERIMENTS


@pytest.mark.slow
def test_run_then_report(wardround, config, tmp_path):
    result = wardround("run", config, "aggregator.name=caac", "seed=3", "--out", tmp_path / "r")
    assert result.returncode == 0, result.stderr
    (folder,) = (tmp_path / "r").iterdir()
    assert result.stdout.splitlines()[-1] == str(folder)
    assert yaml.safe_load((folder / "config.yaml").read_text())["seed"] == 3
    page = tmp_path / "page.html"
    result = wardround("report", tmp_path / "r", "--out", page)
    assert result.returncode == 0, result.stderr
    assert "caac" in page.read_text()


@pytest.mark.slow
def test_the_record_of_a_run_is_a_configuration(config, tmp_path, here):
    here("run", config, "--out", tmp_path / "r")
    (folder,) = (tmp_path / "r").iterdir()
    result = here("run", folder / "config.yaml", "--out", tmp_path / "again", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["folder"].endswith(folder.name), "the same run, by its hash"


@pytest.mark.slow
def test_ctrl_c_stops_cleanly_and_the_same_command_resumes(tiny, tmp_path):
    waiting = WaitingRule(tmp_path, tmp_path / "r", round=3)
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(tiny | waiting.changes()))
    command = [sys.executable, "-m", "wardround", "run", "c.yaml", "--out", "r"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path)

    def still_running():
        assert process.poll() is None, process.communicate()[1]

    waiting.wait_for_round(still_running)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "run the same command to resume" in errors
    assert "Traceback" not in errors
    (folder,) = (tmp_path / "r").iterdir()
    assert json.loads((folder / "summary.json").read_text())["status"] == "stopped"
    assert (folder / "rounds.jsonl").read_bytes().count(b"\n") == 2
    waiting.go_on()
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert (folder / "rounds.jsonl").read_bytes().count(b"\n") == 6


@pytest.mark.slow
def test_the_demo_opens_with_its_answer(here, tmp_path, monkeypatch):
    """The command as it is, with two rules, six clients of a generated table and four rounds."""
    from wardround.analysis import analyze, load_runs
    from wardround.experiments import presets

    values, where = presets.load_matrix("demo")
    values["base"] |= {
        "dataset": {"name": "synthetic", "samples": 400, "features": 6},
        "partition": {"name": "iid", "clients": 6},
        "model": {"name": "mlp", "hidden": [8]},
        "rounds": 4,
    }
    values["runs"][1]["attack"]["start"] = 2
    values |= {"axes": {"aggregator.name": ["fedavg", "median"]}, "seeds": [0, 1]}
    monkeypatch.setattr(presets, "load_matrix", lambda name: (values, where))
    result = here("demo", "--out", tmp_path / "d", "--jobs", 1)
    assert result.returncode == 0, result.stderr
    (answer,) = analyze(load_runs([tmp_path / "d"])).recommendations
    said = " ".join(result.stdout.split())
    assert said.startswith(answer.headline)
    assert said.index(answer.details[-1]) < said.index("20 hospitals predict death")
    assert answer.headline in (tmp_path / "d" / "report.html").read_text()


@pytest.mark.slow
def test_the_demo_in_short(wardround, tmp_path):
    """The demo's own matrix with fewer rounds and one seed: the table, and that every run is there."""
    from wardround.experiments import presets

    values, _ = presets.load_matrix("demo")
    values["base"]["rounds"] = 12
    values["seeds"] = [0]
    path = tmp_path / "short.yaml"
    path.write_text(yaml.safe_dump(values))
    result = wardround("matrix", path, "--out", tmp_path / "r", "--jobs", 2)
    assert result.returncode == 0, result.stderr
    assert "sign-flip" in result.stdout
    summaries = [json.loads(p.read_text()) for p in (tmp_path / "r").glob("*/summary.json")]
    assert len(summaries) == 2 * len(values["axes"]["aggregator"])
    assert all(summary["status"] == "finished" for summary in summaries)


@pytest.mark.parametrize(("options", "starts"), [((), 1), (("--dry-run",), 0), (("--executor", "ray"), 0)])
def test_a_matrix_starts_its_workers_before_it_reads_anything(here, tmp_path, monkeypatch, options, starts):
    asked = []
    monkeypatch.setattr("wardround.cli.experiments.start_early", asked.append)
    result = here("matrix", tmp_path / "missing.yaml", *options)
    assert result.returncode == 2
    assert "missing.yaml" in result.stderr
    assert asked == [EXPERIMENTS] * starts


def test_a_run_of_ones_own_table_begins_with_what_it_holds(here, tmp_path):
    table = tmp_path / "stays.csv"
    rows = [
        f"{40 + i * 7 % 50},5;{'Süd' if i % 2 else 'Köln'};{'' if i % 3 else 8};{int(i % 3 == 0)}"
        for i in range(90)
    ]
    table.write_bytes(("Alter;Klinik;Tag;tot\n" + "\n".join(rows) + "\n").encode("latin-1"))
    config = tmp_path / "own.yaml"
    section = {"name": "csv", "file": str(table), "label": "tot", "client": "Klinik"}
    config.write_text(
        yaml.safe_dump(
            {"dataset": section, "partition": {"name": "natural"}, "rounds": 2}, allow_unicode=True
        )
    )
    result = here("run", config, "--out", tmp_path / "runs", "--json")
    assert result.returncode == 0, result.stderr
    assert (
        "stays.csv: 90 rows; 2 hospitals; label tot: 0 (60 rows, 67 %), 1 (30 rows, 33 %, predicted)"
        in result.stderr
    )
    assert "separator semicolon, decimal comma, encoding Latin-1" in result.stderr
    assert "warning: column 'Tag' gives the label away" in result.stderr
    assert json.loads(result.stdout)["status"] == "finished"


def test_more_rounds_on_a_finished_run(here, config, tmp_path):
    assert here("run", config, "--out", tmp_path / "runs").returncode == 0
    former = next((tmp_path / "runs").iterdir())
    done = here("run", config, "rounds=6", "--resume", former, "--out", tmp_path / "runs", "--json")
    assert done.returncode == 0, done.stderr
    whole = here("run", config, "rounds=6", "--out", tmp_path / "whole", "--json")
    one, other = json.loads(done.stdout), json.loads(whole.stdout)
    assert one["rounds"] == 6
    assert one["final"] == other["final"]
    assert one["folder"] != str(former)
    fewer = here("run", config, "rounds=3", "--resume", former, "--out", tmp_path / "runs")
    assert fewer.returncode == 2
    assert "has 4 finished rounds; rounds=3 is not more" in fewer.stderr
