# LangChain. Run by tests/clients/test_examples.py.
import os

from langchain_openai import ChatOpenAI

chat = ChatOpenAI(
    model="some-model",
    base_url=os.environ.get("WEIRGATE_URL", "http://127.0.0.1:8400/v1"),  # the one line that changes
    api_key=os.environ.get("PROVIDER_KEY", "no-key"),
)

for chunk in chat.stream("What does a weir do?"):
    print(chunk.text, end="", flush=True)
print()
