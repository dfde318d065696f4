// Where continuous speech is cut into segments, as in leapformer_fairseq/agents/segments.py.
const STATE_MS = 40;
export const PIECE = 640; // samples
const FRAME = 160;
const RATE = 16000;
const RECENT = 10000 / STATE_MS; // pieces whose loudest one is the recent level
const ONSET_DB = 10; // so much above the quietest piece of a pause is no silence, however quiet
const SPEECH = "speech"; // a piece that belongs to the segment
export const END = "end"; // the segment's last piece
export const BETWEEN = "between"; // silence after a pause

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
    this.open = options.silence_db === null;
  }

  /** Where a piece belongs, or its silence and its sound; `tokens` were written in its possible segment. */
  push(piece, tokens) {
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
    let at = 0;
    if (!this.open) return piece.length;
    while (levelOf(piece.subarray(at, at + FRAME)) < sound) at += FRAME;
    return at;
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

/** Root mean square of samples in [-1, 1], in decibels; -100 is silence. */
function levelOf(piece) {
  let power = 0;
  for (const sample of piece) power += sample * sample;
  return 10 * Math.log10(power / piece.length + 1e-10);
}
