"""`wardround schema infer` and `check`: a file to edit, and every problem on a line."""

import subprocess
import sys

import pytest
import yaml


def wardround(*arguments):
    command = [sys.executable, "-m", "wardround", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def write(path, rows):
    path.write_text("age,cp,num\n" + "\n".join(",".join(map(str, row)) for row in rows) + "\n")
    return path


@pytest.mark.slow
def test_infer_edit_check(tmp_path):
    rows = [[40 + i, 1 + i % 3, i % 2] for i in range(30)]
    good = write(tmp_path / "good.csv", rows)
    bad = write(tmp_path / "bad.csv", [*rows, [45, 9, 1], ["old", 1, 0]])
    out = tmp_path / "schema.yaml"
    done = wardround("schema", "infer", good, "--label", "num", "--out", out)
    assert done.returncode == 0, done.stderr
    assert "'cp' is taken for codes (1, 2, 3)" in done.stderr
    assert [column["name"] for column in yaml.safe_load(out.read_text())["columns"]] == ["age", "cp"]
    assert (
        wardround("schema", "infer", good, "--label", "num", "--out", out).returncode == 2
    )  # nothing is overwritten

    done = wardround("schema", "check", out, good, bad)
    assert done.returncode == 2
    assert f"{good}: fits (30 rows)" in done.stdout
    assert f"{bad}: column 'cp' holds '9' (row 31), expected one of 1, 2, 3" in done.stdout
    assert f"{bad}: column 'age' holds 'old' (row 32), expected a number" in done.stdout
    assert done.stderr.strip() == f"wardround: 1 of 2 files do not fit {out}"
