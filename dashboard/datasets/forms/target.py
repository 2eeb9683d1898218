"""Where chosen rows go: into a new dataset, or into a new version of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

from django import forms

from dashboard.accounts.models import Team, User
from dashboard.datasets.forms.name import NameField, free_name
from dashboard.datasets.imports.jobs import begin_work
from dashboard.datasets.models import Dataset, DatasetVersion, ImportJob
from dashboard.datasets.rows.reading import are_few
from dashboard.datasets.selections import find_job, key_of, start_again, start_selection
from dashboard.jobs.models import JobState
from dashboard.project.forms import offer


class TargetForm(forms.Form):
    target = forms.ChoiceField(
        label="Save as",
        required=False,
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    name = NameField()
    # Drawn for each form that is shown: sent twice, it asks for the same thing.
    key = forms.UUIDField(widget=forms.HiddenInput)

    def __init__(self, team: Team, *, name: str, data: Any = None) -> None:
        self.team = team
        super().__init__(data, initial={"name": name[:80], "key": uuid4()})
        self.fields["name"].required = False
        self.fields["name"].help_text = "Of the new dataset."
        datasets = team.datasets.filter(trashed_at__isnull=True).order_by("-pk")
        self._datasets = {str(dataset.pk): dataset for dataset in datasets}
        newer = [(key, f"a new version of {it}") for key, it in self._datasets.items()]
        offer(self, "target", [("", "a new dataset"), *newer])

    def clean(self) -> dict[str, Any]:
        given = self.cleaned_data
        is_named = given.get("target") or given.get("name") or "name" in self.errors
        if not is_named:
            self.add_error("name", "A new dataset needs a name. Give one.")
        return given

    def start(
        self,
        *,
        parent: DatasetVersion,
        source: dict[str, Any],
        user: User,
        positions: Sequence[int] = (),
    ) -> ImportJob | None:
        """The job that a valid form asks for; None: the form says why there is none.

        Where the name is taken, it may be by what this very form has made.
        """
        key = key_of(
            self.form_key, name=self.new_name, dataset=self.dataset, source=source
        )
        try:
            free_name(self.team, self.new_name)
        except forms.ValidationError as error:
            if job := find_job(self.team, key):
                return job
            self.add_error("name", error)
            return None
        job, is_new = start_selection(
            parent=parent,
            source=source,
            name=self.new_name,
            dataset=self.dataset,
            user=user,
            key=key,
            positions=positions,
        )
        while not is_new and job.state in (JobState.FAILED, JobState.CANCELLED):
            job, is_new = start_again(job, user)  # sent anew after it came to nothing
        if is_new:
            begin_work(job, at_once=are_few(parent, positions=positions))
        if job.state == JobState.FAILED:
            self.add_error(None, job.error)
            return None
        return job

    @property
    def dataset(self) -> Dataset | None:
        """The one that gets a new version."""
        return self._datasets.get(self.cleaned_data.get("target", ""))

    @property
    def new_name(self) -> str:
        return "" if self.dataset else self.cleaned_data["name"]

    @property
    def form_key(self) -> UUID:
        key: UUID = self.cleaned_data["key"]
        return key
