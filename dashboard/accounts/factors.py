"""Second factors and passkeys: how they are read and kept, and what a person has."""

from __future__ import annotations

import base64
import hashlib
import logging
import secrets
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any, Literal

from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.models import Authenticator
from allauth.mfa.webauthn.forms import (
    AddWebAuthnForm,
    AuthenticateWebAuthnForm,
    LoginWebAuthnForm,
    ReauthenticateWebAuthnForm,
)
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.fernet import Fernet, InvalidToken
from django import forms
from django.conf import settings
from django.core.exceptions import BadRequest
from fido2 import cbor
from fido2.utils import websafe_decode
from fido2.webauthn import AuthenticationResponse, RegistrationResponse
from pydantic import BaseModel, ConfigDict, StringConstraints

from dashboard.accounts.models import User

logger = logging.getLogger(__name__)
# A key's answer holds less than 2 KiB. fido2 copies what is left at each item it reads,
# so that 1 MiB would take minutes.
MAX_CREDENTIAL_CHARS = 16 * 1024


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


class _Part(BaseModel):
    """What is not named here is dropped: it would be stored beside the key."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


# fido2 takes a number for a count of bytes, and makes them.
Base64 = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]*={0,2}$")]


class _Signed(_Part):
    clientDataJSON: Base64
    authenticatorData: Base64
    signature: Base64
    userHandle: Base64 | None = None


class _Attested(_Part):
    clientDataJSON: Base64
    attestationObject: Base64


class _Properties(_Part):
    rk: bool | None = None


class _Outputs(_Part):
    credProps: _Properties = _Properties()


class _Credential(_Part):
    id: Base64
    rawId: Base64
    type: Literal["public-key"]
    clientExtensionResults: _Outputs = _Outputs()


class _Assertion(_Credential):
    response: _Signed


class _Registration(_Credential):
    response: _Attested


class _ClientData(_Part):
    type: str
    challenge: Base64
    origin: str


@contextmanager
def _answering_400() -> Iterator[None]:
    """fido2 reads bytes of strangers, and raises whatever comes of it."""
    try:
        yield
    except (
        AttributeError,
        LookupError,
        NotImplementedError,
        RecursionError,
        TypeError,
        UnsupportedAlgorithm,
        ValueError,
        struct.error,
    ) as fault:
        raise BadRequest("This is not a valid answer of a security key.") from fault


class AssertionField(forms.JSONField):
    """What a key signs in with."""

    def to_python(self, value: Any) -> Any:
        if value in self.empty_values:
            return None
        with _answering_400():
            if len(value) > MAX_CREDENTIAL_CHARS:
                raise ValueError(f"{len(value)} characters")
            return self.read(value)

    def read(self, text: str) -> dict[str, Any]:
        said = _Assertion.model_validate_json(text)
        _ClientData.model_validate_json(websafe_decode(said.response.clientDataJSON))
        tree = said.model_dump(exclude_none=True)
        AuthenticationResponse.from_dict(tree)
        return tree


class RegistrationField(AssertionField):
    """What a new key introduces itself with."""

    def read(self, text: str) -> dict[str, Any]:
        said = _Registration.model_validate_json(text)
        _ClientData.model_validate_json(websafe_decode(said.response.clientDataJSON))
        attested: Any = cbor.decode(websafe_decode(said.response.attestationObject))
        if not isinstance(attested["authData"], bytes):
            raise TypeError("The authenticator's data is no bytes.")
        tree = said.model_dump(exclude_none=True)
        data = RegistrationResponse.from_dict(tree).response.attestation_object
        # None without a key in it. One that cannot check a signature never signs in.
        with suppress(InvalidSignature):
            data.auth_data.credential_data.public_key.verify(b"", b"")  # type: ignore[union-attr]  # AttributeError is a 400
        return tree


def _hidden(field: type[AssertionField]) -> AssertionField:
    return field(widget=forms.HiddenInput)


class LoginKeyForm(LoginWebAuthnForm):  # type: ignore[misc]  # untyped
    credential = _hidden(AssertionField)


class AuthenticateKeyForm(AuthenticateWebAuthnForm):  # type: ignore[misc]  # untyped
    credential = _hidden(AssertionField)


class ReauthenticateKeyForm(ReauthenticateWebAuthnForm):  # type: ignore[misc]  # untyped
    credential = _hidden(AssertionField)


class AddKeyForm(AddWebAuthnForm):  # type: ignore[misc]  # untyped
    credential = _hidden(RegistrationField)
