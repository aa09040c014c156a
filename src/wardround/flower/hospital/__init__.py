"""A hospital in a federation: joining, its SuperNode, its trainer, and sealing of its updates."""
