"""`make bench`: every benchmark of this folder, one after the other, each a table of ratios within one run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def main() -> int:
    """Run all, pass the arguments on (`--quick`), and fail if one fails."""
    failed = []
    for script in sorted(Path(__file__).parent.glob("bench_*.py")):
        print(f"\n## {script.stem.removeprefix('bench_')}\n", flush=True)
        if subprocess.run([sys.executable, str(script), *sys.argv[1:]]).returncode:
            failed.append(script.name)
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
