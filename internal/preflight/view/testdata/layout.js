// What the tests need to know of the page. Boxes are in CSS pixels from the top left of the page.
(() => {
  const box = (e, text) => {
    const r = e.getBoundingClientRect();
    return { Text: text ?? e.textContent.trim(), X: r.x + scrollX, Y: r.y + scrollY, W: r.width, H: r.height };
  };
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const cut = all("h1, .advice, .more li, .facts div, .scale li > *, th, td, .tests, .why li")
    .filter((e) => e.checkVisibility() && (e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0 || e.getBoundingClientRect().right > innerWidth + 1));
  const overlaps = [];
  for (const group of [all(".matrix thead .column > div"), all(".scale li > span"), all(".rows:first-of-type thead text"), all(".facts div")]) {
    const boxes = group.map((e) => box(e));
    boxes.forEach((a, i) => boxes.slice(i + 1).forEach((b) => {
      if (a.X < b.X + b.W && b.X < a.X + a.W && a.Y < b.Y + b.H && b.Y < a.Y + a.H) overlaps.push(a.Text + " / " + b.Text);
    }));
  }
  return {
    Headline: document.querySelector("h1").innerText,
    Facts: document.querySelector(".facts").innerText,
    Width: document.documentElement.scrollWidth,
    Heads: Math.max(0, ...all(".matrix .column > div").map((e) => Math.max(e.offsetHeight, 4 * e.offsetWidth))),
    Cut: cut.map((e) => e.textContent.trim().slice(0, 80)),
    Overlaps: overlaps,
    Steps: all(".scale i").map((e) => box(e)),
    Rows: all("tbody tr").filter((tr) => tr.querySelector("th.name") && tr.checkVisibility()).map((tr) => ({
      Name: tr.querySelector("th.name").lastChild.textContent.trim(),
      Cells: all(".cell:not(.none)", tr).map((e) => box(e)),
      Dots: all("circle", tr).map((e) => box(e, "")),
      Value: tr.querySelector(".value") && box(tr.querySelector(".value")),
    })),
    Texts: all("h1, h2, .run, .advice, .more b, dt, dd, .scale span, .scale small, p.muted, th.name, td.muted, .cell:not(.none), .value, .mark, .tests, .why li, .column > div, thead text, summary")
      .filter((e) => e.checkVisibility() && e.textContent.trim()).map((e) => box(e)),
    Resources: performance.getEntriesByType("resource").length,
  };
})()
