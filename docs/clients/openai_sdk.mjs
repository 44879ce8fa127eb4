// OpenAI SDK for JavaScript. Run by tests/clients/test_examples.py.
import OpenAI from 'openai'

const client = new OpenAI({
  baseURL: process.env.WEIRGATE_URL ?? 'http://127.0.0.1:8400/v1', // the one line that changes
  apiKey: process.env.PROVIDER_KEY ?? 'no-key',
})

const stream = await client.chat.completions.create({
  model: 'some-model',
  messages: [{ role: 'user', content: 'What does a weir do?' }],
  stream: true,
})
for await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta?.content ?? '')
console.log()
