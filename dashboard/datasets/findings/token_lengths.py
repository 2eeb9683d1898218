"""How long a version's prompts are in a model's tokens: counted once, kept."""

from __future__ import annotations

from django.utils import timezone

from dashboard.datasets.findings.finding import ask, finish, read_anew
from dashboard.datasets.models import DatasetVersion, TokenLengths
from dashboard.datasets.tokens.counting import Uncountable, count_tokens

MAX_TOKENIZED = 50_000
TASK = "datasets.make_token_lengths"


def find_token_lengths(version: DatasetVersion, model: str) -> TokenLengths:
    found, is_new = TokenLengths.objects.get_or_create(
        version=version,
        model=model,
        defaults={
            "num_wanted": min(version.num_rows, MAX_TOKENIZED),
            "moved_at": timezone.now(),
        },
    )
    ask(TASK, found, team_id=version.dataset.team_id, is_new=is_new)
    return found


def make_token_lengths(pk: int) -> None:
    found = TokenLengths.objects.select_related("version").get(pk=pk)
    if found.is_done or found.problem:
        return
    every = -(-found.version.num_rows // MAX_TOKENIZED)
    rows = read_anew(found, range(0, found.version.num_rows, every))
    try:
        lengths = count_tokens(found.model, rows)
    except Uncountable as error:
        TokenLengths.objects.filter(pk=pk).update(problem=str(error))
        return
    result = {"lengths": sorted(lengths.items()), "every": every}
    finish(found, result)
