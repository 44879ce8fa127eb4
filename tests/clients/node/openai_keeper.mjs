// What the OpenAI SDK for JavaScript reads of a conversation that the gateway keeps. A program of its own, like
// openai_keeper.py: {"base_url", "model"} on stdin, what each call returned on stdout.

import { readFileSync } from 'node:fs'
import OpenAI, { APIError } from 'openai'

const items = [
  { role: 'developer', content: 'Be brief.' },
  { type: 'message', role: 'user', content: [{ type: 'input_text', text: 'Hello.' }] },
  { type: 'function_call', call_id: 'c1', name: 'look', arguments: '{}' },
  { type: 'function_call_output', call_id: 'c1', output: 'nothing' },
  { role: 'assistant', content: 'Good day.' },
]

async function refused(call) {
  try {
    await call()
  } catch (error) {
    if (!(error instanceof APIError)) throw error
    return { kind: error.constructor.name, status: error.status, code: error.code, param: error.param }
  }
  return {}
}

const task = JSON.parse(readFileSync(0, 'utf8'))
const client = new OpenAI({ baseURL: task.base_url, apiKey: 'test-key', timeout: 30_000, maxRetries: 0 })
const kept = client.conversations
const made = await kept.create({ metadata: { topic: 'weirs' }, items: items.slice(0, 2) })
const put = await kept.items.create(made.id, { items: items.slice(2) })
const messages = [{ role: 'user', content: 'What is a weir?' }]
const answer = await client.chat.completions.create({ model: task.model, messages, conversation: made.id })
const found = []
const include = ['message.input_image.image_url']
for await (const item of kept.items.list(made.id, { order: 'asc', limit: 2, include })) found.push(item)
const newest = await kept.items.list(made.id)
process.stdout.write(JSON.stringify({
  made,
  put,
  answer: answer.choices[0].message.content,
  items: found,
  newest: { object: 'list', data: newest.data, first_id: newest.data[0].id, last_id: newest.last_id, has_more: newest.has_more },
  one: await kept.items.retrieve(found[1].id, { conversation_id: made.id }),
  told: await kept.retrieve(made.id),
  changed: await kept.update(made.id, { metadata: { topic: 'rivers' } }),
  deleted: await kept.delete(made.id),
  gone: await refused(() => kept.retrieve(made.id)),
  bad: await refused(() => kept.create({ metadata: { ['k'.repeat(65)]: 'v' } })),
}))
