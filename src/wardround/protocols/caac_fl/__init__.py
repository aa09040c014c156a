"""CAAC-FL: its protocol, hypotheses and presets."""
