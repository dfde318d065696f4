// The page of `leapformer serve`: a microphone or a file in, text out. The protocol is described in messages.py.
import { Talk, srt } from "./talk.js";

const RATE = 16000;
const PIECE = 1280; // samples of a file that are sent at once
const STORED = "talk"; // the name of the talk, for a reload of the page
const TEXT = "text"; // what was written, where no server keeps it
const RETRY_MS = [500, 1000, 2000, 5000];
const get = (id) => document.getElementById(id);
const token = new URLSearchParams(location.search).get("token");
const listening = new URLSearchParams(location.search).get("talk");

const config = await (await fetch("config.json")).json();
const local = config.local ? await import("./local/socket.js") : null; // the browser translates by itself
const talk = new Talk(config.between);
let socket = null;
let source = null; // what gives samples: { stop(), paused }
let attempts = 0;
let sent = []; // [samples sent so far, when], of audio whose translation has not come
let sentSamples = 0;
let offset = 0; // samples that the server heard before this page's connection
let unsent = []; // pieces that were recorded without a connection
let resumed = false; // whether the connection goes on with a talk
let earlier = 0; // seconds of the talk before a reload, where the browser translates by itself

// ------------------------------------------------------------------------------------------------------- connection
function address(path) {
  const url = new URL(path, location.href.replace(/^http/, "ws"));
  url.search = token ? `?token=${encodeURIComponent(token)}` : "";
  return url;
}

function connect() {
  socket = local ? new local.LocalSocket() : new WebSocket(address(listening ? `/listen/${listening}` : "/"));
  socket.binaryType = "arraybuffer";
  socket.onopen = () => {
    attempts = 0;
    status(listening ? "Listening" : source ? "Listening to you" : local ? "Ready" : "Connected");
    if (listening) return;
    const name = sessionStorage.getItem(STORED);
    resumed = Boolean(name);
    send({ sample_rate: RATE, drafts: true, ...(name ? { talk: name } : {}) });
    if (!name) begin();
  };
  socket.onmessage = (event) => received(JSON.parse(event.data));
  socket.onclose = () => {
    socket = null;
    if (talk.ended || !(source || listening || sessionStorage.getItem(STORED))) return;
    const wait = RETRY_MS[Math.min(attempts++, RETRY_MS.length - 1)];
    status(`No connection; trying again in ${wait / 1000} s. The text stays.`, true);
    setTimeout(() => socket || connect(), wait);
  };
}

function send(message) {
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message));
}

function begin() {
  // A new talk: what was recorded before it was there comes first.
  const lagging = Number(get("lagging").value);
  if (!get("lagging-label").hidden && lagging !== config.lagging) send({ lagging });
  const pieces = unsent;
  unsent = [];
  for (const piece of pieces) audio(piece);
}

function received(message) {
  if (message.error) return failed(message.error);
  if (message.talk) {
    if (resumed || listening) {
      talk.restart(message.history);
      offset = Math.round((message.heard_s + message.behind_s) * RATE);
      sentSamples = 0;
      sent = [];
    }
    if (!listening) {
      sessionStorage.setItem(STORED, message.talk);
      if (unsent.length) begin();
    }
    get("share").disabled = Boolean(listening);
  }
  for (const event of message.events ?? []) talk.add({ ...event, audio_s: event.audio_s + earlier }, delayOf(event));
  const changed = message.end_of_processing || message.events?.some((event) => event.final);
  if (local && changed) sessionStorage.setItem(TEXT, JSON.stringify({ segments: talk.segments, ended: Boolean(message.end_of_processing) }));
  if (message.heard_s !== undefined) figures(message);
  if (message.end_of_processing) ended();
  draw();
}

function failed(reason) {
  if (reason.startsWith("there is no such talk")) {
    sessionStorage.removeItem(STORED); // the server has forgotten it; the text here stays
    if (listening) talk.ended = true;
  }
  status(reason, true);
}

function ended() {
  talk.ended = true;
  sessionStorage.removeItem(STORED);
  status("Finished");
  release();
}

/** Milliseconds from when the last sample that an event is of was sent until now. */
function delayOf(event) {
  const heard = event.audio_s * RATE - offset;
  let when = null;
  while (sent.length && sent[0][0] <= heard) when = sent.shift()[1];
  if (when === null && sent.length && heard > 0) when = sent[0][1];
  return when === null ? null : performance.now() - when;
}

// ------------------------------------------------------------------------------------------------------------- audio
function audio(piece) {
  if (socket?.readyState !== WebSocket.OPEN) {
    unsent.push(piece);
    return;
  }
  socket.send(piece);
  sentSamples += piece.byteLength / 2;
  sent.push([sentSamples, performance.now()]);
}

async function microphone() {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
  const context = new AudioContext({ sampleRate: RATE });
  await context.audioWorklet.addModule("recorder.js");
  const recorder = new AudioWorkletNode(context, "recorder");
  context.createMediaStreamSource(stream).connect(recorder);
  const made = { paused: false, stop: () => { stream.getTracks().forEach((track) => track.stop()); context.close(); } };
  recorder.port.onmessage = ({ data }) => {
    get("level").value = made.paused ? -60 : data.level;
    if (!made.paused) audio(data.pcm);
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
      audio(pcm.buffer);
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
  try {
    source = await make();
  } catch (error) {
    status(`No audio: ${error.message}. Allow the microphone, at localhost or over https, or open a file.`, true);
    return;
  }
  for (const id of ["pause", "stop"]) get(id).disabled = false;
  for (const id of ["start", "open", "clear"]) get(id).disabled = true;
  status("Listening to you");
  if (!socket) connect();
  else if (socket.readyState === WebSocket.OPEN) begin();
}

function fresh() {
  talk.restart([]);
  sent = [];
  sentSamples = offset = earlier = 0;
  sessionStorage.removeItem(TEXT);
  draw();
}

function stop() {
  release();
  status("Translating the rest");
  send({ end_of_stream: true });
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
  const url = new URL(location.href);
  url.searchParams.set("talk", sessionStorage.getItem(STORED));
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
get("lagging").onchange = () => { if (source) send({ lagging: Number(get("lagging").value) }); };
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
get("clear").onclick = () => { sessionStorage.removeItem(STORED); fresh(); get("clear").disabled = true; };
document.onkeydown = (event) => {
  if (event.code !== "Space" || ["BUTTON", "INPUT", "A"].includes(event.target.tagName)) return;
  event.preventDefault();
  pause();
};
if (local) {
  get("share").hidden = true;
  get("privacy").textContent = "Nothing leaves this browser.";
  const kept = JSON.parse(sessionStorage.getItem(TEXT) ?? "null"); // a reload: the text comes back
  if (kept) {
    talk.resume(kept.segments, kept.ended);
    earlier = kept.segments.at(-1)?.end_s ?? 0;
    draw();
  }
  status("Loading the model");
  connect();
} else if (listening) {
  for (const id of ["start", "open", "clear"]) get(id).disabled = true;
  connect();
} else if (sessionStorage.getItem(STORED)) {
  connect(); // a reload: the text comes back
}
