// The page's line to the server, in node: speaks a recording, and prints the name of its talk and the final events.
// pieceMs: between pieces of 80 ms; in real time, it waits as long as the page does, else less. At a listener's url it
// only listens.
import { readFileSync } from "node:fs";

const [folder, url, recording, pieceMs] = process.argv.slice(2);
const { Line, TIMES } = await import(`${folder}/line.js`);
const listens = url.includes("/listen/");
const pcm = listens ? null : readFileSync(recording);
const PIECE = 2560; // bytes
let key = null;
let name = null;
let events = [];
let ended = false;
const store = { get: () => key, set: (given) => { key = given; }, remove: () => { key = null; } };
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
const line = new Line(() => new WebSocket(url), store, greeting, told, times);
line.connect();
let place = 0;
const timer = listens ? null : setInterval(() => {
  const piece = pcm.subarray(place, place + PIECE);
  place += PIECE;
  if (piece.length) line.add(piece.buffer.slice(piece.byteOffset, piece.byteOffset + piece.length));
  if (place < pcm.length) return;
  clearInterval(timer);
  line.stop();
}, Number(pieceMs));
