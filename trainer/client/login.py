"""Where Cohort is and which token opens it: the environment, else a file of one's own.

The file is ~/.config/cohort/login.json, which only its owner can read.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from trainer.client.http import Server

URL, TOKEN = "COHORT_URL", "COHORT_TOKEN"


def login_path() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "cohort" / "login.json"


def find_server(url: str = "", token: str = "") -> Server:
    """What is not given is of the environment, else of the file.

    ValueError says how to log in.
    """
    url, token = url or os.environ.get(URL, ""), token or os.environ.get(TOKEN, "")
    if url and token:
        return Server(url, token)
    kept = _read_login()
    if url and url.rstrip("/") != kept.url.rstrip("/"):
        raise ValueError(  # a token is for the address that it was given for
            f"There is no token for {url}: the login is of {kept.url}. Run `cohort "
            f"login {url}`, or set {TOKEN} too."
        )
    return Server(kept.url, token or kept.token)


def _read_login() -> Server:
    path = login_path()
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return Server(kept["url"], kept["token"])
    except FileNotFoundError:
        raise ValueError(
            f"There is no login. Run `cohort login URL`, or set {URL} and {TOKEN}."
        ) from None
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"{path} cannot be read ({error}). Run `cohort login URL` again."
        ) from None


def keep_login(server: Server) -> Path:
    """Written beside and moved there, so it is never readable by others."""
    path = login_path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".login-{os.getpid()}.json")
    draft.unlink(missing_ok=True)
    number = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(number, "w", encoding="utf-8") as file:
        json.dump({"url": server.url, "token": server.token}, file)
    draft.replace(path)
    return path
