"""Compares how long this library and kazoo's SetPartitioner take to assign named resources."""
