// Silence before speech, as in leapformer_fairseq/runtime/simul/silence.py.
import { FRAME_MS, SAMPLE_RATE, STATE_MS, concatenate } from "./audio.js";

export const PIECE = (SAMPLE_RATE * STATE_MS) / 1000; // samples
const FRAME = (SAMPLE_RATE * FRAME_MS) / 1000;
const LOUD_DB = -40; // what is louder is a sound, also where the noise is as loud
export const ONSET_DB = 10; // so much above the quietest piece so far is a sound, however quiet
export const QUIET_ONSET_MS = 100; // the first sound may be quiet; what is quiet for longer is silence
export const MIDDLE_MS = 1000; // of silence that stay in a segment that no pause ends
const NOTHING = new Float32Array(0);

/** Root mean square of samples in [-1, 1], in decibels; -100 is silence. */
export function levelOf(piece) {
  return 10 * Math.log10(piece.reduce((power, sample) => power + sample * sample, 0) / piece.length + 1e-10);
}

/** How many samples come before the first 10 ms that are as loud as a `sound`. */
export function quietSamples(piece, sound) {
  for (let at = 0; at < piece.length; at += FRAME) if (levelOf(piece.subarray(at, at + FRAME)) >= sound) return at;
  return piece.length;
}

/** Holds audio back until the first sound, and leaves silence before it out that is longer than `keptMs`. */
export class Beginning {
  constructor(silenceDb, keptMs, leadMs) {
    this.begun = silenceDb === null;
    this.silence = silenceDb ?? -Infinity;
    [this.kept, this.lead] = [keptMs, leadMs].map((ms) => Math.floor((SAMPLE_RATE * ms) / 1000));
    this.floor = Infinity; // level of the quietest piece
    this.nSilent = 0; // samples before the first sound so far
    this.held = NOTHING; // the last of them
    this.rest = NOTHING; // of a piece that is not complete
  }

  /** The samples that can be passed on after these: none, or all that are not left out. */
  push(samples) {
    if (this.begun) return samples;
    const known = concatenate(this.rest, samples);
    for (let start = 0; start + PIECE <= known.length; start += PIECE) {
      this.judge(known.subarray(start, start + PIECE));
      if (this.begun) return concatenate(this.held, known.subarray(start + PIECE));
    }
    this.rest = known.slice(known.length - (known.length % PIECE));
    return NOTHING;
  }

  /** The samples that can be passed on once the audio has ended: the last may be a sound of less than 40 ms. */
  finish() {
    if (this.begun || !this.rest.length) return NOTHING;
    this.judge(this.rest);
    return this.begun ? this.held : NOTHING;
  }

  judge(piece) {
    const level = levelOf(piece);
    this.floor = Math.min(this.floor, level);
    const sound = Math.max(this.silence, Math.min(LOUD_DB, this.floor + ONSET_DB));
    this.begun = level >= sound;
    const quiet = this.begun ? quietSamples(piece, sound) : piece.length;
    this.nSilent += quiet;
    const kept = this.nSilent <= this.kept ? this.nSilent : Math.min(this.lead, this.nSilent);
    const needed = this.begun ? piece.length - quiet + kept : Math.max(this.kept, this.lead);
    const held = concatenate(this.held, piece);
    this.held = held.slice(Math.max(0, held.length - needed));
  }
}
