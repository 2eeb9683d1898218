from django.apps import AppConfig


class AuditLogConfig(AppConfig):
    name = "dashboard.auditlog"
    label = "auditlog"
