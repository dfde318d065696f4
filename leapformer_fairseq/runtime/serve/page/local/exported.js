// An exported model and its engines, as in leapformer_fairseq/runtime/simul/exported.py and runtime/engine.py.
import { OnlineFbank } from "./audio.js";
import { Detokenizer } from "./text.js";

const WEIGHTS = "weights.safetensors";
export const QUIET = { logSeverityLevel: 3 };

/** What all utterances share: a model in onnxruntime, and the features and text of its training data. */
export class ExportedSystem {
  /** `about`: what model.json says; `policy`: the fields of PolicyOptions. */
  constructor(runtime, graphs, about, policy, stepFrames) {
    Object.assign(this, { runtime, graphs, about, policy, stepFrames });
    const { state_frames: stateFrames, chunk_states: chunkStates, forbidden, mean, std } = about.speech;
    const { target } = about.vocabularies;
    Object.assign(this, { stateFrames, chunkStates, forbidden, eos: target.eos, positions: about.max_target });
    this.detokenizer = new Detokenizer(target);
    this.cmvn = mean && { mean, std };
  }

  /** `read`: the bytes of a file of the page, by its address; `runtime` is the module of onnxruntime-web. */
  static async load(runtime, read, policy, stepFrames) {
    const about = JSON.parse(new TextDecoder().decode(await read("model/model.json")));
    const file = async (name) => {
      const bytes = await read(`model/${name}`);
      // Browsers hash for pages at localhost or over https only, as they give the microphone only to these.
      const hash = globalThis.crypto?.subtle && new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
      const found = hash && [...hash].map((byte) => byte.toString(16).padStart(2, "0")).join("");
      if (bytes.length !== about.files[name]?.size || (hash && found !== about.files[name].sha256)) {
        throw new Error(`${name} is damaged, or of another export`);
      }
      return bytes;
    };
    const externalData = [{ path: WEIGHTS, data: await file(WEIGHTS) }];
    const graphs = { fbank: await runtime.InferenceSession.create(await read("graphs/fbank.onnx"), QUIET) };
    for (const name of ["listen", "write", "step"]) {
      graphs[name] = await runtime.InferenceSession.create(await file(`${name}.onnx`), { externalData, ...QUIET });
    }
    return new ExportedSystem(runtime, graphs, about, policy, stepFrames);
  }

  /** An engine for one more utterance. */
  begin() {
    return new ExportedEngine(this);
  }

  /** What makes frames of one more utterance. */
  fbank() {
    return new OnlineFbank(async (samples) => {
      const { frames } = await this.graphs.fbank.run({ samples: this.floats(samples, samples.length) });
      return rowsOf(frames);
    });
  }

  /** The same with another k of wait-k. */
  waiting(k) {
    return new ExportedSystem(this.runtime, this.graphs, this.about, { ...this.policy, k }, this.stepFrames);
  }

  // ---------------------------------------------------------------------------------------------------------- graphs
  floats(values, ...shape) {
    return new this.runtime.Tensor("float32", values, shape);
  }

  integers(values, ...shape) {
    return new this.runtime.Tensor("int64", BigInt64Array.from(values, BigInt), shape);
  }

  /** The states of a kind of attention before anything was read. */
  begun(side) {
    const shapes = Object.entries(this.about.states[side]);
    return Object.fromEntries(shapes.map(([name, shape]) => {
      const values = this.about.starts[name]?.flat(Infinity) ?? shape.reduce((a, b) => a * b, 1);
      return [name, this.floats(new Float32Array(values), 1, ...shape)];
    }));
  }

  /** What a graph returns, and the states after it. */
  async advance(graph, given, states) {
    const found = await this.graphs[graph].run({ ...given, ...states });
    return [found, Object.fromEntries(Object.keys(states).map((name) => [name, found[`${name}.next`]]))];
  }
}

/** Each frame is encoded once, chunk by chunk, and cross-attention reads each state once. */
class ExportedEngine {
  constructor(system) {
    Object.assign(this, { system, about: system.about.speech, nFrames: 0, finished: false });
    // The decoder at one moment. No state is ever changed: each step makes new ones.
    const [states, source] = ["self", "cross"].map((side) => system.begun(side));
    this.now = { tokens: [system.eos], nConsumed: 0, states, source, nRead: 0 };
    this.waiting = [];
    this.before = []; // the frames of the last state
    this.heard = system.begun("heard");
    this.states = []; // of the encoder; "rows" in the graphs
  }

  get tokens() {
    return this.now.tokens.slice(1);
  }

  /** Number of encoder states that a token may see, given the frames fed. */
  get ready() {
    const { state_frames: frames, chunk_states: chunk, ahead_states: ahead } = this.about;
    if (this.finished) return Math.ceil(this.nFrames / frames);
    return Math.floor(Math.max(0, Math.floor(this.nFrames / frames) - ahead) / chunk) * chunk;
  }

  feed(frames) {
    this.waiting.push(...frames);
    this.nFrames += frames.length;
  }

  finish() {
    this.finished = true;
  }

  /** Scores of the next token, after consuming the last one, which sees `visible` states. */
  async scores(visible) {
    await this.encode();
    const { system, now } = this;
    const seen = Math.min(this.ready, visible);
    let { source, nRead } = now;
    while (nRead < seen) [source, nRead] = await this.read(source, nRead, seen);
    const place = now.tokens.length;
    const given = {
      tokens: system.integers([now.tokens.at(-1)], 1, 1),
      positions: system.integers([place], 1, 1),
      order: system.integers([0], 1, 1),
    };
    const [found, states] = await system.advance("step", { ...given, ...source }, now.states);
    this.now = { tokens: now.tokens, nConsumed: place, states, source, nRead };
    return found.log_probs.data;
  }

  /** The most likely next token but for some. */
  async best(visible, forbidden) {
    const scores = (await this.scores(visible)).slice();
    for (const token of forbidden) scores[token] = -Infinity;
    return scores.reduce((best, score, token) => (score > scores[best] ? token : best), 0);
  }

  /** Consume the last token unless this was done already. */
  async consume(visible) {
    if (this.now.nConsumed < this.now.tokens.length) await this.scores(visible);
  }

  commit(token) {
    this.now = { ...this.now, tokens: [...this.now.tokens, token] };
  }

  snapshot() {
    return this.now;
  }

  restore(snapshot) {
    this.now = snapshot;
  }

  /** Let cross-attention read up to a step more: its states, and how many encoder states it has read. */
  async read(source, read, seen) {
    const { system, about } = this;
    const size = about.step_frames / about.state_frames;
    const found = this.states.slice(read, Math.min(read + size, seen));
    const width = found[0].length;
    const padded = new Float32Array(size * width);
    found.forEach((state, i) => padded.set(state, i * width));
    const given = {
      rows: system.floats(padded, size, 1, width),
      count: system.integers([found.length], 1),
      start: system.integers([read], 1),
    };
    const [, after] = await system.advance("write", given, source);
    return [after, read + found.length];
  }

  /** Encode whole chunks and, at the end, what is left. */
  async encode() {
    const { system } = this;
    const { state_frames: perState, chunk_states: chunk, ahead_states: ahead, n_bins: bins } = this.about;
    const [size, whole] = [perState * chunk, perState * (chunk + ahead)];
    while (this.waiting.length >= whole || (this.finished && this.waiting.length)) {
      const heard = this.waiting.slice(0, whole);
      const taken = this.waiting.splice(0, size);
      const frames = new Float32Array((perState + whole) * bins);
      this.before.forEach((frame, i) => frames.set(frame, i * bins));
      heard.forEach((frame, i) => frames.set(frame, (perState + i) * bins));
      const given = {
        frames: system.floats(frames, 1, perState + whole, bins),
        before: system.integers([this.states.length ? perState : 0], 1),
        count: system.integers([heard.length], 1),
        start: system.integers([this.states.length], 1),
      };
      const [found, heardBy] = await system.advance("listen", given, this.heard);
      this.heard = heardBy;
      this.states.push(...rowsOf(found.rows).slice(0, Math.ceil(taken.length / perState)));
      this.before = taken.slice(-perState);
    }
  }
}

/** An array for each row of a tensor. */
function rowsOf({ data, dims }) {
  const width = dims.at(-1);
  return Array.from({ length: data.length / width }, (_, i) => data.slice(i * width, (i + 1) * width));
}
