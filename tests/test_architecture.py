"""Where things live: which package may import which, and that tests are where one looks for them."""

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import wardround
from wardround import aggregators, attacks

PACKAGE = Path(wardround.__file__).parent
TESTS = Path(__file__).parent
FOUNDATION = {
    "compilation",
    "errors",
    "files",
    "memory",
    "metrics",
    "plugins",
    "progress",
    "randomness",
    "records",
    "registry",
    "survival",
    "threads",
    "worker_processes",
    "yaml_text",
}
LIBRARY = {"updates", "aggregators", "attacks", "faults", "datasets", "models", "training", "privacy"}
MAY_IMPORT = {
    **{module: set() for module in FOUNDATION},
    "updates": set(),
    "aggregators": {"updates"},
    "attacks": {"updates"},
    "faults": {"attacks", "updates"},
    "datasets": set(),
    "models": set(),
    "training": {"models", "updates"},
    "privacy": {"updates"},
    "federation": LIBRARY,
    "runs": {*LIBRARY, "federation"},
    "flower": {*LIBRARY, "federation", "runs"},
    "experiments": {*LIBRARY, "federation", "runs"},
    "protocols": {"experiments", "analysis", "runs", "aggregators", "attacks"},
    "analysis": {"runs"},
    "report": {"analysis", "datasets", "runs"},
    "live": {"analysis", "runs"},
    "api": {"datasets", "models", "updates", "federation", "runs", "analysis", "protocols", "report"},
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
        "api",
    },
}
"""Every package or module beside what it may import; the foundation is open to all."""
HEAVY = {"flwr", "mlflow", "monai", "numba", "duckdb", "ray", "sklearn", "scipy", "PIL", "plotly", "tenseal"}

WHOLE_PACKAGE = {
    ".": {"architecture", "deploy", "docs", "extending", "init", "packaging"},
    "aggregators": {
        "against_others",
        "breakdown",
        "contract",
        "declarations",
        "fuzz",
        "golden",
        "memory",
        "portability",
        "small_updates",
    },
    "aggregators/caac_guard": {"whole_runs"},
    "aggregators/fedbnp": {"contract"},
    "aggregators/preaggregation": {"contract"},
    "attacks": {"against_others", "contract"},
    "faults": {"contract"},
    "flower": {
        "deployment",
        "encrypted",
        "heart_hospitals",
        "malicious_server",
        "malicious_variants",
        "parity",
        "plugins",
        "tables",
    },
    "live": {"browser"},
    "models": {"contract"},
    "protocols": {"papers", "presets_run"},
    "protocols/anchors": {"flamby", "mnist_presets"},
    "protocols/own": {"redteam_preset"},
    "report": {"browser"},
    "runs": {"survival"},
}
"""Test files about a package as a whole: what every member promises, or several modules at work together."""


def files_of(package: str) -> list[Path]:
    folder = PACKAGE / package
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [PACKAGE / f"{package}.py"]


def is_ours(name: str) -> bool:
    return (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").exists()


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def imported_packages(file: Path) -> set[str]:
    """The packages and modules of wardround that a file imports, at any depth of its code."""
    names: set[str] = set()
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.ImportFrom) and node.module == "wardround":
            names |= {alias.name for alias in node.names if is_ours(alias.name)}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("wardround."):
            names.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            names |= {a.name.split(".")[1] for a in node.names if a.name.startswith("wardround.")}
    return names


def packages() -> list[str]:
    """Everything directly below `wardround` that can be imported."""
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    modules = {path.stem for path in PACKAGE.glob("*.py") if not path.stem.startswith("__")}
    return sorted(folders | modules)


@pytest.mark.parametrize("package", packages())
def test_a_package_imports_only_what_it_may(package):
    assert package in MAY_IMPORT, f"{package} is not in the table"
    allowed = MAY_IMPORT[package] | FOUNDATION | {package}
    for file in files_of(package):
        extra = imported_packages(file) - allowed
        assert not extra, f"{file.relative_to(PACKAGE)} imports {', '.join(sorted(extra))}"


PAGE = TESTS.parent / "docs" / "architecture.md"


def names_in(cell: str) -> set[str]:
    """The packages that a cell of the page's table stands for."""
    names = set(re.findall(r"`(\w+)`", cell))
    if "the library" in cell:
        names |= LIBRARY
    if "all packages" in cell:
        names |= set(MAY_IMPORT) - FOUNDATION
    return names


def test_the_page_has_the_same_table():
    table = PAGE.read_text(encoding="utf-8").partition("| package | holds | may import |")[2]
    written: dict[str, set[str]] = {}
    for line in table.strip().splitlines()[1:]:
        if not line.startswith("|"):
            break
        packages, _, imports = (cell.strip() for cell in line.strip("|").split("|"))
        written |= {package: names_in(imports) - {package} for package in names_in(packages)}
    assert written == MAY_IMPORT


def test_the_page_says_what_the_library_is():
    said = re.search(r"\*\*The library\*\* is short for(.+?)\.", PAGE.read_text(encoding="utf-8"), re.S)
    assert names_in(said[1]) == LIBRARY


def test_every_file_that_the_page_names_is_there():
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", PAGE.read_text(encoding="utf-8")))
    assert len(named) > 40
    folders = [PACKAGE, *PACKAGE.iterdir(), TESTS.parent]
    for name in sorted(named - {"src/wardround/"}):
        assert any((folder / name).exists() for folder in folders), name


def test_packages_do_not_import_each_other_in_a_circle():
    imports = {
        package: {name for file in files_of(package) for name in imported_packages(file)} - {package}
        for package in packages()
    }
    TopologicalSorter(imports).prepare()  # raises CycleError with the circle


@pytest.mark.slow
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


def test_only_one_package_imports_flower():
    for file in PACKAGE.rglob("*.py"):
        if "flower" not in file.relative_to(PACKAGE).parts:
            names = {
                alias.name if isinstance(node, ast.Import) else node.module or ""
                for node in ast.walk(parsed(file))
                if isinstance(node, ast.Import | ast.ImportFrom)
                for alias in node.names
            }
            assert not any(name.split(".")[0] == "flwr" for name in names), file


def registers_a_member(file: Path) -> bool:
    return any(
        isinstance(decorator, ast.Call) and getattr(decorator.func, "id", None) == "register"
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.ClassDef)
        for decorator in node.decorator_list
    )


def test_the_top_level_of_aggregators_holds_rules_and_nothing_else():
    folder = PACKAGE / "aggregators"
    others = [file.name for file in folder.glob("*.py") if not registers_a_member(file)]
    assert sorted(others) == ["__init__.py", "base.py"]
    for package in folder.iterdir():
        if package.is_dir() and package.name not in ("__pycache__", "_math", "preaggregation"):
            assert registers_a_member(package / "rule.py"), f"{package.name} is no rule"


KNOWN_BY_NAME = {
    ("flower/trial.py", "caac"),  # the configuration that a trial is written with, as is the next
    ("flower/trial.py", "fedmed"),
    ("analysis/measures.py", "fedavg"),  # the unit of a measure, `aggregate_vs_fedavg`
    ("analysis/robustness.py", "median"),  # a rule should be worse than FedAvg and this one nowhere
    ("runs/config.py", "fedavg"),  # the rule of a configuration that names none
}
STRUCTURAL = {"none", "mix"}  # no attack at all, and attacks made of other attacks


def test_no_package_knows_rules_or_attacks_by_name():
    """What a rule or attack is, it declares; only the papers' content speaks of certain ones."""
    names = {*aggregators.available(), *attacks.available()} - STRUCTURAL
    for package in sorted(set(MAY_IMPORT) - {"aggregators", "attacks", "datasets", "protocols", *FOUNDATION}):
        for file in files_of(package) if is_ours(package) else ():
            where = file.relative_to(PACKAGE).as_posix()
            tree = parsed(file)
            literals = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
            known = {name for name in literals & names if (where, name) not in KNOWN_BY_NAME}
            assert not known, f"{where} names {', '.join(sorted(known))}"


def test_test_files_are_named_after_what_they_test():
    lost = []
    for file in sorted(TESTS.rglob("test_*.py")):
        folder, name = file.relative_to(TESTS).parent.as_posix(), file.stem.removeprefix("test_")
        if folder == "docs":  # the documentation's own tools are no package
            continue
        modules = {path.stem for path in (PACKAGE / folder).glob("*")}
        if name not in modules | WHOLE_PACKAGE.get(folder, set()):
            lost.append(f"tests/{folder}/test_{name}.py: wardround/{folder} has no module {name}")
    assert not lost, "\n".join(lost)


def test_what_is_listed_as_about_a_whole_package_is_there():
    for folder, names in WHOLE_PACKAGE.items():
        for name in names:
            assert (TESTS / folder / f"test_{name}.py").exists(), f"tests/{folder}/test_{name}.py is gone"
