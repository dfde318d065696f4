// Where sentences end in continuous speech, as in leapformer_fairseq/runtime/sentences.py.
import { FRAME_MS, SAMPLE_RATE, UNIT_MS, WINDOW_MS, concatenate, rounded } from "./audio.js";
import { QUIET } from "./exported.js";

const FRAMES = UNIT_MS / FRAME_MS; // per step, which is a unit
const HOP = (SAMPLE_RATE * FRAME_MS) / 1000;
const NEAR = 2 * FRAMES; // frames: the largest offset of an end from the step that reports it
const BETWEEN = ((WINDOW_MS - FRAME_MS) * SAMPLE_RATE) / 2000; // from a frame to the middle of its overlap

/** A trained network, and the graph that it is an input of. */
export class SentenceModel {
  constructor(system, graph, weights, { ahead, threshold }) {
    Object.assign(this, { system, graph, weights, ahead, threshold });
  }

  /** `about`: { ahead, threshold, shapes } of the weights, which follow each other in their file. */
  static async load(system, read, about) {
    const graph = await system.runtime.InferenceSession.create(await read("graphs/sentences.onnx"), QUIET);
    const [weights, { buffer }] = [{}, await read("graphs/sentences.bin")];
    let at = 0;
    for (const [name, shape] of Object.entries(about.shapes)) {
      const values = new Float32Array(buffer, at, shape.reduce((a, b) => a * b));
      weights[name] = system.floats(values, ...shape);
      at += values.byteLength;
    }
    return new SentenceModel(system, graph, weights, about);
  }

  /** Units of 40 ms that are heard after the end of a sentence until it is known. */
  get delay() {
    return this.ahead + 2;
  }

  begin() {
    return new SentenceEnds(this);
  }

  fbank() {
    return this.system.fbank();
  }

  /** Of four more frames: the probability of an end, how many frames after it was expected, and the state. */
  async step(frames, state) {
    const { system, weights } = this;
    const [units] = weights.enter_bias.dims;
    const given = {
      ...weights,
      frames: system.floats(concatenate(...frames), FRAMES, frames[0].length),
      state: state ?? system.floats(new Float32Array(units), units),
    };
    const { chance, after, "state.next": next } = await this.graph.run(given);
    return [chance.data[0], after.data[0], next];
  }
}

/** What the network has heard of one recording. `push` its audio, 40 ms at a time. */
export class SentenceEnds {
  constructor(model) {
    this.model = model;
    this.fbank = model.fbank();
    this.frames = [];
    this.state = null;
    this.steps = 0;
  }

  /** The sample of the recording at which a sentence ended, if that is known now, else null. */
  async push(unit) {
    this.frames.push(...(await this.fbank.push(unit)));
    let end = null;
    while (this.frames.length >= FRAMES) {
      const [chance, told, state] = await this.model.step(this.frames.splice(0, FRAMES), this.state);
      this.state = state;
      if (chance > this.model.threshold) {
        const after = Math.min(Math.max(told, -NEAR), NEAR); // whatever the network predicts
        const frame = (this.steps - this.model.ahead) * FRAMES + after;
        end = rounded(frame * HOP) + BETWEEN;
      }
      this.steps++;
    }
    return end;
  }
}
