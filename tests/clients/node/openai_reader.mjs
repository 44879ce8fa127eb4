// What the OpenAI SDK for JavaScript reads. A program of its own: a list of tasks on stdin, one answer for each on
// stdout, as tests/clients/programs.py describes them.

import { text } from 'node:stream/consumers'
import OpenAI, { APIError } from 'openai'

const ROUNDS = 4

function parsed(raw) {
  try {
    return JSON.parse(raw)
  } catch {
    return null
  }
}

// A delta or a whole message: calls of a whole message have no index and stand in order.
function take(said, seen) {
  seen.text += said.content ?? ''
  seen.reasoning += said.reasoning_content ?? said.reasoning ?? ''
  for (const [place, call] of (said.tool_calls ?? []).entries()) {
    const known = (seen.calls[call.index ?? place] ??= { id: '', name: '', raw: '' })
    known.id = call.id || known.id
    known.name += call.function?.name ?? ''
    known.raw += call.function?.arguments ?? ''
  }
}

async function whole(client, request, seen) {
  const answer = await client.chat.completions.create(request)
  seen.ids.push(answer.id)
  seen.usage = answer.usage ?? null
  seen.messages = answer.choices.length
  for (const choice of answer.choices) {
    take(choice.message, seen)
    seen.finish.push(choice.finish_reason)
  }
  return answer.choices[0]?.message
}

async function streamed(client, request, seen) {
  const parts = new Set()
  for await (const chunk of await client.chat.completions.create(request)) {
    if (chunk.usage) seen.usage = chunk.usage
    if (chunk.id && !seen.ids.includes(chunk.id)) seen.ids.push(chunk.id)
    for (const choice of chunk.choices) {
      parts.add(`${chunk.id} ${choice.index}`)
      take(choice.delta, seen)
      if (choice.finish_reason) seen.finish.push(choice.finish_reason)
    }
  }
  seen.messages = parts.size
  const calls = seen.calls.filter(Boolean).map(({ id, name, raw }) => (
    { id, type: 'function', function: { name, arguments: raw } }
  ))
  return { role: 'assistant', content: seen.text || null, ...(calls.length ? { tool_calls: calls } : {}) }
}

async function read(client, task, messages, rounds = ROUNDS) {
  const seen = {
    text: '', reasoning: '', calls: [], finish: [], usage: null, tokens: null, messages: 0, ids: [], error: null,
  }
  const { model, stream = true, usage, tools, extra, results } = task
  const request = { model, messages, stream, ...extra }
  if (usage && stream) request.stream_options = { include_usage: true }
  if (tools?.length) request.tools = tools
  let said
  try {
    said = await (stream ? streamed : whole)(client, request, seen)
  } catch (error) {
    if (!(error instanceof APIError)) throw error
    seen.error = { kind: error.constructor.name, status: error.status ?? null, code: error.code ?? null }
  }
  seen.calls = seen.calls.filter(Boolean).map((call) => ({ ...call, arguments: parsed(call.raw) }))
  if (seen.usage) seen.tokens = [seen.usage.prompt_tokens ?? null, seen.usage.completion_tokens ?? null]
  if (results && said && seen.calls.length && rounds > 1) {
    const answers = seen.calls.map(({ id, name }) => ({ role: 'tool', tool_call_id: id, content: results[name] }))
    seen.next = await read(client, task, [...messages, said, ...answers], rounds - 1)
  }
  return seen
}

const answers = []
for (const task of JSON.parse(await text(process.stdin))) {
  const apiKey = task.key || 'test-key'
  const client = new OpenAI({ baseURL: task.base_url, apiKey, timeout: 90_000, maxRetries: 0 })
  const messages = task.messages ?? [{ role: 'user', content: `Say ${task.model} again.` }]
  answers.push(await read(client, task, messages))
}
process.stdout.write(JSON.stringify(answers))
