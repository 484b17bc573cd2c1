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

// What a person can do about an error of this kind.  The text itself already says what was wrong.
const ADVICE = {
  StoreBusyError: "This chat is open in another tab or window. Close it there, or begin a new chat here.",
  StoreFullError: "Delete chats or models you no longer need. The chat goes on, but its last part may be lost.",
  IdentityError: "The chat was made with another model. Load that model, or begin a new chat.",
  DamageError: "The stored chat is damaged beyond use. Delete it, or begin a new chat.",
  ModelError: "Choose another model file: a GGUF of a Llama or Gemma 3 model.",
  CacheFullError: "The chat is longer than the pages there are. Begin a new chat.",
};

export const advice = (kind) => ADVICE[kind] ?? "";
