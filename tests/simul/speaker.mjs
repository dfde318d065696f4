// The page's line to the server, in node: speaks a recording, and prints the name of its talk and the final events.
// pieceMs: between pieces of 80 ms; in real time, it waits as long as the page does, else less. At a listener's url it
// only listens. reloadEvery: after so many pieces, and after the last, the page is loaded again; 0: never.
import { readFileSync } from "node:fs";

const [folder, url, recording, pieceMs, reloadEvery] = process.argv.slice(2);
const { Line, TIMES } = await import(`${folder}/line.js`);
const listens = url.includes("/listen/");
const pcm = listens ? null : readFileSync(recording);
const PIECE = 2560; // bytes
let [key, left] = [null, null]; // what the browser keeps
let name = null;
let events = [];
let ended = false;
const store = {
  get: () => key,
  set: (given) => { key = given; },
  remove: () => { key = left = null; },
  left: () => JSON.parse(left),
  leave: (value) => { left = JSON.stringify(value); },
};
const told = {
  listens,
  wanted: () => !ended,
  opened: () => {},
  waits: () => {},
  full: () => {},
  message: (message) => {
    if (process.env.LOUD) console.error(JSON.stringify({...message, history: undefined, events: message.events?.length}));
    if (message.listen) [name, events] = [message.listen, message.history];
    for (const event of message.events ?? []) if (event.final) events.push(event);
    if (!message.end_of_processing) return;
    ended = true;
    console.log(JSON.stringify({ name, events }));
    process.exit(0);
  },
};
const times = Number(pieceMs) < 80 ? { retry: [10, 20, 40], quiet: 300 } : TIMES;
const greeting = () => (listens ? null : { sample_rate: 16000 });
const open = () => {
  const made = new Line(() => new WebSocket(url), store, greeting, told, times);
  made.connect();
  return made;
};
let line = open();

function reload() {
  line.leave();
  clearInterval(line.watch);
  const { socket } = line;
  line.socket = {}; // it connects no more
  socket?.close();
  line = open();
}

let [place, pieces] = [0, 0];
const timer = listens ? null : setInterval(() => {
  const piece = pcm.subarray(place, place + PIECE);
  place += PIECE;
  if (piece.length) line.add(piece.buffer.slice(piece.byteOffset, piece.byteOffset + piece.length));
  if (Number(reloadEvery) && ++pieces % Number(reloadEvery) === 0) reload();
  if (place < pcm.length) return;
  clearInterval(timer);
  line.stop();
  if (Number(reloadEvery)) reload();
}, Number(pieceMs));
