# The training worker: vLLM's image (CUDA, torch, transformers, vLLM) and Cohort.
#   docker build -f docker/gpu.Dockerfile -t cohort-gpu .

FROM vllm/vllm-openai:v0.32.0
# The base image's entrypoint serves a model; this image runs its command.
ENTRYPOINT []
WORKDIR /app
COPY pyproject.toml README.md LICENSE requirements.lock requirements-web.lock ./
# Packages that were built together keep their versions. Others may be upgraded,
# because Cohort needs newer versions of some, such as nvidia-ml-py. vLLM asks for an
# older transformers than it works with and Cohort needs, so that one is the lock's, as
# is all that the base image does not have.
RUN python3 -m pip list --format=freeze --exclude-editable > /tmp/base.txt \
 && grep -E "^(torch|triton|vllm|flashinfer|xgrammar|nvidia[-_]([^m]|m[^l])|cuda|numpy)" /tmp/base.txt > /tmp/kept.txt \
 && grep -oE "^(transformers|tokenizers)==[^ ]+" requirements.lock >> /tmp/kept.txt \
 && awk '{name = tolower($1); sub(/==.*/, "", name); gsub(/[_.]+/, "-", name)} \
    NR == FNR {base[name]; next} \
    /^[a-z0-9]/ && !(name in base) {sub(/ \\$/, ""); print}' \
    /tmp/base.txt requirements.lock requirements-web.lock >> /tmp/kept.txt \
 && python3 -m pip install --no-cache-dir --constraint /tmp/kept.txt ".[web,engine,observe,ray]"
# Created here so that a volume mounted there gets the same owner.
RUN useradd --system --uid 10001 --create-home cohort \
 && install -d -o cohort -g cohort -m 0700 /data /home/cohort/.cache
COPY manage.py ./
COPY dashboard ./dashboard
COPY cohort ./cohort
COPY trainer ./trainer
# Read-only from here on.
RUN python3 -m compileall -q cohort dashboard trainer
ENV COHORT_DATA=/data \
    COHORT_LOG_FORMAT=json \
    DJANGO_SETTINGS_MODULE=dashboard.settings \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    TRITON_CACHE_DIR=/home/cohort/.cache/triton \
    TORCHINDUCTOR_CACHE_DIR=/home/cohort/.cache/torchinductor \
    VLLM_CACHE_ROOT=/home/cohort/.cache/vllm
USER 10001
# An image whose packages cannot train is not built.
RUN cp -r trainer/starter/countdown /tmp/starter \
 && sed -i "s/^num_steps = .*/num_steps = 1/" /tmp/starter/run.toml \
 && python3 -m trainer run /tmp/starter/run.toml --out /tmp/starter/run \
 && rm -rf /tmp/starter
VOLUME /data
HEALTHCHECK --interval=60s --timeout=20s --start-period=60s \
  CMD ["sh", "-c", "celery -A dashboard.celery:app inspect ping -d training@$(hostname)"]
# One slot: one run at a time uses this container's GPUs.
CMD ["celery", "-A", "dashboard.celery:app", "worker", "--queues", "training", "--hostname", "training@%h", "--concurrency", "1", "--loglevel", "INFO", "--without-gossip", "--without-mingle"]
