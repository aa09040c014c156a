"""Ciphers, the key steward, differential privacy, accounting and pseudonyms.

Nothing here knows the round loop: `federation.protection` puts these parts around a rule.
"""

from __future__ import annotations
