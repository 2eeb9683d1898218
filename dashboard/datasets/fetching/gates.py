"""Where a worker may go for a dataset, and with which token."""

from __future__ import annotations

from dataclasses import dataclass, field

from django.conf import settings

from trainer.internet import Gate, Target, read_hosts, read_url

VARIABLE = "COHORT_DATASET_HOSTS"


@dataclass(frozen=True, kw_only=True)
class Token:
    """It goes to its home and nowhere else, redirects included."""

    text: str = field(repr=False)
    home: Target

    def is_for(self, target: Target) -> bool:
        here = (target.scheme, target.origin)
        return bool(self.text) and here == (self.home.scheme, self.home.origin)


def links_gate() -> Gate:
    """Raises Refused where the variable cannot be read."""
    return Gate(
        asks="A dataset is fetched",
        variable=VARIABLE,
        schemes=("https", "http"),
        allowed=read_hosts(settings.DATASET_HOSTS, VARIABLE),
    )


def hub_gate() -> Gate:
    """The operator named the hub, so it may be of the own network."""
    gate = links_gate()
    return Gate(
        asks=gate.asks,
        variable=gate.variable,
        schemes=gate.schemes,
        allowed=gate.allowed | {hub_home().origin},
    )


def hub_home() -> Target:
    """ValueError where HF_ENDPOINT is no URL."""
    try:
        return read_url(settings.HUB_ENDPOINT)
    except ValueError as error:
        raise ValueError(f"HF_ENDPOINT cannot be read. {error}") from None


def hub_token() -> Token | None:
    """ValueError, without a letter of it, where no header can carry it."""
    text = settings.HUB_TOKEN
    if not text:
        return None
    if not text.isascii() or not text.isprintable():
        raise ValueError(
            "HF_TOKEN holds characters that no token has. An administrator sets it "
            "anew in the environment of the default worker, and starts that again."
        )
    return Token(text=text, home=hub_home())
