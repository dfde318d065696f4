// Unbounded speech, segment by segment, as in leapformer_fairseq/agents/session.py.
import { BETWEEN, END, PIECE, Segmenter } from "./segments.js";
import { Stream } from "./stream.js";

const RATE = 16000;
const PIECE_MS = (1000 * PIECE) / RATE;

export class Session {
  /** `options`: { decoding, policy, segments, step_frames, drafts }. */
  constructor(model, options) {
    this.model = model;
    this.options = options;
    this.segmenter = new Segmenter(options.segments);
    this.stream = null;
    this.lead = [];
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
    const place = this.segmenter.push(piece, this.stream?.written.length ?? 0);
    if (place === BETWEEN) {
      this.lead.push(piece);
      while (this.lead.length * PIECE_MS > this.options.segments.lead_ms) this.lead.shift();
      return [];
    }
    if (!this.stream) {
      this.stream = new Stream(this.model, this.options);
      this.drafted = 0;
      for (const before of this.lead) this.stream.push(before);
      this.lead = [];
    }
    this.stream.push(piece);
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
