"""The fast path's manners: optional, lazily loaded, cached, and at ease in a read-only installation."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch

from wardround.aggregators._math import compiled
from wardround.aggregators._math.compiled import loops_for

pytest.importorskip("numba")


def run(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize(
    "matrix",
    [
        torch.zeros(compiled.MOST_CLIENTS + 1, 64),
        torch.zeros(5, compiled.LEAST_COLUMNS - 1),
        torch.zeros(64, 5).T,
        torch.zeros(5, 64, device="meta"),
        torch.zeros(0, 64),
    ],
    ids=["many-clients", "few-columns", "strided", "other-device", "nobody"],
)
def test_what_does_not_fit_takes_the_torch_path(matrix):
    assert loops_for(matrix) is None
    assert loops_for(torch.zeros(5, 64)) is not None


@pytest.mark.slow
def test_numba_is_not_imported_before_it_is_needed():
    done = run("""
        import sys
        from wardround import aggregators
        aggregators.available()
        assert "numba" not in sys.modules and "llvmlite" not in sys.modules
    """)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_without_numba_every_rule_still_works():
    done = run("""
        import sys
        sys.modules["numba"] = None  # an import of it now fails, and it cannot be found
        import importlib.util
        find = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *rest: None if name == "numba" else find(name, *rest)
        import torch
        from wardround import Updates, aggregators
        updates = Updates(torch.randn(20, 64), metrics={"loss": torch.ones(20)})
        for name in aggregators.available():
            if aggregators.registry.get(name).needs_practice_ground:
                continue
            aggregators.create(name).aggregate(updates, global_weights=torch.ones(64), root_update=torch.ones(64))
    """)
    assert done.returncode == 0, done.stderr


MEDIAN = """
    import torch
    from wardround.aggregators._math import compiled, order_statistics
    matrix = torch.arange(80.0).reshape(5, 16)
    print(order_statistics.median(matrix).tolist() == matrix[2].tolist(), compiled._loops() is not None)
    kernel = compiled._loops().middle_kernel(5, 2, 2)
    print(sum(kernel.stats.cache_hits.values()))
"""


@pytest.mark.slow
def test_compiled_code_is_kept_on_disk(tmp_path):
    first, second = (run(MEDIAN, NUMBA_CACHE_DIR=str(tmp_path)) for _ in range(2))
    assert first.stdout.split() == ["True", "True", "0"], first.stderr
    assert second.stdout.split() == ["True", "True", "1"], second.stderr


@pytest.mark.slow
def test_nowhere_to_write_a_cache_is_no_obstacle():
    done = run(
        """
        from numba.core import caching
        caching.CacheImpl._locator_classes = []  # what numba finds where no folder can be written
        import torch
        from wardround.aggregators._math import compiled, order_statistics
        matrix = torch.arange(80.0).reshape(5, 16)
        assert order_statistics.median(matrix).tolist() == matrix[2].tolist()
        assert compiled._loops() is not None
        """
    )
    assert done.returncode == 0, done.stderr


UNDER_ATTACK = """
    import torch
    from numba.core.event import install_recorder
    from wardround import Updates, aggregators

    n, d = 12, 66_000
    generator = torch.Generator().manual_seed(0)
    honest, weights = torch.randn(n, d, generator=generator), torch.randn(d, generator=generator)
    colluding, huge = honest.clone(), honest.clone()
    colluding[::2] = 1000 * weights
    huge[3] *= 1e20
    for name in ("krum", "dos", "caac", "lasa", "bulyan"):
        rule = aggregators.create(name)
        with install_recorder("numba:compile") as ahead:
            rule.warm_up(n, d)
        with install_recorder("numba:compile") as meanwhile:
            for t, rows in enumerate((honest, honest, colluding, huge), 1):
                rule.aggregate(Updates(rows), t, global_weights=weights)
        print(name, len(ahead.buffer) > 0, len(meanwhile.buffer))
"""


@pytest.mark.slow
def test_no_round_waits_for_the_compiler(tmp_path):
    """Nor the first under attack: colluders, most of the sampled rows; and rows that do not fit float32."""
    done = run(UNDER_ATTACK, NUMBA_CACHE_DIR=str(tmp_path))  # nothing is compiled yet
    assert done.stdout.splitlines()[0] == "krum True 0", done.stderr
    assert [line.split()[2] for line in done.stdout.splitlines()] == ["0"] * 5
