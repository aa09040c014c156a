"""The four papers as content: presets, hypotheses and published figures."""
