"""A user whose name has characters with a meaning in SCRAM logs in to a real broker."""

from __future__ import annotations

import time

import pytest

from allocator.core.client.client import KafkaClient
from allocator.errors import BrokersUnavailable
from tests.security.secured import SCRAM_NAME, Secured


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_distinguished_name_logs_in(secured: Secured, mechanism: str) -> None:
    security = {**secured.kafka("SASL_PLAINTEXT", mechanism), "sasl_plain_username": SCRAM_NAME}
    deadline = time.monotonic() + 10
    while True:
        try:
            async with KafkaClient(secured.brokers("SASL_PLAINTEXT"), security=security) as client:
                assert client.brokers
            return
        except BrokersUnavailable:  # the broker learns of a new user a moment later
            if time.monotonic() > deadline:
                raise
