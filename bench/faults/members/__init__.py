"""Programs that run one member of a group, for this library and its peers: `python FILE '{"name": ...}'`."""
