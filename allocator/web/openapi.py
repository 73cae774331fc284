from __future__ import annotations


def describe_api() -> dict:
    return {}
