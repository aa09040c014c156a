"""Build the source archive and the wheel, install the wheel into an empty environment, and try it: make wheel.

What is tried: the version on the command line, the library in ten lines, one short run, its report, and that nothing
of the source tree was used. What was built stays in dist/.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
TEN_LINES = """
import torch, wardround
from wardround import Updates, aggregators, attacks
honest = torch.randn(20, 1000, generator=torch.Generator().manual_seed(0)) + 1
sent = honest.clone()
sent[:4] = attacks.create("alie", k=2.5).craft(honest[:4], attacks.Knowledge(round=1, honest=honest))
out = aggregators.create("trimmed-mean", f=4).aggregate(Updates(sent, num_samples=[100] * 20), round=1)
torch.testing.assert_close(out.delta, sent.sort(0).values[4:16].mean(0))
print(wardround.__file__)
"""
RUN = ["dataset.name=icu", "aggregator.name=median", "rounds=2", "partition.clients=5"]


def build() -> Path:
    """Build both archives into an empty dist/ and return the wheel. setuptools is the environment's own."""
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        # From a copy of what is tracked, so that nothing of an earlier build or of one's own gets into the wheel.
        copy = Path(folder) / "wardround"
        for name in run("git", "ls-files").splitlines():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(DIST), str(copy))
    return next(DIST.glob("*.whl"))


def run(*command: str, folder: Path = ROOT) -> str:
    """Run a command without the source tree on its path; its output, or the end of the program with it."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1800, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def try_in_empty_environment(wheel: Path, folder: Path) -> None:
    """Install the wheel with what it needs, at the versions of the lock, and use it as a stranger would."""
    venv.create(folder / "environment", with_pip=True)
    programs = folder / "environment" / ("Scripts" if os.name == "nt" else "bin")
    python, wardround = str(programs / "python"), str(programs / "wardround")
    run(
        python,
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "-c",
        str(ROOT / "requirements.txt"),
        str(wheel),
    )
    version = run(wardround, "--version", folder=folder).split()[-1]
    assert f"-{version}-" in wheel.name, f"{wheel.name} says that it is {version}"
    where = Path(run(python, "-c", TEN_LINES, folder=folder).strip())
    assert where.is_relative_to(folder / "environment"), f"{where} is not the installed package"
    (folder / "first.yaml").write_text("name: first\n", encoding="utf-8")
    run(wardround, "run", "first.yaml", *RUN, folder=folder)
    run(wardround, "report", "runs", "--out", "report.html", folder=folder)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert f"wardround {version}" in page, "the report does not name the version"


if __name__ == "__main__":
    wheel = build()
    with tempfile.TemporaryDirectory() as folder:
        try_in_empty_environment(wheel, Path(folder))
    print(
        "\n".join(
            f"{file.relative_to(ROOT)}: {file.stat().st_size / 1e6:.1f} MB" for file in sorted(DIST.iterdir())
        )
    )
    print("installed into an empty environment and tried: version, library, run, report")
