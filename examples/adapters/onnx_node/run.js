// LinearAttention of onnxruntime-node as a program: node run.js CASE OUT
//
// Tensors are packed as (B, T, H D), gates are logs, the state is (d_in, d_out), all in float32.
// What a case asks beyond that ends with 3 and a reason on standard output.
"use strict";
const { read, write } = require("./cases.js");
const { linearAttention } = require("./model.js");

const RULES = {
  linear_attn: "linear",
  simple_gla: "gated",
  gla: "gated",
  delta: "delta",
  gated_delta: "gated_delta",
  kda: "gated_delta",
};
// What a case may state: parameters that are carried out, have no effect here, or are about tolerance.
const TAKEN = ["member", "state_layout", "groups", "query_scale", "norm_eps", "masked_read"];
const TOLERATED = ["state_dtype", "state_every", "log_chunk", "gate_softplus", "gate_dtype"];
const COMPUTED = { q_norm: "none", k_norm: "none", steps: 1, query_groups: 1, gate_normalizer: 1 };
const BARS = ["in/y_bar", "in/M_bar"];

function refusal({ rule, parameters = {} }, tensors) {
  const update = RULES[parameters.member];
  if (rule !== "dplr" || !update) {
    return `${rule} ${parameters.member || ""}: it computes ${Object.keys(RULES).join(", ")}`;
  }
  const computed = { ...COMPUTED };
  if (update === "gated_delta") computed.decay = "before_error";
  if (parameters.groups > 1) computed.group_order = "blocks";
  const free = [...TAKEN, ...TOLERATED, ...["decay", "group_order"].filter((n) => !computed[n])];
  for (const [name, value] of Object.entries(parameters)) {
    if (free.includes(name) || value === null || value === computed[name]) continue;
    return `parameters.${name} ${value}: it computes ${computed[name] || "none"}`;
  }
  const known = ["in/q", "in/k", "in/v", "in/M0", ...BARS];
  if (update.startsWith("gated")) known.push("in/retain", "in/log_retain");
  if (update.endsWith("delta")) known.push("in/beta");
  const other = Object.keys(tensors).find((n) => n.startsWith("in/") && !known.includes(n));
  if (other) return `${other}: it takes none`;
  const beta = tensors["in/beta"];
  if (beta && beta.shape.length === tensors["in/v"].shape.length) {
    return "in/beta for each value: it takes one a head";
  }
  return "";
}

// (B, H, T, D) as (B, T, H D), or back: axes 1 and 2 change places.
function exchanged(data, [B, one, two, D]) {
  const found = new Float32Array(data.length);
  for (let b = 0; b < B; b++)
    for (let i = 0; i < one; i++)
      for (let j = 0; j < two; j++) {
        const from = ((b * one + i) * two + j) * D;
        found.set(data.subarray(from, from + D), ((b * two + j) * one + i) * D);
      }
  return found;
}

// Each of n matrices (rows, columns) as (columns, rows).
function turned(data, n, rows, columns) {
  return exchanged(data, [n, rows, columns, 1]);
}

// Heads of keys (B, H, T, D) for the value heads: neighbours share one.
function repeated(data, groups, size) {
  const found = new Float32Array(data.length * groups);
  for (let h = 0; h < data.length / size; h++)
    for (let g = 0; g < groups; g++)
      found.set(data.subarray(h * size, (h + 1) * size), (h * groups + g) * size);
  return found;
}

async function results({ parameters }, tensors) {
  const ort = require("onnxruntime-node");
  const { "in/q": q, "in/k": k, "in/v": v, "in/M0": first } = tensors;
  const axes = v.shape.slice(0, -2);
  const [T, dv] = v.shape.slice(-2);
  const dk = k.shape[k.shape.length - 1];
  const heads = axes.length ? axes[axes.length - 1] : 1;
  const B = axes.slice(0, -1).reduce((product, n) => product * n, 1);
  const rowsFirst = parameters.state_layout !== "(d_in, d_out)";
  const groups = parameters.groups || 1;
  const updateRule = RULES[parameters.member];

  const packed = (data, D) =>
    new ort.Tensor("float32", exchanged(data, [B, heads, T, D]), [B, T, heads * D]);
  const state = first ? first.data : new Float32Array(B * heads * dk * dv);
  const past = rowsFirst ? turned(state, B * heads, dv, dk) : state;
  const feeds = {
    q: packed(repeated(q.data, groups, T * dk), dk),
    k: packed(repeated(k.data, groups, T * dk), dk),
    v: packed(v.data, dv),
    past: new ort.Tensor("float32", past, [B, heads, dk, dv]),
  };
  const gate = tensors["in/log_retain"] || tensors["in/retain"];
  if (updateRule.startsWith("gated")) {
    const log = tensors["in/log_retain"] ? gate.data : gate && gate.data.map(Math.log);
    const width = gate && gate.shape.length === v.shape.length ? dk : 1;
    feeds.g = packed(log || new Float32Array(B * heads * T), width); // without a gate, 1
  }
  if (updateRule.endsWith("delta")) feeds.beta = packed(tensors["in/beta"].data, 1);

  const inputs = ["q", "k", "v", "past", "g", "beta"].map((name) => (feeds[name] ? name : ""));
  while (!inputs[inputs.length - 1]) inputs.pop();
  const scale = typeof parameters.query_scale === "number" ? parameters.query_scale : 0;
  const model = linearAttention({ updateRule, heads, scale, inputs });
  const session = await ort.InferenceSession.create(model);
  const { o, present_state: last } = await session.run(feeds);

  const M = rowsFirst ? turned(last.data, B * heads, dk, dv) : last.data;
  const shape = [...axes, ...(rowsFirst ? [dv, dk] : [dk, dv])];
  const y = exchanged(o.data, [B, T, heads, dv]);
  return { "out/y": { shape: v.shape, data: y }, "out/M": { shape, data: M } };
}

async function main([path, out]) {
  const { refused, header, tensors } = read(path);
  const why = refused || refusal(header, tensors);
  if (why) {
    console.log(why);
    return 3;
  }
  write(out, header, await results(header, tensors));
  return 0;
}

main(process.argv.slice(2)).then(
  (code) => (process.exitCode = code),
  (error) => {
    console.error(String(error.message || error).split("\n")[0]);
    process.exitCode = 1;
  },
);
