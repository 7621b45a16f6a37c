"use strict";
(() => {
  const said = document.getElementById("said");
  const copyOld = (text) => {
    const area = document.createElement("textarea");
    area.value = text;
    area.style.position = "fixed";
    area.style.opacity = "0";
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  };
  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      return copyOld(text); // pages from a file may not have the clipboard
    }
  };
  document.addEventListener("click", async ({ target }) => {
    const button = target.closest("button.copy");
    if (!button) return;
    said.textContent = ""; // so that the same words are announced again
    const done = await copy(document.getElementById(button.dataset.copy).textContent);
    button.focus();
    button.textContent = done ? "Copied" : "Failed";
    said.textContent = done ? "Copied." : "Copying failed; select the text.";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  // A wide figure or table says that it can be scrolled.
  const observer = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const hint = target.nextElementSibling;
      if (hint?.classList.contains("hint")) hint.hidden = target.scrollWidth <= target.clientWidth + 1;
    }
  });
  const observe = (root) => { for (const box of root.querySelectorAll(".scroll")) observer.observe(box); };
  observe(document);
  document.addEventListener("expertp-new", ({ target }) => observe(target)); // a part of the page was replaced
})();
