// An ONNX model of one node com.microsoft::LinearAttention, as the bytes of its protocol buffer.
"use strict";

function number(n) {
  const bytes = [];
  for (; n > 127; n = Math.floor(n / 128)) bytes.push((n % 128) | 128);
  return Buffer.from([...bytes, n]);
}

const whole = (field, n) => Buffer.concat([number(field * 8), number(n)]);

// A field of text, of bytes, or of a message, which is an array of fields.
function part(field, content) {
  const bytes = Array.isArray(content) ? Buffer.concat(content) : Buffer.from(content);
  return Buffer.concat([number(field * 8 + 2), number(bytes.length), bytes]);
}

function real(field, x) {
  const bytes = Buffer.alloc(4);
  bytes.writeFloatLE(x);
  return Buffer.concat([number(field * 8 + 5), bytes]);
}

// An AttributeProto: a name, the field of its value, and the number of its type.
const attribute = (name, value, type) => part(5, [part(1, name), value, whole(20, type)]);

// A ValueInfoProto of a float32 tensor of any shape.
const tensor = (field, name) => part(field, [part(1, name), part(2, [part(1, [whole(1, 1)])])]);

// The inputs are those of the operation in their order, "" where one is left out.
function linearAttention({ updateRule, heads, scale, inputs }) {
  const outputs = ["o", "present_state"];
  const node = [
    ...inputs.map((name) => part(1, name)),
    ...outputs.map((name) => part(2, name)),
    part(4, "LinearAttention"),
    attribute("update_rule", part(4, updateRule), 3),
    attribute("q_num_heads", whole(3, heads), 2),
    attribute("kv_num_heads", whole(3, heads), 2),
    attribute("scale", real(2, scale), 1), // 0 is 1/sqrt(d_in)
    part(7, "com.microsoft"),
  ];
  const graph = [
    part(1, node),
    part(2, "linear_attention"),
    ...inputs.filter(Boolean).map((name) => tensor(11, name)),
    ...outputs.map((name) => tensor(12, name)),
  ];
  const opset = (domain, version) => part(8, [part(1, domain), whole(2, version)]);
  const model = [whole(1, 10), part(7, graph), opset("", 21), opset("com.microsoft", 1)];
  return Buffer.concat(model);
}

module.exports = { linearAttention };
