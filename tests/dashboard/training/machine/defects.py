"""The product with one of its guards broken: what the machine must find out."""

from __future__ import annotations

import inspect
import textwrap
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from dashboard.runs import state
from dashboard.training import (
    dispatch,
    ending,
    ingest,
    lease,
    lives,
    preparing,
    reaper,
    supervise,
    takeover,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """A function whose text is changed."""

    module: ModuleType
    name: str
    old: str
    new: str
    users: tuple[ModuleType, ...] = ()  # others that have imported it

    def put_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = inspect.unwrap(getattr(self.module, self.name))
        text = textwrap.dedent(inspect.getsource(whole))
        assert text.count(self.old) == 1, text
        scope: dict[str, Any] = dict(vars(self.module))
        exec(text.replace(self.old, self.new), scope)  # noqa: S102 - our own text
        for module in (self.module, *self.users):
            monkeypatch.setattr(module, self.name, scope[self.name])


DEFECTS = {
    "an epoch is no fence": Defect(
        module=ingest,
        name="_fence",
        old="AND epoch = %s AND state = ANY",
        new="AND epoch >= %s AND state = ANY",
    ),
    "nothing is superseded": Defect(
        module=takeover,
        name="cut_history",
        old="current.filter(step__gt=after)",
        new="current.filter(step__gt=after + 1_000)",
    ),
    "leases are not looked at": Defect(
        module=reaper,
        name="reap",
        old="state__in=HOLDING, lease_until__lt=Now()",
        new="state__in=HOLDING",
    ),
    "numbers are taken outside of the transaction": Defect(
        module=ingest,
        name="ingest",
        old="with transaction.atomic():",
        new="if True:",
        users=(takeover, supervise),
    ),
    "the old log's tail is left out": Defect(
        module=takeover,
        name="drain_old_log",
        old="num_new += ingest(claim, kept)",
        new="num_new += 0",
    ),
    "lines are stored again": Defect(
        module=ingest, name="last_ingested_line", old="last or 0", new="0"
    ),
    "a loss is not audited": Defect(
        module=state,
        name="transition",
        old="        record(\n",
        new="        target == _S.LOST or record(\n",
        users=(lives,),
    ),
    "an end keeps its lease": Defect(
        module=state,
        name="transition",
        old='fields.setdefault("lease_until", None)',
        new='target in ENDED or fields.setdefault("lease_until", None)',
        users=(ending, lives),
    ),
    "a lost run stays lost": Defect(
        module=lives,
        name="lose_life",
        old="    if run.attempt >= MAX_ATTEMPTS:",
        new="    if run.attempt:\n        return True\n    if False:",
        users=(ending, reaper),
    ),
    "nobody is rung for": Defect(
        module=dispatch, name="dispatch", old="range(num_rings)", new="range(0)"
    ),
    "progress stays where it was": Defect(
        module=takeover,
        name="cut_history",
        old="    write_progress(run.id, _progress_at(run, after))\n",
        new="",
    ),
    "two may claim a run": Defect(
        module=lease,
        name="claim_run",
        old='epoch=F("epoch") + 1',
        new='epoch=F("epoch")',
    ),
    "who concludes need not hold the run": Defect(
        module=ending, name="_hold", old="claim.guard, ", new=""
    ),
    "a zombie renews": Defect(
        module=lease,
        name="renew",
        old="claim.guard, ",
        new="",
        users=(supervise, preparing),
    ),
    "a zombie's checkpoints are gone on from": Defect(
        module=takeover,
        name="_ends_of_lives",
        old="end = min(end, from_step)",
        new="pass",
    ),
}
