"""A hospital in a federation: joining, its SuperNode and its trainer daemon."""
