"""No file of the repository contains a secret.

detect-secrets scans all tracked files. False positives are in `KNOWN`, with the reason.
"""

import json
import subprocess
import sys
from hashlib import sha1
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KNOWN = {
    "password": "in example URLs",
    "key": "likewise",
    "etaoinshrdlucmfwypvbgkjqxz": "the alphabet by frequency",
    "0123456789abcdef0123": "ascending digits",
    "HuggingFaceTB/SmolLM2-135M-Instruct": "name of a model",
    "HuggingFaceH4/OpenR1-Math-220k-default-verified": "name of a dataset",
    "dashboard.accounts.forms.ForgottenPasswordForm": "path of a form class",
}
# The starters' files by SHA-256, which tests/trainer/starter compares with them.
FILE_HASHES = {
    f"trainer/starter/{name}/starter.json" for name in ("countdown", "guess")
}
# Passwords of tests are not used anywhere else.
PASSWORDS = ("Secret Keyword", "Basic Auth Credentials")
pytestmark = pytest.mark.slow


def scan(*files: str) -> list[tuple[str, str, str]]:
    """File, kind and SHA-1 of each text that looks like a secret."""
    done = subprocess.run(
        [sys.executable, "-m", "detect_secrets", "scan", "--no-verify", *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [
        (file, secret["type"], secret["hashed_secret"])
        for file, secrets in json.loads(done.stdout)["results"].items()
        for secret in secrets
    ]


def test_no_tracked_file_contains_a_secret():
    listed = subprocess.run(
        ["git", "ls-files"],  # noqa: S607 - found on the path everywhere
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    found = [
        (file, kind, digest)
        for file, kind, digest in scan(*listed.stdout.splitlines())
        if not (file.startswith("tests/") and kind in PASSWORDS)
        and file not in FILE_HASHES
    ]

    # The scan works, since it finds every known one.
    known = {sha1(text.encode(), usedforsecurity=False).hexdigest() for text in KNOWN}
    assert [secret for secret in found if secret[2] not in known] == []
    assert known - {digest for *_, digest in found} == set()
