// Where sentences end in continuous speech, as in leapformer_fairseq/runtime/sentences.py.
import { FRAME_MS, SAMPLE_RATE, STATE_MS, WINDOW_MS, concatenate, rounded } from "./audio.js";

const FRAMES = STATE_MS / FRAME_MS; // of a step
const HOP = (SAMPLE_RATE * FRAME_MS) / 1000;
const NEAR = 2 * FRAMES; // frames that an end is away from what is told, at most
const BETWEEN = ((WINDOW_MS - FRAME_MS) * SAMPLE_RATE) / 2000; // from a frame's first sample to halfway to the frame before

/** What the network has heard of one recording. `push` its audio, 40 ms at a time. */
export class SentenceEnds {
  /** `model`: { ahead, threshold, delay, fbank(), step(frames, state) }; the state is null at first. */
  constructor(model) {
    this.model = model;
    this.fbank = model.fbank();
    this.frames = [];
    this.state = null;
    this.steps = 0;
  }

  /** The sample of the recording at which a sentence ended, if that is known now, else null. */
  async push(piece) {
    this.frames.push(...(await this.fbank.push(piece)));
    let found = null;
    while (this.frames.length >= FRAMES) {
      const [chance, told, state] = await this.model.step(this.frames.splice(0, FRAMES), this.state);
      this.state = state;
      if (chance > this.model.threshold) {
        const after = Math.min(Math.max(told, -NEAR), NEAR); // whatever the network says
        const frame = (this.steps - this.model.ahead) * FRAMES + after;
        found = rounded(frame * HOP) + BETWEEN;
      }
      this.steps++;
    }
    return found;
  }
}
