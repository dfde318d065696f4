// Where continuous speech is cut into segments, as in leapformer_fairseq/runtime/simul/segments.py.
const STATE_MS = 40;
export const PIECE = 640; // samples
const FRAME = 160;
const RATE = 16000;
const RECENT = 10000 / STATE_MS; // pieces whose loudest one is the recent level
const LOUD_DB = -40; // what is louder is a sound, also where the noise is as loud
const ONSET_DB = 10; // so much above the quietest piece of a pause is no silence, however quiet
const QUIET_ONSET = 1600; // samples that the first sound may be quiet
const MIDDLE = 16000; // samples of silence that stay in a segment that no pause ends
const SPEECH = "speech"; // a piece that belongs to the segment
export const END = "end"; // the segment's last piece
export const BETWEEN = "between"; // silence after a pause

/** Holds audio back until the first sound, and leaves long silence before it out, as in leapformer_fairseq/runtime/simul/silence.py. */
class Beginning {
  constructor(silence, lead) {
    this.begun = silence === null;
    this.silence = silence;
    this.lead = (RATE * lead) / 1000; // samples
    this.floor = Infinity; // level of the quietest piece
    this.silent = 0; // samples before the first sound so far
    this.held = new Float32Array(0); // the last of them
  }

  /** The samples that can be passed on after a piece: none, or all that are not left out. */
  push(piece) {
    if (this.begun) return piece;
    const level = levelOf(piece);
    this.floor = Math.min(this.floor, level);
    const sound = Math.max(this.silence, Math.min(LOUD_DB, this.floor + ONSET_DB));
    this.begun = level >= sound;
    const quiet = this.begun ? quietSamples(piece, sound) : piece.length;
    this.silent += quiet;
    const held = new Float32Array(this.held.length + piece.length);
    held.set(this.held);
    held.set(piece, this.held.length);
    const kept = this.silent <= QUIET_ONSET ? this.silent : this.lead;
    const most = this.begun ? piece.length - quiet + kept : Math.max(QUIET_ONSET, this.lead);
    this.held = held.slice(Math.max(0, held.length - most));
    return this.begun ? this.held : piece.subarray(0, 0);
  }
}

/** Assigns pieces of audio to segments, one after the other. */
export class Segmenter {
  /** `options`: the fields of SegmentOptions. */
  constructor(options) {
    this.options = options;
    this.levels = []; // of the last pieces of segments
    this.samples = 0; // of the segment
    this.quiet = 0; // that the segment ends with so far
    this.floor = Infinity; // level of the quietest of them, and of those between segments
    this.silence = options.silence_db ?? -Infinity;
    this.beginning = new Beginning(options.silence_db, options.lead_ms);
    this.silent = 0; // samples of silence that were heard last
    this.open = true;
  }

  /** Where a piece belongs, or its silence and its sound; `tokens` were written in its possible segment. */
  push(piece, tokens) {
    const heard = this.beginning.push(piece);
    const parts = [];
    for (let start = 0; start < heard.length; start += PIECE) {
      const part = heard.subarray(start, start + PIECE);
      if (this.options.kind === "pause" || !this.isLongSilence(part)) parts.push(...this.placed(part, tokens));
    }
    return parts;
  }

  isLongSilence(piece) {
    this.silent = levelOf(piece) < this.silence ? this.silent + piece.length : 0;
    return this.silent > MIDDLE;
  }

  placed(piece, tokens) {
    const parts = [];
    if (!this.open) {
      const silence = this.silenceBefore(piece);
      if (silence) parts.push([BETWEEN, piece.subarray(0, silence)]);
      piece = piece.subarray(silence);
    }
    if (piece.length) parts.push([this.place(piece, tokens), piece]);
    return parts;
  }

  /** How many samples of a piece between segments come before a sound that begins the next one. */
  silenceBefore(piece) {
    const level = levelOf(piece);
    this.floor = Math.min(this.floor, level);
    const sound = Math.max(this.silence, Math.min(this.quietLevel(), this.floor + ONSET_DB));
    this.open = level >= sound;
    return this.open ? quietSamples(piece, sound) : piece.length;
  }

  place(piece, tokens) {
    const level = levelOf(piece);
    this.samples += piece.length;
    this.levels.push(level);
    if (this.levels.length > RECENT) this.levels.shift();
    if (this.options.kind === "pause" && level < this.quietLevel()) {
      this.quiet++;
      this.floor = Math.min(this.floor, level);
    } else {
      this.quiet = 0;
      this.floor = Infinity;
    }
    if (!this.ends(tokens)) return SPEECH;
    this.open = !this.quiet;
    this.samples = this.quiet = 0;
    return END;
  }

  ends(tokens) {
    const { kind, pause_ms: pause, tokens: most, min_seconds: least, max_seconds: longest } = this.options;
    const seconds = this.samples / RATE;
    if (seconds < least) return false;
    if (kind === "pause" && this.quiet * STATE_MS >= pause) return true;
    return (kind === "tokens" && tokens >= most) || seconds >= longest;
  }

  /** What is below this is a pause. */
  quietLevel() {
    return Math.max(this.silence, this.levels.reduce((a, b) => Math.max(a, b), -Infinity) - this.options.pause_db);
  }
}

/** How many samples come before the first 10 ms that are as loud as a sound. */
function quietSamples(piece, sound) {
  let at = 0;
  while (at < piece.length && levelOf(piece.subarray(at, at + FRAME)) < sound) at += FRAME;
  return Math.min(at, piece.length);
}

/** Root mean square of samples in [-1, 1], in decibels; -100 is silence. */
function levelOf(piece) {
  let power = 0;
  for (const sample of piece) power += sample * sample;
  return 10 * Math.log10(power / piece.length + 1e-10);
}
