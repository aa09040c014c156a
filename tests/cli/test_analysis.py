"""`wardround analyze` and `wardround report`, as a person types them."""

import json
import subprocess
import sys

import pytest


def wardround(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "wardround", *map(str, arguments)], capture_output=True, text=True, cwd=cwd
    )


@pytest.mark.slow
def test_analyze_prints_tables_and_verdicts(run_folder, tmp_path):
    told = wardround("analyze", run_folder, cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert "### Performance" in told.stdout
    assert "2 seeds: smallest possible p is 0.5" in told.stdout
    assert "**H1: undecided.**" in told.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_analyze_writes_files_and_json(run_folder, tmp_path):
    told = wardround("analyze", run_folder, "--out", "tables", "--json", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    plain = json.loads(told.stdout)
    assert len(plain["runs"]) == 8
    assert plain["reference"] == "caac"
    assert {path.suffix for path in (tmp_path / "tables").iterdir()} == {".md", ".csv", ".tex", ".json"}


@pytest.mark.slow
def test_mistakes_are_one_line(run_folder, tmp_path):
    for arguments, words in (
        (("analyze", run_folder, "--reference", "kram"), "no run of method 'kram'"),
        (("analyze", tmp_path / "nothing"), "no such folder"),
        (("report", run_folder, "--out", "/dev/null/page.html"), "cannot be written"),
    ):
        told = wardround(*arguments, cwd=tmp_path)
        assert told.returncode == 2
        (line,) = [line for line in told.stderr.splitlines() if line.startswith("wardround: ")]
        assert words in line
        assert "Traceback" not in told.stderr


@pytest.mark.slow
def test_report_with_figures(run_folder, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra 'figures')")
    one = next(run_folder.iterdir())
    told = wardround("report", one, "--figures", "figures", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert (tmp_path / "report.html").stat().st_size > 1_000_000
    assert {path.suffix for path in (tmp_path / "figures").iterdir()} == {".png", ".svg", ".pdf"}
