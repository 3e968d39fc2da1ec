// The report page: sortable tables, current section, everything expanded for printing.

for (const table of document.querySelectorAll('.report .scroll table')) sortable(table);

/** Highlights the current section in the list of contents. */
function follow() {
  const links = new Map(
    [...document.querySelectorAll('.report nav a')].map((link) => [link.hash.slice(1), link]),
  );
  const sections = [...document.querySelectorAll('.report main > section[id]')].filter((one) => links.has(one.id));
  const mark = () => {
    const line = parseFloat(getComputedStyle(document.documentElement).scrollPaddingTop) + 10;
    const passed = sections.filter((one) => one.getBoundingClientRect().top <= line);
    const bottom = window.innerHeight + window.scrollY >= document.body.scrollHeight - 2;
    const at = bottom ? sections.at(-1) : (passed.at(-1) ?? sections[0]);
    for (const [key, link] of links) {
      if (key === at?.id) link.setAttribute('aria-current', 'true');
      else link.removeAttribute('aria-current');
    }
  };
  let waiting = false;
  const later = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; mark(); });
  };
  window.addEventListener('scroll', later, { passive: true });
  window.addEventListener('resize', later);
  mark();
}

follow();

/** Opens the collapsed parts around the target of a link. */
function unfold() {
  const target = document.getElementById(location.hash.slice(1));
  let part = target?.querySelector(':scope > .fold') ?? target?.closest('details');
  for (; part; part = part.parentElement.closest('details')) part.open = true;
  target?.scrollIntoView();
}
window.addEventListener('hashchange', unfold);
unfold();

window.addEventListener('beforeprint', () => {
  for (const folded of document.querySelectorAll('.report details:not([open])')) {
    folded.open = true;
    folded.dataset.opened = 'print';
  }
});
window.addEventListener('afterprint', () => {
  for (const opened of document.querySelectorAll('.report details[data-opened]')) {
    opened.open = false;
    delete opened.dataset.opened;
  }
});
