// Silence before speech, as in leapformer_fairseq/runtime/simul/silence.py.
import { FRAME_MS, SAMPLE_RATE, UNIT_SAMPLES, concatenate } from "./audio.js";

const FRAME = (SAMPLE_RATE * FRAME_MS) / 1000;
const LOUD_DB = -40; // louder audio is a sound, even above loud noise
export const ONSET_DB = 10; // this much above the quietest unit so far is a sound, however quiet
export const QUIET_ONSET_MS = 100; // speech may begin with a quiet consonant, which is not longer than this
export const MIDDLE_MS = 1000; // of silence within a segment that is kept where pauses do not end segments
const NOTHING = new Float32Array(0);

/** Root mean square of samples in [-1, 1], in decibels; -100 is silence. */
export function levelOf(unit) {
  return 10 * Math.log10(unit.reduce((power, sample) => power + sample * sample, 0) / unit.length + 1e-10);
}

/** How many samples come before the first 10 ms that are as loud as a `sound`. */
export function quietSamples(unit, sound) {
  for (let at = 0; at < unit.length; at += FRAME) if (levelOf(unit.subarray(at, at + FRAME)) >= sound) return at;
  return unit.length;
}

/** Holds audio back until the first sound; of silence before it longer than `keptMs`, keeps `leadMs`. */
export class Beginning {
  constructor(silenceDb, keptMs, leadMs) {
    this.begun = silenceDb === null;
    this.silence = silenceDb ?? -Infinity;
    [this.kept, this.lead] = [keptMs, leadMs].map((ms) => Math.floor((SAMPLE_RATE * ms) / 1000));
    this.floor = Infinity; // level of the quietest unit so far
    this.nSilent = 0; // samples before the first sound so far
    this.held = NOTHING; // the last of these samples
    this.rest = NOTHING; // an incomplete unit
  }

  /** The samples that can be passed on after these: none, or all that are not left out. */
  push(samples) {
    if (this.begun) return samples;
    const known = concatenate(this.rest, samples);
    for (let start = 0; start + UNIT_SAMPLES <= known.length; start += UNIT_SAMPLES) {
      this.judge(known.subarray(start, start + UNIT_SAMPLES));
      if (this.begun) return concatenate(this.held, known.subarray(start + UNIT_SAMPLES));
    }
    this.rest = known.slice(known.length - (known.length % UNIT_SAMPLES));
    return NOTHING;
  }

  /** The samples that can be passed on once the audio has ended: the last may be a sound of less than 40 ms. */
  finish() {
    if (this.begun || !this.rest.length) return NOTHING;
    this.judge(this.rest);
    return this.begun ? this.held : NOTHING;
  }

  judge(unit) {
    const level = levelOf(unit);
    this.floor = Math.min(this.floor, level);
    const sound = Math.max(this.silence, Math.min(LOUD_DB, this.floor + ONSET_DB));
    this.begun = level >= sound;
    const quiet = this.begun ? quietSamples(unit, sound) : unit.length;
    this.nSilent += quiet;
    const kept = this.nSilent <= this.kept ? this.nSilent : Math.min(this.lead, this.nSilent);
    const needed = this.begun ? unit.length - quiet + kept : Math.max(this.kept, this.lead);
    const held = concatenate(this.held, unit);
    this.held = held.slice(Math.max(0, held.length - needed));
  }
}
