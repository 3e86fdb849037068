// Calls rkserve with the official Node SDK and prints what it made of the answers, one JSON object a line:
// {"name", "value"}, or {"name", "failed"} for a check that went wrong by itself. What is right is for test_node.py
// to say. Argument: JSON {real: {base_url, key}, scripted: {base_url, key},
// embedding: {base_url, key, model}, nowhere, model, context_length}.

import OpenAI from 'openai';

const given = JSON.parse(process.argv[2]);
const QUESTION = 'hello world, can you help?';

function client(endpoint, options = {}) {
  return new OpenAI({ baseURL: endpoint.base_url, apiKey: endpoint.key, maxRetries: 0, timeout: 30_000, ...options });
}

/** A client that reports the status of each response, retried ones included. */
function watched(endpoint, maxRetries, onStatus = () => {}) {
  const statuses = [];
  const watching = async (url, init) => {
    const response = await fetch(url, init);
    statuses.push(response.status);
    onStatus(response.status);
    return response;
  };
  return { made: client(endpoint, { maxRetries, fetch: watching }), statuses };
}

const ask = (content, more = {}) => ({
  model: given.model,
  temperature: 0,
  messages: [{ role: 'user', content }],
  ...more,
});

async function collect(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

const textOf = (chunks, index = 0) =>
  chunks
    .flatMap((chunk) => chunk.choices)
    .filter((choice) => choice.index === index)
    .map((choice) => choice.delta.content ?? '')
    .join('');

/** What a test wants to know of an exception. */
function described(error) {
  return {
    class: error.constructor.name,
    is_api_error: error instanceof OpenAI.APIError,
    status: error.status ?? null,
    code: error.code ?? null,
    param: error.param ?? null,
    type: error.type ?? null,
    message: error.message,
  };
}

async function raised(action) {
  try {
    await action();
  } catch (error) {
    return described(error);
  }
  return null;
}

const real = client(given.real);
const scripted = client(given.scripted);
const embedding = client(given.embedding);
const create = (request, options) => real.chat.completions.create(request, options);

const checks = {
  async whole() {
    return await create(ask(QUESTION, { max_tokens: 12 }));
  },

  async stream() {
    const whole = await create(ask(QUESTION, { max_tokens: 30 }));
    const chunks = await collect(await create(ask(QUESTION, { max_tokens: 30, stream: true })));
    return {
      whole: whole.choices[0],
      text: textOf(chunks),
      ids: [...new Set(chunks.map((chunk) => chunk.id))].length,
      role: chunks[0].choices[0].delta.role,
      reasons: chunks.flatMap((chunk) => chunk.choices.map((choice) => choice.finish_reason)),
    };
  },

  async usage() {
    const request = ask(QUESTION, { max_tokens: 9, stream: true, stream_options: { include_usage: true } });
    const chunks = await collect(await create(request));
    return { last: chunks.at(-1), others: chunks.slice(0, -1).map((chunk) => chunk.usage) };
  },

  async stop() {
    const text = (await create(ask(QUESTION, { max_tokens: 40 }))).choices[0].message.content;
    const stop = text.slice(text.length / 2).slice(0, 3);
    const stopped = (await create(ask(QUESTION, { max_tokens: 40, stop }))).choices[0];
    const chunks = await collect(await create(ask(QUESTION, { max_tokens: 40, stop: [stop], stream: true })));
    return { text, stop, stopped, streamed: textOf(chunks), reason: chunks.at(-1).choices[0].finish_reason };
  },

  async n() {
    const request = ask(QUESTION, { n: 3, max_tokens: 10, temperature: 1, seed: 5, logit_bias: { 2: -100 } });
    const answer = await create(request);
    const chunks = await collect(await create({ ...request, stream: true }));
    return { answer, streamed: [0, 1, 2].map((index) => textOf(chunks, index)) };
  },

  async logprobs() {
    const answer = await create(ask(QUESTION, { max_tokens: 6, logprobs: true, top_logprobs: 3 }));
    return answer.choices[0];
  },

  async helper() {
    const text = (await create(ask(QUESTION, { max_tokens: 20 }))).choices[0].message.content;
    const pieces = [];
    const runner = real.chat.completions.stream(ask(QUESTION, { max_tokens: 20 }));
    runner.on('content', (delta) => pieces.push(delta));
    return { text, pieces, final: (await runner.finalChatCompletion()).choices[0].message.content };
  },

  async models() {
    const ids = [];
    for await (const model of real.models.list()) ids.push(model.id);
    return { ids, one: await real.models.retrieve(given.model) };
  },

  async embeddings() {
    const input = ['hello world', 'can you help?'];
    const embed = (more) => embedding.embeddings.create({ model: given.embedding.model, input, ...more });
    return {
      whole: await embed({}),
      floats: await embed({ encoding_format: 'float' }),
      one: await embed({ input: input[0] }),
      shorter: await embed({ dimensions: 8 }),
    };
  },

  async embedding_too_long() {
    const input = ['fits', 'x1'.repeat(given.context_length)];
    return await raised(() => embedding.embeddings.create({ model: given.embedding.model, input }));
  },

  async no_embeddings() {
    return await raised(() => real.embeddings.create({ model: given.model, input: 'hello' }));
  },

  async bad_request() {
    return await raised(() => create(ask(QUESTION, { temperature: 9 })));
  },

  async unsupported() {
    const response_format = { type: 'json_schema', json_schema: { name: 'n', schema: { type: 'object' } } };
    return await raised(() => create(ask(QUESTION, { response_format })));
  },

  async too_long() {
    return await raised(() => create(ask('x1'.repeat(given.context_length), { stream: true })));
  },

  async wrong_key() {
    return await raised(() => client({ ...given.real, key: 'sk-wrong' }).chat.completions.create(ask(QUESTION)));
  },

  async no_model() {
    return await raised(() => create(ask(QUESTION, { model: 'no-such-model', stream: true })));
  },

  async no_path() {
    return await raised(() => real.files.list());
  },

  async body_too_large() {
    return await raised(() => create(ask('x'.repeat(given.max_body_mb * 2 ** 20))));
  },

  async no_server() {
    const nowhere = client({ base_url: given.nowhere, key: 'unused' });
    return await raised(() => nowhere.chat.completions.create(ask(QUESTION)));
  },

  async damaged_model() {
    const { made, statuses } = watched(given.real, 2);
    return { ...(await raised(() => made.chat.completions.create(ask(QUESTION, { model: 'broken' })))), statuses };
  },

  async dead_worker() {
    const { made, statuses } = watched(given.scripted, 2);
    const error = await raised(() => made.chat.completions.create(ask('die after 0')));
    const next = await made.chat.completions.create(ask('count 2'));
    return { ...error, statuses, next: next.choices[0].message.content };
  },

  async dead_in_mid_stream() {
    const { made, statuses } = watched(given.scripted, 2);
    const chunks = [];
    const error = await raised(async () => {
      const stream = await made.chat.completions.create(ask('die after 3', { stream: true }));
      for await (const chunk of stream) chunks.push(chunk);
    });
    return { ...error, statuses, text: textOf(chunks) };
  },

  async full_queue() {
    for (let i = 0; i < 14; i++) await scripted.chat.completions.create(ask('count 1'));
    const holding = [];
    for (let i = 0; i <= given.queue_size; i++) {
      holding.push(await scripted.chat.completions.create(ask('hold', { stream: true })));
    }
    const release = () => holding.splice(0).forEach((stream) => stream.controller.abort());
    const impatient = await raised(() => scripted.chat.completions.create(ask('count 3')));
    const { made, statuses } = watched(given.scripted, 4, (status) => status === 503 && release());
    const answer = await made.chat.completions.create(ask('count 3'));
    return { impatient, statuses, text: answer.choices[0].message.content };
  },

  async aborted_stream() {
    const stream = await scripted.chat.completions.create(ask('hold', { stream: true }));
    for await (const chunk of stream) {
      if (chunk.choices[0]?.delta.content) break; // leaving the loop closes the stream
    }
    const began = Date.now();
    const answer = await scripted.chat.completions.create(ask('count 3'));
    return { text: answer.choices[0].message.content, waited_ms: Date.now() - began };
  },

  async aborted_request() {
    const controller = new AbortController();
    setTimeout(() => controller.abort(), 300);
    const error = await raised(() => scripted.chat.completions.create(ask('hold'), { signal: controller.signal }));
    const began = Date.now();
    const answer = await scripted.chat.completions.create(ask('count 3'));
    return { ...error, text: answer.choices[0].message.content, waited_ms: Date.now() - began };
  },
};

for (const [name, check] of Object.entries(checks)) {
  let result;
  try {
    result = { name, value: await check() };
  } catch (error) {
    result = { name, failed: String(error?.stack ?? error) };
  }
  console.log(JSON.stringify(result));
}
