"""What a page lacks of the answers to a question."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from dashboard.probes.models import Chat

Texts = dict[tuple[int, int], str]  # by model and place


def texts_of(chat: Chat) -> Texts:
    """What is being written, or was when it was stopped."""
    return {
        (model, place): completion["text"]
        for model, answer in enumerate(chat.answers)
        for place, completion in enumerate(answer["completions"])
        if completion and completion.get("end_reason") is None
    }


def shape_of(chat: Chat) -> str:
    """Changes with whatever is more than text that grows."""
    answers = [
        [answer.get("problem"), [_shape(one) for one in answer["completions"]]]
        for answer in chat.answers
    ]
    shown = json.dumps([chat.state, chat.notice, chat.error, answers])
    return hashlib.sha256(shown.encode()).hexdigest()[:16]


def frame_of(chat: Chat, *, after: int, had: Texts | None) -> dict[str, Any]:
    """All texts, or what came behind those that the page `had` after that change."""
    known = had or {}
    news = [
        _news(chat, place, text, known.get(place))
        for place, text in texts_of(chat).items()
        if text != known.get(place)
    ]
    return {
        "type": "snapshot" if had is None else "batch",
        "after": after,
        "seq": chat.seq,
        "epoch": 1,
        "shape": shape_of(chat),
        "is_open": chat.is_open,
        "texts": news,
    }


def _shape(completion: dict[str, Any] | None) -> str:
    if not completion:
        return ""
    return completion.get("end_reason") or "written"


def _news(
    chat: Chat, where: tuple[int, int], text: str, had: str | None
) -> dict[str, Any]:
    model, place = where
    is_longer = had is not None and text.startswith(had)
    return {
        "model": model,
        "place": place,
        "text": text[len(had or "") :] if is_longer else text,
        "is_whole": not is_longer,
        "num_tokens": chat.answers[model]["completions"][place]["num_tokens"],
    }
