// Tables sort by the column whose heading is pressed; pressed again, the other way round. Empty cells come last.
for (const button of document.querySelectorAll("table.sortable th button")) {
  button.addEventListener("click", () => {
    const heading = button.parentElement;
    const body = heading.closest("table").tBodies[0];
    const numeric = heading.classList.contains("number");
    const descending = heading.ariaSort ? heading.ariaSort === "ascending" : numeric;
    for (const other of heading.parentElement.children) other.removeAttribute("aria-sort");
    heading.ariaSort = descending ? "descending" : "ascending";
    const text = (row) => row.cells[heading.cellIndex].textContent.trim();
    const number = (value) => parseFloat(value.replace("−", "-"));
    const compare = (one, other) => {
      const [a, b] = [text(one), text(other)];
      const [x, y] = [number(a), number(b)];
      if (numeric && isNaN(x) !== isNaN(y)) return isNaN(x) ? 1 : -1;
      if (!a !== !b) return a ? -1 : 1;
      const order = numeric && !isNaN(x) ? x - y : a.localeCompare(b, "en", {numeric: true});
      return descending ? -order : order;
    };
    body.append(...[...body.rows].sort(compare));
  });
}
