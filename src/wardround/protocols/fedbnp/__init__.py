"""FedBNP: its presets."""
