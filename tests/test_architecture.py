"""The table of rooms in the architecture, kept true: who may import whom."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import wardround

PACKAGE = Path(wardround.__file__).parent
FOUNDATION = {"errors", "files", "records", "registry", "randomness", "threads"}
LIBRARY = {"updates", "aggregators", "attacks", "datasets", "models", "training", "privacy"}
MAY_IMPORT = {
    "updates": set(),
    "aggregators": {"updates"},
    "attacks": {"updates"},
    "datasets": set(),
    "models": set(),
    "training": {"models", "updates", "privacy"},
    "privacy": {"updates", "aggregators"},
    "federation": LIBRARY,
    "runs": {*LIBRARY, "federation"},
    "flower": {*LIBRARY, "federation", "runs"},
    "experiments": {*LIBRARY, "federation", "runs"},
    "protocols": {"experiments", "analysis", "aggregators", "attacks"},
    "analysis": {"runs"},
    "report": {"analysis", "runs", "experiments", "aggregators", "attacks", "datasets", "models"},
    "live": {"analysis", "runs"},
    "cli": {
        *LIBRARY,
        "federation",
        "runs",
        "flower",
        "experiments",
        "protocols",
        "analysis",
        "report",
        "live",
    },
}
HEAVY = {"flwr", "mlflow", "monai", "numba", "duckdb", "ray", "sklearn", "scipy", "PIL", "plotly", "tenseal"}


def imported_rooms(file: Path) -> set[str]:
    """The rooms of wardround that a file imports, at any depth of its code."""
    rooms = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "wardround":
            rooms |= {alias.name for alias in node.names if (PACKAGE / alias.name).exists()}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("wardround."):
            rooms.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            rooms |= {a.name.split(".")[1] for a in node.names if a.name.startswith("wardround.")}
    return rooms


def files_of(room: str) -> list[Path]:
    folder = PACKAGE / room
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [PACKAGE / f"{room}.py"]


@pytest.mark.parametrize("room", sorted(r for r in MAY_IMPORT if files_of(r)[0].exists()))
def test_a_room_imports_only_what_it_may(room):
    allowed = MAY_IMPORT[room] | FOUNDATION | {room}
    for file in files_of(room):
        extra = imported_rooms(file) - allowed
        assert not extra, f"{file.relative_to(PACKAGE)} imports {', '.join(sorted(extra))}"


def test_every_room_is_in_the_table():
    rooms = {p.name for p in PACKAGE.iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    assert rooms <= set(MAY_IMPORT)


def test_the_library_part_imports_nothing_heavy():
    code = (
        "import sys; from wardround import Updates, aggregators, attacks; "
        "aggregators.available(); attacks.available(); print(*{m.split('.')[0] for m in sys.modules})"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not (HEAVY - {"scipy"}) & set(out.stdout.split())


def test_the_command_line_starts_without_torch():
    code = "import sys; import wardround.cli.main; print('torch' in sys.modules, 'numpy' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "False"]


def test_only_one_room_imports_flower():
    for file in PACKAGE.rglob("*.py"):
        if "flower" not in file.relative_to(PACKAGE).parts:
            names = {
                alias.name if isinstance(node, ast.Import) else node.module or ""
                for node in ast.walk(ast.parse(file.read_text()))
                if isinstance(node, ast.Import | ast.ImportFrom)
                for alias in node.names
            }
            assert not any(name.split(".")[0] == "flwr" for name in names), file
