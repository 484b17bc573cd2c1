// Model files in the origin's private file system: fetched once, resumed after a break, checked before use.
import { BootError, hex } from "./boot.js";

const CHUNK = 8 << 20;

const folder = async () => {
  try {
    return await (await navigator.storage.getDirectory()).getDirectoryHandle("models", { create: true });
  } catch (error) {
    throw new BootError(`The browser lets this page keep no files (${error.message})`,
      "Leave private browsing, or allow site data for this site");
  }
};

const handleOf = async (name, create = false) => {
  try {
    return await (await folder()).getFileHandle(name, { create });
  } catch (error) {
    if (error.name === "NotFoundError") return null;
    throw error;
  }
};

const wrongRoom = (error, size) => error.name === "QuotaExceededError"
  ? new BootError(`The browser has no room for this model of ${Math.ceil(size / 1e6)} MB`,
    "Delete chats or other models, or free disk space, and load it again")
  : error;

// The names of the whole files that are kept.
export const kept = async () => {
  const names = [];
  try {
    for await (const name of (await folder()).keys()) if (!name.endsWith(".part")) names.push(name);
  } catch (error) {
    if (!(error instanceof BootError)) throw error;
  }
  return names;
};

export const remove = async (name) => {
  const models = await folder();
  for (const each of [name, `${name}.part`]) await models.removeEntry(each).catch(() => {});
};

const writer = async (name) => {
  const handle = await handleOf(name, true);
  try {
    return [handle, await handle.createSyncAccessHandle()];
  } catch (error) {
    if (error.name !== "NoModificationAllowedError") throw error;
    throw new BootError("Another tab is fetching this model", "Wait until it is done, or close that tab");
  }
};

// Writes what `read` gives (from byte `from` on) behind the part file's end.
const append = async (access, at, reader, size, onProgress) => {
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    access.write(value, { at });
    at += value.length;
    onProgress(at, size);
  }
  access.flush();
  return at;
};

const checked = async (handle, name, sha256) => {
  const file = await handle.getFile();
  const found = hex(await crypto.subtle.digest("SHA-256", await file.arrayBuffer()));
  if (sha256 && found !== sha256) {
    await remove(name);
    throw new BootError(`${name} arrived damaged (digest ${found.slice(0, 12)}, expected ${sha256.slice(0, 12)})`,
      "It was deleted; load it again");
  }
};

// Fetches `url` unless it is kept; goes on where a broken download stopped.
export const fetchModel = async (url, { name, size, sha256 }, onProgress) => {
  const whole = await handleOf(name);
  if (whole !== null) return;
  const [handle, access] = await writer(`${name}.part`);
  try {
    let at = Math.min(access.getSize(), size);
    onProgress(at, size);
    if (at < size) {
      const answer = await fetch(url, at ? { headers: { Range: `bytes=${at}-` } } : {});
      if (!answer.ok) {
        throw new BootError(`${name} cannot be fetched (HTTP ${answer.status})`, "Check the server, then load it again");
      }
      if (answer.status !== 206) at = 0; // the server sends the whole file
      access.truncate(at);
      at = await append(access, at, answer.body.getReader(), size, onProgress);
    }
    if (at !== size) {
      throw new BootError(`The download of ${name} stopped at ${at} of ${size} bytes`, "Load it again: it goes on there");
    }
  } catch (error) {
    if (error instanceof TypeError) {
      throw new BootError(`The connection broke while ${name} was fetched`, "Load it again: it goes on where it stopped");
    }
    throw wrongRoom(error, size);
  } finally {
    access.close();
  }
  await checked(handle, name, sha256);
  await handle.move(name);
};

// Keeps a file that the user chose.
export const adopt = async (file, onProgress) => {
  await remove(file.name);
  const [handle, access] = await writer(`${file.name}.part`);
  try {
    await append(access, 0, file.stream().getReader(), file.size, onProgress);
  } catch (error) {
    throw wrongRoom(error, file.size);
  } finally {
    access.close();
  }
  await handle.move(file.name);
};

// Copies a kept file into Python's memory; `room` gives the memory for a size, undefined if there is none.
export const readInto = async (name, room) => {
  const handle = await handleOf(name);
  if (handle === null) {
    throw new BootError(`The model ${name} is no longer kept here`, "Load it again");
  }
  const file = await handle.getFile();
  const memory = room(file.size);
  if (memory === undefined) {
    throw new BootError(`The model ${name} of ${Math.ceil(file.size / 1e6)} MB does not fit into a page's memory`,
      "Choose a smaller model, or run this one with the command webkv");
  }
  try {
    for (let at = 0; at < file.size; at += CHUNK) {
      const part = new Uint8Array(await file.slice(at, at + CHUNK).arrayBuffer());
      // A fresh view each time: Python may have moved its heap while this waited.
      const view = memory.getBuffer("u8");
      view.data.set(part, at);
      view.release();
    }
  } finally {
    memory.destroy();
  }
};
