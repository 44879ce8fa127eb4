// What the OpenAI SDK for JavaScript holds a conversation with. A program of its own, like openai_talker.py:
// a list of {"base_url", "model", "stream", "messages", "says"} on stdin, a list of answers for each on stdout.

import { readFileSync } from 'node:fs'
import OpenAI, { APIError } from 'openai'

async function streamed(client, model, messages) {
  const said = { text: '', weirgate: null, finish: null }
  for await (const chunk of await client.chat.completions.create({ model, messages, stream: true })) {
    for (const choice of chunk.choices) {
      said.text += choice.delta.content ?? ''
      said.weirgate = choice.delta.weirgate ?? said.weirgate
      said.finish = choice.finish_reason ?? said.finish
    }
  }
  return said
}

async function answer(client, { model, stream }, messages) {
  try {
    if (stream) return await streamed(client, model, messages)
    const { choices: [{ message, finish_reason: finish }] } = await client.chat.completions.create({ model, messages })
    return { text: message.content, weirgate: message.weirgate ?? null, finish }
  } catch (error) {
    if (!(error instanceof APIError)) throw error
    return { error: { kind: error.constructor.name, code: error.code } }
  }
}

const results = []
for (const task of JSON.parse(readFileSync(0, 'utf8'))) {
  const client = new OpenAI({ baseURL: task.base_url, apiKey: 'test-key', timeout: 30_000, maxRetries: 0 })
  const messages = [...task.messages]
  const answers = []
  for (const said of task.says) {
    messages.push({ role: 'user', content: said })
    answers.push(await answer(client, task, messages))
    messages.push({ role: 'assistant', content: answers.at(-1).text ?? '' })
  }
  results.push(answers)
}
process.stdout.write(JSON.stringify(results))
