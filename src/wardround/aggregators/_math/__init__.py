"""Numerical building blocks of the rules: kernels, order statistics, projections, compiled loops."""
