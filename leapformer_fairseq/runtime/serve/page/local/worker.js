// Translates in a thread of the browser; it is told and tells what a server and its clients do (messages.py).
import { env, InferenceSession, Tensor } from "../runtime/ort.wasm.min.mjs";
import { ExportedSystem } from "./exported.js";
import { SentenceModel } from "./sentences.js";
import { Session } from "./session.js";

env.wasm.numThreads = 1; // more need headers that forbid other sites' embedding, and a step is too short for them
env.wasm.wasmPaths = new URL("../runtime/", import.meta.url).href;
const RATE = 16000;
const MS = 1000;

const read = async (name) => new Uint8Array(await (await fetch(new URL(`../${name}`, import.meta.url))).arrayBuffer());
const { local } = JSON.parse(new TextDecoder().decode(await read("config.json")));
const { decoding, policy, segments, step_frames: stepFrames } = local;
let session = null;
let waiting = 0; // samples
let computed = 0; // ms
let drafts = false;

async function load() {
  const system = await ExportedSystem.load({ InferenceSession, Tensor }, read, policy, stepFrames);
  if (segments.sentences) segments.sentences = await SentenceModel.load(system, read, segments.sentences);
  return system;
}

const system = load();
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
  if (message instanceof ArrayBuffer) return heard(Float32Array.from(new Int16Array(message), (pcm) => pcm / 32768));
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
