"""FEDMED: its presets."""
