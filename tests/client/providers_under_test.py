"""Token providers that tests name as `tests.client.providers_under_test:...`."""

from __future__ import annotations

import os
import threading
from typing import Any

from tests.client.token_endpoint import unsecured_token

created: list[object] = []


class Provider:
    """Short tokens for Kafka's unsecured validator. A test may replace `make`."""

    def __init__(self) -> None:
        created.append(self)
        self.calls = 0
        self.make: Any = unsecured_token

    def token(self) -> str:
        self.calls += 1
        token: str = self.make()
        return token


def hanging() -> Any:
    provider = Provider()
    provider.make = threading.Event().wait
    return provider


def failing() -> Any:
    provider = Provider()
    provider.make = lambda: {}["token"]
    return provider


REFUSED = (
    "HTTPSConnectionPool(host='vault-1.eu-west-1.example', port=8200): NewConnectionError, SSLCertVerificationError"
)


def refused() -> Any:
    def refuse() -> str:
        raise ConnectionRefusedError(111, REFUSED)

    provider = Provider()
    provider.make = refuse
    return provider


def of_environment() -> Any:
    return os.environ["VAULT_ADDRESS_OF_TEST"]


class Coroutine:
    async def token(self) -> str:
        return "t"
