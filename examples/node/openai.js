// OpenAI's own package in front of the gateway: chats whole and streamed, JSON of a schema, a call of
// a tool with its result, a stream that is cancelled, an error.
//
//   node openai.js http://127.0.0.1:8000 Qwen3

import process from "node:process";

import OpenAI from "openai";

const WEATHER = {
  type: "function",
  function: {
    name: "get_weather",
    description: "The weather in a city.",
    parameters: {
      type: "object",
      properties: { city: { type: "string", maxLength: 20 } },
      required: ["city"],
      additionalProperties: false,
    },
  },
};
const PERSON = {
  type: "object",
  properties: {
    name: { type: "string", maxLength: 20 },
    age: { type: "integer", minimum: 0, maximum: 150 },
  },
  required: ["name", "age"],
  additionalProperties: false,
};

const [url, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });

async function chat() {
  const request = {
    model,
    messages: [{ role: "user", content: "What is a KV cache?" }],
    temperature: 0,
    max_tokens: 24,
  };
  const whole = await client.chat.completions.create(request);
  let streamed = "";
  const stream = await client.chat.completions.create({
    ...request,
    stream: true,
    stream_options: { include_usage: true },
  });
  let usage = null;
  for await (const chunk of stream) {
    streamed += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  console.log("answer:", JSON.stringify(whole.choices[0].message.content));
  console.log("streamed:", JSON.stringify(streamed));
  console.log("tokens:", whole.usage.completion_tokens, usage.completion_tokens);
}

async function json() {
  const answer = await client.chat.completions.create({
    model,
    messages: [{ role: "user", content: "Invent somebody." }],
    response_format: { type: "json_schema", json_schema: { name: "person", schema: PERSON } },
    max_tokens: 200,
  });
  console.log("person:", JSON.stringify(JSON.parse(answer.choices[0].message.content)));
}

async function call() {
  const messages = [{ role: "user", content: "How is the weather in Paris?" }];
  const runner = client.chat.completions.stream({
    model,
    messages,
    tools: [WEATHER],
    tool_choice: "required",
    parallel_tool_calls: false,
    max_tokens: 200,
  });
  const { message, finish_reason: reason } = (await runner.finalChatCompletion()).choices[0];
  const [made] = message.tool_calls;
  console.log(`${reason}:`, made.function.name, Object.keys(JSON.parse(made.function.arguments)));
  const told = { role: "tool", tool_call_id: made.id, content: "Sunny." };
  const answer = await client.chat.completions.create({
    model,
    messages: [...messages, message, told],
    tools: [WEATHER],
    max_tokens: 8,
  });
  console.log("after the call:", answer.usage.completion_tokens > 0);
}

async function respond() {
  const stream = await client.responses.create({
    model,
    input: "Say hello.",
    max_output_tokens: 8,
    stream: true,
  });
  let last;
  for await (const event of stream) last = event;
  console.log("response:", last.response.status, last.response.output[0]?.type ?? "empty");
}

async function cancel() {
  const stream = await client.completions.create({
    model,
    prompt: "Once upon a time",
    max_tokens: 2000,
    stream: true,
    ignore_eos: true,
  });
  for await (const _ of stream) break; // which aborts the request
  console.log("cancelled:", stream.controller.signal.aborted);
}

async function fail() {
  try {
    await client.chat.completions.create({ model: "nobody", messages: [{ role: "user", content: "" }] });
  } catch (error) {
    console.log("error:", error.status, error.code, error.constructor.name);
  }
}

console.log("models:", (await client.models.list()).data.map((one) => one.id).join(", "));
for (const part of [chat, json, call, respond, cancel, fail]) await part();
