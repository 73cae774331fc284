"""Compares how long a group takes to assign named resources, with kazoo's SetPartitioner."""
