"""What the signal charts of a run's overview draw."""

from __future__ import annotations

from functools import lru_cache

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe

from dashboard.accounts.access import get_team
from dashboard.project.downloads import pack_answer, send_packed
from dashboard.runs.models import Run
from dashboard.runs.queries import get_run
from dashboard.samples.signals.figures import READERS, SignalForm


@require_safe
def signals(request: HttpRequest, team: str, run_id: int, chart: str) -> HttpResponse:
    """?first_step=&last_step= for a closer look; ?rows= orders the map's."""
    run = get_run(get_team(request, team), run_id)
    if chart not in READERS:
        raise Http404(f"There is no signal chart {chart!r}.")
    form = SignalForm.read(request.GET)
    if form.errors:
        return JsonResponse({"errors": form.errors}, status=400)
    return _respond(request, _Question(run, chart, form))


class _Question:
    """Equal for all viewers of a run that goes on, until its next step."""

    def __init__(self, run: Run, chart: str, form: SignalForm) -> None:
        self.run, self.chart, self.form = run, chart, form
        shown = form.value("rows"), *form.steps.values()
        self.key = (run.pk, run.epoch, run.last_step, chart, *shown)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Question) and self.key == other.key

    def answer(self) -> bytes:
        # A map of 12,800 cells is half a megabyte that packs into a sixth of it.
        return pack_answer(READERS[self.chart](self.run, self.form))


@lru_cache(maxsize=64)
def _answer_once(question: _Question) -> bytes:
    return question.answer()


def _respond(request: HttpRequest, question: _Question) -> HttpResponse:
    # What has ended may still be filled, and few look at it at once.
    is_live = not question.run.has_ended
    packed = _answer_once(question) if is_live else question.answer()
    return send_packed(request, packed)
