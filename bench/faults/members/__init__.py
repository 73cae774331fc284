"""Programs that are one member of a group each: ours, and the peers. `python FILE '{"name": ...}'`."""
