# Aider. Not run: the program brings 700 MB, more than all other tests together.
export OPENAI_API_BASE="${WEIRGATE_URL:-http://127.0.0.1:8400/v1}" # the one line that changes
export OPENAI_API_KEY="${PROVIDER_KEY:-no-key}"

aider --model openai/some-model --no-show-model-warnings
