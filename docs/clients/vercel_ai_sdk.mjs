// Vercel AI SDK. Run by tests/clients/test_examples.py.
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { streamText } from 'ai'

const weirgate = createOpenAICompatible({
  name: 'weirgate',
  baseURL: process.env.WEIRGATE_URL ?? 'http://127.0.0.1:8400/v1', // the one line that changes
  apiKey: process.env.PROVIDER_KEY ?? 'no-key',
})

const { textStream } = streamText({ model: weirgate('some-model'), prompt: 'What does a weir do?' })
for await (const text of textStream) process.stdout.write(text)
console.log()
