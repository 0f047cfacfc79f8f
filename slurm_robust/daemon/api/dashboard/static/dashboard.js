// Keeps a page true: applies what /events sends, writes ages, and says loudly when nothing comes any more.
// Elements are made by createElement and filled by text nodes; nothing that comes is ever read as HTML.
"use strict";
(() => {
  const SVG_TAGS = new Set(["svg", "rect"]);
  const TAGS = new Set(["a", "article", "b", "code", "dd", "div", "dl", "dt", "h1", "h3", "i", "li", "ol", "p", "small",
    "span", "td", "time", "tr", "ul", ...SVG_TAGS]);
  const ATTRIBUTES = new Set(["aria-hidden", "aria-label", "class", "colspan", "data-job", "data-key", "data-label", "data-since",
    "data-story", "data-strikes", "datetime", "height", "href", "id", "preserveAspectRatio", "role", "title", "viewBox",
    "width", "x", "y"]);
  const STALE_S = 30, SILENT_S = 15, RETRY_MS = 5000;
  const STATES = {active: "runs a job", idle: "idle", standby: "standby", seat: "held for a requeued job",
    quarantine: "in quarantine", drained: "drained by srobust", foreign: "drained or down"};
  const body = document.body, byId = (id) => document.getElementById(id);
  if (!body.dataset.events) return;

  // The daemon's clock: this device's own may be wrong.
  let atS = Number(body.dataset.at), serverS = Number(body.dataset.now), heardMs = performance.now();
  const nowS = () => serverS + (performance.now() - heardMs) / 1000;
  let source = null, isLost = false;

  function set(node, name, value) {
    if (!ATTRIBUTES.has(name) || (name === "href" && !/^\/(?!\/)/.test(value))) return;
    if (node.getAttribute(name) !== value) node.setAttribute(name, value);
  }

  function build(tree) {
    if (typeof tree === "string") return document.createTextNode(tree);
    const [tag, attributes, ...children] = tree;
    if (!TAGS.has(tag)) return document.createTextNode("");
    const node = SVG_TAGS.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag)
      : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) set(node, name, value);
    node.append(...children.map(build));
    return node;
  }

  // Changes only what differs, so that focus, selection and what a screen reader has said stay.
  function morph(node, tree) {
    if (typeof tree === "string") {
      if (node.nodeType !== Node.TEXT_NODE) { const made = build(tree); node.replaceWith(made); return made; }
      if (node.data !== tree) node.data = tree;
      return node;
    }
    const [tag, attributes, ...children] = tree;
    if (node.nodeType !== Node.ELEMENT_NODE || node.localName !== tag) {
      const made = build(tree);
      node.replaceWith(made);
      return made;
    }
    const isAge = node.dataset.since !== undefined && node.dataset.since === attributes["data-since"];
    for (const name of node.getAttributeNames()) if (!(name in attributes)) node.removeAttribute(name);
    for (const [name, value] of Object.entries(attributes)) set(node, name, value);
    if (isAge) return node;
    const old = [...node.childNodes];
    children.forEach((child, n) => n < old.length ? morph(old[n], child) : node.append(build(child)));
    old.slice(children.length).forEach((extra) => extra.remove());
    return node;
  }

  // Rows of each container by their names; the first ones were made by the server.
  const rows = new Map();
  function known(container) {
    if (!rows.has(container.id)) {
      rows.set(container.id, new Map([...container.children].map((node) => [node.dataset.key || node.id, node])));
    }
    return rows.get(container.id);
  }

  function apply(sections) {
    for (const [id, change] of Object.entries(sections)) {
      const container = byId(id);
      if (!container) return location.reload();
      const mine = known(container);
      for (const [key, tree] of Object.entries(change.rows || {})) {
        const had = mine.get(key);
        mine.set(key, had ? morph(had, tree) : build(tree));
        if (!had && !change.order) return location.reload();
      }
      if (change.order) order(container, mine, change.order);
    }
  }

  function order(container, mine, keys) {
    const wanted = new Set(keys);
    for (const [key, node] of mine) if (!wanted.has(key)) { node.remove(); mine.delete(key); }
    let next = container.firstChild;
    for (const key of keys) {
      const node = mine.get(key);
      if (!node) return location.reload();
      if (node === next) next = next.nextSibling; else container.insertBefore(node, next);
    }
    while (next) { const gone = next; next = next.nextSibling; gone.remove(); }
  }

  function heard() { heardMs = performance.now(); isLost = false; }

  function age(seconds) {
    const s = Math.max(0, Math.round(seconds));
    if (s < 60) return `${s} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min`;
    if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min`;
    return `${Math.floor(s / 86400)} d ${Math.floor(s % 86400 / 3600)} h`;
  }

  let alarmed = "";
  function tick() {
    const now = nowS(), silentS = (performance.now() - heardMs) / 1000;
    for (const node of document.querySelectorAll("[data-since]")) {
      const text = `${age(now - Number(node.dataset.since))} ago`;
      if (node.textContent !== text) node.textContent = text;
    }
    const isAway = isLost || silentS > SILENT_S, isOld = now - atS > STALE_S;
    byId("age").textContent = atS ? `${isAway ? "not live, " : isOld ? "" : "live, "}${age(now - atS)} old` : "no state yet";
    const text = isAway ? `No connection to the daemon's machine for ${age(silentS)}.`
      : isOld ? (atS ? `The daemon has been silent for ${age(now - atS)}.` : "The daemon has published no state yet.") : "";
    body.className = text ? "stale" : "fresh";
    document.title = text ? `(!) ${title}` : title;
    alarm(text, isAway ? "away" : isOld ? "old" : "");
  }

  // The sentence changes each second; a screen reader is told when its kind does.
  function alarm(text, kind) {
    const box = byId("alarm");
    if (kind !== alarmed || (kind && !box.firstChild)) {
      alarmed = kind;
      box.replaceChildren();
      if (!kind) return;
      const loud = document.createElement("b"), command = document.createElement("code");
      command.className = "command";
      command.textContent = "systemctl status srobustd";
      box.append(loud, " What is shown below is as old. On the daemon's machine: ", command);
    }
    if (kind) box.firstChild.textContent = text;
  }

  let title = document.title.replace(/^\(!\) /, ""), version = body.dataset.version;

  function connect() {
    source = new EventSource(`${body.dataset.events}&from=${encodeURIComponent(version)}`);
    const on = (name, act) => source.addEventListener(name, (event) => {
      heard();
      if (event.lastEventId) version = event.lastEventId;
      act(JSON.parse(event.data));
      tick();
    });
    on("beat", (value) => { serverS = value.now_s; atS = value.at_s; });
    on("change", (value) => { title = value.title; apply(value.sections); });
    on("everything", (value) => {
      if (value.shape.some((id) => !byId(id))) return location.reload();
      title = value.title;
      apply(value.sections);
    });
    on("reload", () => location.reload());
    source.onerror = () => {
      isLost = true;
      tick();
      // A refusal (too many watch, the token has changed) ends an EventSource for good.
      if (source.readyState === EventSource.CLOSED) setTimeout(connect, RETRY_MS);
    };
  }

  function tellOf(square) {
    const {job, story, strikes} = square.dataset;
    return [`${square.id.slice(2)}: ${STATES[square.className] || square.className}`, job && `job ${job}`, story,
      strikes && `${strikes} strike${strikes === "1" ? "" : "s"}`].filter(Boolean).join("; ");
  }

  let pointed = null;
  function point(square) {
    pointed?.removeAttribute("data-pointed");
    pointed = square;
    if (!square) return;
    square.setAttribute("data-pointed", "");
    byId("tell").textContent = tellOf(square);
  }

  function isSquare(node) { return node instanceof Element && node.parentElement?.classList.contains("grid"); }

  function columns(grid) { return getComputedStyle(grid).gridTemplateColumns.split(" ").length; }

  function arrows(event) {
    const grid = event.target;
    if (!grid.classList?.contains("grid")) return;
    const squares = [...grid.children], at = squares.indexOf(pointed);
    const by = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns(grid), ArrowUp: -columns(grid)}[event.key];
    if (!by) return;
    event.preventDefault();
    point(squares[at < 0 ? 0 : Math.min(squares.length - 1, Math.max(0, at + by))]);
  }

  document.addEventListener("pointerover", (event) => { if (isSquare(event.target)) point(event.target); });
  document.addEventListener("click", (event) => { if (isSquare(event.target)) point(event.target); });
  document.addEventListener("keydown", arrows);
  addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
  connect();
  tick();
  setInterval(tick, 1000);
})();
