// Lists the models of a running scheduler, streams one generation, and cancels another.
//
//   node main.js ADDRESS [MODEL [TOKEN_ID,TOKEN_ID,...]]
//
// Prompts are token ids, because tokenizers belong to the caller.

import { setTimeout as sleep } from "node:timers/promises";
import { status } from "@grpc/grpc-js";
import { call, connect } from "./connect.js";
import { ClusterService } from "./gen/aegaeon/v1/cluster_pb.js";
import { FinishReason, InferenceService } from "./gen/aegaeon/v1/inference_pb.js";
import { ModelService, ReplicaState } from "./gen/aegaeon/v1/model_pb.js";

const NEW_TOKENS = 16;
const TOKENS_BEFORE_CANCEL = 3;
const TOKENS_TO_CANCEL = 512;
const DEADLINE_MS = 10_000;

/** Names of the models that take requests. */
async function readyModels(models) {
  const response = await call(models, "ListModels", {});
  const isReady = (replica) => replica.state === ReplicaState.READY;
  return response.models
    .filter((model) => model.replicas.some(isReady))
    .map((model) => model.spec.name);
}

/** Streams a generation to its end, printing tokens as they come; returns them. */
async function generate(inference, request) {
  const tokens = [];
  for await (const message of inference.Generate(request)) {
    tokens.push(...message.tokenIds);
    process.stdout.write(`${message.tokenIds.join(" ")} `);
    if (message.finishReason !== FinishReason.UNSPECIFIED) {
      console.log(`(${FinishReason[message.finishReason]})`);
    }
  }
  return tokens;
}

/** Cancels a generation after its first tokens; returns how many came before its end. */
async function generateAndCancel(inference, request) {
  const stream = inference.Generate(request);
  let tokens = 0;
  try {
    for await (const message of stream) {
      tokens += message.tokenIds.length;
      if (tokens >= TOKENS_BEFORE_CANCEL) stream.cancel();
    }
  } catch (error) {
    if (error.code !== status.CANCELLED) throw error;
    return tokens;
  }
  throw new Error(`the generation was over after ${tokens} tokens, before it could be cancelled`);
}

/** Waits until the scheduler counts one more cancelled request and no active one. */
async function waitUntilEnded(cluster, cancelledBefore) {
  const deadline = Date.now() + DEADLINE_MS;
  while (Date.now() < deadline) {
    const { snapshot } = await call(cluster, "GetRuntime", {});
    const { activeRequests, statistics } = snapshot;
    if (activeRequests === 0 && statistics.cancelled > cancelledBefore) return;
    await sleep(20);
  }
  throw new Error(`the cancelled request is still active after ${DEADLINE_MS} ms`);
}

async function main(address, model, prompt = "1,2,3") {
  const models = connect(ModelService, address);
  const inference = connect(InferenceService, address);
  const cluster = connect(ClusterService, address);
  try {
    const names = await readyModels(models);
    console.log(`models: ${names.join(", ")}`);
    const request = {
      model: model ?? names[0],
      promptTokenIds: prompt.split(",").map(Number),
      stop: { maxNewTokens: NEW_TOKENS, ignoreEos: true },
    };
    process.stdout.write(`tokens of ${request.model}: `);
    const tokens = await generate(inference, request);
    console.log(`generated: ${tokens.length} tokens`);

    const before = await call(cluster, "GetRuntime", {});
    request.stop.maxNewTokens = TOKENS_TO_CANCEL;
    const received = await generateAndCancel(inference, request);
    await waitUntilEnded(cluster, before.snapshot.statistics.cancelled);
    console.log(`cancelled: after ${received} of ${TOKENS_TO_CANCEL} tokens, no request is active`);
  } finally {
    for (const client of [models, inference, cluster]) client.close();
  }
}

const [address, model, prompt] = process.argv.slice(2);
if (!address) {
  console.error("usage: node main.js ADDRESS [MODEL [TOKEN_ID,TOKEN_ID,...]]");
  process.exit(2);
}
await main(address, model, prompt);
