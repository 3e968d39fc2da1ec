// Tables sorted by a click on a heading: numbers with units by size, everything else as text.

const UNITS = { B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40 };
const NUMBER = /^(-?[\d,]*\.?\d+(?:e[+-]?\d+)?)(?: (B|[KMGT]iB))?$/;

/** The sort key of a cell: a number, a text, or null for an empty one. */
function keyOf(text) {
  const match = NUMBER.exec(text);
  if (match) return Number(match[1].replaceAll(',', '')) * (UNITS[match[2]] ?? 1);
  return text === '' ? null : text;
}

/** Numbers before texts, smaller ones first; texts by the numbers in them. */
function compare(one, other) {
  if (typeof one === 'number' && typeof other === 'number') return one - other;
  if (typeof one !== typeof other) return typeof one === 'number' ? -1 : 1;
  return one.localeCompare(other, undefined, { numeric: true });
}

/** The rows of a table by a column; empty cells stay last; the sort is stable. */
function sortRows(table, column, descending) {
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [keyOf(row.cells[column].textContent), row]);
  const sign = descending ? -1 : 1;
  rows.sort(([one], [other]) => {
    if (one === null || other === null) return (one === null) - (other === null);
    return sign * compare(one, other);
  });
  body.append(...rows.map(([, row]) => row));
}

function sortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement('button');
    button.type = 'button';
    button.append(...head.childNodes);
    head.append(button);
    head.setAttribute('aria-sort', 'none');
    button.addEventListener('click', () => {
      const now = head.getAttribute('aria-sort');
      // largest numbers first
      const first = head.classList.contains('number') ? 'descending' : 'ascending';
      const second = first === 'ascending' ? 'descending' : 'ascending';
      const next = now === first ? second : first;
      heads.forEach((other) => other.setAttribute('aria-sort', 'none'));
      head.setAttribute('aria-sort', next);
      sortRows(table, column, next === 'descending');
    });
  });
}
