# llm, the command-line program. Run by tests/clients/test_examples.py.
# It takes one more model, named weir here, in a file of its own.
models="$(dirname "$(llm logs path)")/extra-openai-models.yaml"
cat >>"$models" <<YAML
- model_id: weir
  model_name: some-model
  api_base: ${WEIRGATE_URL:-http://127.0.0.1:8400/v1}
YAML

llm -m weir "What does a weir do?"
llm -c "And a gate?" # the same conversation goes on
