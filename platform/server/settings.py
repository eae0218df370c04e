"""Django settings, read from environment variables, each of which is described in docs/reference/configuration.md."""

import json
import socket
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import django_stubs_ext
import structlog
from django.core.exceptions import ImproperlyConfigured

from core.db.database import PlatformConnection
from core.egress_policy import AllowList
from core.telemetry.logs import AccessFormatter, add_request, redact_line
from server import console, env

django_stubs_ext.monkeypatch()

BASE_DIR = Path(__file__).resolve().parent.parent.parent
VERSION: str = tomllib.loads((BASE_DIR / "pyproject.toml").read_text())["project"]["version"]

DEBUG = env.flag("DEBUG", default=False)
STATE_DIR = Path(env.text("STATE_DIR", ".run"))
# Directory of the built documentation site; container images already contain the site.
GUIDE_DIR = Path(env.text("GUIDE_DIR") or STATE_DIR / "guide")
_HINT = "start the platform with `python3 manage.py up`, or set it yourself (docs/reference/configuration.md)."
SECRET_KEY = env.required("SECRET_KEY", hint=_HINT)
API_KEY_PEPPER = env.required("API_KEY_PEPPER", hint=_HINT)
ENCRYPTION_KEYS = env.names("ENCRYPTION_KEYS")
ALLOWED_HOSTS = env.names("ALLOWED_HOSTS", default=("localhost", "127.0.0.1", "[::1]"))
PORT = env.port("PORT", default=8000)
# Prepares a process for its first request before it counts as ready.
WARM_UP = env.flag("WARM_UP", default=True)
# Protects /metrics. Without it, only clients on this machine and clients of METRICS_PORT may read it.
METRICS_TOKEN = env.text("METRICS_TOKEN")
METRICS_HOST = env.text("METRICS_HOST", "127.0.0.1")
METRICS_PORT = env.port("METRICS_PORT")
# Also counts responses, tokens and cost by team: each team is a time series per model.
METRICS_TEAM_LABEL = env.flag("METRICS_TEAM_LABEL", default=False)
# Destination of traces and metrics in OpenTelemetry's protocol; nothing is recorded without it.
OTEL_EXPORTER_OTLP_ENDPOINT = env.text("OTEL_EXPORTER_OTLP_ENDPOINT")
OTEL_SERVICE_NAME = env.text("OTEL_SERVICE_NAME", "responses-platform")
# Number of our proxies in front of the platform: as many entries of X-Forwarded-For are trusted, from the right.
TRUSTED_PROXIES = env.integer("TRUSTED_PROXIES", default=0, minimum=0)
UPSTREAM_BASE_URL = env.text("UPSTREAM_BASE_URL")
UPSTREAM_API_KEY = env.text("UPSTREAM_API_KEY")
if UPSTREAM_API_KEY and "@" in urlsplit(UPSTREAM_BASE_URL).netloc:
    raise ImproperlyConfigured("UPSTREAM_BASE_URL has a user name, and UPSTREAM_API_KEY is set: use one of them.")
# Default model for embedding the files of vector stores.
EMBEDDING_MODEL = env.text("EMBEDDING_MODEL")
# Default model for generating images.
IMAGE_MODEL = env.text("IMAGE_MODEL")
# Default model for summarizing raw reasoning.
REASONING_SUMMARY_MODEL = env.text("REASONING_SUMMARY_MODEL")
# Default search engine, for teams without one in the admin.
SEARXNG_URL = env.text("SEARXNG_URL")
SANDBOX_URL = env.text("SANDBOX_URL")
SANDBOX_TOKEN = env.text("SANDBOX_TOKEN")
CONTAINER_ALLOWED_DOMAINS = [name.lower() for name in env.names("CONTAINER_ALLOWED_DOMAINS")]
# OpenID Connect provider for single sign-on; the issuer must serve /.well-known/openid-configuration.
OIDC_ISSUER = env.text("OIDC_ISSUER").rstrip("/")
OIDC_CLIENT_ID = env.text("OIDC_CLIENT_ID")
OIDC_CLIENT_SECRET = env.text("OIDC_CLIENT_SECRET")
OIDC_NAME = env.text("OIDC_NAME", "Single sign-on")
# Creates accounts on the first sign-in through the provider, without any role.
OIDC_SIGNUP = env.flag("OIDC_SIGNUP", default=False)
REQUIRE_SECOND_FACTOR = env.flag("REQUIRE_SECOND_FACTOR", default=False)
EGRESS_ALLOW = AllowList.parse(env.names("EGRESS_ALLOW"))

# -- apps and middleware -----------------------------------------------------------------------------------------------

INSTALLED_APPS = [
    "unfold",
    "unfold.contrib.filters",
    "server",
    # Without autodiscovery: only `server.urls` needs the pages, and they import most of the platform.
    "django.contrib.admin.apps.SimpleAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "django.contrib.humanize",
    "django.forms",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.usersessions",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.openid_connect",
    "csp",
    "rest_framework",
    "tenants",
    "deliveries",
    "conversations",
    "skills",
    "containers",
    "idempotency",
    "organization",
    "responses",
    "routing",
    "tools.vectors",
    "billing",
    "seeding",
]
# Plug-ins of the hosted tools (`responses.tools.plugin.ToolPlugin`).
HOSTED_TOOLS = [
    "tools.mcp.plugin.McpPlugin",
    "tools.file_search.plugin.FileSearchPlugin",
    "tools.web_search.plugin.WebSearchPlugin",
    "tools.code_interpreter.plugin.ContainerPlugin",
    "tools.image_generation.plugin.ImageGenerationPlugin",
    # Last, because it has to find the deferred tools of the others.
    "tools.tool_search.plugin.ToolSearchPlugin",
]

# For the site only. API requests bypass the middleware (`server.asgi`): they have no sessions, cookies or CSRF tokens,
# and each synchronous middleware would cost an asynchronous view a switch to another thread.
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "server.web.middleware.StaticFilesMiddleware",
    "server.assets.compression.PageCompressionMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "server.web.middleware.MethodNotAllowedMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "csp.middleware.CSPMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "tenants.middleware.SecondFactorMiddleware",
    "tenants.middleware.TeamScopeMiddleware",
]

ROOT_URLCONF = "server.urls"
ASGI_APPLICATION = "server.asgi.application"
APPEND_SLASH = True

_TEMPLATE_LOADERS = [
    "server.assets.compact_templates.FilesystemLoader",
    "server.assets.compact_templates.AppDirectoriesLoader",
]
# Forms use the same templates as pages, so that ours replace those of Unfold's fields.
FORM_RENDERER = "django.forms.renderers.TemplatesSetting"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "OPTIONS": {
            "loaders": _TEMPLATE_LOADERS if DEBUG else [("django.template.loaders.cached.Loader", _TEMPLATE_LOADERS)],
            "context_processors": [
                "django.template.context_processors.debug",
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "tenants.sign_in.admin_context",
            ],
        },
    },
]

REST_FRAMEWORK: dict[str, Any] = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["tenants.authentication.BearerAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["tenants.authentication.HasScope"],
    "DEFAULT_THROTTLE_CLASSES": ["limits.throttle.LimitThrottle"],
    "DEFAULT_RENDERER_CLASSES": ["core.http.rendering.Renderer"],
    "DEFAULT_PARSER_CLASSES": ["core.http.rendering.BytesParser"],
    "EXCEPTION_HANDLER": "core.http.rendering.exception_handler",
    "UNAUTHENTICATED_USER": None,
    "UNAUTHENTICATED_TOKEN": None,
}

# Pages of these origins may call the API from a browser (`server.web.cors`); * means any. There are never credentials:
# the API uses keys, and the cookies of the console must be of no use to other sites.
_CORS_ORIGINS = env.origins("CORS_ALLOWED_ORIGINS")
CORS_ALLOW_ALL_ORIGINS = _CORS_ORIGINS == ["*"]
CORS_ALLOWED_ORIGINS = [] if CORS_ALLOW_ALL_ORIGINS else _CORS_ORIGINS
CORS_ALLOW_CREDENTIALS = False
CORS_URLS_REGEX = r"^/(v1/|openapi\.json$)"
CORS_ALLOW_METHODS = ("GET", "HEAD", "POST", "DELETE")
# The asterisk covers the many x-stainless-* headers of SDKs, but by definition not Authorization.
CORS_ALLOW_HEADERS = ("authorization", "*")
CORS_EXPOSE_HEADERS = (
    "content-disposition",
    "etag",
    "openai-poll-after-ms",
    "openai-processing-ms",
    "x-warning",
    "openai-version",
    "request-id",
    "retry-after",
    "x-progress-output-tokens",
    "x-progress-tool",
    "x-progress-turns",
    "x-queue-position",
    "x-ratelimit-limit-requests",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-requests",
    "x-ratelimit-reset-tokens",
    "x-request-id",
    "x-upstream",
    "x-upstream-model",
)

# Large, as images and files arrive as base64 in JSON. Beyond Django's default of 2.5 MB clients would get an HTML page.
MAX_BODY_BYTES = 64 * 1024 * 1024
DATA_UPLOAD_MAX_MEMORY_SIZE = MAX_BODY_BYTES
DATA_UPLOAD_MAX_NUMBER_FILES = 500  # of a skill; all other forms have one file or a few images
MAX_UPLOAD_BYTES = 512 * 1024 * 1024
# The file plus the multipart form around it.
MAX_UPLOAD_BODY_BYTES = MAX_UPLOAD_BYTES + 1024 * 1024
# Forms of the console contain texts, but no files.
MAX_PAGE_BODY_BYTES = 8 * 1024 * 1024
# A body that arrives more slowly than this, measured over windows of BODY_WINDOW_SECONDS, ends with 408.
BODY_MIN_BYTES_PER_SECOND = env.integer("BODY_MIN_BYTES_PER_SECOND", default=1024)
BODY_WINDOW_SECONDS = env.integer("BODY_WINDOW_SECONDS", default=30, minimum=1)
# A connection is closed if the headers of its next request are not complete in time.
HEADERS_SECONDS = env.integer("HEADERS_SECONDS", default=30, minimum=1)
# Maximum number of client connections of one web process. The limit of open files may allow fewer.
MAX_CONNECTIONS = env.integer("MAX_CONNECTIONS", default=20_000, minimum=1)
# New requests get 503 while they would wait longer than this for their start, if at least OVERLOAD_MIN_REQUESTS wait.
OVERLOAD_DELAY_MS = env.integer("OVERLOAD_DELAY_MS", default=2000, minimum=0)
OVERLOAD_MIN_REQUESTS = env.integer("OVERLOAD_MIN_REQUESTS", default=64, minimum=1)
# Maximum number of computations for clients, such as grammars and skills, that a process runs at the same time.
COMPUTE_PROCESSES = env.integer("COMPUTE_PROCESSES", default=3, minimum=1)
# Without Redis, requests of keys with limits are refused with 503, or allowed without checking their limits.
LIMITS_FAIL = env.choice("LIMITS_FAIL", default="closed", of=("closed", "open"))
# The limits are in a lower layer than the sums of usage, so they cannot import this function.
BUDGETS_COUNTED_SQL = "responses.rollups.spending.counted_sql"
# Maximum size of the WebSocket messages in memory. Bodies of requests are not in memory.
SOCKET_MESSAGES_BYTES = env.integer("SOCKET_MESSAGES_MIB", default=128, minimum=96) * 1024 * 1024
# Maximum number of requests, streams and WebSocket connections that one key has open in a web process. A stream takes
# up to 50 KB.
MAX_OPEN_REQUESTS_PER_KEY = env.integer("MAX_OPEN_REQUESTS_PER_KEY", default=1000, minimum=1)

# -- storage -----------------------------------------------------------------------------------------------------------

DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
_DATABASE_URL = env.required("DATABASE_URL", hint=_HINT)
_DATABASE: dict[str, Any] = {
    "ENGINE": "core.db.database_backend",
    "DISABLE_SERVER_SIDE_CURSORS": True,
}
# When the database's host vanishes without closing connections, TCP alone would block threads for minutes.
_DATABASE_LINK = {
    "connect_timeout": 5,
    "tcp_user_timeout": 15_000,
    # The timeout above covers data that the host has not acknowledged. With keepalives, a host that vanishes after it
    # has acknowledged a query is noticed after 25 s instead of the default of two hours.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
_APPLICATION = env.postgres(_DATABASE_URL, name="DATABASE_URL")
_OWNER = env.postgres(env.text("DATABASE_OWNER_URL") or _DATABASE_URL, name="DATABASE_OWNER_URL")
DATABASES: dict[str, dict[str, Any]] = {
    # The application's role must not be a superuser, have BYPASSRLS or own the tables. Connections are pooled: under
    # ASGI each request of a synchronous view runs in a new thread, and a new connection for it would take 4 ms.
    "default": {
        **_DATABASE,
        **_APPLICATION,
        "CONN_MAX_AGE": 0,
        "OPTIONS": {
            **_APPLICATION["OPTIONS"],
            "application_name": "platform",
            **_DATABASE_LINK,
            "pool": {
                "connection_class": PlatformConnection,
                "min_size": 1,
                "max_size": env.integer("DATABASE_POOL_SIZE", default=16, minimum=4),
                "timeout": 10,
                # The pool doubles the pauses between its attempts to connect for so long. Then it starts again with
                # the next caller. With the default of 300, it recovered 12 s after an outage of 17 s, and minutes
                # after an outage of minutes. Shorter than `timeout`, so that a retry of a caller starts it again.
                "reconnect_timeout": 8,
            },
        },
    },
    # The owner of the tables, for migrations only.
    "owner": {
        **_DATABASE,
        **_OWNER,
        "OPTIONS": {**_OWNER["OPTIONS"], **_DATABASE_LINK, "application_name": "platform-owner"},
    },
}
# Processes refuse to start if extensions or migrations are missing. `up` turns this off, because web starts while the
# database is still prepared, and a developer's database needs no extensions.
REQUIRE_PREPARED_DATABASE = env.flag("REQUIRE_PREPARED_DATABASE", default=True)
# A web process answers 503 if the database has not answered a statement within this time.
DATABASE_TIMEOUT_SECONDS = env.integer("DATABASE_TIMEOUT_SECONDS", default=30, minimum=1)
REDIS_URL = env.required("REDIS_URL", hint=_HINT)

# Files of teams: in a directory that all processes share, or in any storage class with Django's interface.
_LOCAL_FILES = {"location": STATE_DIR / "files", "file_permissions_mode": 0o600, "directory_permissions_mode": 0o700}
_FILES_STORAGE = env.text("FILES_STORAGE")


def _files_options(text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text or "{}")
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise ImproperlyConfigured("FILES_STORAGE_OPTIONS must be a JSON object.")
    return parsed


_FILES_OPTIONS = _files_options(env.text("FILES_STORAGE_OPTIONS"))
STORAGES: dict[str, dict[str, Any]] = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "server.assets.storage.VersionedStaticFilesStorage"},
    "files": {
        "BACKEND": _FILES_STORAGE or "django.core.files.storage.FileSystemStorage",
        "OPTIONS": _FILES_OPTIONS if _FILES_STORAGE else _LOCAL_FILES,
    },
}

STATIC_URL = "/static/"
# The web process serves static files directly from the packages and `static/`, so there is no build step.
STATICFILES_DIRS = [BASE_DIR / "static"]
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = DEBUG

# -- runs --------------------------------------------------------------------------------------------------------------

# How long a background response waits for an approval.
APPROVAL_WAIT_SECONDS = env.integer("APPROVAL_WAIT_SECONDS", default=7 * 24 * 3600, minimum=1)
# Long enough to survive a few missed renewals, short enough to find the runs of a dead process soon.
LEASE_SECONDS = env.integer("LEASE_SECONDS", default=30, minimum=3)
# Longest time for which deltas of a run without connected clients are only in memory.
EVENT_LOG_SECONDS = env.integer("EVENT_LOG_SECONDS", default=10, minimum=1)
# Texts that an upstream sends in one read become one delta while the event loop is late.
JOIN_LATE_TEXTS = env.flag("JOIN_LATE_TEXTS", default=True)
# Maximum number of starts of a background run whose workers die before it ends.
BACKGROUND_ATTEMPTS = env.integer("BACKGROUND_ATTEMPTS", default=5, minimum=1)
# A stopping worker lets its runs continue for this long, then releases them for other workers to resume.
WORKER_DRAIN_SECONDS = env.integer("WORKER_DRAIN_SECONDS", default=20, minimum=0)
# For this long, a stopping web process reports that it is not ready but still accepts requests, so that load balancers
# notice. Then it refuses new requests, finishes those that it can, and hands over or ends the other runs.
DRAIN_DELAY_SECONDS = env.integer("DRAIN_DELAY_SECONDS", default=5)
DRAIN_SECONDS = env.integer("DRAIN_SECONDS", default=20)
# Maximum number of lines of one batch that run at the same time, across all workers.
BATCH_CONCURRENCY = env.integer("BATCH_CONCURRENCY", default=32, minimum=1)
# Time between the first and second attempt of a line; doubled for each further attempt.
BATCH_RETRY_SECONDS = env.integer("BATCH_RETRY_SECONDS", default=5)
UPSTREAM_RETRY_SECONDS = env.integer("UPSTREAM_RETRY_SECONDS", default=10)
UPSTREAM_BACKGROUND_RETRY_SECONDS = env.integer("UPSTREAM_BACKGROUND_RETRY_SECONDS", default=300)
# Clients see which upstream has answered.
UPSTREAM_HEADERS = env.flag("UPSTREAM_HEADERS", default=False)
UPSTREAM_CONNECT_TIMEOUT = env.integer("UPSTREAM_CONNECT_TIMEOUT", default=10, minimum=1)
UPSTREAM_IDLE_TIMEOUT = env.integer("UPSTREAM_IDLE_TIMEOUT", default=300, minimum=1)
UPSTREAM_FIRST_TOKEN_SECONDS = env.integer("UPSTREAM_FIRST_TOKEN_SECONDS", default=60, minimum=1)
UPSTREAM_STALL_SECONDS = env.integer("UPSTREAM_STALL_SECONDS", default=60, minimum=1)
UPSTREAM_ANSWER_TIMEOUT = env.integer("UPSTREAM_ANSWER_TIMEOUT", default=1800, minimum=1)
# A server that sends a byte from time to time is never idle, and an endless answer fills the memory.
UPSTREAM_TOTAL_TIMEOUT = env.integer("UPSTREAM_TOTAL_TIMEOUT", default=7200, minimum=1)
MAX_UPSTREAM_ANSWER_BYTES = env.integer("UPSTREAM_MAX_ANSWER_MIB", default=256, minimum=1) * 1024 * 1024
SLOW_READER_SECONDS = env.integer("SLOW_READER_SECONDS", default=30, minimum=1)

# Whole months for which turns and usage records are kept, besides the current one; 0 keeps them forever.
TURN_RETENTION_MONTHS = env.integer("TURN_RETENTION_MONTHS", default=0)
USAGE_RETENTION_MONTHS = env.integer("USAGE_RETENTION_MONTHS", default=0)

# Maximum number of deliveries in progress in one worker process; 0 disables deliveries in it.
WEBHOOK_CONCURRENCY = env.integer("WEBHOOK_CONCURRENCY", default=200)
WEBHOOK_TIMEOUT_SECONDS = env.integer("WEBHOOK_TIMEOUT_SECONDS", default=10, minimum=1)
# Times between failed attempts; the last one repeats until the delivery expires.
WEBHOOK_RETRY_SECONDS = env.integers("WEBHOOK_RETRY_SECONDS", default=(5, 300, 1800, 7200, 18_000, 36_000))

# -- mail --------------------------------------------------------------------------------------------------------------

# The address of the console for links in mails, webhooks and invitations.
PUBLIC_URL = env.text(
    "PUBLIC_URL", env.public_url(ALLOWED_HOSTS, port=PORT, is_secure=env.flag("SECURE_TLS", default=False))
).rstrip("/")
_MAIL = env.mail_server(
    env.text("EMAIL_URL"),
    host=env.text("SMTP_HOST"),
    port=env.port("SMTP_PORT"),
    user=env.text("SMTP_USER"),
    password=env.text("SMTP_PASSWORD"),
    security=env.text("SMTP_SECURITY", "starttls").lower(),
)
# Without a host, no mail is sent and none is put into the outbox.
EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
EMAIL_HOST, EMAIL_PORT = _MAIL["EMAIL_HOST"], _MAIL["EMAIL_PORT"]
EMAIL_HOST_USER, EMAIL_HOST_PASSWORD = _MAIL["EMAIL_HOST_USER"], _MAIL["EMAIL_HOST_PASSWORD"]
EMAIL_USE_TLS, EMAIL_USE_SSL = _MAIL["EMAIL_USE_TLS"], _MAIL["EMAIL_USE_SSL"]
EMAIL_TIMEOUT = 10
DEFAULT_FROM_EMAIL = env.text("MAIL_FROM")
if EMAIL_HOST and not DEFAULT_FROM_EMAIL:
    raise ImproperlyConfigured("MAIL_FROM is not set: mail needs a sender, such as Platform <platform@example.com>.")
# Maximum number of mails that one worker process sends at the same time; 0 disables mail in it.
MAIL_CONCURRENCY = env.integer("MAIL_CONCURRENCY", default=4)

# -- periodic tasks ----------------------------------------------------------------------------------------------------

CELERY_BROKER_URL = REDIS_URL
CELERY_BROKER_TRANSPORT = "server.broker:PatientTransport"
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# By default Celery ends the worker after a hundred attempts, and with it the runs that do not need Redis.
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
# A cut network to Redis is not reported. By default kombu waits for a lost answer until the system gives the
# connection up: after 15 minutes, or never if only the answer was lost.
_BROKER_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 10_000}
# Tasks are only notifications and may run twice, so a short timeout is harmless. With kombu's defaults the tasks of a
# dead worker would be redelivered after minutes.
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 60,
    "unacked_restore_interval": 5,
    "unacked_restore_throttle": 1,
    "socket_timeout": 5,
    "socket_connect_timeout": 5,
    "health_check_interval": 5,
    "socket_keepalive": True,
    # Systems other than Linux do not have all of them.
    "socket_keepalive_options": {
        getattr(socket, name): value for name, value in _BROKER_KEEPALIVE.items() if hasattr(socket, name)
    },
}
CELERY_BEAT_SCHEDULE = {
    "run-background": {"task": "responses.tasks.run_background", "schedule": 5.0},
    "sweep-dead-runs": {"task": "responses.tasks.sweep_dead_runs", "schedule": 10.0},
    "sweep-decisions": {"task": "responses.tasks.sweep_decisions", "schedule": 10.0},
    "wake-blocked-runs": {"task": "responses.tasks.wake_blocked_runs", "schedule": 5.0},
    "sweep-limits": {"task": "responses.tasks.sweep_limits", "schedule": 15.0},
    "drop-old-logs": {"task": "responses.tasks.drop_expired_logs", "schedule": 30.0},
    "maintain-partitions": {"task": "responses.tasks.maintain_partitions", "schedule": 3600.0},
    "sweep-webhooks": {"task": "responses.tasks.sweep_webhooks", "schedule": 300.0},
    "sweep-notifications": {"task": "tenants.tasks.sweep_notifications", "schedule": 300.0},
    "ingest-files": {"task": "responses.tasks.ingest_files", "schedule": 10.0},
    "empty-expired-stores": {"task": "responses.tasks.empty_expired_stores", "schedule": 300.0},
    "sweep-containers": {"task": "responses.tasks.sweep_containers", "schedule": 300.0},
    "seal-audit-log": {"task": "tenants.tasks.seal_audit_log", "schedule": 60.0},
    "roll-up": {"task": "responses.tasks.roll_up", "schedule": 60.0},
    "send-budget-alerts": {"task": "responses.tasks.send_budget_alerts", "schedule": 60.0},
    "notify-of-expiring-keys": {"task": "tenants.tasks.notify_of_expiring_keys", "schedule": 3600.0},
    "check-certificates": {"task": "server.tasks.check_certificates", "schedule": 3600.0},
    "collect-search-texts": {"task": "responses.tasks.collect_search_texts", "schedule": 10.0},
    "sweep-idempotency-keys": {"task": "responses.tasks.sweep_idempotency_keys", "schedule": 30.0},
    "sweep-files": {"task": "conversations.tasks.sweep_files", "schedule": 60.0},
}

# -- security and sign-in ----------------------------------------------------------------------------------------------

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
# Pages show text written by models. No inline scripts and no external resources: such text can neither run code nor
# send data to another server.
_OIDC_ORIGIN = "{0.scheme}://{0.netloc}".format(urlsplit(OIDC_ISSUER)) if OIDC_ISSUER else ""
CONTENT_SECURITY_POLICY = {
    "EXCLUDE_URL_PREFIXES": ("/docs",),  # the documentation site has a policy of its own
    "DIRECTIVES": {
        "default-src": ["'self'"],
        "script-src": ["'self'"],
        "style-src": ["'self'", "'unsafe-inline'"],
        "img-src": ["'self'", "data:"],
        "object-src": ["'none'"],
        "base-uri": ["'none'"],
        "frame-ancestors": ["'none'"],
        "form-action": ["'self'", *filter(None, [_OIDC_ORIGIN])],  # the sign-in form redirects there
    },
}
AUTHENTICATION_BACKENDS = [
    "django.contrib.auth.backends.ModelBackend",
    "allauth.account.auth_backends.AuthenticationBackend",
]
# Holds the rate limits of sign-in attempts, which all web processes share.
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": REDIS_URL,
        "OPTIONS": {
            "socket_timeout": 2,
            "socket_connect_timeout": 2,
            # PING before the first command of a request. A server that hangs would execute the command when it
            # continues, such as the lock of a sign-in attempt that was given up long ago, which lasts ten seconds.
            "health_check_interval": 0.01,
        },
    }
}
ALLAUTH_TRUSTED_PROXY_COUNT = TRUSTED_PROXIES
ACCOUNT_ADAPTER = "tenants.sign_in.AccountAdapter"
ACCOUNT_LOGIN_METHODS = {"username"}
ACCOUNT_SIGNUP_FIELDS = ["username*", "email", "password1*"]  # required by allauth; the adapter disables sign-up
ACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_EMAIL_NOTIFICATIONS = False
ACCOUNT_LOGOUT_REDIRECT_URL = "account_login"
ACCOUNT_SESSION_REMEMBER = False
ACCOUNT_RATE_LIMITS = {"login_failed": "20/m/ip,5/5m/key", "reauthenticate": "10/m/user"}
MFA_ADAPTER = "tenants.sign_in.SecondFactorAdapter"
MFA_SUPPORTED_TYPES = ["totp", "webauthn", "recovery_codes"]
MFA_PASSKEY_LOGIN_ENABLED = True
MFA_ALLOW_UNVERIFIED_EMAIL = True
MFA_TOTP_ISSUER = "Responses Platform"
MFA_TOTP_TOLERANCE = 1
SOCIALACCOUNT_ADAPTER = "tenants.sign_in.ProviderAdapter"
SOCIALACCOUNT_AUTO_SIGNUP = True
SOCIALACCOUNT_LOGIN_ON_GET = False
# The provider belongs to the operator, so its verified addresses are trusted to identify existing users.
SOCIALACCOUNT_EMAIL_AUTHENTICATION = True
SOCIALACCOUNT_EMAIL_AUTHENTICATION_AUTO_CONNECT = True
_OIDC_APP = {
    "provider_id": "sso",
    "name": OIDC_NAME,
    "client_id": OIDC_CLIENT_ID,
    "secret": OIDC_CLIENT_SECRET,
    "settings": {"server_url": OIDC_ISSUER, "oauth_pkce_enabled": True},
}
SOCIALACCOUNT_PROVIDERS = {"openid_connect": {"APPS": [_OIDC_APP] if OIDC_ISSUER else []}}
SESSION_COOKIE_AGE = 8 * 3600
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SECURE_TLS = env.flag("SECURE_TLS", default=False)
# Without TLS browsers allow passkeys on localhost only, for which allauth needs this setting.
MFA_WEBAUTHN_ALLOW_INSECURE_ORIGIN = not SECURE_TLS
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = SECURE_TLS
SECURE_HSTS_SECONDS = env.integer("HSTS_SECONDS", default=31_536_000) if SECURE_TLS else 0
# Both affect hosts other than ours, and browsers remember them for months, so an operator has to choose them.
SECURE_HSTS_INCLUDE_SUBDOMAINS = env.flag("HSTS_INCLUDE_SUBDOMAINS", default=False)
SECURE_HSTS_PRELOAD = env.flag("HSTS_PRELOAD", default=False)
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]  # `check --deploy` recommends both to everyone
SECURE_REDIRECT_EXEMPT = [r"^livez$", r"^readyz$", r"^metrics$"]  # probes bypass the TLS proxy
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if SECURE_TLS else None
CSRF_TRUSTED_ORIGINS = env.names("CSRF_TRUSTED_ORIGINS")

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_I18N = False
USE_TZ = True

# One JSON object per line, including the call's `extra`; with DEBUG the same as coloured text.
_SHARED_PROCESSORS = [
    structlog.contextvars.merge_contextvars,
    add_request,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.ExtraAdder(),
    structlog.processors.TimeStamper(fmt="iso", key="ts"),
    structlog.processors.format_exc_info,
]
_WRITER: Any = structlog.dev.ConsoleRenderer() if DEBUG else structlog.processors.JSONRenderer()
_LOG_LEVEL = env.text("LOG_LEVEL", "INFO").upper()
# For lines about each periodic task, most of which find nothing to do.
_ROUTINE = "DEBUG" if _LOG_LEVEL == "DEBUG" else "WARNING"
_OWN_LOGGERS = ("conversations", "responses", "tenants", *(path.name for path in (BASE_DIR / "platform").iterdir()))
LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {
            "()": structlog.stdlib.ProcessorFormatter,
            "foreign_pre_chain": _SHARED_PROCESSORS,
            "processors": [structlog.stdlib.ProcessorFormatter.remove_processors_meta, redact_line, _WRITER],
        },
        "access": {"()": AccessFormatter},
    },
    "handlers": {
        "stderr": {"class": "logging.StreamHandler", "stream": sys.stderr, "formatter": "line"},
        "access": {
            "class": "logging.StreamHandler",
            "stream": sys.stderr,
            "formatter": "line" if DEBUG else "access",
        },
    },
    # Below INFO, libraries log requests, headers and messages with content and credentials.
    "root": {"handlers": ["stderr"], "level": "INFO" if _LOG_LEVEL == "DEBUG" else _LOG_LEVEL},
    "loggers": {
        **{name: {"level": _LOG_LEVEL} for name in _OWN_LOGGERS},
        # Below WARNING these log one line for each request.
        "httpx2": {"level": "WARNING"},
        "openai": {"level": "WARNING"},
        # Logs a traceback with the URL for every failure of a client's MCP server, which is an ordinary tool result.
        "mcp": {"level": "CRITICAL"},
        "daphne": {"level": "WARNING"},
        "access": {
            "handlers": ["access"],
            "propagate": False,
            "level": _LOG_LEVEL if env.flag("ACCESS_LOG", default=True) else "CRITICAL",
        },
        "celery.beat": {"level": _ROUTINE},
        "celery.worker.strategy": {"level": _ROUTINE},
        "celery.app.trace": {"level": _ROUTINE},
        "django.request": {"level": "ERROR"},
    },
}

# -- the admin ---------------------------------------------------------------------------------------------------------

LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "admin:index"
UNFOLD: dict[str, Any] = console.UNFOLD
