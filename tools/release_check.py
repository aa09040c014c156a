"""The release checklist, run by a program: make release-check.

python tools/release_check.py [--only STEP] [--skip STEP] …: some steps only, or all but some. All steps are tried,
also after one has failed. What a release hands out is in dist/ afterwards: source archive, wheel, licences, SBOM.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import yaml
from licences import check_licences

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"


class Failed(Exception):
    """A step of the checklist does not hold; the message says what to do."""


def run(*command: str) -> str:
    """Run a command in the project's folder; its output, or a failure with the end of it."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(
            f"{' '.join(command)}: exit code {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}"
        )
    return done.stdout


def version() -> str:
    """The version, from the one place that has it: `__version__` of the package, read without importing it."""
    tree = ast.parse((ROOT / "src" / "wardround" / "__init__.py").read_text(encoding="utf-8"))
    values = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__"
    ]
    return str(ast.literal_eval(values[0]))


def check_tree() -> str:
    if changes := run("git", "status", "--porcelain"):
        raise Failed(f"commit or remove first:\n{changes}")
    return run("git", "rev-parse", "--short", "HEAD").strip()


def check_version() -> str:
    """One version everywhere, a dated section for it in the changelog, and none with that tag already."""
    present = version()
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    if citation["version"] != present:
        raise Failed(f"CITATION.cff: version {citation['version']}, the package has {present}")
    heading = re.search(
        rf"^## {re.escape(present)} \((\d{{4}}-\d\d-\d\d)\)$",
        (ROOT / "CHANGELOG.md").read_text("utf-8"),
        re.M,
    )
    if heading is None:
        raise Failed(f"CHANGELOG.md: no section '## {present} (YYYY-MM-DD)'")
    if str(citation.get("date-released")) != heading[1]:
        raise Failed(f"CITATION.cff: date-released is not {heading[1]}, the date in CHANGELOG.md")
    tagged = run("git", "tag", "--list", f"v{present}").strip()
    if tagged and run("git", "rev-list", "-n1", tagged) != run("git", "rev-parse", "HEAD"):
        raise Failed(f"{tagged} is already the tag of another commit")
    return f"{present} of {heading[1]}"


def check_sbom() -> str:
    """Write the software bill of materials of the environment (CycloneDX) and read it back."""
    DIST.mkdir(exist_ok=True)
    target = DIST / f"wardround-{version()}.cdx.json"
    run(
        sys.executable, "-m", "cyclonedx_py", "environment", sys.executable, "--pyproject", "pyproject.toml",
        "--output-reproducible", "--output-format", "JSON", "--output-file", str(target),
    )  # fmt: skip
    bill = json.loads(target.read_text(encoding="utf-8"))
    names = {component["name"].lower() for component in bill["components"]}
    if missing := {"torch", "numpy", "flwr"} - names:
        raise Failed(f"{target.name} lacks {', '.join(sorted(missing))}")
    return f"{target.relative_to(ROOT)}: {len(names)} components"


def licences() -> str:
    DIST.mkdir(exist_ok=True)
    table, problems = check_licences()
    (DIST / "licences.md").write_text(table, encoding="utf-8")
    if problems:
        raise Failed("\n".join(problems))
    return f"dist/licences.md: {table.count(chr(10)) - 2} packages"


def made(*targets: str) -> Callable[[], str]:
    def step() -> str:
        return (run("make", *targets).strip().splitlines() or [""])[-1].strip("= ")

    return step


STEPS: dict[str, Callable[[], str]] = {
    "tree": check_tree,
    "version": check_version,
    "lint": made("lint"),
    "tests": made("test"),
    "wheel": made("wheel"),
    "docs": made("docs"),
    "links": made("links"),
    "licences": licences,
    "sbom": check_sbom,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Check whether the tree can be released.")
    parser.add_argument("--only", action="append", choices=STEPS, default=[])
    parser.add_argument("--skip", action="append", choices=STEPS, default=[])
    options = parser.parse_args()
    failed = []
    for name, step in STEPS.items():
        if name in options.skip or (options.only and name not in options.only):
            print(f"{name:10} left out", flush=True)
            continue
        begun = time.monotonic()
        try:
            outcome, word = step(), "ok"
        except Failed as problem:
            outcome, word = str(problem), "FAILED"
            failed.append(name)
        print(f"{name:10} {word:7} {time.monotonic() - begun:6.0f} s  {outcome}", flush=True)
    if failed:
        raise SystemExit(f"not fit for release: {', '.join(failed)}")
    if not options.only and not options.skip:
        print(f"fit for release; now: git tag -a v{version()} -m 'wardround {version()}'")


if __name__ == "__main__":
    main()
