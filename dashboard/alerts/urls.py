"""Included at /<team>/."""

from __future__ import annotations

from django.urls import path

from dashboard.alerts.views import alerts, delivery, rules

urlpatterns = [
    path("alerts/", alerts.alerts, name="alerts"),
    path("alerts/<int:alert_id>/", alerts.alert, name="alert"),
    path(
        "alerts/<int:alert_id>/acknowledge",
        alerts.alert_acknowledge,
        name="alert_acknowledge",
    ),
    path("alerts/rules/", rules.alert_rules, name="alert_rules"),
    path("alerts/rules/<int:rule_id>/", rules.alert_rule, name="alert_rule"),
    path(
        "alerts/rules/<int:rule_id>/switch",
        rules.alert_rule_switch,
        name="alert_rule_switch",
    ),
    path(
        "alerts/rules/<int:rule_id>/mute", rules.alert_rule_mute, name="alert_rule_mute"
    ),
    path(
        "alerts/rules/<int:rule_id>/delete",
        rules.alert_rule_delete,
        name="alert_rule_delete",
    ),
    path("alerts/delivery/", delivery.alert_delivery, name="alert_delivery"),
    path(
        "alerts/delivery/<int:channel_id>/test",
        delivery.alert_channel_test,
        name="alert_channel_test",
    ),
    path(
        "alerts/delivery/<int:channel_id>/switch",
        delivery.alert_channel_switch,
        name="alert_channel_switch",
    ),
    path(
        "alerts/delivery/<int:channel_id>/secret",
        delivery.alert_channel_secret,
        name="alert_channel_secret",
    ),
    path(
        "alerts/delivery/<int:channel_id>/events",
        delivery.alert_channel_events,
        name="alert_channel_events",
    ),
    path(
        "alerts/delivery/<uuid:delivery_id>/again",
        delivery.alert_delivery_again,
        name="alert_delivery_again",
    ),
    path(
        "alerts/delivery/<int:channel_id>/delete",
        delivery.alert_channel_delete,
        name="alert_channel_delete",
    ),
    path("runs/<int:run_id>/alerts/", alerts.run_alerts, name="run_alerts"),
    path(
        "runs/<int:run_id>/alerts.json", alerts.run_alerts_live, name="run_alerts_live"
    ),
    path(
        "runs/<int:run_id>/alerts/mute", alerts.run_alerts_mute, name="run_alerts_mute"
    ),
]
