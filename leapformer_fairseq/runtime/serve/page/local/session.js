// Unbounded speech, segment by segment, as in leapformer_fairseq/runtime/simul/session.py.
import { BETWEEN, END, PIECE, Segmenter } from "./segments.js";
import { Stream } from "./stream.js";

const RATE = 16000;

export class Session {
  /** `options`: { decoding, policy, segments, step_frames, drafts }. */
  constructor(model, options) {
    this.model = model;
    this.options = options;
    this.segmenter = new Segmenter(options.segments);
    this.stream = null;
    this.lead = new Float32Array(0); // silence before the next segment
    this.rest = new Float32Array(0);
    this.samples = 0;
    this.segments = 0; // that have ended
    this.drafted = 0; // steps of source that the last draft is of
  }

  get audioS() {
    return this.samples / RATE;
  }

  /** Another k of wait-k, from the next segment on. */
  useLagging(k) {
    this.options = { ...this.options, policy: { ...this.options.policy, k } };
  }

  /** The events that samples at 16 kHz lead to. */
  async push(samples) {
    const known = new Float32Array(this.rest.length + samples.length);
    known.set(this.rest);
    known.set(samples, this.rest.length);
    const whole = known.length - (known.length % PIECE);
    this.rest = known.slice(whole);
    const events = [];
    for (let start = 0; start < whole; start += PIECE) events.push(...(await this.hear(known.slice(start, start + PIECE))));
    return events;
  }

  /** All remaining events. */
  async finish() {
    const rest = this.rest;
    this.rest = new Float32Array(0);
    const events = rest.length ? await this.hear(rest) : [];
    if (this.stream) events.push(...(await this.advance(true)));
    return events;
  }

  async hear(piece) {
    this.samples += piece.length;
    const events = [];
    for (const [place, part] of this.segmenter.push(piece, this.stream?.written.length ?? 0)) {
      events.push(...(await this.translate(place, part)));
    }
    return events;
  }

  async translate(place, part) {
    if (place === BETWEEN) {
      const lead = Math.floor((this.options.segments.lead_ms * RATE) / 1000);
      const known = new Float32Array(this.lead.length + part.length);
      known.set(this.lead);
      known.set(part, this.lead.length);
      this.lead = known.slice(Math.max(0, known.length - lead));
      return [];
    }
    if (!this.stream) {
      this.stream = new Stream(this.model, this.options);
      this.drafted = 0;
      if (this.lead.length) this.stream.push(this.lead);
      this.lead = new Float32Array(0);
    }
    this.stream.push(part);
    return this.advance(place === END);
  }

  async advance(ends) {
    const { stream } = this;
    await stream.advance(ends);
    const event = { final: true, ends, segment: this.segments + 1, audio_s: this.audioS };
    const events = [];
    const text = stream.flush(ends);
    if (ends) {
      this.segments++;
      this.stream = null;
    }
    if (text || ends) events.push({ ...event, text });
    if (this.options.drafts && !ends && stream.steps > this.drafted) {
      this.drafted = stream.steps;
      events.push({ ...event, final: false, text: await stream.draft() });
    }
    return events;
  }
}
