"""The fast path's manners: optional, lazily loaded, cached, and at ease in a read-only installation."""

import importlib
import os
import subprocess
import sys
import textwrap
import warnings

import pytest
import torch

from wardround import Updates, aggregators
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
        torch.zeros(5, compiled.LEAST_COLUMNS - 1),
        torch.zeros(64, 5).T,
        torch.zeros(5, 64, device="meta"),
        torch.zeros(0, 64),
    ],
    ids=["few-columns", "strided", "other-device", "nobody"],
)
def test_what_does_not_fit_takes_the_torch_path(matrix):
    assert loops_for(matrix) is None
    assert loops_for(torch.zeros(5, 64)) is not None
    assert loops_for(torch.zeros(2 * compiled.MOST_WIRES, 64)) is not None


def test_what_is_missing_is_said_once_and_only_where_it_matters(monkeypatch):
    monkeypatch.setattr(compiled, "_loops", lambda: None)
    compiled._say_what_is_missing.cache_clear()
    large = torch.zeros(1).expand(4, compiled.LARGE // 4).contiguous()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loops_for(large[:, :64].contiguous())
    with pytest.warns(UserWarning, match=r"pip install 'wardround\[fast\]'"):
        loops_for(large)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loops_for(large)


@pytest.mark.slow
def test_numba_is_not_imported_before_it_is_needed():
    done = run("""
        import sys
        from wardround import aggregators
        aggregators.available()
        assert "numba" not in sys.modules and "llvmlite" not in sys.modules
    """)
    assert done.returncode == 0, done.stderr


def test_without_numba_every_rule_still_works(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "numba" else find(name, *rest)
    )
    monkeypatch.setitem(sys.modules, "numba", None)  # an import of it now fails
    for name in ("loops", "sparse_loops", "vector_code"):  # and so does one of what needs it
        monkeypatch.delitem(sys.modules, f"{compiled.__name__}.{name}", raising=False)
        monkeypatch.delattr(compiled, name, raising=False)
    compiled._loops.cache_clear()
    try:
        with pytest.raises(ImportError):
            importlib.import_module(f"{compiled.__name__}.loops")
        updates = Updates(torch.randn(20, 64), metrics={"loss": torch.ones(20)})
        given = {"global_weights": torch.ones(64), "root_update": torch.ones(64), "attackers": ()}
        for name in aggregators.available():
            if not aggregators.registry.get(name).needs_practice_ground:
                aggregators.create(name).aggregate(updates, **given)
        assert loops_for(updates.matrix) is None
    finally:
        compiled._loops.cache_clear()


EVERY_KERNEL = """
    import gc
    import torch
    from numba.core.dispatcher import Dispatcher
    from wardround import Updates
    from wardround.aggregators._math import kernels, mixing, order_statistics
    matrix, pairs = torch.arange(160.0).reshape(5, 32), torch.full((3, 5), 0.5, dtype=torch.float64)
    print(order_statistics.median(matrix).tolist() == matrix[2].tolist())
    order_statistics.mean_nearest_median(matrix, 2)
    kernels.squared_distances(Updates(matrix))
    mixing.mixed_middle(matrix, pairs, 1)
    mixing.mixed_nearest_median(matrix, pairs, 1)
    used = [loop for loop in gc.get_objects() if isinstance(loop, Dispatcher) and loop.overloads]
    print(sum(sum(loop.stats.cache_hits.values()) for loop in used))
    print(sum(sum(loop.stats.cache_misses.values()) for loop in used))
"""


@pytest.mark.slow
def test_compiled_code_is_kept_on_disk(tmp_path):
    first, second = (run(EVERY_KERNEL, NUMBA_CACHE_DIR=str(tmp_path)).stdout.split() for _ in range(2))
    assert first[:2] == ["True", "0"]
    assert int(first[2]) >= 5
    assert second[0] == "True"
    assert int(second[1]) >= 5
    assert second[2] == "0", "compiled again"


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
    import gc
    import torch
    from numba.core.dispatcher import Dispatcher
    from wardround import Updates, aggregators

    def ready():  # what is compiled, or fetched from the disk: both would hold up a round
        return sum(len(loop.overloads) for loop in gc.get_objects() if isinstance(loop, Dispatcher))

    n, d = 12, 66_000
    generator = torch.Generator().manual_seed(0)
    honest, weights = torch.randn(n, d, generator=generator), torch.randn(d, generator=generator)
    colluding, huge = honest.clone(), honest.clone()
    colluding[::2] = 1000 * weights
    huge[3] *= 1e20
    for name in ("krum", "dos", "caac", "lasa", "bulyan"):
        rule = aggregators.create(name)
        before = ready()
        rule.warm_up(n, d)
        warm = ready()
        for t, rows in enumerate((honest, honest, colluding, huge), 1):
            rule.aggregate(Updates(rows), t, global_weights=weights)
        print(name, warm > before, ready() - warm)
"""


@pytest.mark.slow
def test_no_round_waits_for_the_compiler():
    """Nor the first under attack: colluders, most of the sampled rows; and rows that do not fit float32."""
    done = run(UNDER_ATTACK)  # in a process where nothing is loaded yet
    assert done.stdout.splitlines()[0] == "krum True 0", done.stderr
    assert [line.split()[2] for line in done.stdout.splitlines()] == ["0"] * 5
