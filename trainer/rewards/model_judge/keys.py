"""What the environment says about judges: keys, where they may go, and allowed hosts.

COHORT_JUDGE_KEY_<NAME>: a key, which recipes use by its name. COHORT_JUDGE_URL_<NAME>:
the base URL that this key is for; it is sent nowhere else, so that no recipe can carry
it away. COHORT_JUDGE_HOSTS: hosts with their ports, separated by commas, that judges
may be asked at though they are not public, such as localhost:8000.

It is the environment of the process that asks: the training worker's, which the trainer
has from it, and the web server's where judges are to be tried on pages.
"""

from __future__ import annotations

import os

from trainer.rewards.model_judge.address import Refused, Target, read_url

KEY_NAME = r"^([A-Z][A-Z0-9_]{0,39})?$"
_KEY, _URL = "COHORT_JUDGE_KEY_", "COHORT_JUDGE_URL_"
_HOSTS = "COHORT_JUDGE_HOSTS"


def allowed_hosts() -> frozenset[tuple[str, int]]:
    """Hosts and ports that may be asked whatever their addresses.

    Raises:
        Refused: the variable cannot be read.
    """
    names = os.environ.get(_HOSTS, "").split(",")
    return frozenset(_host(name.strip()) for name in names if name.strip())


def find_key(name: str, target: Target) -> str | None:
    """The key of a name, for requests to a target; None for the empty name.

    Raises:
        Refused: there is none, or it is for another address.
    """
    if not name:
        return None
    key = os.environ.get(_KEY + name, "").strip()
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


def _is_below(target: Target, home: Target) -> bool:
    if (target.scheme, target.origin) != (home.scheme, home.origin):
        return False
    # "/a/../b" may mean "/b" to a server; no base URL needs it
    parts = target.path.split("/")
    if "." in parts or ".." in parts or "%" in target.path:
        return False
    return f"{target.path}/".startswith(f"{home.path}/")


def _host(name: str) -> tuple[str, int]:
    target = _read(f"http://{name}", _HOSTS)
    if target.path or not name.rpartition(":")[2].isdigit():
        raise Refused(
            f"{_HOSTS} holds {name!r}. Write hosts with their ports and commas between "
            "them: localhost:8000,10.0.0.7:8000."
        )
    return target.origin


def _read(url: str, variable: str) -> Target:
    try:
        return read_url(url)
    except ValueError as error:
        raise Refused(f"{variable} cannot be read. {error}") from None
