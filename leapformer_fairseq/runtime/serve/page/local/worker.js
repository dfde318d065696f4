// Translates in a thread of the browser; it is told and tells what a server and its clients do (messages.py).
import { env, InferenceSession, Tensor } from "../runtime/ort.wasm.min.mjs";
import { ExportedSystem } from "./exported.js";
import { Session } from "./session.js";

env.wasm.numThreads = 1; // more need headers that forbid other sites' embedding, and a step is too short for them
env.wasm.wasmPaths = new URL("../runtime/", import.meta.url).href;
const RATE = 16000;
const MS = 1000;

const config = await (await fetch(new URL("../config.json", import.meta.url))).json();
let session = null;
let waiting = 0; // samples
let computed = 0; // ms
let drafts = false;

const { decoding, policy, segments, step_frames: stepFrames } = config.local;
const system = ExportedSystem.load({ InferenceSession, Tensor }, new URL("../model/", import.meta.url), policy, stepFrames);
let last = system.then(() => postMessage({ ready: true }), failed); // messages are answered in their order

onmessage = ({ data }) => {
  if (data instanceof ArrayBuffer) waiting += data.byteLength / 2;
  last = last.then(() => answered(data)).catch(failed);
};

function failed(error) {
  postMessage({ error: `the translation failed: ${error.message}` });
}

async function answered(message) {
  if (!session) {
    session = new Session(await system, decoding, segments, drafts);
    computed = 0;
  }
  if (message instanceof ArrayBuffer) return heard(Float32Array.from(new Int16Array(message), (value) => value / 32768));
  if (message.drafts !== undefined) session.drafts = drafts = message.drafts;
  if (message.lagging) session.useLagging(message.lagging);
  if (!message.end_of_stream) return undefined;
  await told((ending) => ending.finish());
  session = null;
  return postMessage({ end_of_processing: true });
}

async function heard(samples) {
  waiting -= samples.length;
  await told((going) => going.push(samples));
}

async function told(work) {
  const start = performance.now();
  const events = [];
  for await (const event of work(session)) events.push(event);
  computed += performance.now() - start;
  const seconds = session.audioS;
  postMessage({ events, heard_s: seconds, behind_s: waiting / RATE, rtf: seconds ? computed / MS / seconds : 0 });
}
