# The training worker: vLLM's image (CUDA, torch, transformers, vLLM) and Cohort.
#   docker build -f docker/gpu.Dockerfile -t cohort-gpu .

FROM vllm/vllm-openai:v0.32.0
# The base image serves a model by itself; this one runs what it is told.
ENTRYPOINT []
WORKDIR /app
COPY pyproject.toml README.md ./
# What was built together, or for it, stays as it is. The rest of the base image may move,
# as Cohort needs newer ones of some, such as nvidia-ml-py.
RUN python3 -m pip list --format=freeze --exclude-editable > /tmp/base.txt \
 && grep -E "^(torch|triton|vllm|flashinfer|xgrammar|nvidia[-_]([^m]|m[^l])|cuda|transformers|tokenizers|numpy)" /tmp/base.txt > /tmp/kept.txt \
 && python3 -m pip install --no-cache-dir --constraint /tmp/kept.txt ".[web,engine,observe]"
# The cache is there before a volume is, which then belongs to whom it does.
RUN useradd --system --uid 10001 --create-home cohort \
 && install -d -o cohort -g cohort -m 0700 /data /home/cohort/.cache
COPY manage.py ./
COPY dashboard ./dashboard
COPY trainer ./trainer
# Nothing is written there any more.
RUN python3 -m compileall -q dashboard trainer
ENV COHORT_DATA=/data \
    COHORT_LOG_FORMAT=json \
    DJANGO_SETTINGS_MODULE=dashboard.settings \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    TRITON_CACHE_DIR=/home/cohort/.cache/triton \
    TORCHINDUCTOR_CACHE_DIR=/home/cohort/.cache/torchinductor \
    VLLM_CACHE_ROOT=/home/cohort/.cache/vllm
USER 10001
VOLUME /data
HEALTHCHECK --interval=60s --timeout=20s --start-period=60s \
  CMD ["sh", "-c", "celery -A dashboard.celery:app inspect ping -d training@$(hostname)"]
# One slot: one run at a time has the GPUs of this container.
CMD ["celery", "-A", "dashboard.celery:app", "worker", "--queues", "training", "--hostname", "training@%h", "--concurrency", "1", "--loglevel", "INFO", "--without-gossip", "--without-mingle"]
