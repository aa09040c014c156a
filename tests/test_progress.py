"""Progress on a terminal, in a notebook, and in a file."""

import io
import sys
import types

import pytest

from wardround.progress import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_lines_where_nobody_watches(capsys):
    with progress("run", 3, every_seconds=1000) as advance:
        for done in (1, 2, 2, 3):
            advance(done, f"AUROC 0.{done}")
    assert capsys.readouterr().err.splitlines() == ["run: 1/3 AUROC 0.1", "run: 3/3 AUROC 0.3"]


def test_a_bar_on_a_terminal(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress("run", 3) as advance:
        advance(3, "AUROC 0.9")
    assert "3/3" in terminal.getvalue()
    assert "AUROC 0.9" in terminal.getvalue()


@pytest.fixture
def notebook(monkeypatch):
    """IPython as a kernel has it: one output, which is replaced."""
    outputs = []

    class Handle:
        def update(self, shown):
            outputs[-1] = shown

    def display(shown, display_id):
        assert display_id
        outputs.append(shown)
        return Handle()

    module = types.ModuleType("IPython")
    module.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    module.display = types.SimpleNamespace(display=display, HTML=str)
    monkeypatch.setitem(sys.modules, "IPython", module)
    return types.SimpleNamespace(outputs=outputs, module=module)


def test_one_output_in_a_notebook(notebook, capsys):
    with progress("<b>run</b>", 30) as advance:
        for done in range(1, 31):
            advance(done, "AUROC 0.8")
    assert len(notebook.outputs) == 1
    assert 'value="30" max="30"' in notebook.outputs[0]
    assert "&lt;b&gt;run" in notebook.outputs[0]
    assert "AUROC 0.8" in notebook.outputs[0]
    assert capsys.readouterr() == ("", "")


def test_ipython_on_a_terminal_is_no_notebook(notebook, capsys):
    notebook.module.get_ipython = lambda: types.SimpleNamespace()
    with progress("run", 1) as advance:
        advance(1)
    assert not notebook.outputs
    assert capsys.readouterr().err == "run: 1/1\n"
