"""Measures a group of many members in several processes."""
