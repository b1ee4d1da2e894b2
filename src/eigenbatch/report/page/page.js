"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const DASHES = ["solid", "dash", "longdash", "dashdot", "longdashdot"];
  const darkSystem = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)").matches;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  const state = { hidden: new Set(), run: Math.max(0, data.runs.findIndex((run) => run.spectrum)), open: null };
  try {
    const kept = JSON.parse(sessionStorage.getItem("eigenbatch-view"));
    if (kept) Object.assign(state, kept, { hidden: new Set(kept.hidden) });
  } catch { /* nothing was kept */ }
  const keep = () => {
    try {
      sessionStorage.setItem("eigenbatch-view", JSON.stringify({ ...state, hidden: [...state.hidden] }));
    } catch { /* storage refused: the view is lost on reload */ }
  };

  // --- how things look ------------------------------------------------------------
  const isDark = () => (root.dataset.theme ?? (darkSystem.matches ? "dark" : "light")) === "dark";
  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const colour = (group) => css(`--series-${group % 7}`);
  const faint = (hex, alpha) => hex + Math.round(alpha * 255).toString(16).padStart(2, "0");
  const dash = (group) => DASHES[group % DASHES.length];
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const shown = (group) => !state.hidden.has(data.groups[group]);

  function layout(chart, extra = {}) {
    const ink = css("--ink"), grid = css("--grid");
    const axis = { gridcolor: grid, zerolinecolor: css("--line"), linecolor: css("--line"), automargin: true };
    return {
      font: { family: "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif", size: 12, color: ink },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 48, r: 12, t: touch ? 12 : 28, b: 40 }, showlegend: false, hovermode: "closest",
      hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: ink } },
      dragmode: touch ? false : "zoom", uirevision: chart.id,
      modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--soft"), activecolor: ink },
      ...extra,
      xaxis: { ...axis, title: { text: "step", standoff: 6 }, ...extra.xaxis },
      yaxis: { ...axis, title: { text: chart.axis, standoff: 8 }, type: chart.log ? "log" : "linear",
        ...(chart.log ? { dtick: undefined, exponentformat: "power" } : {}), ...extra.yaxis },
    };
  }

  const range = (x, low, high, fill) => ({
    x: [...x, ...[...x].reverse()], y: [...high, ...[...low].reverse()],
    fill: "toself", fillcolor: fill, line: { width: 0 }, mode: "lines", hoverinfo: "skip",
  });

  // --- one function for each kind of chart: traces and what differs in the layout ----
  const kinds = {
    lines(chart) {
      const traces = [];
      const add = (curves, group, text) => chart.metrics.forEach((metric, second) => {
        const curve = curves[metric];
        if (!curve) return;
        const hue = colour(group);
        if (curve.low && !second) traces.push(range(curve.x, curve.low, curve.high, faint(hue, 0.14)));
        traces.push({
          x: curve.x, y: curve.y, mode: curve.x.length === 1 ? "markers" : "lines", text,
          line: { color: hue, width: second ? 1.4 : 1.7, dash: second ? "dot" : dash(group) },
          marker: { color: hue }, opacity: second ? 0.75 : 1,
          hovertemplate: `%{text}<br>step %{x}: %{y:.4g}${second ? " (dotted)" : ""}<extra></extra>`,
        });
      });
      data.bands.forEach((curves, group) => {
        if (curves && shown(group)) add(curves, group, plain(`${data.groups[group]}, median`));
      });
      for (const run of data.runs) {
        if (!data.bands[run.group] && shown(run.group)) add(run.curves, run.group, plain(run.name));
      }
      return [traces, {}];
    },

    band(chart) {
      const run = data.runs[state.run];
      const curves = chart.metrics.map((metric) => run.curves[metric]);
      const [measured, low, high, printedLow, printedHigh] = curves;
      if (!measured) return [[], nothing("this run has no readings")];
      const positive = curves.flatMap((curve) => (curve ? curve.y.filter((y) => y > 0) : []));
      const floor = Math.min(...positive) / 3;
      const raised = (values) => values.map((y) => (y > 0 ? y : floor));
      const hue = css("--series-2"), printed = css("--soft"), traces = [];
      if (low && high) traces.push({ ...range(low.x, raised(low.y), raised(high.y), faint(hue, 0.28)), line: { width: 1, color: hue } });
      for (const [curve, edge] of [[printedLow, "lower"], [printedHigh, "upper"]]) {
        if (curve) traces.push({ x: curve.x, y: raised(curve.y), mode: "lines", line: { color: printed, dash: "dash", width: 1.4 },
          hovertemplate: `printed ${edge} edge<br>step %{x}: %{y:.4g}<extra></extra>` });
      }
      if (measured.low) traces.push(range(measured.x, raised(measured.low), raised(measured.high), faint(css("--ink"), 0.15)));
      traces.push({ x: measured.x, y: raised(measured.y), mode: "lines+markers", marker: { size: 4 }, line: { color: css("--ink"), width: 2 },
        hovertemplate: "measured<br>step %{x}: %{y:.4g}<extra></extra>" });
      for (const note of all(".inside")) {
        note.textContent = Object.entries(run.inside).map(([band, [inside, total]]) =>
          `Inside the ${band === "paper" ? "printed" : band} band in ${inside} of ${total} readings.`).join(" ");
      }
      return [traces, {}];
    },

    heat(chart) {
      const spectrum = data.runs[state.run].spectrum;
      if (!spectrum) return [[], nothing("this run has no eigenvalues")];
      const z = spectrum.z.map((row) => row.map((value) => (value === null ? null : Math.log10(value))));
      const ends = z.flat().filter((value) => value !== null);
      const ticks = [];
      for (let p = Math.ceil(Math.min(...ends)); p <= 0; p++) ticks.push(p);
      return [[{
        type: "heatmap", x: spectrum.x, y: z.map((_, row) => row + 1), z, colorscale: "Cividis",
        colorbar: { title: { text: "share", side: "right" }, thickness: 12, tickvals: ticks, ticktext: ticks.map((p) => (p === 0 ? "1" : `10<sup>${p}</sup>`)), outlinewidth: 0 },
        customdata: spectrum.z, hovertemplate: "direction %{y}, step %{x}<br>share %{customdata:.3g}<extra></extra>",
      }], { yaxis: { gridcolor: "rgba(0,0,0,0)" } }];
    },

    accuracy(chart) {
      const along = chart.metrics[1], traces = [];
      const curves = data.accuracy[along];
      const longest = Math.max(...curves.flatMap((curve) => (curve ? curve.x : [])));
      const [unit, name] = along === "epoch" ? [1, "epoch"] : longest > 7200 ? [3600, "hours"] : longest > 300 ? [60, "minutes"] : [1, "seconds"];
      curves.forEach((curve, group) => {
        if (!curve || !shown(group)) return;
        const x = curve.x.map((value) => value / unit), hue = colour(group);
        if (Math.max(...curve.seeds) > 1) traces.push(range(x, curve.low, curve.high, faint(hue, 0.18)));
        traces.push({ x, y: curve.mean, mode: along === "epoch" || x.length === 1 ? "lines+markers" : "lines", marker: { size: 5, color: hue }, line: { color: hue, width: 2, dash: dash(group) },
          text: plain(data.groups[group]), customdata: curve.seeds,
          hovertemplate: `%{text}<br>${name} %{x:.4g}: %{y:.2%} (seeds: %{customdata})<extra></extra>` });
      });
      return [traces, { ...untrained(), xaxis: { title: { text: name, standoff: 6 } }, yaxis: { tickformat: ".0%" } }];
    },

    spectrum() {
      const values = data.eigenvalues, even = 1 / values.length;
      const x = values.map((_, index) => index + 1);
      return [[
        { x, y: values.map((value) => (value > 0 ? value : null)), mode: "lines+markers", marker: { size: 4 }, line: { color: colour(0), width: 2 },
          hovertemplate: "direction %{x}<br>share %{y:.3g}<extra></extra>" },
        { x: [1, values.length], y: [even, even], mode: "lines", line: { color: css("--soft"), dash: "dot", width: 1.4 }, hovertemplate: "all alike: %{y:.3g}<extra></extra>" },
      ], { xaxis: { title: { text: "direction", standoff: 6 } } }];
    },

    similarities() {
      const { edges, positive, negative } = data.similarities;
      const middle = edges.slice(1).map((edge, index) => (edge + edges[index]) / 2);
      const trace = (counts, name, group) => {
        const all = counts.reduce((sum, count) => sum + count, 0) || 1;
        return { x: middle, y: counts.map((count) => count / all), name, mode: "lines", line: { color: colour(group), width: 2, shape: "hvh" },
          fill: "tozeroy", fillcolor: faint(colour(group), 0.25), hovertemplate: `${name}<br>cosine %{x:.2f}: %{y:.2%}<extra></extra>` };
      };
      return [[trace(negative, "negatives", 0), trace(positive, "positives", 1)], {
        showlegend: true, legend: { orientation: "h", x: 0, y: 1.12 }, xaxis: { title: { text: "cosine", standoff: 6 } }, yaxis: { tickformat: ".0%" },
      }];
    },

    paired(chart) {
      const pairs = data.paired.filter((pair) => shown(pair.group));
      const baselines = new Set(pairs.map((pair) => pair.baseline));
      const names = pairs.map((pair) => [data.groups[pair.group], ...(baselines.size > 1 ? [`− ${data.groups[pair.baseline]}`] : [])]
        .flatMap((name) => name.split(" · ")).map((part) => plain(part)).join("<br>"));
      const traces = [];
      pairs.forEach((pair, row) => {
        const hue = colour(pair.group), y = pairs.length - row;
        traces.push({ x: pair.gains, y: pair.gains.map(() => y), mode: "markers", marker: { color: hue, size: 7, opacity: 0.5, symbol: "circle-open", line: { width: 2 } },
          text: pair.seeds.map((seed) => plain(`seed ${seed}`)), hovertemplate: "%{text}: %{x:+.2f} pp<extra></extra>" });
        traces.push({ x: [pair.mean], y: [y], mode: "markers", marker: { color: hue, size: 12, symbol: "diamond" },
          error_x: pair.interval ? { type: "data", symmetric: false, array: [pair.interval[1] - pair.mean], arrayminus: [pair.mean - pair.interval[0]], color: hue, thickness: 2.5, width: 7 } : undefined,
          hovertemplate: "mean %{x:+.2f} pp<extra></extra>" });
      });
      return [traces, {
        height: 90 + Math.max(46, 18 * Math.max(1, ...names.map((name) => name.split("<br>").length))) * Math.max(1, pairs.length),
        xaxis: { title: { text: chart.axis, standoff: 6 }, rangemode: "tozero", zeroline: true, zerolinewidth: 2, zerolinecolor: css("--soft") },
        yaxis: { title: { text: "" }, tickvals: pairs.map((_, row) => pairs.length - row), ticktext: names, range: [0.4, pairs.length + 0.6] },
      }];
    },
  };

  const untrained = () => (data.untrained === null ? {} : {
    shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: data.untrained, y1: data.untrained, line: { color: css("--soft"), width: 1.4, dash: "dot" } }],
    annotations: [{ text: `untrained ${(100 * data.untrained).toFixed(1)} %`, xref: "paper", x: 1, xanchor: "right", y: data.untrained, yanchor: "bottom", showarrow: false, font: { size: 11, color: css("--soft") } }],
  });

  const nothing = (text) => ({
    xaxis: { visible: false }, yaxis: { visible: false },
    annotations: [{ text, showarrow: false, xref: "paper", yref: "paper", x: 0.5, y: 0.5 }],
  });

  function draw(which = () => true) {
    for (const chart of data.charts.filter(which)) {
      const place = document.querySelector(`[data-chart="${chart.id}"]`);
      const [traces, extra] = kinds[chart.kind](chart);
      const size = root.classList.contains("printing") ? { width: place.clientWidth } : {};
      Plotly.react(place, traces, layout(chart, { ...extra, ...size }), {
        responsive: true, displaylogo: false, displayModeBar: touch ? false : "hover",
        modeBarButtons: [["toImage", "resetScale2d"]],
      });
    }
  }

  // --- what the reader can do -------------------------------------------------------
  const themeButton = document.getElementById("theme");
  function theme() {
    themeButton.textContent = isDark() ? "Light" : "Dark";
    themeButton.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
    draw();
  }
  themeButton.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("eigenbatch-theme", root.dataset.theme); } catch { /* not kept */ }
    theme();
  });
  darkSystem.addEventListener("change", theme);

  for (const chip of all(".chip")) {
    const name = data.groups[chip.dataset.group];
    chip.setAttribute("aria-pressed", String(!state.hidden.has(name)));
    chip.addEventListener("click", () => {
      if (!state.hidden.delete(name)) state.hidden.add(name);
      chip.setAttribute("aria-pressed", String(!state.hidden.has(name)));
      keep();
      draw((chart) => chart.kind !== "band" && chart.kind !== "heat");
    });
  }

  const pickers = all("select.run");
  if (!data.runs[state.run]) state.run = 0;
  for (const picker of pickers) {
    picker.value = String(state.run);
    picker.addEventListener("change", () => {
      state.run = Number(picker.value);
      for (const other of pickers) other.value = picker.value;
      keep();
      draw((chart) => chart.kind === "band" || chart.kind === "heat");
    });
  }

  const csvCell = (value) => {
    const text = value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const files = {
    csv: () => [[data.table.columns, ...data.table.rows].map((row) => row.map(csvCell).join(",")).join("\n") + "\n", "text/csv"],
    json: () => [JSON.stringify(data), "application/json"],
  };
  for (const button of all("[data-save]")) {
    button.addEventListener("click", () => {
      const [text, type] = files[button.dataset.save]();
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([text], { type }));
      link.download = `eigenbatch.${button.dataset.save}`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
  }

  function paragraph(label, text) {
    const line = document.createElement("p"), strong = document.createElement("strong");
    strong.textContent = label;
    line.append(strong, text);
    return line;
  }
  function explain(episode) {
    const box = episode.closest(".timeline"), told = episode.dataset;
    const wasOpen = episode.getAttribute("aria-expanded") === "true";
    for (const other of all(".episode", box)) other.setAttribute("aria-expanded", "false");
    const panel = box.querySelector(".finding");
    panel.replaceChildren();
    state.open = wasOpen ? null : told.key;
    keep();
    if (wasOpen) return;
    episode.setAttribute("aria-expanded", "true");
    const when = told.first === told.last ? `step ${told.first}` : `steps ${told.first} to ${told.last}`;
    panel.append(
      paragraph(told.name, ` (${told.severity}), ${when}, ${told.readings} reading${told.readings === "1" ? "" : "s"}`),
      paragraph("Evidence: ", told.evidence),
    );
    if (told.lastEvidence !== told.evidence) panel.append(paragraph("At the end: ", told.lastEvidence));
    panel.append(paragraph("Advice: ", told.advice));
  }
  for (const episode of all(".episode")) {
    episode.addEventListener("click", () => explain(episode));
    if (state.open !== null && episode.dataset.key === state.open) explain(episode);
  }

  const links = new Map(all("nav a").map((link) => [link.hash.slice(1), link]));
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((one) => one.isIntersecting)) {
      for (const link of links.values()) link.removeAttribute("aria-current");
      links.get(entry.target.id)?.setAttribute("aria-current", "location");
    }
  }, { rootMargin: "-15% 0px -75% 0px" });
  for (const section of all("main section")) watcher.observe(section);

  let before = null;
  addEventListener("beforeprint", () => {
    before = { theme: root.dataset.theme, closed: all("details:not([open])") };
    root.dataset.theme = "light";
    root.classList.add("printing");
    for (const one of before.closed) one.open = true;
    draw();
  });
  addEventListener("afterprint", () => {
    if (before.theme) root.dataset.theme = before.theme; else delete root.dataset.theme;
    root.classList.remove("printing");
    for (const one of before.closed) one.open = false;
    draw();
  });

  theme();
  root.dataset.ready = "true";
})();
