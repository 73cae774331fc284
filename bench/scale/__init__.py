"""Measures the cost of rebalances in a group of many members."""
