try {
  const stored = localStorage.getItem("eigenbatch-theme");
  if (stored) document.documentElement.dataset.theme = stored;
} catch { /* a browser may refuse storage to files: the system's theme is used */ }
