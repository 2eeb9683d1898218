"""How long a version's prompts are in a model's tokens: counted once, kept."""

from __future__ import annotations

from dashboard.datasets.findings.finding import Report, ask, finish, read_all, unheard
from dashboard.datasets.models import DatasetVersion, TokenLengths
from dashboard.datasets.tokens.counting import Uncountable, count_tokens

MAX_TOKENIZED = 50_000


def find_token_lengths(version: DatasetVersion, model: str) -> TokenLengths:
    found, _ = TokenLengths.objects.get_or_create(
        version=version,
        model=model,
        defaults={"num_wanted": min(version.num_rows, MAX_TOKENIZED)},
    )
    ask(found, team_id=version.dataset.team_id)
    return found


def make_token_lengths(pk: int, report: Report = unheard) -> None:
    found = TokenLengths.objects.select_related("version").get(pk=pk)
    if found.is_done or found.problem:
        return
    every = -(-found.version.num_rows // MAX_TOKENIZED)
    wanted = range(0, found.version.num_rows, every)
    found.num_wanted, found.num_looked = len(wanted), 0
    rows = read_all(found, found.version, wanted, report)
    try:
        lengths = count_tokens(found.model, rows)
    except Uncountable as error:
        TokenLengths.objects.filter(pk=pk).update(problem=str(error))
        return
    result = {"lengths": sorted(lengths.items()), "every": every}
    finish(found, result)
