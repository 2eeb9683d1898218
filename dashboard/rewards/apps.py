from django.apps import AppConfig


class RewardsConfig(AppConfig):
    name = "dashboard.rewards"
    label = "rewards"
