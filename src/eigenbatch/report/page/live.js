"use strict";
(() => {
  const button = document.getElementById("live");
  try {
    const scroll = sessionStorage.getItem("eigenbatch-scroll");
    if (scroll !== null) scrollTo(0, Number(scroll));
    sessionStorage.removeItem("eigenbatch-scroll");
  } catch { /* storage refused: the page opens at its top */ }

  const following = () => button.getAttribute("aria-pressed") === "true";
  button.addEventListener("click", () => {
    button.setAttribute("aria-pressed", String(!following()));
    button.textContent = following() ? "Live" : "Paused";
  });

  async function look() {
    if (!following() || document.hidden) return;
    try {
      const version = await (await fetch("/version", { cache: "no-store" })).text();
      button.textContent = "Live";
      if (version === button.dataset.version) return;
      try { sessionStorage.setItem("eigenbatch-scroll", String(scrollY)); } catch { /* see above */ }
      location.reload();
    } catch {
      button.textContent = "Live: no answer";
    }
  }
  setInterval(look, 1000 * Number(button.dataset.interval));
})();
