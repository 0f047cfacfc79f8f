"use strict";
// Nothing here is needed to read the page: it adds sorting, and a button that copies a table.
document.querySelectorAll("table").forEach((table) => {
  const body = table.tBodies[0];
  const value = (row, i) => {
    const cell = row.cells[i], raw = cell.dataset.v;
    return raw === undefined ? cell.textContent : raw === "" ? null : Number(raw);
  };
  table.querySelectorAll("thead th").forEach((head, i) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      table.querySelectorAll("thead th").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].sort((a, b) => {
        const x = value(a, i), y = value(b, i);
        if (x === null || y === null) return (x === null) - (y === null);
        const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
        return down ? -order : order;
      });
      body.append(...rows);
    });
  });
  // A spreadsheet runs a cell that begins so; the apostrophe makes it text.
  const plain = (text) => (/^[=+\-@\t\r]/.test(text) ? "'" + text : text).replace(/[\t\r\n]+/g, " ");
  const cells = (row) => [...row.cells].map((cell) => cell.dataset.v ?? plain(cell.textContent)).join("\t");
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy this table";
  button.title = "As tab-separated values: seconds and fractions, times in seconds since 1970";
  const told = document.createElement("span");
  told.setAttribute("role", "status");
  told.className = "faint";
  button.addEventListener("click", async () => {
    const text = [...table.rows].map(cells).join("\n") + "\n";
    let done = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      done = document.execCommand("copy");
      area.remove();
    }
    told.textContent = done ? " copied" : " the browser does not allow it";
  });
  table.closest(".table").after(button, told);
});
