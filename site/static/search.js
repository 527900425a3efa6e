// Search without a server: the index is a script, so that it also loads from a folder, and only when somebody searches.
"use strict";
(() => {
  const root = new URL(".", document.currentScript.src);
  const input = document.getElementById("search"), list = document.getElementById("results");
  let entries;
  window.pitcrewSearch = (all) => { entries = all.map((e) => ({ ...e, title: (e.p + " " + e.h).toLowerCase(), text: e.t.toLowerCase() })); show(); };
  const load = () => {
    if (load.begun) return;
    load.begun = true;
    const script = document.createElement("script");
    script.src = new URL("search-index.js", root);
    script.onerror = () => { load.begun = false; };
    document.head.append(script);
  };
  // score is 0 if a word is missing. A word in a heading counts as much as ten in the text.
  const score = (e, words) => {
    let sum = 0;
    for (const w of words) {
      const inTitle = e.title.includes(w) ? 10 : 0, inText = e.text.split(w).length - 1;
      if (!inTitle && !inText) return 0;
      sum += inTitle + Math.min(inText, 9) + (e.title === w || e.p.toLowerCase() === w ? 20 : 0);
    }
    return e.u.startsWith("adr/") ? sum / 4 : sum; // pages before the reasons behind them
  };
  const excerpt = (e, words) => {
    const at = Math.max(0, Math.min(...words.map((w) => e.text.indexOf(w)).filter((i) => i >= 0)));
    const from = Number.isFinite(at) ? Math.max(0, at - 40) : 0;
    return (from ? "… " : "") + e.t.slice(from, from + 140).trim() + " …";
  };
  const show = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    list.replaceChildren();
    list.hidden = words.length === 0 || !entries;
    if (list.hidden) return;
    const found = entries.map((e) => [score(e, words), e]).filter(([s]) => s > 0).sort((a, b) => b[0] - a[0]).slice(0, 12);
    for (const [, e] of found) {
      const item = document.createElement("li"), link = document.createElement("a"), text = document.createElement("span");
      link.href = new URL(e.u, root);
      link.textContent = e.h ? e.p + " › " + e.h : e.p;
      text.textContent = excerpt(e, words);
      link.append(text);
      item.append(link);
      list.append(item);
    }
    if (found.length === 0) {
      const item = document.createElement("li");
      item.textContent = "No page has all of these words.";
      list.append(item);
    }
  };
  input.addEventListener("focus", load);
  input.addEventListener("input", () => { load(); show(); });
  input.form.addEventListener("submit", (event) => {
    event.preventDefault();
    list.querySelector("a")?.click();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { input.value = ""; show(); }
    if (event.key === "/" && document.activeElement.tagName !== "INPUT") { event.preventDefault(); input.focus(); }
  });
})();
