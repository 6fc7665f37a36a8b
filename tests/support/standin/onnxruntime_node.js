// onnxruntime-node with LinearAttention alone, token by token, from the text of the operation.
"use strict";

class Tensor {
  constructor(type, data, dims) {
    if (type !== "float32" || data.length !== dims.reduce((a, b) => a * b, 1)) {
      throw new Error(`${type} of ${data.length} numbers as ${dims}`);
    }
    Object.assign(this, { type, data, dims });
  }
}

class InferenceSession {
  static async create(model) {
    const session = new InferenceSession();
    const bytes = Buffer.from(model);
    const after = (name) => bytes.indexOf(name) + name.length;
    const rule = after("update_rule"); // a tag, a length, the text
    session.rule = bytes.toString("latin1", rule + 2, rule + 2 + bytes[rule + 1]);
    session.heads = bytes[after("kv_num_heads") + 1];
    session.scale = bytes.readFloatLE(after("\x05scale") + 1);
    return session;
  }

  async run({ q, k, v, past, g, beta }) {
    const H = this.heads;
    const [B, T, wide] = v.dims;
    const [dk, dv] = past.dims.slice(2);
    if (wide !== H * dv || k.dims[2] !== H * dk) throw new Error(`${wide}, ${k.dims[2]} of ${H}`);
    const scale = this.scale || dk ** -0.5;
    const o = new Float32Array(v.data.length);
    const S = Float64Array.from(past.data);
    for (let b = 0; b < B; b++)
      for (let h = 0; h < H; h++)
        for (let t = 0; t < T; t++) {
          const row = (b * T + t) * H + h;
          const at = (i, j) => ((b * H + h) * dk + i) * dv + j;
          const width = g ? g.dims[2] / H : 0;
          for (let j = 0; j < dv; j++) {
            let error = v.data[row * dv + j];
            for (let i = 0; i < dk; i++) {
              if (this.rule.startsWith("gated"))
                S[at(i, j)] *= Math.exp(g.data[row * width + (i % width)]);
              if (this.rule.endsWith("delta")) error -= k.data[row * dk + i] * S[at(i, j)];
            }
            if (this.rule.endsWith("delta")) error *= beta.data[row];
            for (let i = 0; i < dk; i++) {
              S[at(i, j)] += k.data[row * dk + i] * error;
              o[row * dv + j] += scale * q.data[row * dk + i] * S[at(i, j)];
            }
          }
        }
    const last = new Tensor("float32", Float32Array.from(S), past.dims);
    return { o: new Tensor("float32", o, v.dims), present_state: last };
  }
}

module.exports = { Tensor, InferenceSession };
