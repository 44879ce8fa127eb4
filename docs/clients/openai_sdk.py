# OpenAI SDK for Python. Run by tests/clients/test_examples.py.
import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("WEIRGATE_URL", "http://127.0.0.1:8400/v1"),  # the one line that changes
    api_key=os.environ.get("PROVIDER_KEY", "no-key"),
)

stream = client.chat.completions.create(
    model="some-model",
    messages=[{"role": "user", "content": "What does a weir do?"}],
    stream=True,
)
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
print()
