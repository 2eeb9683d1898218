"""Hostile input to the sign-in pages, second factors and passkeys."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

import pytest
from allauth.account.utils import user_pk_to_url_str
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP
from allauth.mfa.webauthn.internal.auth import STATE_SESSION_KEY
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from django.test import Client
from fido2 import cbor
from fido2.cose import ES256
from fido2.utils import sha256, websafe_encode

from dashboard.accounts.models import User
from dashboard.project.environment import SignInProvider, provider_settings
from tests.dashboard.test_every_route_is_guarded import OPEN, PERSONAL
from tests.dashboard.test_every_route_is_guarded import addresses as addresses
from tests.inputs.odd_values import ODD_VALUES, with_odd_values
from tests.inputs.requesting import failures, names_read, response_of
from tests.page_client import PageClient

pytestmark = pytest.mark.django_db
PASSWORD = "correct horse battery"
LOGIN = "/account/factors/webauthn/login/"
AUTHENTICATE = "/account/factors/authenticate/"
REAUTHENTICATE = "/account/factors/webauthn/reauthenticate/"
ADD = "/account/factors/webauthn/add/"
# Flags of an authenticator's data: present, verified, with a key, with extensions.
UP, UV, AT, ED = 0x01, 0x04, 0x40, 0x80


class Key:
    """A security key in software."""

    def __init__(self) -> None:
        self._private = ec.generate_private_key(ec.SECP256R1())
        self.id = b"key-of-a-test-01"
        self.public = ES256.from_cryptography_key(self._private.public_key())

    def registers(self, challenge: str, **changed: Any) -> dict[str, Any]:
        return _registration(self.id, challenge, self.public, **changed)

    def signs(self, challenge: str, user: User) -> dict[str, Any]:
        client_data = _client_data("webauthn.get", challenge)
        auth_data = _rp() + bytes([UP | UV]) + b"\0" * 4
        signed = auth_data + sha256(client_data)
        return {
            "id": websafe_encode(self.id),
            "rawId": websafe_encode(self.id),
            "type": "public-key",
            "response": {
                "clientDataJSON": websafe_encode(client_data),
                "authenticatorData": websafe_encode(auth_data),
                "signature": websafe_encode(
                    self._private.sign(signed, ec.ECDSA(hashes.SHA256()))
                ),
                "userHandle": websafe_encode(user_pk_to_url_str(user).encode()),
            },
            "clientExtensionResults": {},
        }


def _registration(
    key_id: bytes,
    challenge: str,
    public: Mapping[int, Any],
    *,
    client_data: bytes | None = None,
    attestation: Any = None,
) -> dict[str, Any]:
    data = b"\0" * 16 + len(key_id).to_bytes(2, "big") + key_id + cbor.encode(public)
    auth_data = _rp() + bytes([UP | UV | AT]) + b"\0" * 4 + data
    if attestation is None:
        attestation = {"fmt": "none", "authData": auth_data, "attStmt": {}}
    if not isinstance(attestation, bytes):
        attestation = cbor.encode(attestation)
    client_json = client_data or _client_data("webauthn.create", challenge)
    return {
        "id": websafe_encode(key_id),
        "rawId": websafe_encode(key_id),
        "type": "public-key",
        "response": {
            "clientDataJSON": websafe_encode(client_json),
            "attestationObject": websafe_encode(attestation),
        },
        "clientExtensionResults": {"credProps": {"rk": True}},
    }


def _rp() -> bytes:
    return sha256(b"testserver")


def _client_data(kind: str, challenge: Any) -> bytes:
    data = {"type": kind, "challenge": challenge, "origin": "https://testserver"}
    return json.dumps(data).encode()


def _challenge(client: Client, address: str) -> str:
    client.get(address, headers={"accept": "application/json"})
    return str(client.session[STATE_SESSION_KEY]["challenge"])


@pytest.fixture
def _without_throttle(settings) -> None:
    """No attempt is throttled."""
    settings.ACCOUNT_RATE_LIMITS = False
    settings.MFA_RATE_LIMITS = False


@pytest.fixture
def _with_providers(settings) -> None:
    found = [
        SignInProvider(key=key, name=key, client_id="a", secret="b", url=url)
        for key, url in (("github", ""), ("google", ""), ("oidc", "http://127.0.0.1:1"))
    ]
    settings.SIGN_IN_PROVIDERS = {each.key: each.name for each in found}
    settings.SOCIALACCOUNT_PROVIDERS = provider_settings(found)


@pytest.fixture
def key() -> Key:
    return Key()


@pytest.fixture
def guarded(alice, key) -> User:
    """Alice, with a password, an authenticator app, a key and recovery codes."""
    alice.set_password(PASSWORD)
    alice.save()
    TOTP.activate(alice, "JBSWY3DPEHPK3PXP")
    RecoveryCodes.activate(alice)
    Authenticator.objects.create(
        user=alice,
        type=Authenticator.Type.WEBAUTHN,
        data={"name": "Mine", "credential": key.registers("AAAA")},
    )
    return alice


@pytest.fixture
def anonymous() -> Client:
    return PageClient(raise_request_exception=False)


@pytest.fixture
def half_signed_in(guarded) -> Client:
    """Past the password, before the second factor."""
    client = PageClient(raise_request_exception=False)
    client.post("/sign-in/", {"username": "alice", "password": PASSWORD})
    return client


@pytest.fixture
def recently_signed_in(guarded) -> Client:
    """Recently authenticated, so factors may be changed."""
    client = PageClient(raise_request_exception=False)
    client.force_login(guarded)
    client.post("/account/reauthenticate/", {"password": PASSWORD})
    return client


def test_a_malformed_credential_is_a_bad_request(anonymous):
    assert anonymous.post(LOGIN, {"credential": '{"id": 1}'}).status_code == 400


def test_valid_responses_of_a_key_sign_in(
    anonymous, half_signed_in, recently_signed_in, guarded, key
):
    for client, address, leads_to in (
        (anonymous, LOGIN, "/"),
        (half_signed_in, AUTHENTICATE, "/"),
        (recently_signed_in, REAUTHENTICATE, "/"),
    ):
        credential = json.dumps(key.signs(_challenge(client, address), guarded))

        answer = client.post(address, {"credential": credential})

        assert (answer.status_code, answer.headers["Location"]) == (302, leads_to)
    other = Key()
    credential = json.dumps(other.registers(_challenge(recently_signed_in, ADD)))
    added = recently_signed_in.post(ADD, {"name": "Other", "credential": credential})
    assert added.status_code == 302
    kept = Authenticator.objects.get(data__name="Other").wrap()
    assert kept.authenticator_data.credential_data.public_key == other.public
    assert kept.is_passwordless


@pytest.mark.usefixtures("_without_throttle")
@pytest.mark.slow
def test_no_part_of_a_credential_causes_a_server_error(
    anonymous, half_signed_in, recently_signed_in, guarded, key
) -> None:
    wrong = {}
    for client, address in (
        (anonymous, LOGIN),
        (half_signed_in, AUTHENTICATE),
        (recently_signed_in, REAUTHENTICATE),
        (recently_signed_in, ADD),
    ):
        challenge = _challenge(client, address)
        credential = (
            Key().registers(challenge)
            if address == ADD
            else key.signs(challenge, guarded)
        )
        for what, odd in with_odd_values(credential):
            status = _status(client, "post", address, credential=odd)
            if status >= 500:
                wrong[address, what] = status

    assert wrong == {}


def _status(client: Client, method: str, address: str, **form: str) -> int:
    status: int = response_of(client, method, address, urlencode(form)).status_code
    return status


def _bad_registrations(challenge: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Well-formed, with hostile content."""
    key = Key()
    for name, odd in ODD_VALUES.items():
        if name == "empty":  # base64 of nothing: a challenge that is wrong
            continue
        client_data = _client_data("webauthn.create", "@").replace(b'"@"', odd.encode())
        yield (
            f"challenge: {name}",
            key.registers(challenge, client_data=client_data),
        )
    auth_data = _rp() + bytes([UP | UV]) + b"\0" * 4
    for name, auth in {
        "no key in it": auth_data,
        "a number of bytes": 50_000_000_000,
        "text": "x",
        "a list": [1, 2],
        "extensions without an end": (
            _rp() + bytes([UP | UV | ED]) + b"\0" * 4 + b"\xbb" + b"\xff" * 8
        ),
    }.items():
        tree = {"fmt": "none", "authData": auth, "attStmt": {}}
        yield f"authData: {name}", key.registers(challenge, attestation=tree)
    for name, attestation in {
        "no map": cbor.encode([1]),
        "a number": cbor.encode(1),
        "empty": b"",
        "deep": b"\x81" * 9_000,
        "one of many": b"\x9a\xff\xff\xff\xff" + b"\x01" * 5_000,
        "an odd kind": b"\xdf",
        "bad UTF-8": b"\x61\xff",
    }.items():
        yield (
            f"attestation: {name}",
            key.registers(challenge, attestation=attestation),
        )
    for name, public in {
        "no algorithm": {1: 2},
        "an unknown algorithm": {1: 2, 3: -65_535},
        "no point": {1: 2, 3: -7, -1: 1},
        "a point off the curve": {1: 2, 3: -7, -1: 1, -2: b"\1", -3: b"\1"},
        "a point of text": {1: 2, 3: -7, -1: 1, -2: "x", -3: "y"},
        "RSA of nothing": {1: 3, 3: -257, -1: b"", -2: b""},
    }.items():
        yield f"public key: {name}", _registration(key.id, challenge, public)


def test_a_key_that_cannot_sign_is_refused(recently_signed_in):
    found = {}
    for what, credential in _bad_registrations(_challenge(recently_signed_in, ADD)):
        found[what] = _status(
            recently_signed_in, "post", ADD, credential=json.dumps(credential)
        )

    assert found == dict.fromkeys(found, 400)


@pytest.mark.usefixtures("_without_throttle", "_with_providers")
@pytest.mark.slow
def test_no_field_of_sign_in_pages_causes_a_server_error(
    addresses, anonymous, half_signed_in, recently_signed_in
) -> None:
    key = Authenticator.objects.get(type=Authenticator.Type.WEBAUTHN).pk
    unanswered, tried = [], set()
    for name in (*OPEN, *PERSONAL):
        address = re.sub(r"/keys/\d+/", f"/keys/{key}/", addresses[name])
        for client in (anonymous, half_signed_in, recently_signed_in):
            for method in ("get", "post"):
                for field, odd, form in _odd_forms(client, method, address):
                    tried.add((name, field))
                    with failures() as found:
                        status = _status(client, method, address, **form)
                    if status >= 500 or found:
                        what = (name, method, field, odd, status, *found)
                        unanswered.append(what)

    assert unanswered == []
    assert {("mfa_login_webauthn", "credential"), ("mfa_authenticate", "code")} < tried
    assert ("account_reset_password", "email") in tried


def _odd_forms(
    client: Client, method: str, address: str
) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Each field with each odd value: alone, and with the others."""
    names = names_read(lambda query: response_of(client, method, address, query))
    for name in names:
        for what, odd in ODD_VALUES.items():
            yield name, what, {name: odd}
            if method == "post" and len(names) > 1:
                yield (
                    name,
                    f"{what}, with others",
                    dict.fromkeys(names, "1") | {name: odd},
                )
