# Web server, default worker and beat. No torch: about a tenth of the training image's size.
#   docker build -f docker/web.Dockerfile -t cohort-web .

FROM node:22-bookworm-slim AS front-end
WORKDIR /build
COPY package.json package-lock.json ./
RUN npm ci --omit=dev --ignore-scripts --no-audit --no-fund
COPY dashboard ./dashboard
COPY templates ./templates
COPY static ./static
RUN npm run --silent styles

FROM python:3.11-slim-bookworm AS packages
WORKDIR /build
# One package is compiled, with the compiler of the base image's Debian.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
RUN python -m venv /venv
COPY requirements-web.lock ./
RUN /venv/bin/pip install --no-cache-dir --no-deps --require-hashes -r requirements-web.lock

FROM python:3.11-slim-bookworm
# pg_dump and pg_restore, for backups: of the version of the server in compose.yaml.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates postgresql-common \
 && /usr/share/postgresql-common/pgdg/apt.postgresql.org.sh -y \
 && apt-get install -y --no-install-recommends postgresql-client-18 \
 && rm -rf /var/lib/apt/lists/*
RUN useradd --system --uid 10001 --no-create-home cohort \
 && install -d -o cohort -g cohort -m 0700 /data
WORKDIR /app
COPY --from=packages /venv /venv
COPY --from=front-end /build/node_modules ./node_modules
COPY manage.py ./
COPY cohort ./cohort
COPY dashboard ./dashboard
COPY trainer ./trainer
COPY templates ./templates
COPY static ./static
RUN /venv/bin/python -m dashboard.web.downloads static \
      node_modules/@tabler/core/dist/css node_modules/diff/dist node_modules/htmx.org/dist \
      node_modules/plotly.js-cartesian-dist-min /venv/lib/python3.11/site-packages/ninja/static \
 && /venv/bin/python -m compileall -q cohort dashboard trainer
# Read-only from here on.
ENV PATH=/venv/bin:$PATH \
    COHORT_DATA=/data \
    COHORT_LOG_FORMAT=json \
    DJANGO_SETTINGS_MODULE=dashboard.settings \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
CMD ["uvicorn", "dashboard.asgi:application", "--host", "0.0.0.0", "--port", "8000", "--no-access-log", "--lifespan", "off", "--http", "dashboard.web.connections:LimitedRequests", "--ws-per-message-deflate", "false", "--ws-max-size", "16384", "--timeout-graceful-shutdown", "5"]
