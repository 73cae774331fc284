"""What people and their monitoring see of groups and of a daemon: a page, a JSON API, metrics, health.

In: the znodes of groups, what the brokers say of their offsets, and the public surface of `consumer`. Out: HTTP. May
touch: nothing, unless whoever asks has the token; then what `actions.py` lists, and nothing else.
"""
