// What the OpenAI SDK for JavaScript reads. A program of its own:
// a list of {"base_url", "model", "usage"} on stdin, results on stdout.

import { readFileSync } from 'node:fs'
import OpenAI, { APIError } from 'openai'

function take(choice, seen) {
  const delta = choice.delta
  seen.text += delta.content ?? ''
  seen.reasoning += delta.reasoning_content ?? delta.reasoning ?? ''
  for (const call of delta.tool_calls ?? []) {
    const known = (seen.calls[call.index] ??= { id: '', name: '', arguments: '' })
    known.id = call.id || known.id
    known.name += call.function?.name ?? ''
    known.arguments += call.function?.arguments ?? ''
  }
  if (choice.finish_reason) seen.finish.push(choice.finish_reason)
}

async function read(client, { model, usage }) {
  const seen = { text: '', reasoning: '', calls: {}, finish: [], usage: null, error: null }
  const request = { model, messages: [{ role: 'user', content: `Say ${model} again.` }], stream: true }
  if (usage) request.stream_options = { include_usage: true }
  try {
    for await (const chunk of await client.chat.completions.create(request)) {
      if (chunk.usage) seen.usage = chunk.usage
      for (const choice of chunk.choices) take(choice, seen)
    }
  } catch (error) {
    if (!(error instanceof APIError)) throw error
    seen.error = { kind: error.constructor.name, status: error.status ?? null }
  }
  return seen
}

const results = []
for (const task of JSON.parse(readFileSync(0, 'utf8'))) {
  const client = new OpenAI({ baseURL: task.base_url, apiKey: 'test-key', timeout: 30_000, maxRetries: 0 })
  results.push(await read(client, task))
}
process.stdout.write(JSON.stringify(results))
