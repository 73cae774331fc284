"""`allocator run`: a process that consumes with a handler, retries, and keeps refused records.

In: a TOML file, environment variables, a handler `package.module:function`. Out: handled records, committed offsets,
dead letters, an exit code. May touch: what the consumer touches, the dead-letter topic, systemd's notify socket.
"""
