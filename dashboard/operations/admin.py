"""Django's admin for operators: everything to read, quotas to edit.

Data with rules is changed on the pages and by commands. Non-operators get a 404, and
there is no sign-in here: Cohort's sign-in page limits attempts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar, TypeVar, cast

from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models.constants import LOOKUP_SEP
from django.forms import ModelForm
from django.forms.renderers import DjangoTemplates
from django.http import Http404, HttpRequest
from django.urls import path

from dashboard.accounts.models import AuditEntry, Membership, Team, User
from dashboard.accounts.services import record
from dashboard.operations import views
from dashboard.operations.models import Quota, Retention, Use
from dashboard.project.edits import raw
from dashboard.runs.models import Run
from dashboard.training.models import Worker

View = TypeVar("View", bound=Callable[..., Any])
LEFT_OUT = {"login", "logout", "password_change", "password_change_done"}


class OperatorSite(admin.AdminSite):
    site_header = site_title = "Cohort for operators"
    index_title = "Server"
    enable_nav_sidebar = False

    def has_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.is_active and request.user.is_staff)

    def admin_view(self, view: View, cacheable: bool = False) -> View:
        """404 for non-operators, in place of a sign-in page."""
        wrapped = super().admin_view(view, cacheable)

        @wraps(wrapped)
        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            if not self.has_permission(request):
                raise Http404("Page not found.")
            return wrapped(request, *args, **kwargs)

        return cast(View, guarded)

    def get_urls(self) -> list[Any]:
        """Our pages first: Django's last one matches any address."""
        found = super().get_urls()
        for one in found:
            # Else who is not signed in would be sent to the page left out here.
            vars(getattr(one, "callback", None) or one).pop("login_url", None)
        return [
            path("server/", self.admin_view(views.server), name="server"),
            path("runbook/", self.admin_view(views.runbook), name="runbook"),
            *(one for one in found if getattr(one, "name", "") not in LEFT_OUT),
        ]


site = OperatorSite()


class ReadOnlyAdmin(admin.ModelAdmin[models.Model]):
    """Rows to read."""

    list_per_page = 50
    show_full_result_count = False

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Only the offered lookups: ?password__startswith=… would reveal a hash."""
        return lookup.partition(LOOKUP_SEP)[0] in self.list_filter

    def has_view_permission(self, *_args: Any, **_kwargs: Any) -> bool:
        return True  # the site checks who it is

    def has_module_permission(self, request: HttpRequest) -> bool:
        return True

    def has_add_permission(self, *_args: Any, **_kwargs: Any) -> bool:
        return False

    def has_change_permission(self, *_args: Any, **_kwargs: Any) -> bool:
        return False

    def has_delete_permission(self, *_args: Any, **_kwargs: Any) -> bool:
        return False


class EditableForm(ModelForm):  # type: ignore[type-arg]  # takes no argument when it runs
    """Saves what was changed, unless someone else changed it since."""

    default_renderer = DjangoTemplates  # the admin's own widgets have no others

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.now = {
            name: raw(self.get_initial_for_field(field, name))
            for name, field in self.fields.items()
        }
        for field in self.fields.values():
            # What was changed is known by what the form showed, not by the row.
            field.show_hidden_initial = self.instance.pk is not None

    def clean(self) -> dict[str, Any]:
        data = super().clean() or self.cleaned_data
        if self.instance.pk is not None:
            self._refuse_lost({n for n in self.changed_data if n in data})
        return data

    def _refuse_lost(self, changed: set[str]) -> None:
        shown = dict(self.data.items())
        for name in changed:
            field, now = self[name], self.now[name]
            was = shown.get(field.html_initial_name, now)
            if now not in (was, shown.get(field.html_name)):
                message = (
                    f"Someone saved {now or 'an empty value'} after you opened the "
                    "form. Save again to overwrite it."
                )
                self.add_error(name, ValidationError(message, code="changed"))
                shown[field.html_initial_name] = now
        self.data = shown


class EditableAdmin(ReadOnlyAdmin):
    """Rows to edit, each time with an audit entry of its team."""

    def has_add_permission(self, *_args: Any, **_kwargs: Any) -> bool:
        return True

    def has_change_permission(self, *_args: Any, **_kwargs: Any) -> bool:
        return True

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> models.Model | None:
        """With a lock, if it will be changed."""
        if request.method == "POST":
            self.model._default_manager.select_for_update().filter(pk=object_id).first()
        return super().get_object(request, object_id, from_field)

    def save_model(
        self, request: HttpRequest, obj: Any, form: ModelForm[Any], change: bool
    ) -> None:
        assert isinstance(request.user, User)
        before = type(obj).objects.filter(pk=obj.pk).values().first() or {}
        obj.save(update_fields=form.changed_data if change else None)
        obj.refresh_from_db()
        after = {name: getattr(obj, name) for name in self.audited}
        held = {name: before.get(name) for name in self.audited}
        record(obj.team, request.user, self.verb, obj.team, **after, before=held)

    form = EditableForm
    audited: ClassVar[tuple[str, ...]]
    verb: ClassVar[str]


@admin.register(User, site=site)
class UserAdmin(ReadOnlyAdmin):
    list_display = ("username", "display_name", "is_active", "is_staff", "last_login")
    list_filter = ("is_active", "is_staff")
    search_fields = ("username", "display_name", "email")
    fields = (*list_display, "email", "date_joined")


@admin.register(Team, site=site)
class TeamAdmin(ReadOnlyAdmin):
    list_display = ("slug", "name", "created_at")
    search_fields = ("slug", "name")
    fields = list_display


@admin.register(Membership, site=site)
class MembershipAdmin(ReadOnlyAdmin):
    list_display = ("team", "user", "role", "created_at")
    list_filter = ("role",)
    list_select_related = ("team", "user")
    search_fields = ("team__slug", "user__username")


@admin.register(Quota, site=site)
class QuotaAdmin(EditableAdmin):
    list_display = ("team", "max_bytes", "max_runs")
    list_select_related = ("team",)
    audited = ("max_bytes", "max_runs")
    verb = "team.quota_changed"


@admin.register(Use, site=site)
class UseAdmin(ReadOnlyAdmin):
    list_display = ("team", "parts", "measured_at")
    list_select_related = ("team",)


@admin.register(Retention, site=site)
class RetentionAdmin(ReadOnlyAdmin):
    list_display = ("team", "trash_days")
    list_select_related = ("team",)


@admin.register(Run, site=site)
class RunAdmin(ReadOnlyAdmin):
    list_display = ("name", "team", "state", "owner", "last_step", "created_at")
    list_filter = ("state",)
    list_select_related = ("team", "owner")
    search_fields = ("name",)
    fields = (*list_display, "worker", "fail_reason", "started_at", "finished_at")


@admin.register(Worker, site=site)
class WorkerAdmin(ReadOnlyAdmin):
    list_display = ("name", "last_seen", "num_slots", "drained_at")
    fields = list_display


@admin.register(AuditEntry, site=site)
class AuditEntryAdmin(ReadOnlyAdmin):
    list_display = ("created_at", "team", "actor", "verb", "object_type", "object_id")
    list_select_related = ("team", "actor")
    search_fields = ("verb",)
    ordering = ("-id",)
