// The page: what a person sees and does.  All work happens in worker.js; this file only sends commands and shows
// events.  When the worker or its GPU dies, a new worker takes the open chat up where it was.
import { Chat } from "./chat.js";
import { listModels, listSessions } from "./lists.js";
import { showPages } from "./picture.js";
import { advice, named, recovery, size } from "./words.js";

const find = (id) => document.getElementById(id);
const chat = new Chat(find("log"), find("spoken"));
const RESTARTS = 3; // within a minute; then a person decides

let worker;
let restarts = [];
let model = ""; // the loaded model's file name
let wanted = null; // what to do next: { session } once a model is there
let loading = ""; // the file name of the model that was asked for last
let shown = null; // the open chat's id
let busy = false;
let models = { offered: [], kept: [] };
let sessions = [];

// What to come back to after a reload, a crash of the tab, or a restart of the browser.
const last = {
  get: () => JSON.parse(localStorage.getItem("webkv.last") ?? "{}"),
  set: (change) => localStorage.setItem("webkv.last", JSON.stringify({ ...last.get(), ...change })),
};

const send = (what, fields = {}) => worker.postMessage({ do: what, ...fields });

const notice = (text, actions = {}) => {
  find("notice").hidden = !text;
  find("notice-text").textContent = text;
  find("notice-actions").replaceChildren(...Object.entries(actions).map(([label, act]) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = label;
    button.onclick = () => (notice(""), act());
    return button;
  }));
};

const settle = () => {
  const ready = Boolean(model) && !busy;
  find("text").disabled = !model;
  find("send").disabled = !ready;
  find("stop").hidden = !(busy && chat.answering);
  find("more").hidden = !(ready && shown && chat.finish && chat.finish !== "stop");
  find("fork").hidden = !(ready && shown);
  find("new").disabled = !ready;
  find("change").disabled = !ready;
};

const work = (what, fields) => {
  busy = true;
  settle();
  send(what, fields);
};

const showStep = ({ what, done, total, unit }) => {
  find("step").hidden = done >= total;
  find("step-what").textContent = what;
  if (total === undefined) find("bar").removeAttribute("value"); // it takes as long as it takes
  else find("bar").value = total ? done / total : 0;
  if (total === undefined) find("step-amount").textContent = "";
  else find("step-amount").textContent = unit === "bytes" ? `${size(done)} of ${size(total)}` : `${done} of ${total}`;
};

const chooseModel = (found) => {
  models = found;
  listModels(find("models"), models, model, { load: loadModel, forget: (name) => send("forget", { name }) });
  find("chooser").hidden = Boolean(model);
  find("change").hidden = !model;
};

const loadModel = (name, file) => {
  loading = name;
  notice("");
  find("chooser").hidden = true;
  work("load", { name, file });
};

// After the start: back to the chat that was open, if its model is kept here.  A browser that was killed may have
// lost the note of it, but not the chat: the newest one, if its answer was cut off, is what was open.
const comeBack = () => {
  const [newest] = sessions;
  const cut = newest && !newest.end && !newest.damage ? { session: newest.id, file: newest.file } : null;
  const { session, file } = wanted ?? cut ?? last.get();
  if (file && models.kept.includes(file)) {
    wanted = { session, file };
    loadModel(file);
  } else if (file && session) {
    notice(`Your last chat used the model ${file}, which is not kept here.`, models.offered.some((m) => m.name === file)
      ? { "Load it and go on": () => ((wanted = { session, file }), loadModel(file)) } : {});
  }
};

const openSession = (id) => {
  const { file } = sessions.find((session) => session.id === id) ?? {};
  if (!model || (file && file !== model && (models.kept.includes(file) || models.offered.some((m) => m.name === file)))) {
    wanted = { session: id, file: file || model };
    if (file) loadModel(file);
    else notice("Choose a model first: this chat does not say which one it was made with.");
    return;
  }
  work("open", { session: id });
};

const showSessions = ({ sessions: listed, shown: current }) => {
  sessions = listed;
  find("no-sessions").hidden = listed.length > 0;
  listSessions(find("sessions"), listed, current, {
    open: ({ id }) => busy || openSession(id),
    save: ({ id }) => busy || work("save", { session: id }),
    remove: ({ id, title }) => {
      if (!busy && confirm(`Delete the chat “${title || id}” and its pages?`)) work("delete", { session: id });
    },
  });
};

// Hands a saved chat to the browser as a download.
const download = ({ name, bytes }) => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([bytes]));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
};

const resumed = (event) => {
  find("resumed").hidden = !event.tokens;
  find("resumed").textContent = recovery(event);
};

const persistence = async () => {
  const kept = await navigator.storage?.persisted?.();
  find("persist-text").textContent = kept
    ? "The browser keeps this site's data until you delete it."
    : "The browser may clear this site's data when the disk is full, and forgets it with a private window.";
  find("persist").hidden = Boolean(kept);
};

const showStorage = ({ used, quota }) => {
  find("meter").value = quota ? used / quota : 0;
  find("storage-text").textContent = quota ? `${size(used)} of ${size(quota)} used (models included)` : `${size(used)} used`;
  persistence();
};

const failed = ({ during, kind, text: told, fatal }) => {
  const text = during === "load" ? named(told, loading) : told;
  busy = false;
  if (kind === "DeviceLostError") return restart("The GPU was lost");
  chat.stopped();
  find("step").hidden = true;
  const next = advice(kind, during);
  const actions = { Close: () => {} };
  if (fatal || during === "start") actions["Try again"] = () => restart("", true);
  if (kind === "StoreBusyError") actions["New chat"] = () => work("new");
  notice(kind === "StoreBusyError" ? next : next ? `${text}. ${next}` : text, actions);
  if (during === "load") {
    model = "";
    chooseModel(models);
  }
  if (during === "open") last.set({ session: null });
};

const restart = (why, byHand = false) => {
  worker?.terminate();
  const now = Date.now();
  restarts = restarts.filter((then) => now - then < 60000);
  if (!byHand && restarts.length >= RESTARTS) {
    return notice(`${why}, for the ${RESTARTS + 1}th time in a minute. Nothing stored is lost.`,
      { "Try again": () => restart("", true) });
  }
  restarts.push(now);
  wanted = shown ? { session: shown, file: model } : null;
  if (why) notice(`${why}. Starting again; the chat goes on where it was.`);
  // For scripts: commands go in here, and every event of the worker is a "webkv" event of the document.
globalThis.webkv = { send: work };

begin();
};

const events = {
  alive: () => send("start"),
  step: showStep,
  models: chooseModel,
  device: ({ name, kind, limits }) => {
    find("device").textContent = `${name}, ${kind === "CPU" ? "software (slow)" : "hardware"}; buffers up to ${size(limits["max-buffer-size"])}`;
  },
  model: ({ name, title, context, seconds }) => {
    model = name;
    last.set({ file: name });
    find("model-line").textContent = `${title}, ${context} tokens of context, loaded in ${seconds.toFixed(1)} s`;
    find("chooser").hidden = true;
    find("change").hidden = false;
  },
  sessions: showSessions,
  storage: showStorage,
  status: ({ state, text }) => {
    find("status").dataset.state = state;
    find("status").textContent = text;
  },
  opened: (event) => {
    shown = event.session;
    last.set({ session: shown });
    chat.show(event);
    resumed(event);
    notice("");
  },
  closed: () => {
    shown = null;
    last.set({ session: null });
    chat.clear();
    find("resumed").hidden = true;
  },
  prefill: ({ done, total }) => showStep({ what: "reading the prompt", done, total, unit: "tokens" }),
  answering: () => {
    chat.answer();
    settle();
    showStep({ what: "reading the prompt; the first one also compiles the GPU's programs" });
  },
  token: ({ text }) => {
    find("step").hidden = true;
    chat.add(text);
  },
  answered: (event) => (chat.end(event), settle()),
  pages: ({ groups }) => showPages(find("pages"), groups),
  error: failed,
  died: ({ text }) => {
    console.error(text);
    restart("The page's Python stopped");
  },
  brought: ({ session }) => notice("The chat was brought in.", { "Open it": () => openSession(session) }),
  done: ({ during }) => {
    busy = false;
    if (during === "start") comeBack();
    if (during === "load" && model && wanted?.session) {
      const { session } = wanted;
      wanted = null;
      work("open", { session });
    }
    if (during === "load" && model) find("text").focus();
    settle();
  },
};

const begin = () => {
  busy = true;
  model = "";
  settle();
  if (!navigator.gpu) {
    return notice("This browser offers no WebGPU to this page. Use a current Chrome, Edge, Firefox or Safari, and open the page through https or http://localhost.");
  }
  worker = new Worker("worker.js", { type: "module" });
  worker.onmessage = ({ data }) => {
    if (typeof data !== "string") return download(data);
    const event = JSON.parse(data);
    events[event.type]?.(event);
    document.dispatchEvent(new CustomEvent("webkv", { detail: event }));
  };
  worker.onerror = (event) => {
    event.preventDefault();
    restart(event.message ? `The page's worker failed (${event.message})` : "The page's worker could not be loaded");
  };
};

const say = () => {
  const text = find("text").value.trim();
  if (!text || busy || !model) return;
  find("text").value = "";
  notice("");
  find("chooser").hidden = true;
  chat.user(text);
  work("say", { text });
};

find("composer").onsubmit = (event) => (event.preventDefault(), say());
find("text").onkeydown = (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) (event.preventDefault(), say());
};
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !find("stop").hidden) send("stop");
});
find("stop").onclick = () => send("stop");
find("more").onclick = () => work("more");
find("fork").onclick = () => work("fork");
find("change").onclick = () => { find("chooser").hidden = !find("chooser").hidden; };
find("new").onclick = () => (work("new"), find("text").focus());
find("relaxed").onchange = ({ target }) => send("durability", { relaxed: target.checked });
find("file").onchange = ({ target }) => target.files[0] && loadModel(target.files[0].name, target.files[0]);
find("import").onchange = ({ target }) => {
  if (target.files[0] && !busy) work("bring", { file: target.files[0] });
  target.value = "";
};
find("persist").onclick = async () => (await navigator.storage.persist(), persistence());

// For scripts: commands go in here, and every event of the worker is a "webkv" event of the document.
globalThis.webkv = { send: work };

begin();
