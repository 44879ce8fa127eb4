// What the Vercel AI SDK reads, by generateText and streamText. A program of its own: a list of tasks on stdin, one
// answer for each on stdout, as tests/clients/programs.py describes them. Its argument says which of the SDK's two
// providers asks: `compatible` (for any OpenAI-compatible server) or `openai` (for OpenAI's own, chat completions).

import { argv } from 'node:process'
import { text } from 'node:stream/consumers'
import { createOpenAI } from '@ai-sdk/openai'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { AISDKError, generateText, jsonSchema, streamText, tool } from 'ai'

const ROUNDS = 4
const NAME = 'weirgate'

globalThis.AI_SDK_LOG_WARNINGS = false

function model({ base_url: baseURL, model: name, usage, key }) {
  const apiKey = key || 'test-key'
  if (argv[2] === 'openai') return createOpenAI({ baseURL, apiKey }).chat(name)
  return createOpenAICompatible({ name: NAME, baseURL, apiKey, includeUsage: Boolean(usage) })(name)
}

// The history as the SDK wants it: a result names its tool, a call carries its input parsed.
function told(messages) {
  const names = {}
  return messages.map(({ role, content, tool_calls: calls = [], tool_call_id: toolCallId }) => {
    if (role === 'system' || role === 'developer') return { role: 'system', content }
    if (role === 'user') return { role, content }
    if (role === 'tool') return { role, content: [result(toolCallId, names[toolCallId], content)] }
    for (const call of calls) names[call.id] = call.function.name
    const parts = calls.map(({ id, function: { name, arguments: raw } }) => (
      { type: 'tool-call', toolCallId: id, toolName: name, input: JSON.parse(raw) }
    ))
    return { role, content: [...(content ? [{ type: 'text', text: content }] : []), ...parts] }
  })
}

function result(toolCallId, toolName, value) {
  return { type: 'tool-result', toolCallId, toolName, output: { type: 'text', value } }
}

// Without `execute` the SDK hands a call over and ends: one step.
function offered(tools = []) {
  return Object.fromEntries(tools.map(({ function: { name, description, parameters } }) => (
    [name, tool({ description, inputSchema: jsonSchema(parameters) })]
  )))
}

function asCall({ toolCallId: id, toolName: name, input }) {
  return { id, name, arguments: typeof input === 'string' ? null : input }
}

function failed(error) {
  const inner = error?.data?.error ?? error
  return { kind: error?.name ?? typeof error, status: error?.statusCode ?? null, code: inner?.code ?? null }
}

function counted(usage, seen) {
  if (usage?.inputTokens === undefined && usage?.outputTokens === undefined) return
  seen.usage = usage.raw ?? usage
  seen.tokens = [usage.inputTokens ?? null, usage.outputTokens ?? null]
}

async function whole(request, seen) {
  const answer = await generateText(request)
  seen.text = answer.text
  seen.reasoning = answer.reasoningText ?? ''
  seen.calls = answer.toolCalls.map(asCall)
  seen.finish = [answer.rawFinishReason]
  seen.unified = answer.finishReason
  seen.ids = [answer.response.id]
  seen.steps = answer.steps.length
  counted(answer.usage, seen)
  return answer.response.messages
}

async function streamed(request, seen) {
  const answer = streamText({ ...request, includeRawChunks: true, onError: () => {} })
  for await (const part of answer.fullStream) {
    if (part.type === 'raw') {
      const { id } = part.rawValue ?? {}
      if (id && !seen.ids.includes(id)) seen.ids.push(id)
    } else if (part.type === 'text-delta') seen.text += part.text
    else if (part.type === 'reasoning-delta') seen.reasoning += part.text
    else if (part.type === 'tool-call') seen.calls.push(asCall(part))
    else if (part.type === 'error') seen.error = failed(part.error)
    else if (part.type === 'finish-step') {
      seen.steps += 1
      seen.unified = part.finishReason
      if (part.rawFinishReason) seen.finish.push(part.rawFinishReason)
      counted(part.usage, seen)
    }
  }
  return seen.error ? [] : (await answer.response).messages
}

async function read(task, messages, rounds = ROUNDS) {
  const seen = {
    text: '', reasoning: '', calls: [], finish: [], unified: null, usage: null, tokens: null, messages: 0, steps: 0,
    ids: [], error: null,
  }
  const { stream = true, tools, extra = {}, results } = task
  const { temperature, seed, max_tokens: maxOutputTokens, reasoning_effort: reasoningEffort, ...others } = extra
  const own = { ...others, ...(reasoningEffort === undefined ? {} : { reasoningEffort }) }
  const request = {
    model: model(task), messages, tools: offered(tools), temperature, seed, maxOutputTokens,
    providerOptions: { [NAME]: own, openai: own }, maxRetries: 0, allowSystemInMessages: true,
  }
  let said = []
  try {
    said = await (stream ? streamed : whole)(request, seen)
  } catch (error) {
    if (!AISDKError.isInstance(error)) throw error
    seen.error = failed(error)
  }
  seen.messages = said.filter(({ role }) => role === 'assistant').length
  if (results && seen.calls.length && !seen.error && rounds > 1) {
    const content = seen.calls.map(({ id, name }) => result(id, name, results[name]))
    seen.next = await read(task, [...messages, ...said, { role: 'tool', content }], rounds - 1)
  }
  return seen
}

const answers = []
for (const task of JSON.parse(await text(process.stdin))) {
  answers.push(await read(task, told(task.messages ?? [{ role: 'user', content: `Say ${task.model} again.` }])))
}
process.stdout.write(JSON.stringify(answers))
