"""Second factors and passkeys: how they are kept, and what a person has of them."""

from __future__ import annotations

import base64
import hashlib
import logging
import secrets

from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.models import Authenticator
from cryptography.fernet import Fernet, InvalidToken
from django.conf import settings

from dashboard.accounts.models import User

logger = logging.getLogger(__name__)


class FactorAdapter(DefaultMFAAdapter):  # type: ignore[misc]  # untyped
    """Seeds are kept encrypted: a copy of the database alone makes no codes."""

    def encrypt(self, text: str) -> str:
        return _fernet().encrypt(text.encode()).decode()

    def decrypt(self, encrypted_text: str) -> str:
        try:
            return _fernet().decrypt(encrypted_text.encode()).decode()
        except InvalidToken:
            logger.warning(
                "A second factor is of another COHORT_SECRET_KEY: no code will fit. "
                "Its owner signs in by `manage.py sign_in_link` and sets it up anew."
            )
            # A seed that nobody knows; an empty one would be known to everybody.
            return base64.b32encode(secrets.token_bytes(20)).decode()


def _fernet() -> Fernet:
    material = f"accounts.factors:{settings.SECRET_KEY}".encode()
    return Fernet(base64.urlsafe_b64encode(hashlib.sha256(material).digest()))


def describe_factors(user: User) -> list[str]:
    found = list(Authenticator.objects.filter(user=user))
    kinds = [one.type for one in found]
    said = ["Authenticator app"] * ("totp" in kinds)
    keys = [str(one) for one in found if one.type == Authenticator.Type.WEBAUTHN]
    return [*said, *(f"Key “{name}”" for name in keys)]
