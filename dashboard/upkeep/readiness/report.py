"""All parts at once: each within two seconds, whatever hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from dashboard.upkeep.readiness.database import check_database, unreachable
from dashboard.upkeep.readiness.files import check_folder, check_static
from dashboard.upkeep.readiness.parts import Part, Report, missing
from dashboard.upkeep.readiness.servers import check_redis, redis_gone
from dashboard.upkeep.readiness.waiting import Shared

CHECK_SECONDS = 2.0
SHARED_SECONDS = 1.0
SILENT = f"no answer within {CHECK_SECONDS:g} s"
Check = Callable[[], Awaitable[list[Part]]]


async def look() -> Report:
    checks: list[tuple[Check, Callable[[str], list[Part]]]] = [
        (check_database, unreachable),
        (check_static, _static_hangs),
        (check_redis, redis_gone),
        (check_folder, _folder_hangs),
    ]
    found = await asyncio.gather(*(_bounded(*check) for check in checks))
    return Report(parts=[part for parts in found for part in parts])


async def _bounded(check: Check, silent: Callable[[str], list[Part]]) -> list[Part]:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return await check()
    except TimeoutError:
        return silent(SILENT)


def _static_hangs(why: str) -> list[Part]:
    remedy = "Look at the disk that Cohort is installed on."
    return [
        missing(
            "static files", why, remedy, runbook="the-disk-is-full", is_required=True
        )
    ]


def _folder_hangs(why: str) -> list[Part]:
    remedy = "Look at the disk, or the server of the shared folder, of COHORT_DATA."
    return [missing("data folder", why, remedy, runbook="the-disk-is-full")]


_shared = Shared(look, seconds=SHARED_SECONDS)
read_report = _shared.read
forget_report = _shared.forget
