"""Django's settings. What differs is read by project/environment.py."""

from __future__ import annotations

import shlex
from typing import Any

import django_stubs_ext

from dashboard.local.data_folder import embedded_addresses
from dashboard.observability.logging import log_uncaught
from dashboard.project.database import parse_database_url
from dashboard.project.environment import (
    ROOT,
    load_secret_key,
    provider_settings,
    read_environment,
    version_of_assets,
)
from dashboard.project.mail import read_mail_url

# Django's fields and managers cannot be subscripted (JSONField[...]) without this.
django_stubs_ext.monkeypatch()

_environment = read_environment()
_embedded = embedded_addresses(_environment.data)

COHORT_DATA = _environment.data
COHORT_PORT = _environment.port
DATABASE_IS_EMBEDDED = _environment.database_url is None
REDIS_IS_EMBEDDED = _environment.redis_url is None
# With the variables that this server was started with.
MAKE_LINK = "make link"
if COHORT_PORT != 8000:
    MAKE_LINK = f"COHORT_PORT={COHORT_PORT} {MAKE_LINK}"
if COHORT_DATA != ROOT / ".cohort":
    MAKE_LINK = f"COHORT_DATA={shlex.quote(str(COHORT_DATA))} {MAKE_LINK}"
DATABASE_URL = _environment.database_url or _embedded.database_url
REDIS_URL = (
    _environment.redis_url or _embedded.redis_url
)  # redis://, rediss://, unix://

# Where datasets may be fetched from; see datasets/fetching/http.py.
DATASET_HOSTS = _environment.dataset_hosts
MODEL_FOLDERS = _environment.model_folders
TASKSETS = _environment.tasksets
TASKSETS_PYTHON = _environment.tasksets_python
SERVERS = _environment.servers
HUB_ENDPOINT = _environment.hub_endpoint
HUB_TOKEN = _environment.hub_token
# Which runs a training worker of this process accepts; see runs/queue/hosts.py.
COHORT_WORKER_CLASS = _environment.worker_class
COHORT_HANG_SECONDS = _environment.hang_seconds
# The cluster of runs with distributed.where = "ray"; "": there is none.
COHORT_RAY_ADDRESS = _environment.ray_address
COHORT_RAY_STORAGE = _environment.ray_storage
COHORT_RAY_TEAM_ADDRESSES = _environment.ray_team_addresses

# Where alerts go, and where their links lead.
WEBHOOK_HOSTS = _environment.webhook_hosts
PUBLIC_URL = _environment.url
# Base of links in e-mails; "": the address of the request.
LINKS_BEGIN = _environment.url if _environment.is_url_given else ""
# No other host name leads here, so a browser's two names for this machine are one.
IS_FOR_THIS_MACHINE = (
    DATABASE_IS_EMBEDDED
    and not _environment.is_url_given
    and not _environment.added_hosts
)
_mail = read_mail_url(_environment.email_url)
MAIL_IS_SET_UP = _mail is not None
DEFAULT_FROM_EMAIL = _environment.email_from
EMAIL_TIMEOUT = 10
if _mail is not None:
    EMAIL_HOST, EMAIL_PORT = _mail.host, _mail.port
    EMAIL_HOST_USER, EMAIL_HOST_PASSWORD = _mail.username, _mail.password
    EMAIL_USE_TLS, EMAIL_USE_SSL = _mail.starts_tls, _mail.is_tls

LOG_FORMAT = _environment.observing.log_format
HAS_PROXY_IDS = _environment.observing.has_proxy_ids
METRICS_TOKEN = _environment.observing.metrics_token
LEAST_FREE_BYTES = _environment.observing.least_free_bytes
SENTRY_DSN = _environment.observing.sentry_dsn
OTLP_ENDPOINT = _environment.observing.otlp_endpoint

DEBUG = False
SECRET_KEY = _environment.secret_key or load_secret_key(COHORT_DATA)
ALLOWED_HOSTS = list(_environment.allowed_hosts)
# Hosts that e-mail links never use, even if the request came by them.
ADDED_HOSTS = list(_environment.added_hosts)

INSTALLED_APPS = [
    # The operator pages; dashboard.operations.admin says what is used.
    "django.contrib.admin.apps.SimpleAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "django.contrib.postgres",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.github",
    "allauth.socialaccount.providers.google",
    "allauth.socialaccount.providers.openid_connect",
    "allauth.usersessions",
    "channels",
    "django_htmx",
    "ninja",  # for the files of its Swagger UI
    "dashboard.local",
    "dashboard.accounts",
    "dashboard.live",
    "dashboard.jobs",
    "dashboard.datasets",
    "dashboard.rewards",
    "dashboard.runs",
    "dashboard.apps.CompletionsConfig",
    "dashboard.costs",
    "dashboard.alerts",
    "dashboard.apps.SupervisionConfig",
    "dashboard.analysis.probes",
    "dashboard.analysis.questions",
    "dashboard.analysis.rescoring",
    "dashboard.apps.TransfersConfig",
    "dashboard.analysis.reports",
    "dashboard.api",
    "dashboard.help",
    "dashboard.pages",
    "dashboard.operations",
]
MIDDLEWARE = [
    "dashboard.observability.requests.RequestMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "dashboard.web.middleware.TrustMiddleware",
    "dashboard.accounts.request_context.RequestContextMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "dashboard.web.middleware.RefusedMethodMiddleware",
    "dashboard.web.overload.OverloadMiddleware",
    "dashboard.web.middleware.CharsetMiddleware",
]
TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [ROOT / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "dashboard.pages.shell.shell",
            ],
            "builtins": [
                "dashboard.pages.templatetags.addresses",
                "dashboard.web.edits",
            ],
        },
    }
]
FORM_RENDERER = "django.forms.renderers.Jinja2"  # a fifth of the time of Django's own
ROOT_URLCONF = "dashboard.urls"
ASGI_APPLICATION = "dashboard.asgi.application"

DATABASES = {
    "default": parse_database_url(DATABASE_URL, _environment.database_password)
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.core.RedisChannelLayer",
        # The layer only notifies: a message that is lost or late costs nothing.
        "CONFIG": {"hosts": [REDIS_URL], "prefix": "cohort", "capacity": 100},
    }
}

CELERY_BROKER_URL = REDIS_URL.replace("unix://", "redis+socket://")
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = False  # the Run row is the truth; a redelivery only costs
CELERY_TASK_DEFAULT_QUEUE = "default"
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_SEND_TASK_EVENTS = False
CELERY_TIMEZONE = "UTC"
CELERY_BEAT_SCHEDULE_FILENAME = str(COHORT_DATA / "beat-schedule")

AUTH_USER_MODEL = "accounts.User"
AUTHENTICATION_BACKENDS = [
    "django.contrib.auth.backends.ModelBackend",
    "allauth.account.auth_backends.AuthenticationBackend",
]
LOGIN_URL = "sign_in"
LOGIN_REDIRECT_URL = "home"
LOGOUT_REDIRECT_URL = "sign_in"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
# django-allauth: e-mail addresses, second factors, passkeys, the list of sessions.
ACCOUNT_ADAPTER = "dashboard.accounts.adapters.AccountAdapter"
ACCOUNT_LOGIN_METHODS = {"username"}
ACCOUNT_SIGNUP_FIELDS = ["username*", "email", "password1*", "password2*"]
ACCOUNT_EMAIL_VERIFICATION = "optional"  # without a mail server no one is locked out
ACCOUNT_EMAIL_UNKNOWN_ACCOUNTS = False  # no mail to who has no account
ACCOUNT_REAUTHENTICATION_REQUIRED = True
# Limits password guesses in an open session.
ACCOUNT_RATE_LIMITS = {"reauthenticate": "10/15m/user"}
ACCOUNT_EMAIL_SUBJECT_PREFIX = ""
ACCOUNT_FORMS = {
    "reset_password_from_key": "dashboard.accounts.forms.ForgottenPasswordForm"
}
MFA_ADAPTER = "dashboard.accounts.adapters.FactorAdapter"
MFA_FORMS = {
    "add_webauthn": "dashboard.accounts.adapters.AddKeyForm",
    "authenticate_webauthn": "dashboard.accounts.adapters.AuthenticateKeyForm",
    "login_webauthn": "dashboard.accounts.adapters.LoginKeyForm",
    "reauthenticate_webauthn": "dashboard.accounts.adapters.ReauthenticateKeyForm",
}
MFA_SUPPORTED_TYPES = ["totp", "webauthn", "recovery_codes"]
MFA_ALLOW_UNVERIFIED_EMAIL = True  # as above
MFA_PASSKEY_LOGIN_ENABLED = True
MFA_TOTP_ISSUER = "Cohort"
# On one machine pages come from http://localhost. Browsers have keys for that and for
# TLS alone, so for nothing that is not safe.
MFA_WEBAUTHN_ALLOW_INSECURE_ORIGIN = True
SOCIALACCOUNT_ADAPTER = "dashboard.accounts.adapters.ProviderAdapter"
SOCIALACCOUNT_EMAIL_VERIFICATION = "none"
SOCIALACCOUNT_QUERY_EMAIL = False
# An address elsewhere proves nothing here: accounts are connected by who is signed in.
SOCIALACCOUNT_EMAIL_AUTHENTICATION = False
SOCIALACCOUNT_STORE_TOKENS = False
SIGN_IN_PROVIDERS = {
    provider.key: provider.name for provider in _environment.sign_in_providers
}
SOCIALACCOUNT_PROVIDERS = provider_settings(_environment.sign_in_providers)
# Cookies have our own names: other programs on localhost share the cookie jar.
SESSION_ENGINE = "dashboard.accounts.sessions"
SESSION_COOKIE_NAME = "cohort_session"
SESSION_COOKIE_AGE = 60 * 60 * 24 * 30
CSRF_COOKIE_NAME = "cohort_csrf"
CSRF_COOKIE_SAMESITE = "Lax"
# If the proxy's TLS header is not trusted, its visitors' forms are still accepted.
CSRF_TRUSTED_ORIGINS = list(_environment.trusted_origins)
SESSION_COOKIE_SAMESITE = "Lax"
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
# One machine serves plain HTTP on loopback; a proxy in front of a server brings TLS,
# redirects and HSTS, and TrustMiddleware then marks the cookies secure.
SILENCED_SYSTEM_CHECKS = [
    "security.W004",  # HSTS
    "security.W008",  # redirect to TLS
    "security.W012",  # session cookie, see TrustMiddleware
    "security.W016",  # CSRF cookie, see TrustMiddleware
]

# Browsers cache these forever: changed files get other addresses.
STATIC_URL = f"/static/{version_of_assets(ROOT)}/"
WHITENOISE_IMMUTABLE_FILE_TEST = "^/static/"
STATICFILES_DIRS = [
    ROOT / "static",
    ("vendor/tabler/css", ROOT / "node_modules/@tabler/core/dist/css"),
    ("vendor/diff", ROOT / "node_modules/diff/dist"),
    ("vendor/plotly", ROOT / "node_modules/plotly.js-cartesian-dist-min"),
    ("vendor/htmx", ROOT / "node_modules/htmx.org/dist"),
]
WHITENOISE_USE_FINDERS = True  # no collecting: files are served from where they lie
WHITENOISE_AUTOREFRESH = False
WHITENOISE_ALLOW_ALL_ORIGINS = False

LANGUAGE_CODE = "en"
USE_I18N = False
USE_TZ = True
TIME_ZONE = "UTC"

DATA_UPLOAD_MAX_MEMORY_SIZE = 10 * 1024 * 1024
FILE_UPLOAD_TEMP_DIR = None

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "text": {"()": "dashboard.observability.logging.TextLine"},
        "json": {"()": "dashboard.observability.logging.JsonLine"},
    },
    "handlers": {
        "stderr": {"class": "logging.StreamHandler", "formatter": LOG_FORMAT},
    },
    "root": {"handlers": ["stderr"], "level": "INFO"},
    "loggers": {
        # A 404 is a client error.
        "django.request": {"level": "ERROR"},
        # Client errors, such as a forged Host, are not our errors: the
        # request's line logs the 400. Why a form was rejected is logged.
        "django.security": {"level": "CRITICAL"},
        "django.security.csrf": {"level": "WARNING"},
        # uvicorn has already configured its handlers.
        "uvicorn": {"handlers": ["stderr"], "level": "INFO", "propagate": False},
        # Addresses contain tokens, see observability/requests.py.
        "uvicorn.access": {"handlers": [], "propagate": False},
    },
}
if LOG_FORMAT == "json":
    log_uncaught()
