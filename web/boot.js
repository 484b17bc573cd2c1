// Starts Python in a worker: Pyodide, then the wheels of manifest.json, each checked against its digest.

// What went wrong, in words for the person at the page.  `advice` says what to do.
export class BootError extends Error {
  constructor(message, advice) {
    super(`${message}. ${advice}`);
    this.name = "BootError";
  }
}

export const hex = (buffer) =>
  [...new Uint8Array(buffer)].map((byte) => byte.toString(16).padStart(2, "0")).join("");

const fetched = async (url) => {
  let answer;
  try {
    answer = await fetch(url);
  } catch (error) {
    throw new BootError(`${url} could not be loaded (${error.message})`,
      "Check the connection and that the server still runs, then reload");
  }
  if (!answer.ok) {
    throw new BootError(`${url} is missing (HTTP ${answer.status})`,
      "Run `webkv serve` again: it fetches and builds what is missing");
  }
  return answer;
};

export const readManifest = async (root) => (await fetched(new URL("manifest.json", root))).json();

const fetchChecked = async (url, sha256) => {
  const bytes = await (await fetched(url)).arrayBuffer();
  const found = hex(await crypto.subtle.digest("SHA-256", bytes));
  if (found === sha256) return bytes;
  throw new BootError(`${url} was changed (digest ${found.slice(0, 12)}, expected ${sha256.slice(0, 12)})`,
    "Reload the page; if that does not help, run `webkv serve` again");
};

// `onStep(done, total, what)` is called as parts arrive.  Returns Pyodide with webkv importable.
export const boot = async (root, manifest, onStep = () => {}) => {
  const total = manifest.wheels.length + 1;
  onStep(0, total, "Python");
  const base = new URL(manifest.pyodide, root).href;
  const arriving = manifest.wheels.map(({ file, sha256 }) => fetchChecked(new URL(file, root), sha256));
  arriving.forEach((promise) => promise.catch(() => {})); // reported below, in order
  let pyodide;
  try {
    const { loadPyodide } = await import(`${base}pyodide.mjs`);
    pyodide = await loadPyodide({ indexURL: base });
  } catch (error) {
    throw new BootError(`Python could not be started from ${base} (${error.message})`,
      "Check the network connection, or serve a local copy with `webkv serve`");
  }
  if (manifest.packages.length) await pyodide.loadPackage(manifest.packages, { messageCallback: () => {} });
  const extractDir = pyodide.runPython("import site; site.getsitepackages()[0]");
  for (const [i, wheel] of manifest.wheels.entries()) {
    const name = wheel.file.split("/").at(-1);
    onStep(i + 1, total, name.split("-")[0]);
    const bytes = await arriving[i];
    // Only Pyodide's own loader links native modules.
    if (name.includes("wasm32")) await pyodide.loadPackage(new URL(wheel.file, root).href, { messageCallback: () => {} });
    else pyodide.unpackArchive(bytes, "wheel", { extractDir });
  }
  pyodide.runPython("import importlib; importlib.invalidate_caches()");
  onStep(total, total, "ready");
  return pyodide;
};
