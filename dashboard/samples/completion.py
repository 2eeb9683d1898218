"""One completion, as pages, the API and exports see it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db.models import F, Func, IntegerField
from django.http import HttpRequest, HttpResponse

if TYPE_CHECKING:
    from dashboard.samples.models import Group, GroupCompletions


# Of a GroupCompletions, in SQL; its texts are not read for it.
NUM_COMPLETIONS = Func(
    F("end_reasons"), function="cardinality", output_field=IntegerField()
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """Stored with the others of its group (DECISIONS.md, 22)."""

    group: Group
    position: int  # 0 … G-1
    text: str
    # None, here and below: an imported run does not tell.
    num_tokens: int | None
    end_reason: str  # trainer.events.EndReason
    reward: float | None
    rule_scores: tuple[float | None, ...]  # as group.rule_names
    advantage: float | None
    mean_logprob: float | None

    @property
    def group_id(self) -> int:
        return self.group.pk

    @property
    def place(self) -> tuple[int, int]:
        """Its group and its position there: no other completion has these."""
        return self.group.pk, self.position

    def __str__(self) -> str:
        return f"{self.group} completion {self.position}"


def unpack(group: Group, stored: GroupCompletions) -> Iterator[Completion]:
    """By position."""
    width = len(group.rule_names)
    for position, text in enumerate(stored.texts):
        scores = stored.rule_scores[position * width : (position + 1) * width]
        yield Completion(
            group=group,
            position=position,
            text=text,
            num_tokens=stored.num_tokens[position],
            end_reason=stored.end_reasons[position],
            reward=stored.rewards[position],
            rule_scores=tuple(scores),
            advantage=stored.advantages[position],
            mean_logprob=stored.mean_logprobs[position],
        )


# Large JSON answers, compressed.


def pack_answer(found: Any) -> bytes:
    text = json.dumps(found, allow_nan=False, separators=(",", ":"))
    return gzip.compress(text.encode(), 5, mtime=0)


def send_packed(request: HttpRequest, packed: bytes) -> HttpResponse:
    """As it is to whoever unpacks it."""
    headers = {"Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        headers["Content-Encoding"] = "gzip"
    else:
        packed = gzip.decompress(packed)
    return HttpResponse(packed, content_type="application/json", headers=headers)
