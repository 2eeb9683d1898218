"""Django's admin for operators: everything to read, quotas to edit.

Data with rules is changed on the pages and by commands. Non-operators get a 404, and
there is no sign-in here: Cohort's sign-in page limits attempts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models.constants import LOOKUP_SEP
from django.forms import CharField, HiddenInput, ModelForm
from django.forms.renderers import DjangoTemplates
from django.http import Http404, HttpRequest
from django.urls import path

from dashboard.accounts.models import AuditEntry, Membership, Team, User
from dashboard.accounts.services import record
from dashboard.operations import views
from dashboard.operations.models import Quota, Retention, Use
from dashboard.runs.models import Run
from dashboard.supervision.models import Worker
from dashboard.web.edits import BASE, EditConflict, find_changes, version_of

View = TypeVar("View", bound=Callable[..., Any])
LEFT_OUT = {"login", "logout", "password_change", "password_change_done"}


class OperatorSite(admin.AdminSite):
    site_header = site_title = "Cohort for operators"
    index_title = "Server"
    enable_nav_sidebar = False

    def has_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.is_active and request.user.is_staff)

    def admin_view(self, view: View, cacheable: bool = False) -> View:
        """Respond with 404 to non-operators, in place of a sign-in page."""
        wrapped = super().admin_view(view, cacheable)

        @wraps(wrapped)
        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            if not self.has_permission(request):
                raise Http404("Page not found.")
            return wrapped(request, *args, **kwargs)

        return cast(View, guarded)

    def get_urls(self) -> list[Any]:
        """Our pages first: Django's last one matches any address."""
        urls = super().get_urls()
        for url in urls:
            # Else who is not signed in would be sent to the page left out here.
            vars(getattr(url, "callback", None) or url).pop("login_url", None)
        return [
            path("server/", self.admin_view(views.server), name="server"),
            path("runbook/", self.admin_view(views.runbook), name="runbook"),
            *(url for url in urls if getattr(url, "name", "") not in LEFT_OUT),
        ]


site = OperatorSite()


class ReadOnlyAdmin(admin.ModelAdmin[models.Model]):
    """Rows to read."""

    list_per_page = 50
    show_full_result_count = False

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Only the offered lookups: ?password__startswith=… would reveal a hash."""
        return lookup.partition(LOOKUP_SEP)[0] in self.list_filter

    def get_list_select_related(self, request: HttpRequest) -> list[str]:
        fields = (self.model._meta.get_field(str(name)) for name in self.list_display)
        return [field.name for field in fields if field.is_relation]

    def has_view_permission(self, *_args: Any, **_kwargs: Any) -> bool:
        return True  # the site checks who it is

    def has_add_permission(self, *_args: Any, **_kwargs: Any) -> bool:
        return False

    has_module_permission = has_view_permission
    has_change_permission = has_delete_permission = has_add_permission


LIMITS = ("max_bytes", "max_runs")


class QuotaForm(ModelForm):  # type: ignore[type-arg]  # takes no argument when it runs
    default_renderer = DjangoTemplates  # the admin's own widgets have no others
    base_version = CharField(required=False, widget=HiddenInput)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.now = {name: getattr(self.instance, name) for name in LIMITS}
        self.initial[BASE] = version_of(self.now)

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        typed = {name: cleaned[name] for name in LIMITS if name in cleaned}
        try:
            changes = find_changes(self.now, typed, cleaned[BASE])
            cleaned |= self.now | changes
        except EditConflict as conflict:
            for clash in conflict.clashes:
                saved = "nothing" if clash.now is None else clash.now
                message = f"Saved meanwhile: {saved}. Save again to replace it."
                self.add_error(clash.field, ValidationError(message, code="changed"))
            self.data = {**dict(self.data.items()), BASE: conflict.version}
        return cleaned


@admin.register(Quota, site=site)
class QuotaAdmin(ReadOnlyAdmin):
    """Quotas to edit, each time with an audit entry of its team."""

    form = QuotaForm
    list_display = ("team", *LIMITS)
    has_add_permission = has_change_permission = ReadOnlyAdmin.has_view_permission

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> models.Model | None:
        """Get it with a lock, if it will be changed."""
        if request.method == "POST":
            Quota.objects.select_for_update().filter(pk=object_id).first()
        return super().get_object(request, object_id, from_field)

    def save_model(
        self, request: HttpRequest, obj: Any, form: ModelForm[Any], change: bool
    ) -> None:
        assert isinstance(request.user, User)
        limits = Quota.objects.values(*LIMITS)
        before = limits.filter(pk=obj.pk).first() or dict.fromkeys(LIMITS)
        obj.save()
        after = limits.get(pk=obj.pk)
        team, verb = obj.team, "team.quota_changed"
        record(team, request.user, verb, team, **after, before=before)


USER = ("username", "display_name", "is_active", "is_staff", "last_login")
RUN = ("name", "team", "state", "owner", "last_step", "created_at")
ENTRY = ("created_at", "team", "actor", "verb", "object_type", "object_id")
LISTS: tuple[tuple[type[models.Model], tuple[str, ...], dict[str, Any]], ...] = (
    (
        User,
        USER,
        {
            "list_filter": ("is_active", "is_staff"),
            "search_fields": ("username", "display_name", "email"),
            "fields": (*USER, "email", "date_joined"),
        },
    ),
    (Team, ("slug", "name", "created_at"), {"search_fields": ("slug", "name")}),
    (
        Membership,
        ("team", "user", "role", "created_at"),
        {
            "list_filter": ("role",),
            "search_fields": ("team__slug", "user__username"),
        },
    ),
    (Use, ("team", "parts", "measured_at"), {}),
    (Retention, ("team", "trash_days", "completion_days"), {}),
    (
        Run,
        RUN,
        {
            "list_filter": ("state",),
            "search_fields": ("name",),
            "fields": (*RUN, "worker", "fail_reason", "started_at", "finished_at"),
        },
    ),
    (Worker, ("name", "last_seen", "num_slots", "drained_at"), {}),
    (
        AuditEntry,
        ENTRY,
        {
            "search_fields": ("verb",),
            "ordering": ("-id",),
            "fields": (*ENTRY, "address", "agent", "program", "detail"),
        },
    ),
)
for model, columns, options in LISTS:
    site.register(
        model, ReadOnlyAdmin, **{"list_display": columns, "fields": columns} | options
    )
