// Audio, and its log-mel frames while it arrives, as in leapformer_fairseq/runtime/audio.py.
export const SAMPLE_RATE = 16000;
export const FRAME_MS = 10;
export const WINDOW_MS = 25;
export const UNIT_MS = 40; // four frames, of which an encoder makes one state
export const UNIT_SAMPLES = (SAMPLE_RATE * UNIT_MS) / 1000;
const [HOP, WINDOW] = [FRAME_MS, WINDOW_MS].map((ms) => (SAMPLE_RATE * ms) / 1000);

export function concatenate(...parts) {
  const whole = new Float32Array(parts.reduce((length, part) => length + part.length, 0));
  parts.reduce((at, part) => { whole.set(part, at); return at + part.length; }, 0);
  return whole;
}

/** As Python rounds: a half to the even neighbour. */
export function rounded(value) {
  const near = Math.round(value);
  return near - value === 0.5 && near % 2 ? near - 1 : near;
}

/** Filterbank frames of audio that arrives piece by piece; every frame is computed once. */
export class OnlineFbank {
  /** `graph`: from samples of whole windows to frames, an array each. */
  constructor(graph) {
    this.graph = graph;
    this.rest = new Float32Array(0); // samples of windows that are not complete
  }

  /** Add samples, and return the frames they completed. */
  async push(samples) {
    const known = concatenate(this.rest, samples);
    const count = Math.max(0, 1 + Math.floor((known.length - WINDOW) / HOP));
    this.rest = known.slice(count * HOP);
    return count ? this.graph(known.slice(0, (count - 1) * HOP + WINDOW)) : [];
  }
}
