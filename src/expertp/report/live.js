// Keeps a live page current: asks for the versions of its parts, and replaces the parts that have changed.
(() => {
  const parts = document.getElementById("parts"), lost = document.getElementById("lost");
  const HIDDEN_WAIT = 15000, LOST_WAIT = 3000;
  const inside = (root, selector) => [...root.querySelectorAll(selector)];

  // What a reader has done with a part stays: opened details, sideways scrolling, the focus.
  const remember = (old) => ({
    open: inside(old, "details").map((each) => each.open),
    scrolled: inside(old, ".scroll, pre").map((each) => [each.scrollLeft, each.scrollTop]),
    focused: inside(old, "a, button, summary, [tabindex]").indexOf(document.activeElement),
  });
  const restore = (fresh, { open, scrolled, focused }) => {
    inside(fresh, "details").forEach((each, place) => { each.open = open[place] ?? each.open; });
    inside(fresh, ".scroll, pre").forEach((each, place) => { [each.scrollLeft, each.scrollTop] = scrolled[place] ?? [0, 0]; });
    if (focused >= 0) inside(fresh, "a, button, summary, [tabindex]")[focused]?.focus({ preventScroll: true });
  };

  const fetched = async (path) => {
    const answer = await fetch(path, { cache: "no-store" });
    if (!answer.ok) throw new Error(path);
    return answer;
  };
  const boxOf = (anchor) => {
    const found = document.getElementById(`part-${anchor}`);
    if (found) return found;
    const made = document.createElement("div");
    made.id = `part-${anchor}`;
    return made;
  };
  const refresh = async (state) => {
    document.title = state.title;
    let before = null;
    for (const [anchor, version] of state.parts) {
      const box = boxOf(anchor);
      let isNew = false;
      if (box.dataset.version !== version) {
        const html = await (await fetched(`part/${anchor}`)).text();
        const kept = remember(box);
        box.innerHTML = html; // the server has escaped all text, and the policy forbids scripts in it
        box.dataset.version = version;
        restore(box, kept);
        isNew = true;
      }
      const place = before ? before.nextElementSibling : parts.firstElementChild;
      if (place !== box) parts.insertBefore(box, place);
      if (isNew) box.dispatchEvent(new Event("expertp-new", { bubbles: true }));
      before = box;
    }
    while (before?.nextElementSibling) before.nextElementSibling.remove();
    parts.classList.toggle("provisional", state.is_provisional);
  };
  const poll = async () => {
    let wait = LOST_WAIT;
    try {
      const state = await (await fetched("state")).json();
      await refresh(state);
      lost.hidden = true;
      wait = document.hidden ? HIDDEN_WAIT : state.wait;
    } catch {
      lost.hidden = false;
    }
    setTimeout(poll, wait);
  };
  poll();
})();
