"""A service, and tests that it behaves the same on the old and the new cluster."""
