"""The library part works where the modules of one operating system do not exist."""

import subprocess
import sys
import textwrap

import pytest

CODE = """
    import sys

    for module in ("fcntl", "resource"):
        sys.modules[module] = None  # importing it is then a ModuleNotFoundError, as on Windows

    import torch
    from wardround import Updates, aggregators, attacks

    updates = Updates(torch.randn(20, 64), metrics={"loss": torch.ones(20)})
    for name in aggregators.available():
        rule = aggregators.create(name)
        if not rule.needs_practice_ground:
            rule.aggregate(updates, global_weights=torch.ones(64), root_update=torch.ones(64))
    knowledge = attacks.Knowledge(1, torch.ones(64), torch.zeros(64), updates.matrix, total_clients=20)
    for name in attacks.available():
        assert attacks.create(name).craft(updates.matrix[:2], knowledge).shape == (2, 64)
    print(len(aggregators.available()), len(attacks.available()))
"""


@pytest.mark.slow
def test_the_library_works_without_fcntl_and_resource():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CODE)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rules, attacks = map(int, done.stdout.split())
    assert rules >= 24
    assert attacks >= 21
