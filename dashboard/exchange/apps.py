from django.apps import AppConfig


class ExchangeConfig(AppConfig):
    name = "dashboard.exchange"
    label = "exchange"
