"""`wardround analyze` and `wardround report`, as a person types them."""

import json

import pytest


@pytest.fixture
def working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_analyze_prints_tables_and_verdicts(wardround, run_folder, tmp_path):
    result = wardround("analyze", run_folder, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("**"), "the answer comes first"
    assert result.stdout.index("### What each rule keeps") < result.stdout.index("**H1: ")
    assert "### Performance" in result.stdout
    assert "2 seeds: smallest possible p is 0.5" in result.stdout
    assert "**H1: undecided.**" in result.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_analyze_writes_files_and_json(here, run_folder, working_folder):
    result = here("analyze", run_folder, "--out", "tables", "--json")
    assert result.returncode == 0, result.stderr
    plain = json.loads(result.stdout)
    assert len(plain["runs"]) == 8
    assert plain["reference"] == "caac"
    assert {path.suffix for path in (working_folder / "tables").iterdir()} == {".md", ".csv", ".tex", ".json"}


@pytest.mark.slow
def test_a_report_says_how_many_runs_it_leaves_out(here, run_folder, working_folder):
    some = here("report", run_folder, "--out", "some.html")
    assert "4 of 8 runs are left out; --all shows every run" in some.stdout
    every = here("report", run_folder, "--out", "every.html", "--all")
    assert "left out" not in every.stdout
    counts = [
        (working_folder / name).read_text().split("<script>")[0].count('id="weights-')
        for name in ("some.html", "every.html")
    ]
    assert counts == [4, 8]


@pytest.mark.slow
def test_mistakes_are_one_line(here, run_folder, working_folder):
    for arguments, words in (
        (("analyze", run_folder, "--reference", "kram"), "no run of method 'kram'"),
        (("analyze", working_folder / "nothing"), "no such folder"),
        (("report", run_folder, "--out", "/dev/null/page.html"), "cannot be written"),
    ):
        result = here(*arguments)
        assert result.returncode == 2
        (line,) = [line for line in result.stderr.splitlines() if line.startswith("wardround: ")]
        assert words in line
        assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_report_with_figures(here, run_folder, working_folder):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra 'figures')")
    one = next(run_folder.iterdir())
    result = here("report", one, "--figures", "figures")
    assert result.returncode == 0, result.stderr
    assert (working_folder / "report.html").stat().st_size > 1_000_000
    assert {path.suffix for path in (working_folder / "figures").iterdir()} == {".png", ".svg", ".pdf"}
