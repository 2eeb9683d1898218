"""Sparklines and small bars as SVG: a page has hundreds of bars, too many for tags."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.utils.html import format_html
from django.utils.safestring import SafeString

HEIGHT = 24.0
MAX_WIDTH = 160.0
SIGNAL_WORDS = {"all_right": "all correct", "all_wrong": "all wrong"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """The range of rewards of a sparkline; it always contains 0."""

    low: float
    high: float

    def y(self, value: float) -> float:
        """Compute the distance of a value from the top."""
        return HEIGHT * (self.high - value) / (self.high - self.low)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    x: float
    y: float
    width: float
    height: float
    kind: str  # scored, truncated, unscored

    def __str__(self) -> str:
        """Draw as SVG."""
        return (
            f'<rect class="strip-bar" data-kind="{self.kind}" x="{self.x:.2f}" '
            f'y="{self.y:.2f}" width="{self.width:.2f}" height="{self.height:.2f}"/>'
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Sparkline:
    width: float
    zero: float
    bars: list[Bar]

    def svg(self, label: str) -> SafeString:
        # A page has hundreds: to escape each number took longer than the rest.
        bars = SafeString("".join(map(str, self.bars)))  # nosec B703 # numbers and our own words
        return format_html(
            '<svg class="strip" width="{width}" height="24" viewBox="0 0 {width} 24" '
            'role="img" aria-label="{label}"><line class="strip-zero" x1="0" '
            'x2="{width}" y1="{zero}" y2="{zero}"/>{bars}</svg>',
            width=f"{self.width:.1f}",
            zero=f"{self.zero:.1f}",
            label=label,
            bars=bars,
        )


def reward_scale(bounds: Iterable[float], rewards: Iterable[float | None]) -> Scale:
    """Scale by the recipe's bounds, so that bars are comparable between steps.

    Rewards beyond them (because of a KL penalty) extend the scale.
    """
    values = [0.0, *bounds, *(r for r in rewards if r is not None)]
    finite = [v for v in values if abs(v) < float("inf")]
    low, high = min(finite), max(finite)
    return Scale(low=low, high=high if high > low else low + 1.0)


def draw_sparkline(
    rewards: Sequence[float | None], truncated: Sequence[bool], scale: Scale
) -> Sparkline:
    pitch = max(2.0, min(10.0, MAX_WIDTH / max(1, len(rewards))))
    bars = [
        _draw_bar(
            reward, cut, x=i * pitch, width=pitch - min(2.0, pitch / 3), scale=scale
        )
        for i, (reward, cut) in enumerate(zip(rewards, truncated, strict=True))
    ]
    return Sparkline(width=pitch * len(rewards), zero=scale.y(0.0), bars=bars)


def _draw_bar(
    reward: float | None, cut: bool, *, x: float, width: float, scale: Scale
) -> Bar:
    if reward is None:
        return Bar(x=x, y=2, width=width, height=HEIGHT - 4, kind="unscored")
    top = scale.y(max(reward, 0.0))
    # A reward of 0 still shows: a line, not a gap.
    height = max(1.5, scale.y(min(reward, 0.0)) - top)
    return Bar(
        x=x,
        y=min(top, HEIGHT - height),
        width=width,
        height=height,
        kind="truncated" if cut else "scored",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Balance:
    """A bar left or right of the middle, in percent of the whole width."""

    x: float
    width: float
    kind: str  # positive, negative

    @property
    def svg(self) -> SafeString:
        return format_html(
            '<svg class="balance" viewBox="0 0 100 8" preserveAspectRatio="none" '
            'aria-hidden="true" focusable="false"><rect class="balance-bar" '
            'data-kind="{}" x="{}" y="1" width="{}" height="6"/>'
            '<line class="balance-middle" x1="50" x2="50" y1="0" y2="8"/></svg>',
            self.kind,
            f"{self.x:.2f}",
            f"{self.width:.2f}",
        )


def draw_balance(value: float, *, largest: float) -> Balance:
    share = 0.0 if largest <= 0 else min(1.0, abs(value) / largest) * 50
    if value < 0:
        return Balance(x=50 - share, width=share, kind="negative")
    return Balance(x=50, width=share, kind="positive")


def signal_words(signal: str) -> str:
    """
    >>> signal_words("all_right")
    'all correct'
    """
    return SIGNAL_WORDS.get(signal, signal)
