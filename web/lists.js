// The lists of chats and of models.
import { ago, size } from "./words.js";

const button = (text, name, act, label) => {
  const made = document.createElement("button");
  made.type = "button";
  made.className = name;
  made.textContent = text;
  if (label) made.setAttribute("aria-label", label);
  made.onclick = act;
  return made;
};

// `act` has open(session), save(session) and remove(session).
export const listSessions = (place, sessions, current, act) => {
  place.replaceChildren(...sessions.map((session) => {
    const title = session.title || session.id;
    const open = button("", "open", () => act.open(session));
    const line = document.createElement("span");
    line.textContent = title;
    if (session.id === current) open.setAttribute("aria-current", "true");
    const state = (session.forked ? "forked, " : "") + (session.damage ? "damaged, " : session.end ? "" : "unfinished, ");
    const facts = document.createElement("small");
    facts.textContent = `${state}${session.tokens} tokens, ${size(session.nbytes)}, ${ago(session.used)}`;
    open.append(line, facts);
    const item = document.createElement("li");
    item.append(
      open,
      button("⤓", "small", () => act.save(session), `Save the chat ${title} to a file`),
      button("✕", "small", () => act.remove(session), `Delete the chat ${title}`),
    );
    return item;
  }));
};

// `act` has load(name) and forget(name); `loaded` is the model in use.
export const listModels = (place, { offered, kept }, loaded, act) => {
  const names = [...new Set([...offered.map(({ name }) => name), ...kept])];
  place.replaceChildren(...names.map((name) => {
    const item = document.createElement("li");
    const note = document.createElement("span");
    note.className = "quiet";
    const facts = offered.find((each) => each.name === name);
    note.textContent = kept.includes(name) ? "kept in this browser" : `${size(facts.size)} to fetch`;
    item.append(button(`Load ${name}`, "", () => act.load(name)), note);
    if (kept.includes(name) && name !== loaded) {
      item.append(button("Delete", "", () => act.forget(name), `Delete the kept file of ${name}`));
    }
    return item;
  }));
};
