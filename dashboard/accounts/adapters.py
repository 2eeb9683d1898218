"""django-allauth's adapters: accounts, second factors, providers, and their email."""

from __future__ import annotations

import base64
import hashlib
import logging
import secrets
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import wraps
from ipaddress import ip_address
from smtplib import SMTPException
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from allauth.account.adapter import DefaultAccountAdapter
from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.models import Authenticator
from allauth.mfa.webauthn.forms import (
    AddWebAuthnForm,
    AuthenticateWebAuthnForm,
    LoginWebAuthnForm,
    ReauthenticateWebAuthnForm,
)
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter, get_adapter
from allauth.socialaccount.models import SocialAccount
from allauth.socialaccount.signals import (
    social_account_added,
    social_account_removed,
)
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.fernet import Fernet, InvalidToken
from django import forms
from django.conf import settings
from django.core.exceptions import BadRequest
from django.dispatch import receiver
from django.http import Http404, HttpRequest, HttpResponseBase
from django.http.request import split_domain_port
from django.urls import reverse
from fido2 import cbor
from fido2.utils import websafe_decode
from fido2.webauthn import AuthenticationResponse, RegistrationResponse
from pydantic import BaseModel, ConfigDict, StringConstraints

from dashboard.accounts.models import User
from dashboard.accounts.services import record_in_teams

logger = logging.getLogger(__name__)
# A key's response is smaller than 2 KiB. fido2 copies the rest at each item it reads,
# so 1 MiB would take minutes.
MAX_CREDENTIAL_CHARS = 16 * 1024
UNKNOWN_ADDRESS = "0.0.0.0"  # nosec B104 # noqa: S104 - named only: nothing listens there
View = Callable[..., HttpResponseBase]
_senders = ThreadPoolExecutor(max_workers=2, thread_name_prefix="email")


class FactorAdapter(DefaultMFAAdapter):  # type: ignore[misc]  # untyped
    """Encrypts the seeds, so that a copy of the database alone cannot create codes."""

    def encrypt(self, text: str) -> str:
        return _fernet().encrypt(text.encode()).decode()

    def decrypt(self, encrypted_text: str) -> str:
        try:
            return _fernet().decrypt(encrypted_text.encode()).decode()
        except InvalidToken:
            logger.warning(
                "A second factor cannot be decrypted because COHORT_SECRET_KEY "
                "changed. Sign in with `manage.py sign_in_link` and set it up "
                "again."
            )
            # An unknown random seed; an empty one would be known to everyone.
            return base64.b32encode(secrets.token_bytes(20)).decode()


def _fernet() -> Fernet:
    material = f"accounts.factors:{settings.SECRET_KEY}".encode()
    return Fernet(base64.urlsafe_b64encode(hashlib.sha256(material).digest()))


def describe_factors(user: User) -> list[str]:
    factors = list(Authenticator.objects.filter(user=user))
    values = ["Authenticator app"] * ("totp" in [factor.type for factor in factors])
    keys = [
        str(factor) for factor in factors if factor.type == Authenticator.Type.WEBAUTHN
    ]
    return [*values, *(f"Key “{name}”" for name in keys)]


class _Part(BaseModel):
    """Drops unknown fields, which would be stored with the key."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


# fido2 would read a number as a count of bytes and allocate them.
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
    """fido2 parses untrusted bytes and may raise anything."""
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
        raise BadRequest("The security key's response is invalid.") from fault


class AssertionField(forms.JSONField):
    """The response by which a key signs in."""

    def to_python(self, value: Any) -> Any:
        if value in self.empty_values:
            return None
        with _answering_400():
            if len(value) > MAX_CREDENTIAL_CHARS:
                raise ValueError(f"{len(value)} characters")
            return self.read(value)

    def read(self, text: str) -> dict[str, Any]:
        credential = _Assertion.model_validate_json(text)
        _ClientData.model_validate_json(
            websafe_decode(credential.response.clientDataJSON)
        )
        tree = credential.model_dump(exclude_none=True)
        AuthenticationResponse.from_dict(tree)
        return tree


class RegistrationField(AssertionField):
    """The response by which a new key introduces itself."""

    def read(self, text: str) -> dict[str, Any]:
        credential = _Registration.model_validate_json(text)
        _ClientData.model_validate_json(
            websafe_decode(credential.response.clientDataJSON)
        )
        attested: Any = cbor.decode(
            websafe_decode(credential.response.attestationObject)
        )
        if not isinstance(attested["authData"], bytes):
            raise TypeError("The authenticator data must be bytes.")
        tree = credential.model_dump(exclude_none=True)
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


def send_in_background(send: Callable[[], None]) -> None:
    """Sends in another thread, so that neither its duration nor its failure reveals
    whether the account exists.
    """
    _senders.submit(copy_context().run, _send, send)


def _send(send: Callable[[], None]) -> None:
    try:
        send()
    except (SMTPException, OSError) as error:
        logger.error("Failed to send an e-mail: %s.", type(error).__name__)
    except Exception:
        logger.exception("Failed to send an e-mail.")


def link(request: HttpRequest, path: str) -> str:
    """Host for links in e-mails:

    a Host header sent by anyone must not lead the reader elsewhere, nor to the reader's
    own machine, since loopback names are always allowed.
    """
    begin = settings.LINKS_BEGIN
    if not begin and split_domain_port(request.get_host())[0] in settings.ADDED_HOSTS:
        begin = f"{request.scheme}://{settings.ALLOWED_HOSTS[0]}"
    if not begin:
        return request.build_absolute_uri(path)
    parts = urlsplit(path)
    return f"{begin}{parts._replace(scheme='', netloc='').geturl()}"


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]  # untyped
    def is_open_for_signup(self, request: HttpRequest) -> bool:
        """People join by invitation; the invitation page creates the account."""
        return False

    def send_mail(self, template_prefix: str, email: str, context: Any) -> None:
        if settings.MAIL_IS_SET_UP:
            send = super().send_mail
            send_in_background(lambda: send(template_prefix, email, context))

    def get_reset_password_from_key_url(self, key: str) -> str:
        return link(self.request, super().get_reset_password_from_key_url(key))

    def get_email_confirmation_url(
        self, request: HttpRequest, emailconfirmation: Any
    ) -> str:
        url = super().get_email_confirmation_url(request, emailconfirmation)
        return link(request, url)

    def get_client_ip(self, request: HttpRequest) -> str:
        """Return the address that throttling uses; uvicorn has resolved trusted
        proxies.
        """
        return address_of(request)


def address_of(request: HttpRequest) -> str:
    try:
        return str(ip_address(request.META.get("REMOTE_ADDR", "")))
    except ValueError:  # from a unix socket, and the session's column is not nullable
        return UNKNOWN_ADDRESS


class ProviderAdapter(DefaultSocialAccountAdapter):  # type: ignore[misc]  # untyped
    """Accounts elsewhere only let in who is here already: people come by invitation."""

    def is_open_for_signup(self, request: HttpRequest, sociallogin: Any) -> bool:
        return False

    def get_connect_redirect_url(self, request: HttpRequest, socialaccount: Any) -> str:
        return reverse("account")


def provider_address(request: HttpRequest, key: str, *, process: str) -> str:
    """Return where the provider asks the person; Http404 if it is not set up here.

    Raises:
        requests.RequestException: the provider cannot be asked where that is.
    """
    if key not in settings.SIGN_IN_PROVIDERS:
        raise Http404("Provider not found.")
    provider = get_adapter().get_provider(request, key)
    return str(provider.redirect(request, process=process).headers["Location"])


def require_provider(key: str, view: View) -> View:
    @wraps(view)  # marks that the flow connects an account and does not sign in
    def guarded(request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        if key not in settings.SIGN_IN_PROVIDERS:
            raise Http404("Provider not found.")
        return view(request, **kwargs)

    return guarded


def list_connections(user: User) -> list[tuple[int, str, str]]:
    """List each one's number, the provider's name, and who the person is there."""
    linked = SocialAccount.objects.filter(user=user).order_by("pk")
    return [
        (
            connection.pk,
            str(
                settings.SIGN_IN_PROVIDERS.get(connection.provider, connection.provider)
            ),
            account_name(connection),
        )
        for connection in linked
    ]


def account_name(account: SocialAccount) -> str:
    data = account.extra_data
    data = {**data, **data.get("id_token", {}), **data.get("userinfo", {})}
    names = ("preferred_username", "login", "email", "name")
    return str(next((data[name] for name in names if data.get(name)), account.uid))


@receiver(social_account_added)
def account_connected(*, sociallogin: Any, **_kwargs: Any) -> None:
    record_in_teams(
        sociallogin.user, "person.provider_added", kind=sociallogin.account.provider
    )


@receiver(social_account_removed)
def account_disconnected(*, socialaccount: Any, **_kwargs: Any) -> None:
    record_in_teams(
        socialaccount.user, "person.provider_removed", kind=socialaccount.provider
    )
