// Log-mel filterbank frames of audio that arrives piece by piece, as kaldi computes them (leapformer_fairseq/runtime/audio.py).
import { concatenate } from "./audio.js";

const RATE = 16000;
const WINDOW = 400; // samples of a frame
const HOP = 160;
const SIZE = 512; // of the Fourier transform
const LOWEST_HZ = 20;
const PREEMPHASIS = 0.97;
const SCALE = 32768; // of 16-bit samples
const FLOOR = 2 ** -23; // of an energy

const mel = (hz) => 1127 * Math.log(1 + hz / 700);
const povey = Float64Array.from({ length: WINDOW }, (_, i) => (0.5 - 0.5 * Math.cos((2 * Math.PI * i) / (WINDOW - 1))) ** 0.85);
const cosines = Float64Array.from({ length: SIZE / 2 }, (_, i) => Math.cos((2 * Math.PI * i) / SIZE));
const sines = Float64Array.from({ length: SIZE / 2 }, (_, i) => Math.sin((2 * Math.PI * i) / SIZE));

/** For each bin: its first frequency, and the weights of that and the next ones. */
function triangles(bins) {
  const low = mel(LOWEST_HZ);
  const width = (mel(RATE / 2) - low) / (bins + 1);
  return Array.from({ length: bins }, (_, bin) => {
    const weights = [];
    let first = -1;
    for (let i = 0; i < SIZE / 2; i++) {
      const place = (mel((i * RATE) / SIZE) - low) / width - bin; // 0 at the left corner, 1 at the top, 2 at the right
      if (place <= 0 || place >= 2) continue;
      if (first < 0) first = i;
      weights.push(place <= 1 ? place : 2 - place);
    }
    return { first: Math.max(0, first), weights };
  });
}

/** The Fourier transform of `real` and `imaginary`, in place. */
function transform(real, imaginary) {
  for (let i = 1, j = 0; i < SIZE; i++) {
    let bit = SIZE >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) {
      [real[i], real[j]] = [real[j], real[i]];
      [imaginary[i], imaginary[j]] = [imaginary[j], imaginary[i]];
    }
  }
  for (let length = 2; length <= SIZE; length <<= 1) {
    const half = length >> 1;
    const stride = SIZE / length;
    for (let start = 0; start < SIZE; start += length) {
      for (let k = 0; k < half; k++) {
        const [a, b] = [start + k, start + k + half];
        const [c, s] = [cosines[k * stride], -sines[k * stride]];
        const re = real[b] * c - imaginary[b] * s;
        const im = real[b] * s + imaginary[b] * c;
        real[b] = real[a] - re;
        imaginary[b] = imaginary[a] - im;
        real[a] += re;
        imaginary[a] += im;
      }
    }
  }
}

/** Frames of audio that arrives piece by piece; every frame is computed once. */
export class Fbank {
  constructor(bins) {
    this.triangles = triangles(bins);
    this.samples = new Float32Array(0); // of frames to come
  }

  /** The frames that samples in [-1, 1] at 16 kHz complete. */
  async push(samples) {
    const known = concatenate(this.samples, samples);
    const frames = [];
    let start = 0;
    for (; start + WINDOW <= known.length; start += HOP) frames.push(this.frame(known.subarray(start, start + WINDOW)));
    this.samples = known.slice(start);
    return frames;
  }

  frame(samples) {
    const real = new Float64Array(SIZE);
    const imaginary = new Float64Array(SIZE);
    let mean = 0;
    for (const sample of samples) mean += (sample * SCALE) / WINDOW;
    for (let i = 0; i < WINDOW; i++) real[i] = samples[i] * SCALE - mean;
    for (let i = WINDOW - 1; i >= 0; i--) real[i] = (real[i] - PREEMPHASIS * real[Math.max(0, i - 1)]) * povey[i];
    transform(real, imaginary);
    return Float32Array.from(this.triangles, ({ first, weights }) => {
      let energy = 0;
      weights.forEach((weight, i) => { energy += weight * (real[first + i] ** 2 + imaginary[first + i] ** 2); });
      return Math.log(Math.max(energy, FLOOR));
    });
  }
}
