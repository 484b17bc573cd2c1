// The page's worker: starts Python, keeps model files, and carries JSON between page.js and webkv/page.py.
import { BootError, boot, readManifest } from "./boot.js";
import { adopt, fetchModel, kept, readInto, remove } from "./models.js";

const root = new URL(".", location.href).href;
const tell = (type, fields = {}) => postMessage(JSON.stringify({ type, ...fields }));
const tellFailure = (during, error) => tell("error", {
  during, kind: error.name ?? "Error", text: error.message ?? String(error), fatal: during === "start",
});
const stepper = (what, unit) => (done, total) => tell("step", { what, done, total, unit });

let page; // the Python object
let files; // Python's file system
let manifest;

const start = async () => {
  manifest = await readManifest(root);
  const pyodide = await boot(root, manifest, (done, total, what) =>
    tell("step", { what: `starting Python: ${what}`, done, total, unit: "parts" }));
  // Python's own output is for developers.
  pyodide.setStdout({ batched: (line) => console.log(line) });
  pyodide.setStderr({ batched: (line) => console.warn(line) });
  files = pyodide.FS;
  pyodide.registerJsModule("worker", { post: (text) => postMessage(text) });
  page = await pyodide.runPythonAsync(`
from worker import post
from webkv.checkpoint.indexeddb import IndexedDBStore
from webkv.page import Page
Page(post, IndexedDBStore())
`);
  tell("models", { offered: manifest.models ?? [], kept: await kept() });
  await page.handle(JSON.stringify({ do: "start" }));
};

const load = async ({ name, file }) => {
  const offered = (manifest.models ?? []).find((model) => model.name === name);
  if (file) await adopt(file, stepper("copying the model", "bytes"));
  else if (offered) await fetchModel(new URL(offered.file, root), offered, stepper("fetching the model", "bytes"));
  await readInto(name, (size) => page.room_for(size));
  await page.handle(JSON.stringify({ do: "load", name, sha256: offered?.sha256 ?? "" }));
  tell("models", { offered: manifest.models ?? [], kept: await kept() });
};

const forget = async ({ name }) => {
  await remove(name);
  tell("models", { offered: manifest.models ?? [], kept: await kept() });
  await page.handle(JSON.stringify({ do: "storage" }));
};

// A chat as a file: Python writes and reads it in its own file system.
const save = async ({ session }) => {
  const path = `/tmp/${session}.safetensors`;
  await page.handle(JSON.stringify({ do: "save", session, path }));
  if (!files.analyzePath(path).exists) return; // refused; Python has told why
  postMessage({ name: `${session}.safetensors`, bytes: files.readFile(path) });
  files.unlink(path);
};

const bring = async ({ file }) => {
  const path = `/tmp/${file.name}`;
  files.writeFile(path, new Uint8Array(await file.arrayBuffer()));
  await page.handle(JSON.stringify({ do: "bring", path }));
  files.unlink(path);
};

const own = { start, load, forget, save, bring };

onmessage = async ({ data }) => {
  const { do: name, ...rest } = data;
  try {
    if (name in own) await own[name](rest);
    else await page.handle(JSON.stringify(data));
  } catch (error) {
    // What Python does not name is a defect or a dead interpreter: page.js starts a new worker.
    if (error instanceof BootError) tellFailure(name, error);
    else tell("died", { during: name, text: String(error.message ?? error) });
  }
};
tell("alive");
