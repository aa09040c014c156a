"""The presets of this project itself: the demo, `caac-guard` and the red team."""
