"""A client that gives a page as the server made it; the tests' own joins its lines."""

import pytest
from django.test import Client


@pytest.fixture
def alice_client(alice) -> Client:
    client = Client()
    client.force_login(alice)
    return client
