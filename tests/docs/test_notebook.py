"""The notebooks run from their own folder: one on the demo's runs (with fewer rounds and rules), one on its own."""

import ast
import json
from pathlib import Path

import pytest

from wardround.experiments import expand, presets, run

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


@pytest.fixture
def demo(tmp_path, monkeypatch):
    values, where = presets.load_matrix("demo")
    values["name"] = "caac"  # hypotheses are decided for runs of the CAAC-FL presets
    values["base"]["rounds"] = 12  # the demo's attack begins in round 10
    values["axes"] = {"aggregator.name": ["fedavg", "caac"]}
    values["seeds"] = [0, 1]
    for config in expand(values, where):
        run(config, tmp_path / "runs" / "demo")
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")  # where Jupyter starts it
    monkeypatch.delenv("WARDROUND_RUNS", raising=False)


def execute(cells):
    """As Jupyter does it: one namespace, and the value of a cell's last expression."""
    names, shown = {}, []
    for number, cell in enumerate(cells):
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"cell {number}", "exec"), names)
        shown.append(
            None
            if last is None
            else eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
        )
    return names, shown


@pytest.mark.slow
def test_it_runs_on_the_demos_runs(demo, capsys):
    notebook = json.loads((NOTEBOOKS / "analysis_core.ipynb").read_text())
    names, shown = execute([cell for cell in notebook["cells"] if cell["cell_type"] == "code"])
    assert set(names["table"]["method"]) == {"fedavg", "caac"}
    assert names["numbers"]["auroc"].between(0, 1).all()
    assert names["numbers"]["delta_auroc"].notna().any()
    assert not names["comparisons"].empty
    assert len(shown[3].data) >= 4
    output = capsys.readouterr().out
    assert all(f"{key}: " in output for key in ("H1", "H2", "H3"))


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_is_kept_clean(path):
    notebook = json.loads(path.read_text())
    assert notebook["nbformat"] == 4
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert code
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code)


@pytest.mark.slow
def test_simulate_runs_in_a_real_kernel(tmp_path):
    """As Jupyter runs it, with the progress bar as one output per run, which is replaced and not repeated."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(NOTEBOOKS / "simulate.ipynb", as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.source = cell.source.replace("rounds=20", "rounds=4")
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    shown = [output.get("data", {}) for of_cell in outputs for output in of_cell]
    bars = [data["text/html"] for data in shown if "<progress" in data.get("text/html", "")]
    assert len(bars) == 4
    assert all('value="4" max="4"' in bar for bar in bars)
    assert any("finished after 4 rounds" in data.get("text/plain", "") for data in shown)
    assert any("caac-guard" in data.get("text/html", "") for data in shown)
    assert "fedavg" in (tmp_path / "simulate.html").read_text()
