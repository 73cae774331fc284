"""The status page of groups and of a daemon, the JSON API, metrics, health.

In: the znodes of groups, their offsets from the brokers, and the public surface of `consumer`. Out: HTTP. May
touch: nothing, except the actions in `actions.py` for a caller with the token.
"""
