"""Published results, and the team's runs that reproduce them."""

from __future__ import annotations

from urllib.parse import urlencode

from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from dashboard.accounts.access import (
    get_membership,
    get_writing_membership,
    look_up,
)
from dashboard.accounts.models import Membership, Team
from dashboard.analysis.reproductions import prepare_launch, read_board
from dashboard.pages.requests import Request
from trainer.reproductions.reproduction import NUM_SEEDS, load_reproduction


@require_safe
@look_up(get_membership)
def reproductions(request: Request, membership: Membership, team: Team) -> HttpResponse:
    context = {
        "team": team,
        "board": read_board(team),
        "num_seeds": NUM_SEEDS,
        "can_write": membership.can_write,
    }
    return render(request, "reproductions/board.html", context)


@require_POST
@look_up(get_writing_membership)
def reproduction_launch(request: Request, team: Team, name: str) -> HttpResponse:
    """Open New run with the settings, the reward, the rows and a sweep of seeds."""
    try:
        reproduction = load_reproduction(name)
    except ValueError:
        raise Http404("Reproduction not found.") from None
    try:
        query = prepare_launch(reproduction, team=team, user=request.user)
    except (OSError, ValueError) as error:  # such as a full disk or quota
        messages.error(request, str(error))
        return redirect("reproductions", team.slug)
    return redirect(f"{reverse('run_new', args=[team.slug])}?{urlencode(query)}")
