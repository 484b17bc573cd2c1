// Runs the given tests inside Pyodide and posts each report as it comes.
import { boot, readManifest } from "/boot.js";

const tell = (kind, text) => postMessage({ kind, text });

const run = async (ids) => {
  const pyodide = await boot(location.origin, await readManifest(location.origin));
  const decoder = new TextDecoder();
  const write = (bytes) => {
    tell("output", decoder.decode(bytes, { stream: true }));
    return bytes.length;
  };
  pyodide.setStdout({ write });
  pyodide.setStderr({ write });
  const tests = await (await fetch("/tests.zip")).arrayBuffer();
  pyodide.unpackArchive(tests, "zip", { extractDir: "/checkout" });
  pyodide.registerJsModule("outside", { tell });
  await pyodide.runPythonAsync(`
import os, sys
os.chdir("/checkout")
sys.path.insert(0, "/checkout")
from tests.web.inside import run
run(${JSON.stringify(JSON.stringify(ids))})
`);
};

onmessage = async ({ data }) => {
  try {
    await run(data);
    tell("done", "");
  } catch (error) {
    tell("died", String(error.stack ?? error));
  }
};
