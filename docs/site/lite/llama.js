// The teaching model in the page: a Llama's arithmetic on float32, one token at a time, and its tokenizer.
// The same as workshop/teaching_model/reference.py; a test holds their logits together.

// What a client asks: `files` gives the bytes (ArrayBuffer) of each of the checkpoint's files by its name.
export function teachingModel(files) {
  const read = name => JSON.parse(new TextDecoder().decode(files[name]));
  const weights = Object.assign({}, ...Object.keys(files).filter(name => name.endsWith(".safetensors")).map(name => tensors(files[name])));
  const model = new Llama(read("config.json"), weights);
  return { tokenizer: new Tokenizer(read("tokenizer.json")), logits: (ids, first) => model.logits(ids, first) };
}

// Float32Array by name. The file: 8 bytes of length, a JSON header, then bfloat16, which is the upper half of float32.
function tensors(buffer) {
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const found = {};
  delete header.__metadata__;
  for (const [name, { dtype, data_offsets: [from, to] }] of Object.entries(header)) {
    if (dtype !== "BF16") throw new Error(`${name} is ${dtype}; only bfloat16 (BF16) is read here.`);
    const halves = new Uint16Array(buffer.slice(8 + length + from, 8 + length + to));
    const bits = new Uint32Array(halves.length);
    for (let i = 0; i < halves.length; i++) bits[i] = halves[i] << 16;
    found[name] = new Float32Array(bits.buffer);
  }
  return found;
}

// matrix [outputs, inputs] times x [inputs]
function times(matrix, x, outputs) {
  const inputs = x.length, result = new Float32Array(outputs);
  for (let row = 0, at = 0; row < outputs; row++, at += inputs) {
    let a = 0, b = 0, c = 0, d = 0;
    for (let i = 0; i < inputs; i += 4) {       // hidden sizes divide by 4
      a += matrix[at + i] * x[i]; b += matrix[at + i + 1] * x[i + 1];
      c += matrix[at + i + 2] * x[i + 2]; d += matrix[at + i + 3] * x[i + 3];
    }
    result[row] = a + b + c + d;
  }
  return result;
}

export class Llama {
  constructor(config, weights) {
    Object.assign(this, { config, weights, seen: [], cache: [] });
  }

  // Logits of the token after `ids` (of all positions from `first` on, where it is given): a list of Float32Array.
  logits(ids, first = ids.length - 1) {
    let kept = 0;
    while (kept < this.seen.length && kept < first && this.seen[kept] === ids[kept]) kept++;
    this.seen.length = kept;                    // what the cache holds of another text is written over
    const all = [];
    for (let at = kept; at < ids.length; at++) {
      const x = this.step(ids[at], at);
      this.seen.push(ids[at]);
      if (at >= first) all.push(times(this.weights["model.embed_tokens.weight"], x, this.config.vocab_size));  // tied
    }
    return all;
  }

  norm(name, x) {
    const weight = this.weights[`${name}.weight`], result = new Float32Array(x.length);
    let squares = 0;
    for (const value of x) squares += value * value;
    const scale = 1 / Math.sqrt(squares / x.length + this.config.rms_norm_eps);
    for (let i = 0; i < x.length; i++) result[i] = x[i] * scale * weight[i];
    return result;
  }

  step(token, at) {
    const { hidden_size: size, num_hidden_layers: layers, intermediate_size: inner } = this.config;
    const x = this.weights["model.embed_tokens.weight"].slice(token * size, (token + 1) * size);
    const add = y => { for (let i = 0; i < size; i++) x[i] += y[i]; };
    for (let layer = 0; layer < layers; layer++) {
      const name = `model.layers.${layer}`, weight = part => this.weights[`${name}.${part}.weight`];
      add(this.attention(layer, this.norm(`${name}.input_layernorm`, x), at));
      const h = this.norm(`${name}.post_attention_layernorm`, x);
      const gate = times(weight("mlp.gate_proj"), h, inner), up = times(weight("mlp.up_proj"), h, inner);
      for (let i = 0; i < inner; i++) gate[i] = gate[i] / (1 + Math.exp(-gate[i])) * up[i];
      add(times(weight("mlp.down_proj"), gate, size));
    }
    return this.norm("model.norm", x);
  }

  attention(layer, h, at) {
    const { num_attention_heads: heads, num_key_value_heads: groups, head_dim: size, rope_theta: theta } = this.config;
    const weight = part => this.weights[`model.layers.${layer}.self_attn.${part}_proj.weight`];
    const q = rotated(times(weight("q"), h, heads * size), at, size, theta);
    const k = rotated(times(weight("k"), h, groups * size), at, size, theta), v = times(weight("v"), h, groups * size);
    const cache = this.cache[layer] ??= { k: [], v: [] };
    cache.k[at] = k; cache.v[at] = v;
    const mixed = new Float32Array(heads * size), scores = new Float32Array(at + 1);
    for (let head = 0; head < heads; head++) {
      const mine = head * size, shared = Math.floor(head * groups / heads) * size;
      let most = -Infinity, sum = 0;
      for (let t = 0; t <= at; t++) {
        let score = 0;
        for (let i = 0; i < size; i++) score += q[mine + i] * cache.k[t][shared + i];
        most = Math.max(most, scores[t] = score / Math.sqrt(size));
      }
      for (let t = 0; t <= at; t++) sum += scores[t] = Math.exp(scores[t] - most);
      for (let t = 0; t <= at; t++)
        for (let i = 0; i < size; i++) mixed[mine + i] += scores[t] / sum * cache.v[t][shared + i];
    }
    return times(weight("o"), mixed, this.config.hidden_size);
  }
}

// Rotary position embeddings of all heads of one token.
function rotated(x, at, size, theta) {
  const half = size / 2;
  for (let head = 0; head < x.length; head += size)
    for (let i = 0; i < half; i++) {
      const angle = at / theta ** (i / half), cos = Math.cos(angle), sin = Math.sin(angle);
      const first = x[head + i], second = x[head + half + i];
      x[head + i] = first * cos - second * sin;
      x[head + half + i] = second * cos + first * sin;
    }
  return x;
}

// Byte-level BPE, as tokenizer.json describes it.
export class Tokenizer {
  constructor({ model: { vocab, merges }, added_tokens }) {
    this.ids = new Map(Object.entries(vocab));
    this.ranks = new Map(merges.map((pair, rank) => [(Array.isArray(pair) ? pair : pair.split(" ")).join(" "), rank]));
    this.special = new Map(added_tokens.map(({ content, id }) => [id, content]));
    this.tokens = [];
    for (const [token, id] of this.ids) this.tokens[id] = token;
    this.byteOf = new Map();
    let others = 0;
    for (let byte = 0; byte < 256; byte++) {
      const printable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte !== 0xad);
      this.byteOf.set(String.fromCodePoint(printable ? byte : 256 + others++), byte);
    }
    this.characterOf = new Map([...this.byteOf].map(([character, byte]) => [byte, character]));
  }

  encode(text) {
    const named = new Map([...this.special].map(([id, content]) => [content, id]));
    const parts = text.split(/(<\|\w+\|>)/);    // a special token's name in a text is that token
    return [0, ...parts.flatMap(part => named.has(part) ? [named.get(part)] : this.words(part))];  // 0: <|begin_of_text|>
  }

  words(text) {
    const ids = [];
    for (const [word] of text.matchAll(/'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+/gu)) {
      const parts = [...new TextEncoder().encode(word)].map(byte => this.characterOf.get(byte));
      for (;;) {
        let best = Infinity, place = -1;
        for (let i = 0; i + 1 < parts.length; i++) {
          const rank = this.ranks.get(`${parts[i]} ${parts[i + 1]}`) ?? Infinity;
          if (rank < best) [best, place] = [rank, i];
        }
        if (place < 0) break;
        parts.splice(place, 2, parts[place] + parts[place + 1]);
      }
      for (const part of parts) ids.push(this.ids.get(part));
    }
    return ids;
  }

  bytes(id) {
    return this.special.has(id) ? [] : [...this.tokens[id]].map(character => this.byteOf.get(character));
  }

  decode(ids) {
    return new TextDecoder().decode(new Uint8Array(ids.flatMap(id => this.bytes(id))));
  }
}
