"""Exclusive partition ownership for Kafka consumers."""
