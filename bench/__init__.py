"""Measurements. Nothing in here is installed or imported by the package."""
