"""Benchmarks. They are not installed, and the package imports none of them."""
