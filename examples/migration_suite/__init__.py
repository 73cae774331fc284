"""A service, and the tests that show that it does on a new cluster what it does on the old one."""
