"""One thread a test process: xdist runs several, and results must not depend on the number anyway."""

import torch

torch.set_num_threads(1)


def pytest_collection_modifyitems(items):
    """Slow tests first, so that no worker is left alone with a long one at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
