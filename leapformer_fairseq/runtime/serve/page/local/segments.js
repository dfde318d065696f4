// Where continuous speech is cut into segments, as in leapformer_fairseq/runtime/simul/segments.py.
import { SAMPLE_RATE, UNIT_MS, UNIT_SAMPLES, concatenate, rounded } from "./audio.js";
import { Beginning, MIDDLE_MS, ONSET_DB, QUIET_ONSET_MS, levelOf, quietSamples } from "./silence.js";

const RECENT = 10000 / UNIT_MS; // units; pauses are quiet relative to the loudest of them
const AT_PAUSES = ["pause", "sentence"]; // kinds whose segments end at pauses
const GRID = SAMPLE_RATE / 1000; // samples; segments begin and end at multiples of it
export const SPEECH = "speech"; // belongs to the segment
export const END = "end"; // the last unit of the segment
export const BETWEEN = "between"; // belongs to no segment: silence after a pause

/** Assigns units of audio to segments, one after the other, in constant memory. */
export class Segmenter {
  /** `options`: the fields of SegmentOptions. */
  constructor(options) {
    this.options = options;
    this.levels = []; // of the last units of segments
    this.nSamples = 0; // of the segment
    this.nQuiet = 0; // quiet units at the end of the segment so far
    this.floor = Infinity; // level of the quietest of these units and of those between segments
    this.silence = options.silence_db ?? -Infinity;
    this.beginning = new Beginning(options.silence_db, QUIET_ONSET_MS, options.lead_ms);
    this.nSilent = 0; // samples of silence at the end of the audio so far
    this.open = true;
    this.endsOf = options.kind === "sentence" ? options.sentences.begin() : null;
    this.waiting = new Float32Array(0); // samples without a place so far
    this.nPlaced = 0; // samples before them
  }

  /**
   * Units with their places: this one, or with the ends of sentences those whose places are now known.
   *
   * `nTokens` and `nForgotten` are the tokens written and the units forgotten in the current segment.
   */
  async *push(unit, nTokens, nForgotten) {
    const heard = this.beginning.push(unit);
    for (let start = 0; start < heard.length; start += UNIT_SAMPLES) {
      const part = heard.subarray(start, start + UNIT_SAMPLES);
      if (AT_PAUSES.includes(this.options.kind) || !this.isLongSilence(part)) {
        yield* this.hear(part, nTokens, nForgotten);
      }
    }
  }

  isLongSilence(unit) {
    this.nSilent = levelOf(unit) < this.silence ? this.nSilent + unit.length : 0;
    return this.nSilent > (MIDDLE_MS * SAMPLE_RATE) / 1000;
  }

  async *hear(unit, nTokens, nForgotten) {
    if (!this.endsOf) {
      yield* this.placed(unit, nTokens, nForgotten);
      return;
    }
    const end = await this.endsOf.push(unit);
    this.waiting = concatenate(this.waiting, unit);
    if (end !== null && this.nSamples + end - this.nPlaced >= this.options.min_seconds * SAMPLE_RATE) {
      yield* this.taken(end - this.nPlaced, nTokens, nForgotten);
    }
    while (this.waiting.length > this.endsOf.model.delay * UNIT_SAMPLES) {
      yield* this.next(UNIT_SAMPLES, nTokens, nForgotten);
    }
  }

  /** The units whose places are not known yet, once the audio has ended. */
  async *finish(nTokens, nForgotten) {
    const rest = this.beginning.finish();
    if (rest.length) yield* this.hear(rest, nTokens, nForgotten);
    while (this.waiting.length) yield* this.next(UNIT_SAMPLES, nTokens, nForgotten);
  }

  /** The units up to the end of a sentence, so many samples from now; a rest is part of the last one. */
  *taken(samples, nTokens, nForgotten) {
    samples = Math.min(Math.max(rounded(samples / GRID), 1) * GRID, this.waiting.length);
    for (; samples >= 2 * UNIT_SAMPLES; samples -= UNIT_SAMPLES) yield* this.next(UNIT_SAMPLES, nTokens, nForgotten);
    yield* this.next(samples, nTokens, nForgotten, true);
    const quietMs = Math.floor((1000 * quietSamples(this.waiting, this.quietLevel())) / SAMPLE_RATE);
    this.open = this.open || quietMs <= QUIET_ONSET_MS;
  }

  *next(samples, nTokens, nForgotten, ended = false) {
    const unit = this.waiting.slice(0, samples);
    this.waiting = this.waiting.slice(samples);
    this.nPlaced += unit.length;
    yield* this.placed(unit, nTokens, nForgotten, ended);
  }

  /** A unit with its place, or its silence and its sound with theirs. */
  *placed(unit, nTokens, nForgotten, ended = false) {
    if (!this.open) {
      const silence = this.silenceBefore(unit);
      if (silence) yield [BETWEEN, unit.subarray(0, silence)];
      unit = unit.subarray(silence);
    }
    if (unit.length) yield [this.place(unit, nTokens, nForgotten, ended), unit];
  }

  /** How many samples of a unit between segments come before a sound that begins the next one. */
  silenceBefore(unit) {
    const level = levelOf(unit);
    this.floor = Math.min(this.floor, level);
    const sound = Math.max(this.silence, Math.min(this.quietLevel(), this.floor + ONSET_DB));
    this.open = level >= sound;
    return this.open ? quietSamples(unit, sound) : unit.length;
  }

  place(unit, nTokens, nForgotten, ended) {
    const level = levelOf(unit);
    this.nSamples += unit.length;
    this.levels = [...this.levels.slice(1 - RECENT), level];
    if (AT_PAUSES.includes(this.options.kind) && level < this.quietLevel()) {
      [this.nQuiet, this.floor] = [this.nQuiet + 1, Math.min(this.floor, level)];
    } else {
      [this.nQuiet, this.floor] = [0, Infinity];
    }
    if (!this.ends(nTokens, nForgotten, ended)) return SPEECH;
    this.open = !(this.nQuiet || ended);
    this.nSamples = this.nQuiet = 0;
    return END;
  }

  ends(nTokens, nForgotten, ended) {
    const { kind, pause_ms: pauseMs, tokens, min_seconds: least, max_seconds: most } = this.options;
    const seconds = this.nSamples / SAMPLE_RATE;
    const kept = (this.nSamples - nForgotten * UNIT_SAMPLES) / SAMPLE_RATE;
    if (seconds < least) return false;
    const paused = this.nQuiet * UNIT_MS >= pauseMs;
    const reached = { pause: paused, sentence: paused || ended, tokens: nTokens >= tokens, seconds: false };
    return reached[kind] || kept >= most;
  }

  /** What is below this is a pause. */
  quietLevel() {
    return Math.max(this.silence, Math.max(...this.levels) - this.options.pause_db);
  }
}
