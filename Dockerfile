# The demo's actors and learner: docker compose --profile demo up
FROM python:3.12-slim

WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY redis_replay redis_replay
COPY lua lua
RUN pip install --no-cache-dir -c constraints.txt '.[demo]'

RUN useradd --create-home player
USER player
WORKDIR /home/player
ENTRYPOINT ["redis-replay"]
CMD ["demo", "--headless"]
