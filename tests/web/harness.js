// Runs tests inside Pyodide, one file after the other as they are dealt out, and posts the reports.
import { boot, readManifest } from "/boot.js";

let output = "";
let dealt = null;

const tell = (kind, text) => postMessage({ kind, text });

const end = (kind, text) => {
  tell("output", output);
  tell(kind, text);
};

const take = () => {
  tell("take", "");
  return new Promise((resolve) => (dealt = resolve));
};

const run = async (ids) => {
  const pyodide = await boot(location.origin, await readManifest(location.origin));
  pyodide._api.on_fatal = (error) => end("died", String(error.stack ?? error));
  const decoder = new TextDecoder();
  const write = (bytes) => {
    output = (output + decoder.decode(bytes, { stream: true })).slice(-4000);
    return bytes.length;
  };
  pyodide.setStdout({ write });
  pyodide.setStderr({ write });
  const tests = await (await fetch("/tests.zip")).arrayBuffer();
  pyodide.unpackArchive(tests, "zip", { extractDir: "/checkout" });
  pyodide.registerJsModule("outside", { tell, take });
  await pyodide.runPythonAsync(`
import os, sys
os.chdir("/checkout")
sys.path.insert(0, "/checkout")
from tests.web.inside import run
run(${JSON.stringify(JSON.stringify(ids))})
`);
};

onmessage = async ({ data }) => {
  if (data.file !== undefined) {
    dealt(data.file);
    return;
  }
  try {
    await run(data.ids);
    end("done", "");
  } catch (error) {
    end("died", String(error.stack ?? error));
  }
};
