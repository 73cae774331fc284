"""A service, and a test that it behaves the same on the old and the new cluster."""
