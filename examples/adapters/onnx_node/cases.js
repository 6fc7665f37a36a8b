// Case files: the length of the header, the header, and the tensors (specs/case.md). Plain JavaScript.
"use strict";
const fs = require("fs");

const KINDS = { F64: Float64Array, F32: Float32Array, U8: Uint8Array, BOOL: Uint8Array };

// The JSON object of a case, and its tensors by name: {shape, data}, floats in float32.
function read(path) {
  const bytes = fs.readFileSync(path);
  const start = 8 + Number(bytes.readBigUInt64LE(0));
  const { __metadata__, ...entries } = JSON.parse(bytes.toString("utf8", 8, start));
  const tensors = {};
  for (const [name, { dtype, shape, data_offsets: [from, to] }] of Object.entries(entries)) {
    const kind = KINDS[dtype];
    if (!kind) return { refused: `${name} of ${dtype}: it reads F64 and F32` };
    const own = Uint8Array.from(bytes.subarray(start + from, start + to)); // at a multiple of 8
    tensors[name] = { shape, data: Float32Array.from(new kind(own.buffer)) };
  }
  return { header: JSON.parse(__metadata__.atlas_ref), tensors };
}

// Results in float32 beside the object of the case.
function write(path, header, tensors) {
  const entries = { __metadata__: { atlas_ref: JSON.stringify(header) } };
  const parts = [];
  let end = 0;
  for (const [name, { shape, data }] of Object.entries(tensors)) {
    const part = Buffer.from(data.buffer, data.byteOffset, data.byteLength);
    entries[name] = { dtype: "F32", shape, data_offsets: [end, (end += part.length)] };
    parts.push(part);
  }
  const text = Buffer.from(JSON.stringify(entries));
  const spaces = Buffer.alloc(-text.length & 7, " ");
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length + spaces.length));
  fs.writeFileSync(path, Buffer.concat([length, text, spaces, ...parts]));
}

module.exports = { read, write };
