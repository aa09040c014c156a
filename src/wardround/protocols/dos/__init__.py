"""DOS: its presets and published figures."""
