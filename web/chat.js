// The chat log: turns as they are, and the answer as it streams.

export class Chat {
  constructor(log, spoken) {
    this.log = log;
    this.spoken = spoken; // read aloud by screen readers; the log itself would be read token by token
    this.finish = null;
    this.answering = false;
    this.now = null;
  }

  clear() {
    this.log.replaceChildren();
    this.finish = null;
    this.answering = false;
    this.now = null;
  }

  turn(role, text) {
    const turn = document.createElement("div");
    turn.className = `turn ${role}`;
    const who = document.createElement("b");
    who.textContent = role === "user" ? "You" : role === "system" ? "System" : "Model";
    const body = document.createElement("span");
    body.textContent = text;
    turn.append(who, body);
    this.log.append(turn);
    this.scroll();
    return turn;
  }

  scroll() {
    this.log.scrollTop = this.log.scrollHeight;
  }

  user(text) {
    this.now = null;
    this.finish = null;
    this.turn("user", text);
  }

  // A stored chat: its turns, and the answer so far, which the next tokens continue.
  show({ messages, answer, finished }) {
    this.clear();
    for (const { role, content } of messages) this.turn(role, content);
    this.finish = finished;
    if (answer || finished) this.now = this.turn("assistant", answer);
  }

  answer() {
    this.now ??= this.turn("assistant", "");
    this.now.querySelector(".note")?.remove();
    this.finish = null;
    this.answering = true;
    this.now.classList.add("now");
    this.log.setAttribute("aria-busy", "true");
  }

  add(text) {
    this.now.children[1].append(text);
    const { scrollHeight, scrollTop, clientHeight } = this.log;
    if (scrollHeight - scrollTop - clientHeight < 120) this.scroll(); // unless someone reads further up
  }

  stopped() {
    this.answering = false;
    this.now?.classList.remove("now");
    this.log.removeAttribute("aria-busy");
  }

  end({ finish, tokens, seconds }) {
    this.stopped();
    this.finish = finish;
    const why = { length: ", cut at its limit", cancelled: ", stopped" }[finish] ?? "";
    const note = document.createElement("span");
    note.className = "note";
    note.textContent = `${tokens} tokens, ${(tokens / Math.max(seconds, 1e-3)).toFixed(1)} per second${why}`;
    this.now.append(note);
    this.spoken.textContent = this.now.children[1].textContent;
    this.scroll();
  }
}
