// Joins the generated service descriptions to @grpc/grpc-js.

import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { credentials, makeGenericClientConstructor } from "@grpc/grpc-js";

/**
 * Opens a client of one service.
 *
 * Its methods carry the names of the contract and take plain objects with the fields of the request.
 *
 * @param {import("@bufbuild/protobuf").DescService} service - generated description, such as
 *   `ModelService`
 * @param {string} address - `host:port` or `unix:path`
 */
export function connect(service, address) {
  const methods = Object.fromEntries(
    service.methods.map((method) => [method.name, methodDefinition(method)]),
  );
  const Client = makeGenericClientConstructor(methods, service.typeName);
  return new Client(address, credentials.createInsecure(), { "grpc.enable_http_proxy": 0 });
}

/** Waits for the reply of a method without streams. */
export function call(client, method, request) {
  return new Promise((resolve, reject) => {
    client[method](request, (error, response) => (error ? reject(error) : resolve(response)));
  });
}

function methodDefinition(method) {
  const encode = (schema) => (message) => Buffer.from(toBinary(schema, create(schema, message)));
  const decode = (schema) => (bytes) => fromBinary(schema, bytes);
  return {
    path: `/${method.parent.typeName}/${method.name}`,
    requestStream: ["client_streaming", "bidi_streaming"].includes(method.methodKind),
    responseStream: ["server_streaming", "bidi_streaming"].includes(method.methodKind),
    requestSerialize: encode(method.input),
    requestDeserialize: decode(method.input),
    responseSerialize: encode(method.output),
    responseDeserialize: decode(method.output),
  };
}
