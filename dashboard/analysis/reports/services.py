"""What changes a report, where each save is a version; lookups of reports."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.db import transaction
from django.db.models import Max, Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone

from cohort.lines import plain
from dashboard.accounts.models import Team, User
from dashboard.accounts.services import digest, record
from dashboard.analysis.reports.block_options import Block, list_blocks, replace_blocks
from dashboard.analysis.reports.blocks import has_content, read_data
from dashboard.analysis.reports.inserting import translate_addresses
from dashboard.analysis.reports.models import MAX_TITLE, Report, ReportVersion
from dashboard.project.errors import UserError, or_404
from dashboard.web.edits import find_changes

MAX_CHARS = 40_000
MAX_BLOCKS = 30
MAX_VERSIONS = 100
MAX_REPORTS = 2_000  # of a team
MAX_WORDS = 8


def create_report(
    *, team: Team, user: User, title: str, text: str, hosts: Collection[str]
) -> Report:
    if Report.objects.filter(team=team).count() >= MAX_REPORTS:
        raise UserError(
            "reports.too_many",
            f"A team can have at most {MAX_REPORTS:,} reports. Delete some first.",
        )
    title, text = check(title, translate_addresses(text, team, hosts))
    with transaction.atomic():
        report = Report.objects.create(team=team, title=title, created_by=user)
        _store(report, user, title=title, text=text)
        record(team, user, "report.created", report, title=title)
    return report


def save_report(
    *,
    report: Report,
    user: User,
    number: int,
    title: str,
    text: str,
    hosts: Collection[str] = (),
) -> None:
    """EditConflict unless `number` is still the report's newest version."""
    title, text = check(title, translate_addresses(text, report.team, hosts))
    with transaction.atomic():
        newest = Report.objects.select_for_update().get(pk=report.pk)
        now = {"title": newest.title, "text": newest.text}
        typed, version = {"title": title, "text": text}, str(newest.number)
        find_changes(now, typed, str(number), version=version)
        _store(newest, user, title=title, text=text)
        record(
            newest.team, user, "report.saved", newest, title=title, number=newest.number
        )
    report.refresh_from_db()


def check(title: str, text: str) -> tuple[str, str]:
    title = " ".join(title.replace("\x00", "").split())
    text = text.replace("\x00", "").replace("\r\n", "\n").replace("\r", "\n").rstrip()
    if not title:
        raise UserError("reports.no_title", "A report needs a title.")
    if len(title) > MAX_TITLE:
        raise UserError(
            "reports.title_too_long",
            f"A title has at most {MAX_TITLE} characters; this one has {len(title)}.",
        )
    if len(text) > MAX_CHARS:
        raise UserError(
            "reports.too_long",
            f"A report has at most {MAX_CHARS:,} characters; this one has "
            f"{len(text):,}. Split it.",
        )
    if (num_blocks := len(list_blocks(text))) > MAX_BLOCKS:
        raise UserError(
            "reports.too_many_blocks",
            f"A report has at most {MAX_BLOCKS} blocks; this one has "
            f"{num_blocks}. Split it.",
        )
    return title, text


def _store(report: Report, user: User, *, title: str, text: str) -> None:
    """Store a report whose row is locked, or not yet visible to others."""
    last = report.pins.aggregate(last=Max("number"))["last"] or 0
    blocks = []
    for block in list_blocks(text):
        data = _read_to_pin(report.team, block)
        if data is None:
            blocks.append(block)
            continue
        last += 1
        report.pins.create(number=last, line=block.live.line, data=data, pinned_by=user)
        blocks.append(replace(block, pin=last, wants_pin=False))
    text = replace_blocks(text, blocks)
    report.number += 1
    report.title, report.text = title, text
    report.saved_by, report.saved_at = user, timezone.now()
    report.save(update_fields=["number", "title", "text", "saved_by", "saved_at"])
    report.versions.create(number=report.number, title=title, text=text, saved_by=user)
    _delete_old(report)


def _read_to_pin(team: Team, block: Block) -> dict[str, Any] | None:
    """Return None if there are no data to pin; the page shows the reason."""
    if block.problem or not block.wants_pin:
        return None
    try:
        data: dict[str, Any] = plain(read_data(team, block))
    except ValueError:
        return None
    return data if has_content(data) else None


def _delete_old(report: Report) -> None:
    """Delete the oldest versions, and pins that no other version names."""
    if not report.versions.filter(number__lte=report.number - MAX_VERSIONS).delete()[0]:
        return
    blocks = [
        block
        for text in report.versions.values_list("text", flat=True)
        for block in list_blocks(text)
    ]
    report.pins.exclude(
        number__in={block.pin for block in blocks if block.pin is not None}
    ).delete()


def change_pin(*, report: Report, user: User, number: int, index: int, to: str) -> None:
    """Pin the block's current data, or make it live. Saves a new version."""
    blocks = list_blocks(report.text)
    if not 0 <= index < len(blocks):
        raise UserError(
            "reports.no_block", "This block no longer exists. Reload the page."
        )
    blocks[index] = replace(blocks[index].live, wants_pin=to == "pinned")
    save_report(
        report=report,
        user=user,
        number=number,
        title=report.title,
        text=replace_blocks(report.text, blocks),
    )


def restore_version(
    *, report: Report, user: User, number: int, version: ReportVersion
) -> None:
    """Save the old version as the newest one; the history stays."""
    title, text = version.title, version.text
    save_report(report=report, user=user, number=number, title=title, text=text)


def delete_report(*, report: Report, user: User) -> None:
    with transaction.atomic():
        record(report.team, user, "report.deleted", report, title=report.title)
        report.delete()


def publish(*, report: Report, user: User) -> str:
    """Make a new public link and return its token; the previous link stops working."""
    token = secrets.token_urlsafe(32)
    with transaction.atomic():
        Report.objects.filter(pk=report.pk).update(
            public_sha256=digest(token), published_by=user, published_at=timezone.now()
        )
        record(report.team, user, "report.published", report)
    report.refresh_from_db()
    return token


def revoke(*, report: Report, user: User) -> None:
    with transaction.atomic():
        Report.objects.filter(pk=report.pk).update(
            public_sha256="", published_by=None, published_at=None
        )
        record(report.team, user, "report.revoked", report)
    report.refresh_from_db()


def own_hosts(request: HttpRequest) -> set[str]:
    return {request.get_host(), urlsplit(settings.PUBLIC_URL).netloc} - {""}


def get_report(team: Team, report_id: int) -> Report:
    """Make one query, or answer 404."""
    reports = Report.objects.select_related(
        "team", "created_by", "saved_by", "published_by"
    )
    return or_404(reports.filter(team=team, pk=report_id).first(), "Report not found.")


def get_version(report: Report, number: int) -> ReportVersion:
    version = report.versions.select_related("saved_by").filter(number=number).first()
    return or_404(version, f"Version {number} of this report is not stored.")


def find_public_report(token: str) -> Report:
    """Make one query, or answer 404, for a revoked link as for an unknown one."""
    reports = Report.objects.select_related("team")
    report = reports.filter(public_sha256=digest(token)).first()
    return or_404(report, "Report not found.")


def find_reports(team: Team, text: str) -> QuerySet[Report]:
    """Reports whose title or text contains every word, newest first."""
    reports = Report.objects.filter(team=team).select_related("saved_by")
    for word in text.replace("\x00", "").split()[:MAX_WORDS]:
        reports = reports.filter(Q(title__icontains=word) | Q(text__icontains=word))
    return reports.defer("text").order_by("-saved_at", "-pk")


def list_versions(report: Report) -> list[ReportVersion]:
    return list(
        report.versions.defer("text").select_related("saved_by").order_by("-number")
    )
