for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  table.querySelectorAll("th").forEach((head, column) => {
    const button = document.createElement("button");
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const numeric = head.classList.contains("num");
      const down = head.getAttribute("aria-sort") ? head.getAttribute("aria-sort") === "ascending" : numeric;
      table.querySelectorAll("th").forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = row => row.cells[column].textContent;
      const order = numeric ? (a, b) => key(a) - key(b) : (a, b) => key(a).localeCompare(key(b));
      body.append(...[...body.rows].sort((a, b) => down ? order(b, a) : order(a, b)));
    });
  });
}
for (const table of document.querySelectorAll("table.sortable")) {
  const cells = [...table.querySelectorAll("td.name")];
  for (const cell of cells) cell.title = cell.textContent;
  table.classList.add("short");
  const cut = cell => cell.firstChild.scrollHeight > cell.firstChild.clientHeight + 2;
  if (cells.length <= 30 && !cells.some(cut)) continue;
  const button = document.createElement("button");
  const tell = () => {
    const short = table.classList.contains("short");
    button.textContent = short ? `Show all ${cells.length}, with whole names` : "Show fewer";
  };
  button.className = "more";
  button.addEventListener("click", () => { table.classList.toggle("short"); tell(); });
  tell();
  table.closest(".scroll").after(button);
}
