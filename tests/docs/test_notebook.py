"""The notebook's cells run, one after the other, on the demo's runs (with fewer rounds and rules)."""

import ast
import json
from pathlib import Path

import pytest

from wardround.experiments import expand, presets, run

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "analysis_core.ipynb"


@pytest.fixture
def demo(tmp_path, monkeypatch):
    values, where = presets.load_matrix("demo")
    values["name"] = "caac"  # hypotheses are decided for runs of the CAAC-FL presets
    values["base"]["rounds"] = 12  # the demo's attack begins in round 10
    values["axes"] = {"aggregator.name": ["fedavg", "caac"]}
    values["seeds"] = [0, 1]
    for config in expand(values, where):
        run(config, tmp_path / "runs" / "demo")
    monkeypatch.chdir(tmp_path)
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
    notebook = json.loads(NOTEBOOK.read_text())
    assert notebook["nbformat"] == 4
    assert all(not cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"), "kept clean"
    names, shown = execute([cell for cell in notebook["cells"] if cell["cell_type"] == "code"])
    assert set(names["table"]["method"]) == {"fedavg", "caac"}
    assert names["numbers"]["auroc"].between(0, 1).all()
    assert names["numbers"]["delta_auroc"].notna().any()
    assert not names["comparisons"].empty
    assert len(shown[3].data) >= 4
    output = capsys.readouterr().out
    assert all(f"{key}: " in output for key in ("H1", "H2", "H3"))
