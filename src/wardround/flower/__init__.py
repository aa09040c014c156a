"""The same rules, records and resume across hospitals, on Flower. The only room that imports flwr.

Nothing is imported here: a hospital's client app starts anew for every message, and must start fast.
"""

from __future__ import annotations

import os

__all__: list[str] = []

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""Nobody is told that a hospital runs this, and nothing is installed at run time."""

os.environ.update(QUIET)  # flwr reads these when it is imported, which happens after this
