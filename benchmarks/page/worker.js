// Runs Python as the chat page's worker does, and posts what it gives.
import { boot, readManifest } from "/boot.js";

const pyodide = await boot(location.origin, await readManifest(location.origin));

onmessage = async ({ data }) => {
  try {
    postMessage({ value: await pyodide.runPythonAsync(data) });
  } catch (error) {
    postMessage({ error: String(error) });
  }
};
postMessage({ value: "ready" });
