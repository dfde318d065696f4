// The page of `leapformer serve`: a microphone or a file in, text out. The protocol is described in messages.py.
import { Line, TIMES } from "./line.js";
import { RATE } from "./outbox.js";
import { Talk, srt } from "./talk.js";

const PIECE = 1280; // samples of a file that are sent at once
const STORED = "talk"; // the key of the talk, for a reload of the page
const NAME = "name"; // by which others listen to it
const TEXT = "text"; // what was written, for a reload after the end
const LEFT = "left"; // audio that is not sent, for a reload before that
const get = (id) => document.getElementById(id);
const token = new URLSearchParams(location.search).get("token");
const listening = new URLSearchParams(location.search).get("listen");

const config = await (await fetch("config.json")).json();
const local = config.local ? await import("./local/socket.js") : null; // the browser translates by itself
const talk = new Talk(config.between);
let source = null; // what gives samples: { stop(), paused }
let earlier = 0; // seconds of text from before this talk

// ------------------------------------------------------------------------------------------------------- connection
const store = {
  get: () => (listening ? null : sessionStorage.getItem(STORED)),
  set: (key) => sessionStorage.setItem(STORED, key),
  remove: () => [STORED, LEFT].forEach((name) => sessionStorage.removeItem(name)),
  left: () => JSON.parse(sessionStorage.getItem(LEFT)),
  leave: (value) => sessionStorage.setItem(LEFT, JSON.stringify(value)),
};
const told = {
  listens: Boolean(listening),
  wanted: () => !talk.ended && Boolean(source || line.stopping || listening || store.get()),
  opened: () => status(listening ? "Listening" : source ? "Listening to you" : local ? "Ready" : "Connected"),
  waits: (ms) => status(`No connection; trying again in ${ms / 1000} s. The text stays.`, true),
  full: () => {
    stop();
    status("No connection for 30 minutes: the recording has ended. It is sent when there is one.", true);
  },
  message: received,
};
const line = new Line(open, store, greeting, told, local ? { ...TIMES, quiet: 1e9 } : TIMES); // a model may take long to load

function greeting() {
  if (listening) return null;
  if (!local) return { sample_rate: RATE, drafts: true };
  line.say({ drafts: true });
  return null;
}

function open() {
  if (local) return new local.LocalSocket();
  const url = new URL(listening ? `/listen/${listening}` : "/", location.href.replace(/^http/, "ws"));
  url.search = token && !listening ? `?token=${encodeURIComponent(token)}` : "";
  return new WebSocket(url);
}

/** Tell the k that was chosen. */
function chosen() {
  const lagging = Number(get("lagging").value);
  if (!get("lagging-label").hidden && lagging !== config.lagging) line.say({ lagging });
}

function received(message) {
  if (message.error) return failed(message.error);
  if (message.listen) {
    if (!message.begun) talk.restart(message.history); // else what is here is all that is left of a talk
    earlier = 0;
    if (message.talk) sessionStorage.setItem(NAME, message.listen);
    if (message.begun) chosen();
    get("share").disabled = Boolean(listening);
  }
  for (const event of message.events ?? []) talk.add({ ...event, audio_s: event.audio_s + earlier }, delayOf(event));
  const changed = message.end_of_processing || message.events?.some((event) => event.final);
  if (changed && !listening) keep(Boolean(message.end_of_processing));
  if (local && message.heard_s) line.box.settle(Math.round(message.heard_s * RATE), 0);
  if (message.heard_s !== undefined) figures(message);
  if (message.end_of_processing) ended();
  draw();
}

/** For a reload of the page, unless the talk is longer than browsers keep. */
function keep(ended) {
  try {
    sessionStorage.setItem(TEXT, JSON.stringify({ segments: talk.segments, ended }));
  } catch {}
}

function failed(reason) {
  if (listening && reason.startsWith("there is no such talk")) {
    talk.ended = true;
  } else if (reason.startsWith("another connection speaks")) {
    release(); // another window of this browser has taken over
    store.remove();
  }
  status(reason, true);
}

function ended() {
  talk.ended = true;
  store.remove();
  status("Finished");
  release();
}

/** Milliseconds from when the last sample that an event is of was sent until now. */
function delayOf(event) {
  const when = line.box.sentAt(event.audio_s * RATE);
  return when === null ? null : performance.now() - when;
}

// ------------------------------------------------------------------------------------------------------------- audio
async function microphone() {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
  const context = new AudioContext({ sampleRate: RATE });
  await context.audioWorklet.addModule("recorder.js");
  const recorder = new AudioWorkletNode(context, "recorder");
  context.createMediaStreamSource(stream).connect(recorder);
  const made = { paused: false, stop: () => { stream.getTracks().forEach((track) => track.stop()); context.close(); } };
  recorder.port.onmessage = ({ data }) => {
    get("level").value = made.paused ? -60 : data.level;
    if (!made.paused) line.add(data.pcm);
  };
  return made;
}

async function recording(file) {
  // Decoded and resampled by the browser, sent as fast as it is spoken.
  const decoded = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(await file.arrayBuffer());
  const samples = new Float32Array(decoded.length);
  for (let channel = 0; channel < decoded.numberOfChannels; channel++) {
    decoded.getChannelData(channel).forEach((value, i) => { samples[i] += value / decoded.numberOfChannels; });
  }
  let place = 0;
  let due = performance.now();
  let timer = null;
  const made = { paused: false, stop: () => clearTimeout(timer) };
  const next = () => {
    if (made.paused) due = performance.now();
    while (!made.paused && due <= performance.now() && place < samples.length) {
      const piece = samples.subarray(place, place + PIECE);
      let power = 0;
      const pcm = Int16Array.from(piece, (value) => {
        power += value * value;
        return Math.max(-32768, Math.min(32767, Math.round(value * 32768)));
      });
      get("level").value = 10 * Math.log10(power / piece.length + 1e-10);
      line.add(pcm.buffer);
      place += PIECE;
      due += (1000 * PIECE) / RATE;
    }
    if (place < samples.length) timer = setTimeout(next, 20);
    else stop();
  };
  next();
  return made;
}

async function start(make) {
  if (talk.ended || !sessionStorage.getItem(local ? TEXT : STORED)) fresh();
  line.stopping = false;
  try {
    source = await make();
  } catch (error) {
    status(`No audio: ${error.message}. Allow the microphone, at localhost or over https, or open a file.`, true);
    return;
  }
  for (const id of ["pause", "stop"]) get(id).disabled = false;
  for (const id of ["start", "open", "clear"]) get(id).disabled = true;
  status("Listening to you");
  if (!line.socket) line.connect();
  else if (line.up) chosen();
}

function fresh() {
  talk.restart([]);
  line.restart();
  earlier = 0;
  sessionStorage.removeItem(TEXT);
  draw();
}

function stop() {
  release();
  line.stop();
  status(line.up ? "Translating the rest" : "No connection; the rest is translated when there is one", !line.up);
}

function release() {
  source?.stop();
  source = null;
  get("level").value = -60;
  for (const id of ["pause", "stop"]) get(id).disabled = true;
  for (const id of ["start", "open", "clear"]) get(id).disabled = Boolean(listening);
  get("pause").setAttribute("aria-pressed", "false");
  get("pause").textContent = "Pause";
}

function pause() {
  if (!source) return;
  source.paused = !source.paused;
  get("pause").setAttribute("aria-pressed", String(source.paused));
  get("pause").textContent = source.paused ? "Go on" : "Pause";
  status(source.paused ? "Paused" : "Listening to you");
}

// -------------------------------------------------------------------------------------------------------------- page
function status(text, wrong = false) {
  get("status").textContent = text;
  get("status").classList.toggle("wrong", wrong);
}

function figures({ heard_s: heard, behind_s: behind, rtf }) {
  const delay = talk.delay();
  const parts = [`${heard.toFixed(1)} s heard`, `real-time factor ${rtf.toFixed(2)}`];
  if (behind > 1) parts.push(`overloaded: ${behind.toFixed(1)} s wait`);
  if (delay !== null) parts.push(`last words ${Math.round(delay)} ms after their audio`);
  get("figures").textContent = parts.join(" · ");
}

function draw() {
  const box = get("text");
  const follow = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  talk.draw(box);
  if (follow) box.scrollTop = box.scrollHeight;
  for (const id of ["srt", "json"]) get(id).disabled = !talk.segments.length;
}

function save(name, kind, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: kind }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

async function share() {
  const url = new URL(location.pathname, location.href); // without the token of this server
  url.searchParams.set("listen", sessionStorage.getItem(NAME));
  try {
    await navigator.clipboard.writeText(url.href);
    status("The link for listeners is on the clipboard");
  } catch {
    status(`Link for listeners: ${url.href}`);
  }
}

get("model").textContent = config.model;
if (config.lagging && !listening) {
  get("lagging-label").hidden = false;
  get("lagging").value = get("lagging-value").value = config.lagging;
}
get("lagging").oninput = () => { get("lagging-value").value = get("lagging").value; };
get("lagging").onchange = () => { if (source) line.say({ lagging: Number(get("lagging").value) }); };
get("start").onclick = () => start(microphone);
get("open").onclick = () => get("file").click();
get("file").onchange = () => {
  const [file] = get("file").files;
  if (file) start(() => recording(file));
  get("file").value = "";
};
get("pause").onclick = pause;
get("stop").onclick = stop;
get("share").onclick = share;
get("delays").onchange = () => get("text").classList.toggle("delays", get("delays").checked);
get("srt").onclick = () => save("talk.srt", "application/x-subrip", srt(talk.segments));
get("json").onclick = () => save("talk.json", "application/json", JSON.stringify(talk.segments, null, 2));
get("clear").onclick = () => { fresh(); get("clear").disabled = true; };
onpagehide = () => line.leave();
onbeforeunload = (event) => { if (line.leaves) event.preventDefault(); };
document.onkeydown = (event) => {
  if (event.code !== "Space" || ["BUTTON", "INPUT", "A"].includes(event.target.tagName)) return;
  event.preventDefault();
  pause();
};
const kept = listening ? null : JSON.parse(sessionStorage.getItem(TEXT) ?? "null"); // a reload: the text comes back
if (kept) {
  talk.resume(kept.segments, kept.ended);
  earlier = kept.segments.at(-1)?.end_s ?? 0;
  draw();
}
if (local) {
  get("share").hidden = true;
  get("privacy").textContent = "Nothing leaves this browser.";
  status("Loading the model");
  line.connect();
} else if (listening) {
  for (const id of ["start", "open", "clear"]) get(id).disabled = true;
  line.connect();
} else if (sessionStorage.getItem(STORED)) {
  line.connect(); // a reload: the talk goes on
}
