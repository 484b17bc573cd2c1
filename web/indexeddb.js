// IndexedDB and Web Locks behind webkv/checkpoint/indexeddb.py.  The value of this script is its functions.
// Every one resolves to [error name, message, value]: a rejection that nobody awaits would be reported as a crash.
// No function awaits between two requests of a transaction: the transaction would be over.
(() => {
  "use strict";
  const TABLE = "entries"; // key: text, value: Uint8Array
  // Step i takes a database from version i to i + 1.  Never change a step that was released; add one.
  const STEPS = [(db) => db.createObjectStore(TABLE)];

  const told = (promise) => promise.then(
    (value) => ["", "", value],
    (error) => [error?.name || "UnknownError", error?.message || String(error), undefined],
  );

  const open = (name, steps) => new Promise((resolve, reject) => {
    const request = indexedDB.open(name, steps.length);
    request.onupgradeneeded = ({ oldVersion }) => {
      for (const step of steps.slice(oldVersion)) step(request.result, request.transaction);
    };
    request.onblocked = () => reject(new DOMException("an older version is open elsewhere", "BlockedError"));
    request.onerror = () => reject(request.error);
    request.onsuccess = () => {
      // A newer page in another tab wants to upgrade: step aside, and say so at the next use.
      request.result.onversionchange = () => request.result.close();
      resolve(request.result);
    };
  });

  const ended = (transaction, value) => new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve(value());
    transaction.onabort = () => reject(transaction.error ?? new DOMException("aborted", "AbortError"));
  });

  const range = (prefix) => {
    if (!prefix) return undefined;
    const end = prefix.slice(0, -1) + String.fromCharCode(prefix.charCodeAt(prefix.length - 1) + 1);
    return IDBKeyRange.bound(prefix, end, false, true);
  };

  const read = (db, ask) => {
    const transaction = db.transaction(TABLE, "readonly");
    const requests = ask(transaction.objectStore(TABLE));
    return ended(transaction, () => requests.map(({ result }) => result));
  };

  const joined = (values) => {
    const all = new Uint8Array(values.reduce((sum, value) => sum + value.length, 0));
    values.reduce((at, value) => (all.set(value, at), at + value.length), 0);
    return all;
  };

  const commit = (db, keys, sizes, bytes, deletes, durability) => {
    const transaction = db.transaction(TABLE, "readwrite", { durability });
    const table = transaction.objectStore(TABLE);
    const view = bytes.getBuffer("u8");
    try {
      let at = 0;
      JSON.parse(sizes).forEach((size, i) => {
        // slice copies: a stored view would take the whole heap of Python with it.
        table.put(view.data.slice(at, at + size), keys[i]);
        at += size;
      });
      for (const key of deletes) table.delete(key);
    } catch (error) {
      transaction.abort(); // what was asked for so far would be committed otherwise
      throw error;
    } finally {
      view.release();
    }
    const end = ended(transaction, () => null);
    transaction.commit();
    return end;
  };

  const lock = (name) => new Promise((resolve, reject) => {
    if (!navigator.locks) throw new DOMException("the page has no Web Locks", "NotSupportedError");
    const hold = (held) => {
      if (held === null) return resolve(undefined);
      // Given back once `over` is fulfilled; then the next one may have it.
      return new Promise((free) => resolve(() => (free(), told(over))));
    };
    const over = navigator.locks.request(name, { ifAvailable: true }, hold);
    over.catch(reject);
  });

  const attempt = (call) => (...values) => told(new Promise((resolve) => resolve(call(...values))));

  return {
    STEPS,
    open: attempt((name, steps = STEPS) => open(name, steps)),
    get: attempt(async (db, key) => (await read(db, (table) => [table.get(key)]))[0]),
    keys: attempt(async (db, prefix) =>
      JSON.stringify((await read(db, (table) => [table.getAllKeys(range(prefix))]))[0])),
    items: attempt(async (db, prefix) => {
      const [keys, values] = await read(db, (table) => [
        table.getAllKeys(range(prefix)), table.getAll(range(prefix))]);
      return [JSON.stringify(keys), JSON.stringify(values.map((value) => value.length)), joined(values)];
    }),
    commit: attempt((db, keys, sizes, bytes, deletes, durability) =>
      commit(db, JSON.parse(keys), sizes, bytes, JSON.parse(deletes), durability)),
    lock: attempt(lock),
    estimate: attempt(async () => {
      const { usage, quota } = await navigator.storage.estimate();
      return [usage ?? 0, quota ?? -1];
    }),
    remove: attempt((name) => new Promise((resolve, reject) => {
      const request = indexedDB.deleteDatabase(name);
      request.onsuccess = () => resolve(null);
      request.onerror = () => reject(request.error);
      request.onblocked = () => reject(new DOMException("the database is in use", "BlockedError"));
    })),
  };
})();
