// One utterance: audio in, text out, as in leapformer_fairseq/runtime/simul/exported.py and stream.py.
import { FeatureStream } from "./features.js";
import { POLICIES } from "./policies.js";
import { Emitter } from "./text.js";

const WEIGHTS = "weights.safetensors";

/** An exported model, loaded once: its graphs in onnxruntime, and what model.json says of it. */
export class Model {
  constructor(runtime, about, graphs) {
    Object.assign(this, { runtime, about, graphs, speech: about.speech, target: about.vocabularies.target });
  }

  /** From the files at `base`; `runtime` is the module of onnxruntime-web. */
  static async load(runtime, base) {
    const read = async (name) => new Uint8Array(await (await fetch(new URL(name, base))).arrayBuffer());
    const about = JSON.parse(new TextDecoder().decode(await read("model.json")));
    const file = async (name) => {
      const bytes = await read(name);
      // Browsers hash for pages at localhost or over https only, as they give the microphone only to these.
      const hash = globalThis.crypto?.subtle && new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
      const found = hash && [...hash].map((byte) => byte.toString(16).padStart(2, "0")).join("");
      if (bytes.length !== about.files[name]?.size || (hash && found !== about.files[name].sha256)) {
        throw new Error(`${name} is damaged, or of another export`);
      }
      return bytes;
    };
    const externalData = [{ path: WEIGHTS, data: await file(WEIGHTS) }];
    const graphs = {};
    for (const name of ["listen", "write", "step"]) {
      graphs[name] = await runtime.InferenceSession.create(await file(`${name}.onnx`), { externalData, logSeverityLevel: 3 });
    }
    return new Model(runtime, about, graphs);
  }

  floats(values, ...shape) {
    return new this.runtime.Tensor("float32", values, shape);
  }

  integers(values, ...shape) {
    return new this.runtime.Tensor("int64", BigInt64Array.from(values, BigInt), shape);
  }

  /** The states of a kind of attention before anything was read. */
  begin(side) {
    const shapes = Object.entries(this.about.states[side]);
    const size = (shape) => shape.reduce((a, b) => a * b, 1);
    const values = (name, shape) => this.about.starts[name]?.flat(Infinity) ?? size(shape);
    return Object.fromEntries(shapes.map(([name, shape]) => [name, this.floats(new Float32Array(values(name, shape)), 1, ...shape)]));
  }

  /** What a graph returns, and the states after it. */
  async advance(graph, given, states) {
    const found = await this.graphs[graph].run({ ...given, ...states });
    return [found, Object.fromEntries(Object.keys(states).map((name) => [name, found[`${name}.next`]]))];
  }
}

/** Each frame is encoded once, and cross-attention reads each row once. */
class Engine {
  constructor(model) {
    this.model = model;
    this.frameCount = 0;
    this.finished = false;
    this.now = { tokens: [], consumed: 0, own: model.begin("self"), source: model.begin("cross"), read: 0 };
    this.waiting = [];
    this.before = null; // the frames of the last row
    this.heard = model.begin("heard");
    this.rows = [];
  }

  /** Rows that a token may see. */
  get ready() {
    const { state_frames: frames, chunk_states: chunk, ahead_states: ahead } = this.model.speech;
    if (this.finished) return Math.ceil(this.frameCount / frames);
    return Math.floor(Math.max(0, Math.floor(this.frameCount / frames) - ahead) / chunk) * chunk;
  }

  feed(frames) {
    this.waiting.push(...frames);
    this.frameCount += frames.length;
  }

  /** The most likely next token that `forbids` does not refuse, of `visible` rows. */
  async best(visible, forbids) {
    const scores = await this.scores(visible);
    let best = -1;
    for (let token = 0; token < scores.length; token++) {
      if (!forbids.has(token) && (best < 0 || scores[token] > scores[best])) best = token;
    }
    return best;
  }

  async scores(visible) {
    await this.encode();
    const { model, now } = this;
    let { source, read } = now;
    const seen = Math.min(this.ready, visible);
    while (read < seen) [source, read] = await this.readRows(source, read, seen);
    const given = {
      tokens: model.integers([now.tokens.at(-1) ?? model.target.eos], 1, 1),
      positions: model.integers([now.tokens.length + 1], 1, 1),
      order: model.integers([0], 1, 1),
      ...source,
    };
    const [found, own] = await model.advance("step", given, now.own);
    this.now = { ...now, consumed: now.tokens.length + 1, own, source, read };
    return found.log_probs.data;
  }

  async consume(visible) {
    if (this.now.consumed <= this.now.tokens.length) await this.scores(visible);
  }

  commit(token) {
    this.now = { ...this.now, tokens: [...this.now.tokens, token] };
  }

  async readRows(source, read, seen) {
    const { model } = this;
    const size = model.speech.step_frames / model.speech.state_frames;
    const found = this.rows.slice(read, Math.min(read + size, seen));
    const width = found[0].length;
    const rows = new Float32Array(size * width);
    found.forEach((row, i) => rows.set(row, i * width));
    const given = { rows: model.floats(rows, size, 1, width), count: model.integers([found.length], 1) };
    const [, after] = await model.advance("write", { ...given, start: model.integers([read], 1) }, source);
    return [after, read + found.length];
  }

  /** Whole chunks and, at the end, what is left. */
  async encode() {
    const { model } = this;
    const { state_frames: perRow, chunk_states: chunk, ahead_states: ahead, n_bins: bins } = model.speech;
    const [own, whole] = [perRow * chunk, perRow * (chunk + ahead)];
    while (this.waiting.length >= whole || (this.finished && this.waiting.length)) {
      const heard = this.waiting.slice(0, whole);
      const taken = this.waiting.splice(0, own);
      const frames = new Float32Array((perRow + whole) * bins);
      this.before?.forEach((frame, i) => frames.set(frame, i * bins));
      heard.forEach((frame, i) => frames.set(frame, (perRow + i) * bins));
      const given = {
        frames: model.floats(frames, 1, perRow + whole, bins),
        before: model.integers([this.before ? perRow : 0], 1),
        count: model.integers([heard.length], 1),
        start: model.integers([this.rows.length], 1),
      };
      const [found, states] = await model.advance("listen", given, this.heard);
      this.heard = states;
      const { data, dims } = found.rows;
      const width = dims.at(-1);
      for (let i = 0; i < Math.ceil(taken.length / perRow); i++) this.rows.push(data.slice(i * width, (i + 1) * width));
      this.before = taken.slice(-perRow);
    }
  }
}

/** An utterance with greedy search. */
export class Stream {
  /** `options`: { decoding, policy, step_frames }, the fields of DecodingOptions and PolicyOptions. */
  constructor(model, { decoding, policy, step_frames: stepFrames }) {
    Object.assign(this, { model, decoding, stepFrames });
    const { n_bins: bins, mean, std } = model.speech;
    this.features = new FeatureStream(stepFrames, bins, mean, std);
    this.engine = new Engine(model);
    this.policy = POLICIES[policy.name](policy);
    this.emitter = new Emitter(model.target, decoding.unit);
    this.steps = 0; // of source that were read
    this.expected = { states: 0, tokens: [] }; // the last continuation
  }

  get written() {
    return this.engine.now.tokens;
  }

  get states() {
    return Math.min(this.engine.ready, this.steps * this.stepStates);
  }

  get stepStates() {
    return Math.floor(this.stepFrames / this.model.speech.state_frames);
  }

  push(samples) {
    this.features.push(samples);
  }

  /** Read and write as far as the audio allows; `finished`: there is no more. */
  async advance(finished) {
    while (this.read(finished)) await this.policy.write(this);
    if (!finished || !this.engine.frameCount) return;
    const most = this.decoding.max_after_read ?? Infinity;
    for (let i = 0; i < most && (await this.write(true, false)); i++);
  }

  flush(final) {
    return this.emitter.flush(final);
  }

  /** The text that would follow if the source ended here. */
  async draft() {
    if (!this.states) return "";
    let { states, tokens } = this.expected; // what the policy asked for
    if (states !== this.states || this.written.some((token, i) => token !== tokens[i])) {
      tokens = [...this.written, ...(await this.continuation())];
    }
    const whole = new Emitter(this.model.target, this.decoding.unit);
    whole.push(this.written);
    whole.flush(false); // what was flushed
    whole.push(tokens.slice(this.written.length));
    return whole.flush(true);
  }

  // -------------------------------------------------------------------------------------------- what a policy can do
  async writeNext() {
    const waits = this.decoding.early_eos === "wait";
    return this.write(waits, waits);
  }

  async continuation() {
    const before = this.engine.now;
    const tokens = [];
    while (tokens.length < this.decoding.max_draft && !this.isFull()) {
      const token = await this.best(true);
      if (token === this.model.target.eos) break;
      this.engine.commit(token);
      tokens.push(token);
    }
    this.engine.now = before;
    this.expected = { states: this.states, tokens: [...this.written, ...tokens] };
    return tokens;
  }

  async commit(tokens) {
    for (const token of tokens) {
      await this.engine.consume(this.states);
      this.take(token);
    }
  }

  // ----------------------------------------------------------------------------------------------------------------
  isFull() {
    const { max_len_a: a, max_len_b: b } = this.decoding;
    return this.written.length >= Math.min(Math.floor(a * this.engine.frameCount + b), this.model.about.max_target - 1);
  }

  /** Read one step; false when there is none. */
  read(finished) {
    const { engine } = this;
    const wanted = (this.steps + 1) * this.stepStates;
    while (engine.ready < wanted && !engine.finished) {
      const frames = this.features.next(finished);
      if (frames) engine.feed(frames);
      else if (finished) engine.finished = true;
      else return false;
    }
    if (engine.ready <= wanted - this.stepStates) return false;
    this.steps++;
    return true;
  }

  /** Write the best next token; false when there is none. */
  async write(eosOpen, takesBack) {
    if (this.isFull()) return false;
    const before = this.engine.now;
    const token = await this.best(eosOpen);
    if (token !== this.model.target.eos) this.take(token);
    else if (takesBack) this.engine.now = before;
    return token !== this.model.target.eos;
  }

  take(token) {
    this.engine.commit(token);
    this.emitter.push([token]);
  }

  best(eosOpen) {
    const forbids = new Set([...this.model.speech.forbidden, ...repeating(this.written, this.decoding.no_repeat_ngram_size)]);
    if (!eosOpen) forbids.add(this.model.target.eos);
    return this.engine.best(this.states, forbids);
  }
}

/** The next tokens with which the last `size` tokens would be an n-gram that is there already. */
function repeating(tokens, size) {
  if (size < 1) return [];
  const starts = Array.from({ length: Math.max(0, tokens.length - size + 1) }, (_, i) => i);
  const last = tokens.slice(tokens.length - size + 1).join();
  return starts.filter((i) => tokens.slice(i, i + size - 1).join() === last).map((i) => tokens[i + size - 1]);
}
