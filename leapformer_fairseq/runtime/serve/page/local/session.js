// Unbounded speech, segment by segment, as in leapformer_fairseq/runtime/simul/session.py.
import { SAMPLE_RATE, UNIT_MS, UNIT_SAMPLES, concatenate } from "./audio.js";
import { BETWEEN, END, Segmenter } from "./segments.js";
import { TranslationStream } from "./stream.js";
import { forgettable } from "./window.js";

/** `push` audio of any length and read the events, then `finish`; events do not depend on how the audio is cut. */
export class Session {
  /** `options`, `segments`: fields of DecodingOptions and SegmentOptions. `drafts`: also report what may change. */
  constructor(system, options, segments, drafts) {
    Object.assign(this, { system, options, segments, drafts });
    this.forgets = segments.history === "window";
    this.nSamples = 0;
    this.nSegments = 0; // that have ended
    this.segmenter = new Segmenter(segments);
    this.stream = null;
    this.window = []; // with --history window, the units that the stream was given
    this.forgotten = [0, 0]; // tokens and units of the segment that the stream no longer has
    this.lead = []; // silence before the next segment
    this.rest = new Float32Array(0);
    this.drafted = 0; // steps of source at the last draft
  }

  get audioS() {
    return this.nSamples / SAMPLE_RATE;
  }

  /** Change k of wait-k, from the next segment on, or as soon as something is forgotten. */
  useLagging(k) {
    this.system = this.system.waiting(k);
  }

  /** The events of samples in [-1, 1] at 16 kHz; a remainder of less than 40 ms is kept for the next call. */
  async *push(samples) {
    const known = concatenate(this.rest, samples);
    const whole = known.length - (known.length % UNIT_SAMPLES);
    this.rest = known.slice(whole);
    for (const unit of unitsOf(known.slice(0, whole))) yield* this.hear(unit);
  }

  /** All remaining events. */
  async *finish() {
    const { rest } = this;
    this.rest = new Float32Array(0);
    if (rest.length) yield* this.hear(rest);
    yield* this.placed(this.segmenter.finish(...this.held()));
    if (this.stream) yield* this.advance(this.stream, true);
  }

  async *hear(unit) {
    this.nSamples += unit.length;
    yield* this.placed(this.segmenter.push(unit, ...this.held()));
  }

  /** The tokens that the segment has, and its units that were forgotten. */
  held() {
    return this.stream ? [this.forgotten[0] + this.stream.nTokens, this.forgotten[1]] : [0, 0];
  }

  async *placed(units) {
    for await (const [place, unit] of units) yield* this.translate(place, unit);
  }

  /** One more unit, in the order of the audio. */
  async *translate(place, unit) {
    if (place === BETWEEN) {
      this.lead = [...this.lead.slice(-Math.floor(this.segments.lead_ms / UNIT_MS) - 1), unit];
      return;
    }
    if (!this.stream) {
      [this.stream, this.drafted] = [this.newStream(), 0];
      const lead = concatenate(...this.lead);
      const most = Math.floor((this.segments.lead_ms * SAMPLE_RATE) / 1000);
      for (const before of unitsOf(lead.slice(Math.max(0, lead.length - most)))) await this.give(before);
      this.lead = [];
    } else if (this.forgets) {
      await this.forget(this.stream);
    }
    await this.give(unit);
    yield* this.advance(this.stream, place === END);
  }

  newStream() {
    return new TranslationStream(this.system, this.options, this.forgets);
  }

  async give(unit) {
    await this.stream.push(unit);
    if (this.forgets) this.window.push(unit);
  }

  /** Replace the stream by one that was never given what can be forgotten, if that is enough. */
  async forget(stream) {
    const [nTokens, nStates] = forgettable(stream, this.segments.history_words);
    if (!nStates) return;
    const kept = unitsOf(concatenate(...this.window).slice(nStates * UNIT_SAMPLES));
    [this.stream, this.drafted, this.window] = [this.newStream(), 0, []];
    for (const unit of kept) await this.give(unit);
    await this.stream.follow(stream, nTokens, nStates);
    this.forgotten = [this.forgotten[0] + nTokens, this.forgotten[1] + nStates];
  }

  async *advance(stream, ends) {
    await stream.advance(ends);
    const event = { final: true, ends, segment: this.nSegments + 1, audio_s: this.audioS };
    const text = stream.flush(ends);
    if (ends) {
      this.nSegments++;
      [this.stream, this.window, this.forgotten] = [null, [], [0, 0]];
    }
    if (text || ends) yield { ...event, text };
    if (this.drafts && !ends && stream.nSteps > this.drafted) {
      this.drafted = stream.nSteps;
      yield { ...event, final: false, text: await stream.draft() };
    }
  }
}

/** Samples as units; the last may be shorter. */
function unitsOf(samples) {
  const starts = Array.from({ length: Math.ceil(samples.length / UNIT_SAMPLES) }, (_, i) => i * UNIT_SAMPLES);
  return starts.map((start) => samples.slice(start, start + UNIT_SAMPLES));
}
