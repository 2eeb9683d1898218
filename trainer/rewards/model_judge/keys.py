"""What the environment says about judges: keys, where they may go, and allowed hosts.

COHORT_JUDGE_KEY_<NAME>: a key, which recipes use by its name; or, with _FILE behind
it, the path of a file that holds the key. COHORT_JUDGE_URL_<NAME>: the base URL that
this key is for; it is sent nowhere else, so that no recipe can carry it away.
COHORT_JUDGE_HOSTS: hosts with their ports, separated by commas, that judges may be
asked at though they are not public, such as localhost:8000.

It is the environment of the process that asks: the training worker's, which the trainer
has from it, and the web server's where judges are to be tried on pages.
"""

from __future__ import annotations

import os
from pathlib import Path

from trainer.internet.address import Gate, Refused, Target, read_hosts, read_url

KEY_NAME = r"^([A-Z][A-Z0-9_]{0,39})?$"
_KEY, _URL = "COHORT_JUDGE_KEY_", "COHORT_JUDGE_URL_"
_HOSTS = "COHORT_JUDGE_HOSTS"


def judges_gate() -> Gate:
    """Public addresses, and the hosts that the environment allows.

    Raises:
        Refused: the variable cannot be read.
    """
    allowed = read_hosts(os.environ.get(_HOSTS, ""), _HOSTS)
    return Gate(asks="A judge is asked", variable=_HOSTS, allowed=allowed)


def find_key(name: str, target: Target) -> str | None:
    """The key of a name, for requests to a target; None for the empty name.

    Raises:
        Refused: there is none, or it is for another address.
    """
    if not name:
        return None
    key = os.environ.get(_KEY + name, "").strip() or _read_file(f"{_KEY}{name}_FILE")
    if not key:
        raise Refused(
            f"The judge's key {name} is not known here. Set {_KEY}{name} in the "
            "environment of this process, and start it again."
        )
    if not key.isascii() or not key.isprintable():
        raise Refused(f"{_KEY}{name} holds characters that no key has. Set it anew.")
    home = os.environ.get(_URL + name, "").strip()
    if not home:
        raise Refused(
            f"It is not said where the key {name} may be sent. Set {_URL}{name} to the "
            "base URL that it is for."
        )
    if not _is_below(target, _read(home, _URL + name)):
        raise Refused(
            f"The key {name} is not for {target.scheme}://{target.host}:{target.port}"
            f"{target.path}. It is sent to what {_URL}{name} says alone."
        )
    return key


def _read_file(variable: str) -> str:
    path = os.environ.get(variable, "")
    if not path:
        return ""
    try:
        return Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"{variable}: {path} cannot be read: {error}") from None


def _is_below(target: Target, home: Target) -> bool:
    if (target.scheme, target.origin) != (home.scheme, home.origin):
        return False
    # "/a/../b" may mean "/b" to a server; no base URL needs it
    parts = target.path.split("/")
    if "." in parts or ".." in parts or "%" in target.path:
        return False
    return f"{target.path}/".startswith(f"{home.path}/")


def _read(url: str, variable: str) -> Target:
    try:
        return read_url(url)
    except ValueError as error:
        raise Refused(f"{variable} cannot be read. {error}") from None
