// Amounts and troubles in words.

export const size = (bytes) => {
  for (const unit of ["B", "KB", "MB"]) {
    if (bytes < 1000) return `${unit === "B" ? bytes : bytes.toFixed(1)} ${unit}`;
    bytes /= 1000;
  }
  return `${bytes.toFixed(1)} GB`;
};

export const ago = (seconds) => {
  const passed = Date.now() / 1000 - seconds;
  if (passed < 90) return "just now";
  if (passed < 5400) return `${Math.round(passed / 60)} min ago`;
  return passed < 129600 ? `${Math.round(passed / 3600)} h ago` : `${Math.round(passed / 86400)} days ago`;
};

// How a stored chat came back.  `how` is "kv" where pages were enough, "replay(n)" where n tokens ran again.
export const recovery = ({ how, tokens, pages, nbytes, seconds, damage, note, moved }) => {
  if (how === "fork") return `forked after ${tokens} tokens, sharing ${pages} full pages`;
  const again = /replay\((\d+)\)/.exec(how);
  return `resumed ${tokens} tokens, ${pages} pages (${size(nbytes)})` +
    (again ? `, ${again[1]} tokens computed again` : "") + `, in ${seconds.toFixed(1)} s` +
    (damage ? `; damage was left out: ${damage}` : "") + (note ? `; ${note}` : "") +
    (moved ? `; ${moved}` : "");
};

// A trouble with a model file, with the file's name: Python had its bytes alone, and calls it "model".
export const named = (text, name) => {
  if (text.includes(name)) return text;
  return /^model\b/.test(text) ? text.replace("model", name) : `${name}: ${text}`;
};

// What a person can do about an error of this kind.  The text itself already says what was wrong.
const ADVICE = {
  DeviceError: {
    start: "",
    load: "Choose a smaller model: this one needs more than the GPU gives a page.",
    other: "What was shown is stored. Reload the page and go on; if that fails again, try another browser.",
  },
  CacheError: { load: "Choose a smaller model: this one needs more than the GPU gives a page." },
  StoreBusyError: "This chat is open in another tab or window. Close it there, or begin a new chat here.",
  StoreFullError: "Delete chats or models you no longer need. The chat goes on, but its last part may be lost.",
  IdentityError: "The chat was made with another model. Load that model, or begin a new chat.",
  DamageError: {
    bring: "It is no chat that webkv has saved, or it was changed since. Save it again where it came from.",
    other: "Nothing of this chat can be used. Delete it, or begin a new chat.",
  },
  ModelError: "Choose another model file: a GGUF of a Llama or Gemma 3 model.",
  CacheFullError: "The chat is longer than the pages there are. Begin a new chat.",
};

export const advice = (kind, during) => {
  const found = ADVICE[kind] ?? "";
  return typeof found === "string" ? found : found[during] ?? found.other ?? "";
};
