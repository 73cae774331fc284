"""Programs that run one member each, of this library or a peer: `python FILE '{"name": ...}'`."""
