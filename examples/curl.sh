#!/usr/bin/env bash
# The HTTP API with curl alone: the models, a chat completion, a stream of events.
# ./curl.sh --base-url http://127.0.0.1:30000
set -euo pipefail

base_url=http://127.0.0.1:30000
if [ "${1:-}" = --base-url ]; then base_url=$2; fi

echo "# the models"
curl --fail --silent --show-error "$base_url/v1/models"

body='{"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, "max_tokens": 32}'

echo
echo "# a chat completion (without a model's name, the server takes the one that it serves)"
curl --fail --silent --show-error "$base_url/v1/chat/completions" \
  --header 'Content-Type: application/json' --data "$body"

echo
echo "# the same, streamed"
curl --fail --silent --show-error --no-buffer "$base_url/v1/chat/completions" \
  --header 'Content-Type: application/json' --data "${body%\}}, \"stream\": true}"
