// Lengths of audio, as in leapformer_fairseq/runtime/audio.py.
export const SAMPLE_RATE = 16000;
export const FRAME_MS = 10;
export const WINDOW_MS = 25;
export const STATE_MS = 40;

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
